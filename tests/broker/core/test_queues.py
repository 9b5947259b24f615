"""Queues of a single node, through the handles that sessions use."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from flyball.broker.core.authority import Authority
from flyball.broker.core.body_format import BodyFormat
from flyball.broker.core.broker import Broker
from flyball.broker.core.handles import QueueCounts
from flyball.broker.core.pending import outcome, result
from flyball.broker.core.queues import Queues
from flyball.broker.core.topology import Topology
from flyball.broker.store.memory import MemoryStore
from flyball.errors import (
    InvalidBody,
    QueueFull,
    QueueLocked,
    QueueNotEmpty,
    QueueNotFound,
    StoreUnavailable,
    UnlikeDeclared,
)
from flyball.model import Draft, Queue, Selector


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


@contextlib.asynccontextmanager
async def queues_of_a_node() -> AsyncIterator[Queues]:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        store = MemoryStore()
        snapshot = await store.open()
        broker = Broker(
            store, snapshot, time_limit_s=5.0, resident_limit_bytes=1 << 30, max_message_bytes=1 << 20, tasks=tasks
        )
        await broker.start()
        tasks.create_task(broker.journal.run())
        await asyncio.sleep(0)
        authority = Authority(broker.journal, snapshot.definitions, loopback_users=())
        yield Queues(Topology(broker, authority, snapshot.definitions))
        await broker.journal.stop()
        await broker.stop()


async def declare(queues: Queues, declared: Queue, owner: object = None) -> None:
    await outcome(lambda done: queues.topology.declare_queue(declared, owner, done))


async def put(queues: Queues, *bodies: bytes) -> None:
    queue = queues.find("/", "orders")
    assert queue is not None
    for body in bodies:
        await outcome(
            lambda done, body=body: queues.put_draft(Draft(body), [queue.queue.id], done, None, lambda: None)  # type: ignore[misc]
        )


@in_a_loop
async def test_queue_is_found_by_name_by_id_and_by_home() -> None:
    async with queues_of_a_node() as queues:
        for name in ("orders", "others"):
            await declare(queues, Queue(0, name))
        orders, others = queues.find("/", "orders"), queues.find("/", "others")
        assert orders is not None
        assert others is not None
        by_id = queues.get(orders.queue.id)
        assert by_id is not None
        assert by_id.queue is orders.queue
        at_home = queues.find("/", "orders", {("/", "orders"): others.queue.id})
        assert at_home is not None
        assert at_home.queue is others.queue
        lost_home = queues.find("/", "orders", {("/", "orders"): 999_999})
        assert lost_home is not None
        assert lost_home.queue is orders.queue
        assert queues.find("/", "none") is None


@in_a_loop
async def test_handle_counts_gets_purges_and_deletes() -> None:
    async with queues_of_a_node() as queues:
        await declare(queues, Queue(0, "orders"))
        queue = queues.find("/", "orders")
        assert queue is not None
        await put(queues, b"1", b"2", b"3")
        assert await result(partial(queue.declare, Queue(0, "orders"), None)) == QueueCounts(3, 0)
        got = await result(partial(queue.get, no_ack=True))
        assert got.message is not None
        assert (got.message.body, got.ready) == (b"1", 2)
        with pytest.raises(QueueNotEmpty):
            await result(queue.delete_empty)
        assert await result(queue.purge) == 2
        assert await result(partial(queue.delete, if_empty=True)) == 0
        assert queues.get(queue.queue.id) is None


@in_a_loop
async def test_handle_compares_declarations_and_owners() -> None:
    async with queues_of_a_node() as queues:
        owner = object()
        await declare(queues, Queue(0, "orders", durable=False, exclusive=True), owner)
        queue = queues.find("/", "orders")
        assert queue is not None
        queue.check_access(owner)
        with pytest.raises(QueueLocked):
            queue.check_access(object())
        with pytest.raises(UnlikeDeclared):
            await result(partial(queue.declare, Queue(0, "orders", durable=True, exclusive=True), owner))


@pytest.mark.parametrize(
    ("fit", "body"),
    [(BodyFormat.NO_ZERO, b"a\0b"), (BodyFormat.TELESTO_TEXT, b"\xff" * 20_000)],
    ids=["zero", "long"],
)
@in_a_loop
async def test_message_that_a_reader_cannot_be_sent_stays(fit: BodyFormat, body: bytes) -> None:
    async with queues_of_a_node() as queues:
        await declare(queues, Queue(0, "orders"))
        await put(queues, body)
        queue = queues.find("/", "orders")
        assert queue is not None
        for read in (queue.take, queue.peek):
            with pytest.raises(InvalidBody):
                await result(lambda done, read=read: read(Selector(), done, fit))  # type: ignore[misc]
        taken = await result(partial(queue.take, Selector()))
        assert taken is not None
        assert taken.body == body


@in_a_loop
async def test_messages_are_listed_and_removed_up_to_an_id() -> None:
    async with queues_of_a_node() as queues:
        await declare(queues, Queue(0, "orders"))
        await put(queues, b"1", b"2", b"3")
        queue = queues.find("/", "orders")
        assert queue is not None
        ids = await result(partial(queue.list_ids, 0, 10))
        messages = await result(partial(queue.browse, ids[0], 1))
        assert [message.body for message in messages] == [b"2"]
        assert await result(partial(queue.remove_oldest, ids[1], 10)) == 2
        assert await result(queue.use) == QueueCounts(1, 0)


@in_a_loop
async def test_put_to_a_peer_that_is_not_there_is_refused() -> None:
    async with queues_of_a_node() as queues:
        await declare(queues, Queue(0, "orders"))
        remote = queues.topology.directory.put(Queue(77, "remote"), 2)
        waits: list[bool] = []
        with pytest.raises(StoreUnavailable):
            await outcome(lambda done: queues.put_draft(Draft(b"1"), [77], done, None, lambda: waits.append(True)))
        assert waits == [True]
        with pytest.raises(QueueNotFound):
            queues.peering.handle(remote)


@in_a_loop
async def test_full_queue_refuses_a_draft() -> None:
    async with queues_of_a_node() as queues:
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        await declare(queues, Queue(0, "orders", arguments=arguments))
        await put(queues, b"1")
        with pytest.raises(QueueFull):
            await put(queues, b"2")
