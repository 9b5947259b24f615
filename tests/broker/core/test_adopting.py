"""Queues that another node has served before: their messages come first, whatever ids that node gave them."""

from __future__ import annotations

import asyncio

from flyball.broker.core.broker import Broker
from flyball.broker.store.memory import MemoryStore
from flyball.model import Draft, Message, PlacedQueue, Queue, Selector
from tests.broker.core.lifecycles import lifecycle_of


def test_new_messages_come_after_those_of_an_adopted_queue() -> None:
    asyncio.run(adopt_and_put())


async def adopt_and_put() -> None:
    store = MemoryStore()
    snapshot = await store.open()
    async with asyncio.TaskGroup() as tasks:
        broker = Broker(
            store, snapshot, time_limit_s=5.0, resident_limit_bytes=1 << 30, max_message_bytes=1 << 20, tasks=tasks
        )
        await broker.start()
        writing = tasks.create_task(broker.journal.run())
        domain = store.registry.domain
        old = Message(domain.count("message", 1_000_000) + 10, 7, b"old", stored=True)
        domain.queues[7] = PlacedQueue(Queue(7, "orders"), store.registry.node_id)
        domain.messages[old.id] = old
        await lifecycle_of(broker).adopt([7])
        stored = asyncio.get_running_loop().create_future()
        broker.put(Draft(b"new"), [7], lambda messages, error: stored.set_result(messages))
        (new,) = await stored
        assert new.id > old.id
        assert [await taken(broker), await taken(broker)] == [b"old", b"new"]
        await broker.stop()
        writing.cancel()


async def taken(broker: Broker) -> bytes | None:
    found: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
    broker.take_out(7, Selector(), lambda message, error: found.set_result(message))
    message = await found
    return None if message is None else message.body
