"""The single writer of a node among others: transfers of messages, and what follows when the node is fenced."""

from __future__ import annotations

import asyncio

from flyball.broker.store.changes import QueueCreated, QueueMoved
from flyball.broker.store.group_commit import GroupCommit
from flyball.broker.store.interface import Batch, Transfer
from flyball.errors import Fenced, StoreError
from flyball.model import Queue
from tests.broker.store.test_group_commit import LIMIT_S, Answers, message, running, turns


async def test_a_transfer_follows_what_was_submitted_before_it() -> None:
    async with running() as bench:
        waiter, transfer = Answers(), Transfer([1, 2], 1, 7)
        bench.writer.append(message(9), None)
        await turns()
        bench.writer.remove(message(3), None)
        bench.writer.transfer(transfer, waiter)
        assert (bench.writer.pending_count, bench.writer.removing_ids()) == (3, {1, 2, 3})
        await bench.journal.sent().succeed()
        assert bench.journal.sent().batch == Batch(removed=[3], transfers=[transfer])
        assert (bench.writer.removing_ids(), waiter.told) == ({1, 2, 3}, (0, 0))
        await bench.journal.sent().succeed()
        assert (waiter.told, bench.writer.pending_count, bench.writer.removing_ids()) == ((1, 0), 0, set())


async def test_a_transfer_outlasts_the_time_limit_and_is_tried_until_it_is_done() -> None:
    async with running() as bench:
        sent, unsent = Answers(), Answers()
        transfers = [Transfer([1], 1, 7), Transfer([2], 1, 7)]
        bench.writer.transfer(transfers[0], sent)
        await turns()
        bench.writer.append(message(5), unsent)
        bench.writer.transfer(transfers[1], unsent)
        await bench.clock.advance(1.2 * LIMIT_S)
        assert (sent.told, unsent.told) == ((0, 0), (0, 1))
        await bench.journal.sent().fail()
        await bench.clock.advance(0.1)
        assert (bench.journal.sent().again, bench.journal.sent().batch.transfers) == (True, [transfers[0]])
        await bench.journal.sent().succeed()
        assert bench.journal.sent().batch == Batch(transfers=[transfers[1]])
        await bench.journal.sent().succeed()
        assert (sent.told, unsent.told) == ((1, 0), (1, 1))


async def test_transfer_fails_if_refused_and_if_the_writer_ends() -> None:
    refused, ended = Answers(), Answers()
    async with running() as bench:
        bench.writer.transfer(Transfer([1], 1, 7), refused)
        await turns()
        await bench.journal.sent().fail(error=StoreError("never"))
        bench.writer.transfer(Transfer([2], 1, 7), ended)
        await turns()
        bench.writer.transfer(Transfer([3], 1, 7), ended)
    assert (refused.told, ended.told) == ((0, 1), (0, 2))


class WithoutDestination:
    """Commits everything but transfers to queue 7, which is gone."""

    async def commit(self, batch: Batch, *, again: bool = False) -> None:
        batch.refused = [transfer for transfer in batch.transfers if transfer.destination == 7]


async def test_who_transfers_to_a_queue_that_is_gone_hears_that_and_others_do_not() -> None:
    writer, gone, done = GroupCommit(WithoutDestination()), Answers(), Answers()
    async with asyncio.TaskGroup() as group:
        group.create_task(writer.run())
        await turns()
        writer.transfer(Transfer([1], 1, 7), gone)
        writer.transfer(Transfer([1], 1, 8), done)
        writer.transfer(Transfer([2], 1, 7), None)
        await writer.flush()
        await writer.stop()
    assert (gone.told, done.told) == ((0, 1), (1, 0))


async def test_undone_removes_are_stored_before_the_queue_moves() -> None:
    async with running() as bench:
        bench.writer.append(message(1), None)
        await turns()
        await bench.journal.sent().succeed()
        bench.writer.append(message(2), None)
        await turns()
        waiter, moved = Answers(), QueueMoved(Queue(1, "q"), 2)
        bench.writer.remove(bench.journal.contents[1], waiter)
        bench.writer.change(moved, None)
        await bench.journal.sent().succeed()
        await bench.clock.advance(1.2 * LIMIT_S)
        assert waiter.told == (0, 1)
        while bench.journal.attempt is not None:
            await bench.journal.sent().succeed()
            if moved in bench.journal.changes:
                assert set(bench.journal.contents) == {1, 2}
        assert bench.journal.changes == [moved]


async def test_a_writer_that_is_fenced_asks_the_store_no_more_and_fails_everything() -> None:
    async with running() as bench:
        waiter = Answers()
        bench.writer.append(message(1), waiter)
        await turns()
        bench.writer.change(QueueCreated(Queue(1, "q")), waiter)
        bench.writer.transfer(Transfer([1], 1, 7), waiter)
        bench.writer.mark(waiter)
        await bench.journal.sent().fail()
        await bench.clock.advance(0.1)
        await bench.journal.sent().fail(error=Fenced("over"))
        assert (bench.journal.attempts, waiter.told) == (2, (0, 4))
        bench.writer.append(message(2), waiter)
        bench.writer.remove(message(3), waiter)
        await turns()
        assert (bench.journal.attempts, waiter.told) == (2, (0, 6))
        assert all(isinstance(error, Fenced) for error in waiter.errors)
        assert bench.writer.pending_count == 0


async def test_somebody_else_may_find_out_that_the_node_is_fenced() -> None:
    async with running() as bench:
        waiter = Answers()
        bench.writer.append(message(1), waiter)
        await turns()
        bench.writer.fence(Fenced("over"))
        await bench.journal.sent().succeed()
        bench.writer.append(message(2), waiter)
        await turns()
        assert (bench.journal.attempts, waiter.told) == (1, (1, 1))
