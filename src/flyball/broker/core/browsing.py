"""Reads of a queue that leave its messages where they are, and removals up to a message, as coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from flyball.broker.core.broker import Broker
from flyball.broker.core.pending import outcome
from flyball.errors import FlyballError
from flyball.model import Message, Selector

T = TypeVar("T")


async def list_messages(broker: Broker, queue_id: int, after_id: int, limit: int) -> list[Message]:
    """Return ready messages with a larger id, oldest first; none if there are no more."""
    return await result(lambda done: broker.browse(queue_id, after_id, limit, done))


async def list_ids(broker: Broker, queue_id: int, after_id: int, limit: int) -> list[int]:
    """Return the ids of these messages, when all of them are durable: they are found again, also after a crash."""
    ids = [message.id for message in await list_messages(broker, queue_id, after_id, limit)]
    await outcome(broker.when_durable)
    return ids


async def peek(broker: Broker, queue_id: int, selector: Selector) -> Message | None:
    """Return the first message that the selector fits."""
    return await result(lambda done: broker.peek(queue_id, selector, done))


async def remove_oldest(broker: Broker, queue_id: int, up_to_id: int, limit: int) -> int:
    """Remove the oldest ready messages up to an id, so many at the most, and return how many there were."""
    return await result(lambda done: broker.remove_oldest(queue_id, up_to_id, limit, done))


async def result(operation: Callable[[Callable[[T, FlyballError | None], None]], object]) -> T:
    """Begin something that calls back with a result or an error, and wait for that."""
    told: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T, error: FlyballError | None) -> None:
        # Nobody waits any more if the one who did was cancelled.
        if told.done():
            return
        if error is None:
            told.set_result(result)
        else:
            told.set_exception(error)

    operation(done)
    return await told
