"""The single writer, with a store whose every commit the test answers and a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import uvloop
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flyball.broker.store.changes import QueueCreated, QueueDeleted
from flyball.broker.store.group_commit import LINGER_S, MAX_BATCH_BYTES, GroupCommit, Undo
from flyball.broker.store.interface import Batch
from flyball.broker.store.pending_batch import OutcomeUnknown
from flyball.errors import FlyballError, StoreError, StoreUnavailable
from flyball.model import Message, Queue

LIMIT_S = 10.0


async def turns() -> None:
    """Let everything that can go on without outside help go on."""
    for _ in range(12):
        await asyncio.sleep(0)


class ManualClock:
    def __init__(self) -> None:
        self._now = 1000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (self._now + seconds, woken)
        self._sleepers.append(entry)
        try:
            await woken
        finally:
            self._sleepers.remove(entry)

    async def advance(self, seconds: float) -> None:
        """Move on, stopping wherever a task wakes up."""
        target = self._now + seconds
        while True:
            await turns()
            due = [entry for entry in self._sleepers if entry[0] <= target and not entry[1].done()]
            if not due:
                break
            self._now, woken = min(due, key=lambda entry: entry[0])
            woken.set_result(None)
        self._now = target


@dataclass(eq=False)
class Attempt:
    """One call of commit, waiting for the test to decide."""

    journal: HeldJournal
    batch: Batch
    again: bool
    answer: asyncio.Future[None]

    def _apply(self) -> None:
        self.journal.changes.extend(self.batch.changes)
        for message in self.batch.appended:
            assert self.again or message.id not in self.journal.contents
            self.journal.contents[message.id] = message
        for message_id in self.batch.removed:
            self.journal.contents.pop(message_id, None)

    async def succeed(self) -> None:
        self._apply()
        self.answer.set_result(None)
        await turns()

    async def fail(self, *, applied: bool = False, error: StoreError | None = None) -> None:
        if applied:
            self._apply()
        self.answer.set_exception(error or StoreUnavailable("gone"))
        await turns()


@dataclass(eq=False)
class HeldJournal:
    contents: dict[int, Message] = field(default_factory=dict)
    changes: list[object] = field(default_factory=list)
    attempt: Attempt | None = None
    attempts: int = 0
    cancelled: int = 0
    applies_when_cancelled: bool = False

    async def commit(self, batch: Batch, *, again: bool = False) -> None:
        assert self.attempt is None, "two commits at a time"
        assert batch, "an empty batch was sent"
        copy = Batch([*batch.changes], [*batch.appended], [*batch.removed], [*batch.transfers])
        self.attempt = attempt = Attempt(self, copy, again, asyncio.get_running_loop().create_future())
        self.attempts += 1
        try:
            await attempt.answer
        except asyncio.CancelledError:
            self.cancelled += 1
            if self.applies_when_cancelled:
                attempt._apply()
            raise
        finally:
            self.attempt = None

    def sent(self) -> Attempt:
        assert self.attempt is not None
        return self.attempt


class Answers:
    """A waiter that counts its calls."""

    def __init__(self) -> None:
        self.committed_count = 0
        self.errors: list[FlyballError] = []

    def committed(self) -> None:
        self.committed_count += 1

    def failed(self, error: FlyballError) -> None:
        self.errors.append(error)

    @property
    def told(self) -> tuple[int, int]:
        return self.committed_count, len(self.errors)


@dataclass(eq=False)
class Bench:
    journal: HeldJournal
    clock: ManualClock
    writer: GroupCommit
    flushed: list[None]


@contextlib.asynccontextmanager
async def running(undo: Undo | None = None) -> AsyncIterator[Bench]:
    journal, clock, flushed = HeldJournal(), ManualClock(), list[None]()
    writer = GroupCommit(journal, clock=clock, time_limit_s=LIMIT_S, undo=undo)
    writer.flushed.subscribe(lambda: flushed.append(None))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(writer.run())
        await turns()
        try:
            yield Bench(journal, clock, writer, flushed)
        finally:
            task.cancel()


def message(number: int, body: bytes = b"") -> Message:
    return Message(number, 1, body)


def ids(attempt: Attempt) -> tuple[list[int], list[int]]:
    return [appended.id for appended in attempt.batch.appended], attempt.batch.removed


async def test_operations_submitted_during_a_commit_go_into_the_next() -> None:
    async with running() as bench:
        waiter = Answers()
        bench.writer.append(message(1), waiter)
        bench.writer.append(message(2), waiter)
        await turns()
        bench.writer.append(message(3), waiter)
        assert ids(bench.journal.sent()) == ([1, 2], [])
        assert (bench.writer.pending_count, waiter.told) == (3, (0, 0))
        await bench.journal.sent().succeed()
        assert (ids(bench.journal.sent()), waiter.told) == (([3], []), (2, 0))
        await bench.journal.sent().succeed()
        assert (waiter.told, bench.writer.pending_count, bench.writer.pending_bytes) == ((3, 0), 0, 0)
        assert (bench.writer.commits, bench.writer.rows_appended, len(bench.flushed)) == (2, 3, 2)


async def test_operations_submitted_together_are_one_batch_whatever_their_size() -> None:
    async with running() as bench:
        bench.writer.append(message(1), None)
        await turns()
        old, large = message(2), bytes(MAX_BATCH_BYTES)
        bench.writer.append(old, None)
        with bench.writer.together():
            for number in (3, 4):
                bench.writer.append(message(number, large), None)
            bench.writer.remove(old, None, spare=False)
        bench.writer.append(message(5), None)
        await bench.journal.sent().succeed()
        assert ids(bench.journal.sent()) == ([2, 3, 4], [2])
        await bench.journal.sent().succeed()
        assert ids(bench.journal.sent()) == ([5], [])


async def test_message_is_marked_stored_before_its_waiter_is_called() -> None:
    async with running() as bench:
        first, seen = message(1), list[bool]()

        class Looks(Answers):
            def committed(self) -> None:
                seen.append(first.stored)

        bench.writer.append(first, Looks())
        await turns()
        assert not first.stored
        await bench.journal.sent().succeed()
        assert seen == [True]


async def test_an_append_and_its_remove_cancel_out_before_they_are_sent() -> None:
    async with running() as bench:
        waiter, other = Answers(), message(2)
        bench.writer.append(message(9), None)
        await turns()
        first = message(1)
        bench.writer.append(first, waiter)
        bench.writer.append(other, waiter)
        bench.writer.remove(first, waiter)
        await bench.journal.sent().succeed()
        assert ids(bench.journal.sent()) == ([2], [])
        assert waiter.told == (0, 0)
        await bench.journal.sent().succeed()
        assert waiter.told == (3, 0)


async def test_a_message_whose_place_another_takes_is_written_all_the_same() -> None:
    async with running() as bench:
        bench.writer.append(message(9), None)
        await turns()
        bench.writer.append(message(1), None)
        bench.writer._seal()
        bench.writer.append(message(2), None)
        assert not bench.writer.remove(message(1), None, spare=False)
        await bench.journal.sent().succeed()
        assert ids(bench.journal.sent()) == ([1], [])
        await bench.journal.sent().succeed()
        assert ids(bench.journal.sent()) == ([2], [1])


async def test_where_everything_cancels_out_the_store_is_not_asked() -> None:
    async with running() as bench:
        waiter, first = Answers(), message(1)
        bench.writer.append(first, waiter)
        bench.writer.remove(first, waiter)
        await turns()
        assert (bench.journal.attempts, waiter.told, bench.writer.pending_count) == (0, (2, 0), 0)
        assert len(bench.flushed) == 1


async def test_a_remove_of_what_is_in_flight_follows_in_the_next_commit() -> None:
    async with running() as bench:
        waiter, first = Answers(), message(1)
        bench.writer.append(first, waiter)
        await turns()
        bench.writer.remove(first, waiter)
        await bench.journal.sent().succeed()
        assert ids(bench.journal.sent()) == ([], [1])
        await bench.journal.sent().succeed()
        assert (waiter.told, bench.journal.contents) == ((2, 0), {})


async def deal_with_all_before_they_are_written(bench: Bench) -> None:
    """Bring it about that messages are removed before they are sent, batch after batch."""
    for number in range(100, 110):
        bench.writer.append(message(number), None)
        assert bench.writer.remove(message(number), None)
        await bench.clock.advance(LINGER_S)


async def test_a_batch_waits_a_little_while_most_messages_need_not_be_written() -> None:
    async with running() as bench:
        await deal_with_all_before_they_are_written(bench)
        bench.writer.append(message(1), None)
        bench.writer.append(message(2), None)
        await turns()
        assert bench.journal.attempts == 0
        assert bench.writer.remove(message(1), None)
        await bench.clock.advance(LINGER_S)
        assert ids(bench.journal.sent()) == ([2], [])
        assert not bench.writer.remove(message(2), None)


async def test_a_batch_that_somebody_waits_for_himself_goes_at_once() -> None:
    async with running() as bench:
        await deal_with_all_before_they_are_written(bench)
        bench.writer.append(message(1), Answers())
        await turns()
        assert ids(bench.journal.sent()) == ([1], [])


async def test_batches_go_at_once_again_when_messages_have_to_be_written() -> None:
    async with running() as bench:
        await deal_with_all_before_they_are_written(bench)
        for number in range(1, 9):
            bench.writer.append(message(number), None)
            await bench.clock.advance(LINGER_S)
            await bench.journal.sent().succeed()
        bench.writer.append(message(9), None)
        await turns()
        assert ids(bench.journal.sent()) == ([9], [])


async def test_a_failed_commit_is_tried_again_with_growing_pauses() -> None:
    async with running() as bench:
        waiter = Answers()
        bench.writer.append(message(1), waiter)
        await turns()
        for pause_s in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
            await bench.journal.sent().fail(applied=True)
            await bench.clock.advance(pause_s - 0.01)
            assert bench.journal.attempt is None
            await bench.clock.advance(0.02)
            assert bench.journal.sent().again
        since = bench.writer.failing_since
        await bench.journal.sent().succeed()
        assert (waiter.told, bench.writer.failures) == ((1, 0), 7)
        assert since is not None
        assert bench.writer.failing_since is None


async def test_operations_that_were_not_sent_are_withdrawn_after_the_time_limit() -> None:
    async with running() as bench:
        bench.writer.append(message(1), None)
        await turns()
        waiter, old = Answers(), message(2)
        old.stored = True
        bench.writer.append(message(3, b"x" * 1000), waiter)
        bench.writer.remove(old, waiter)
        bench.writer.change(QueueCreated(Queue(1, "q")), waiter)
        await bench.clock.advance(LIMIT_S * 0.99)
        assert waiter.told == (0, 0)
        await bench.clock.advance(LIMIT_S * 0.2)
        assert waiter.told == (0, 3)
        assert not any(isinstance(error, OutcomeUnknown) for error in waiter.errors)
        assert (old.stored, bench.writer.pending_count) == (True, 1)
        await bench.journal.sent().succeed()
        assert (bench.journal.attempt, set(bench.journal.contents)) == (None, {1})


async def test_operations_that_nobody_waits_for_are_never_given_up() -> None:
    async with running() as bench:
        bench.writer.append(message(1), None)
        await turns()
        bench.writer.append(message(2), None)
        await bench.journal.sent().fail()
        for _ in range(60):
            await bench.clock.advance(1.0)
            if bench.journal.attempt is not None:
                await bench.journal.sent().fail()
        await bench.clock.advance(1.1)
        await bench.journal.sent().succeed()
        await bench.journal.sent().succeed()
        assert set(bench.journal.contents) == {1, 2}


async def test_a_remove_that_failed_in_flight_is_undone_by_the_next_attempt() -> None:
    async with running() as bench:
        waiter, first = Answers(), message(1)
        bench.journal.contents[1] = first
        first.stored = True
        bench.writer.remove(first, waiter)
        await turns()
        await bench.clock.advance(LIMIT_S * 1.2)
        assert (waiter.told, first.stored) == ((0, 1), False)
        await bench.journal.sent().fail(applied=True)
        await bench.clock.advance(0.1)
        assert ids(bench.journal.sent()) == ([1], [])
        await bench.journal.sent().succeed()
        assert (set(bench.journal.contents), first.stored, waiter.told) == ({1}, True, (0, 1))


async def test_failed_remove_that_succeeds_after_all_is_undone_at_once() -> None:
    async with running() as bench:
        waiter, first = Answers(), message(1)
        bench.journal.contents[1] = first
        first.stored = True
        bench.writer.remove(first, waiter)
        await turns()
        await bench.clock.advance(LIMIT_S * 1.2)
        again = Answers()
        bench.writer.remove(first, again)  # the message went back to its queue, and the next reader took it
        await bench.clock.advance(LIMIT_S * 0.1)
        await bench.journal.sent().succeed()
        assert ids(bench.journal.sent()) == ([1], [])
        await bench.journal.sent().succeed()
        assert ids(bench.journal.sent()) == ([], [1])
        await bench.journal.sent().succeed()
        assert (bench.journal.contents, waiter.told, again.told) == ({}, (0, 1), (1, 0))


class Undoing:
    """Records what it must undo."""

    def __init__(self) -> None:
        self.appended: list[int] = []
        self.removed: list[int] = []

    def append_refused(self, message: Message) -> None:
        self.appended.append(message.id)

    def remove_refused(self, message: Message) -> None:
        self.removed.append(message.id)


async def test_remove_that_failed_in_flight_and_is_refused_is_undone_once() -> None:
    undoing = Undoing()
    async with running(undoing) as bench:
        waiter, first = Answers(), message(1)
        bench.journal.contents[1] = first
        first.stored = True
        bench.writer.remove(first, waiter)
        await turns()
        await bench.clock.advance(LIMIT_S * 1.2)
        assert waiter.told == (0, 1)  # and the message is in its queue again
        await bench.journal.sent().fail(error=StoreError("never"))
        assert (waiter.told, undoing.removed, first.stored) == ((0, 1), [], True)
        assert bench.writer.pending_count == 0


async def test_answer_of_what_cancelled_out_may_submit_something() -> None:
    class Submitting(Answers):
        def committed(self) -> None:
            super().committed()
            bench.writer.append(message(3), None)

    async with running() as bench:
        bench.writer.append(message(1), None)
        await turns()
        second, waiter = message(2), Submitting()
        bench.writer.append(second, None)
        await bench.clock.advance(LIMIT_S * 1.2)
        assert bench.writer.remove(second, waiter)
        await bench.clock.advance(LIMIT_S * 0.1)
        assert waiter.told == (1, 0)
        await bench.journal.sent().succeed()
        assert ids(bench.journal.sent()) == ([3], [])


async def test_an_append_that_failed_in_flight_does_not_stay_in_the_store() -> None:
    for succeeds_after_all in (True, False):
        async with running() as bench:
            waiter = Answers()
            bench.writer.append(message(1), waiter)
            await turns()
            await bench.clock.advance(LIMIT_S * 1.2)
            assert waiter.told == (0, 1)
            if succeeds_after_all:
                await bench.journal.sent().succeed()
            else:
                await bench.journal.sent().fail(applied=True)
                await bench.clock.advance(0.1)
            assert ids(bench.journal.sent()) == ([], [1])
            await bench.journal.sent().succeed()
            assert (bench.journal.contents, waiter.told, bench.writer.pending_count) == ({}, (0, 1), 0)


async def test_a_change_that_failed_in_flight_may_yet_be_done_and_says_so() -> None:
    async with running() as bench:
        waiter = Answers()
        bench.writer.change(QueueCreated(Queue(1, "q")), waiter)
        await turns()
        await bench.clock.advance(LIMIT_S * 1.2)
        assert [type(error) for error in waiter.errors] == [OutcomeUnknown]
        await bench.journal.sent().fail()
        await bench.clock.advance(0.1)
        await bench.journal.sent().succeed()
        assert len(bench.journal.changes) == 1


async def test_a_commit_that_hangs_is_abandoned_after_twice_the_limit_and_made_again() -> None:
    async with running() as bench:
        waiter = Answers()
        bench.writer.append(message(1), None)
        bench.writer.append(message(2), waiter)
        await turns()
        await bench.clock.advance(LIMIT_S * 1.2)
        assert (waiter.told, bench.journal.cancelled) == ((0, 1), 0)
        await bench.clock.advance(LIMIT_S)
        assert bench.journal.cancelled == 1
        await bench.clock.advance(0.1)
        assert ids(bench.journal.sent()) == ([1], [2])
        await bench.journal.sent().succeed()
        assert set(bench.journal.contents) == {1}


async def test_a_batch_that_the_store_refuses_fails_and_the_next_goes_on() -> None:
    async with running() as bench:
        waiter = Answers()
        bench.writer.append(message(1), waiter)
        await turns()
        bench.writer.append(message(2), waiter)
        await bench.journal.sent().fail(error=StoreError("never"))
        assert waiter.told == (0, 1)
        await bench.journal.sent().succeed()
        assert (waiter.told, set(bench.journal.contents)) == ((1, 1), {2})


async def test_a_large_backlog_goes_out_in_several_batches() -> None:
    async with running() as bench:
        waiter, body = Answers(), b"x" * 750_000
        bench.writer.append(message(0), waiter)
        await turns()
        for number in range(1, 6):
            bench.writer.append(message(number, body), waiter)
        assert bench.writer.pending_bytes > 3_750_000
        sizes = []
        while bench.journal.attempt is not None:
            sizes.append(len(bench.journal.sent().batch.appended))
            await bench.journal.sent().succeed()
        assert (sizes, waiter.told) == ([1, 3, 2], (6, 0))


async def test_flush_waits_for_everything_submitted_before() -> None:
    async with running() as bench, asyncio.TaskGroup() as group:
        await bench.writer.flush()
        bench.writer.append(message(1), None)
        await turns()
        in_flight = group.create_task(bench.writer.flush())
        bench.writer.append(message(2), None)
        behind = group.create_task(bench.writer.flush())
        await turns()
        await bench.journal.sent().succeed()
        assert (in_flight.done(), behind.done()) == (False, False)
        await bench.journal.sent().succeed()
        assert (in_flight.done(), behind.done()) == (True, True)


async def test_flush_fails_when_the_time_limit_passes() -> None:
    async with running() as bench:
        bench.writer.append(message(1), None)
        flush = asyncio.ensure_future(bench.writer.flush())
        await bench.clock.advance(LIMIT_S * 1.2)
        with pytest.raises(StoreUnavailable):
            await flush
        with pytest.raises(StoreUnavailable):
            await bench.writer.flush()


class Ordered(Answers):
    """Appends to a list when it is called."""

    def __init__(self, name: str, heard: list[str]) -> None:
        super().__init__()
        self._name = name
        self._heard = heard

    def committed(self) -> None:
        super().committed()
        self._heard.append(self._name)


async def test_a_mark_is_told_at_once_when_nothing_is_pending() -> None:
    async with running() as bench:
        mark = Answers()
        bench.writer.mark(mark)
        assert mark.told == (1, 0)


async def test_a_mark_is_told_after_everything_submitted_before() -> None:
    async with running() as bench:
        heard: list[str] = []
        bench.writer.append(message(1), Ordered("first", heard))
        await turns()
        bench.writer.mark(Ordered("mark in flight", heard))
        cancelled = message(2)
        bench.writer.append(cancelled, Ordered("cancelled", heard))
        bench.writer.mark(Ordered("mark behind", heard))
        bench.writer.change(QueueCreated(Queue(1, "q")), Ordered("change", heard))
        bench.writer.remove(cancelled, None)
        await bench.journal.sent().succeed()
        assert heard == ["first", "mark in flight"]
        await bench.journal.sent().succeed()
        assert heard[2:] == ["change", "cancelled", "mark behind"]


async def test_a_mark_outlasts_the_time_limit_and_those_who_wait_with_it() -> None:
    async with running() as bench:
        flying, withdrawn, waiter = Answers(), Answers(), Answers()
        bench.writer.append(message(1), None)
        await turns()
        bench.writer.mark(flying)
        bench.writer.append(message(2), waiter)
        bench.writer.mark(withdrawn)
        await bench.clock.advance(LIMIT_S * 1.5)
        assert (waiter.told, flying.told, withdrawn.told) == ((0, 1), (0, 0), (0, 0))
        await bench.journal.sent().fail()
        await bench.clock.advance(0.1)
        assert (flying.told, withdrawn.told) == ((0, 0), (0, 0))
        await bench.journal.sent().succeed()
        assert (flying.told, withdrawn.told, bench.journal.attempts) == ((1, 0), (1, 0), 2)


async def test_a_mark_fails_with_its_batch_when_the_store_refuses_that() -> None:
    async with running() as bench:
        refused, next_one = Answers(), Answers()
        bench.writer.append(message(1), None)
        bench.writer.mark(refused)
        await turns()
        bench.writer.append(message(2), None)
        bench.writer.mark(next_one)
        await bench.journal.sent().fail(error=StoreError("never"))
        assert (refused.told, next_one.told) == ((0, 1), (0, 0))
        await bench.journal.sent().succeed()
        assert next_one.told == (1, 0)


async def test_marks_fail_when_the_writer_ends_before_them() -> None:
    async with running() as bench:
        mark = Answers()
        bench.writer.append(message(1), None)
        await turns()
        bench.writer.mark(mark)
        bench.writer.append(message(2), None)
        bench.writer.mark(mark)
    assert mark.told == (0, 2)


async def test_a_new_batch_has_a_new_number_and_one_mark_serves_all_of_it() -> None:
    async with running() as bench:
        mark = Answers()
        bench.writer.append(message(1), None)
        first = bench.writer.batch_number
        bench.writer.mark(mark)
        bench.writer.append(message(2), None)
        bench.writer.change(QueueCreated(Queue(1, "q")), None)
        assert bench.writer.batch_number == first
        await turns()
        bench.writer.append(message(3), None)
        assert bench.writer.batch_number != first
        await bench.journal.sent().succeed()
        assert (mark.told, set(bench.journal.contents)) == ((1, 0), {1, 2})


async def test_messages_being_removed_are_known_until_that_is_committed() -> None:
    async with running() as bench:
        flying, waiting, unsent = message(1), message(2), message(3)
        flying.stored = waiting.stored = True
        bench.writer.remove(flying, None)
        await turns()
        bench.writer.remove(waiting, None)
        bench.writer.append(unsent, None)
        bench.writer.remove(unsent, None)
        assert bench.writer.removing_ids() == {1, 2}
        await bench.journal.sent().succeed()
        assert bench.writer.removing_ids() == {2}
        await bench.journal.sent().succeed()
        assert bench.writer.removing_ids() == set()


async def test_a_remove_that_failed_is_not_being_removed_but_an_append_that_failed_is() -> None:
    async with running() as bench:
        removed, appended = message(1), message(2)
        removed.stored = True
        bench.writer.remove(removed, Answers())
        bench.writer.append(appended, Answers())
        await turns()
        assert bench.writer.removing_ids() == {1}
        await bench.clock.advance(LIMIT_S * 1.2)
        assert bench.writer.removing_ids() == {2}
        await bench.journal.sent().fail(applied=True)
        await bench.clock.advance(0.1)
        assert (ids(bench.journal.sent()), bench.writer.removing_ids()) == (([1], [2]), {2})


async def test_cancelled_operations_take_no_room() -> None:
    async with running() as bench:
        bench.writer.append(message(9), None)
        await turns()
        before = bench.writer.pending_bytes
        first = message(1, b"x" * 1000)
        bench.writer.append(first, None)
        bench.writer.remove(first, None)
        assert (bench.writer.pending_bytes, bench.writer.pending_count) == (before, 1)


async def test_many_changes_go_out_in_several_batches() -> None:
    async with running() as bench:
        bench.writer.append(message(1), None)
        await turns()
        first = bench.writer.batch_number
        for number in range(12_500):
            bench.writer.change(QueueDeleted(number), None)
        assert bench.writer.batch_number == first + 2
        for _ in range(3):
            await bench.journal.sent().succeed()
        assert bench.journal.changes == [QueueDeleted(number) for number in range(12_500)]


async def test_stop_commits_what_is_pending_and_may_be_called_twice() -> None:
    async with running() as bench, asyncio.TaskGroup() as group:
        waiter = Answers()
        bench.writer.append(message(1), waiter)
        stopping = group.create_task(bench.writer.stop())
        await turns()
        assert not stopping.done()
        await bench.journal.sent().succeed()
        assert stopping.done()
        await bench.writer.stop()
        assert waiter.told == (1, 0)


async def test_stop_gives_up_on_a_store_that_hangs() -> None:
    async with running() as bench, asyncio.TaskGroup() as group:
        waiter = Answers()
        bench.writer.append(message(1), waiter)
        bench.writer.append(message(2), None)
        stopping = group.create_task(bench.writer.stop())
        await bench.clock.advance(LIMIT_S * 1.3)
        assert (stopping.done(), waiter.told, bench.journal.cancelled) == (True, (0, 1), 1)


async def test_a_writer_that_is_cancelled_fails_everybody_who_waits() -> None:
    async with running() as bench:
        waiter = Answers()
        bench.writer.append(message(1), waiter)
        await turns()
        bench.writer.append(message(2), waiter)
    assert waiter.told == (0, 2)


async def test_a_writer_can_run_again_after_a_stop() -> None:
    async with running() as bench, asyncio.TaskGroup() as group:
        await bench.writer.stop()
        second = group.create_task(bench.writer.run())
        waiter = Answers()
        bench.writer.append(message(1), waiter)
        await turns()
        await bench.journal.sent().succeed()
        await bench.writer.stop()
        await second
        assert waiter.told == (1, 0)


class Outcome(Answers):
    """The outcome of one operation in the state machine below."""

    def __init__(self, machine: WriterMachine, subject: Message, *, removes: bool) -> None:
        super().__init__()
        self._machine = machine
        self._subject = subject
        self._removes = removes

    def failed(self, error: FlyballError) -> None:
        super().failed(error)
        if self._removes:
            self._machine.engine[self._subject.id] = self._subject
        else:
            self._machine.engine.pop(self._subject.id, None)


class Mark(Answers):
    """When notified, checks whether everything submitted before it has been answered, and is done."""

    def __init__(self, machine: WriterMachine) -> None:
        super().__init__()
        self.came_early = False
        self._machine = machine
        self._before = [*machine.outcomes]
        self._appended = [number for number, outcome in machine.appends.items() if outcome is None]
        self._removed = [number for number, removes in machine.removes.items() if None in removes]

    def committed(self) -> None:
        super().committed()
        contents, removes = self._machine.journal.contents, self._machine.removes
        self.came_early = (
            any(sum(outcome.told) == 0 for outcome in self._before)
            or any(number not in contents for number in self._appended if number not in removes)
            or any(number in contents for number in self._removed)
        )


class WriterMachine(RuleBasedStateMachine):
    """Any order of appends, removes, marks, failures, hangs and time against what was promised."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.engine: dict[int, Message] = {}
        # None where no caller waits.
        self.appends: dict[int, Outcome | None] = {}
        self.removes: dict[int, list[Outcome | None]] = {}
        self.outcomes: list[Outcome] = []
        self.marks: list[Mark] = []
        self.subjects: dict[int, Message] = {}

    @initialize()
    def begin(self) -> None:
        self.runner.run(self._begin())

    async def _begin(self) -> None:
        self.journal, self.clock = HeldJournal(), ManualClock()
        self.writer = GroupCommit(self.journal, clock=self.clock, time_limit_s=LIMIT_S)
        self.task = asyncio.ensure_future(self.writer.run())
        await turns()

    async def _turns(self) -> None:
        await turns()

    def _outcome(self, subject: Message, *, removes: bool, waits: bool) -> Outcome | None:
        if not waits:
            return None
        self.outcomes.append(Outcome(self, subject, removes=removes))
        return self.outcomes[-1]

    @rule(count=st.integers(1, 3), waits=st.booleans(), goes_on=st.booleans())
    def append(self, count: int, waits: bool, goes_on: bool) -> None:
        for _ in range(count):
            subject = message(len(self.subjects) + 1)
            self.subjects[subject.id] = self.engine[subject.id] = subject
            self.appends[subject.id] = self._outcome(subject, removes=False, waits=waits)
            self.writer.append(subject, self.appends[subject.id])
        if goes_on:
            self.runner.run(self._turns())

    @precondition(lambda self: self.engine)
    @rule(data=st.data(), waits=st.booleans(), goes_on=st.booleans())
    def remove(self, data: st.DataObject, waits: bool, goes_on: bool) -> None:
        subject = self.engine.pop(data.draw(st.sampled_from(sorted(self.engine))))
        outcome = self._outcome(subject, removes=True, waits=waits)
        self.removes.setdefault(subject.id, []).append(outcome)
        self.writer.remove(subject, outcome)
        if goes_on:
            self.runner.run(self._turns())

    @rule()
    def mark(self) -> None:
        self.marks.append(Mark(self))
        self.writer.mark(self.marks[-1])

    @precondition(lambda self: self.journal.attempt is not None)
    @rule()
    def succeed(self) -> None:
        self.runner.run(self.journal.sent().succeed())

    @precondition(lambda self: self.journal.attempt is not None)
    @rule(applied=st.booleans())
    def fail(self, applied: bool) -> None:
        self.runner.run(self.journal.sent().fail(applied=applied))

    @rule(seconds=st.sampled_from([0.1, 0.6, 3.0, 11.0, 25.0]), applies=st.booleans())
    def pass_time(self, seconds: float, applies: bool) -> None:
        self.journal.applies_when_cancelled = applies
        self.runner.run(self.clock.advance(seconds))

    @invariant()
    def what_was_answered_holds(self) -> None:
        assert not self.task.done() if hasattr(self, "task") else True
        assert all(sum(outcome.told) <= 1 for outcome in self.outcomes)
        assert all(mark.told in ((0, 0), (1, 0)) for mark in self.marks)
        assert not any(mark.came_early for mark in self.marks)
        for number, outcome in self.appends.items():
            removes = self.removes.get(number, [])
            if any(remove is not None and remove.committed_count for remove in removes):
                assert number not in self.journal.contents, "a message that was removed is still stored"
            elif outcome is not None and outcome.committed_count and not removes:
                assert number in self.journal.contents, "a message that was confirmed is not stored"

    @invariant()
    def whoever_reads_the_store_sees_what_the_engine_holds(self) -> None:
        if not hasattr(self, "writer"):
            return
        removing = self.writer.removing_ids()
        assert set(self.journal.contents) - removing <= set(self.engine), "a message that is gone can be seen"
        failed = {number for number, outcome in self.appends.items() if outcome is not None and outcome.errors}
        assert not removing & set(self.engine) - failed, "a message that is there cannot be seen"

    def teardown(self) -> None:
        if hasattr(self, "task"):
            self.runner.run(self._end())
        self.runner.close()

    async def _end(self) -> None:
        while self.writer.pending_count or self.journal.attempt is not None:
            if self.journal.attempt is not None:
                await self.journal.sent().succeed()
            else:
                await self.clock.advance(1.0)
        assert all(sum(outcome.told) == 1 for outcome in self.outcomes)
        for number, outcome in self.appends.items():
            removes = self.removes.get(number, [])
            removed = any(remove is None or remove.committed_count for remove in removes)
            stored = number in self.journal.contents
            if outcome is None or outcome.committed_count:
                assert stored == (not removed)
            elif removed or not removes:
                assert not stored
            if stored:
                assert self.subjects[number].stored
        await self.writer.stop()
        await self.task
        assert all(mark.told == (1, 0) and not mark.came_early for mark in self.marks)


TestWriterMachine = WriterMachine.TestCase
TestWriterMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


async def test_properties_and_origin_count_for_what_is_pending() -> None:
    async with running() as bench:
        bench.writer.append(message(9), None)
        await turns()
        before = bench.writer.pending_bytes
        first = Message(1, 1, b"x" * 1000, properties=b"p" * 2000, origin=b"o" * 300)
        bench.writer.append(first, None)
        assert bench.writer.pending_bytes - before >= 3300
        bench.writer.remove(first, None)
        assert bench.writer.pending_bytes == before
