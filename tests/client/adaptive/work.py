"""Shared by the tests of the adaptive consumer: queues with numbered messages, handlers that tests hold in hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aio_pika
from aio_pika import IncomingMessage

from flyball.control.loop import Sample


async def fill(url: str, queue_name: str, count: int, *, quorum: bool = False, first: int = 0) -> None:
    """Declare a queue and publish the messages 0 to count - 1, or from `first` on; they have arrived on return."""
    arguments: dict[str, Any] = {"x-queue-type": "quorum"} if quorum else {}
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(queue_name, durable=True, arguments=arguments)
        async with asyncio.TaskGroup() as tasks:
            for number in range(first, first + count):
                message = aio_pika.Message(str(number).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                tasks.create_task(channel.default_exchange.publish(message, queue_name))


async def drain(url: str, queue_name: str) -> list[str]:
    """Delete the queue; return the bodies that were ready in it, with a star behind each that was redelivered."""
    left: list[str] = []
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(queue_name, passive=True)
        while (message := await queue.get(fail=False, no_ack=True)) is not None:
            left.append(message.body.decode() + ("*" if message.redelivered else ""))
        await queue.delete(if_unused=False, if_empty=False)
    return left


class Work:
    """A handler that records what it gets, and waits for the test on demand."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.begun: list[int] = []
        self.done: list[int] = []
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()
        self._changed = asyncio.Event()

    async def __call__(self, message: IncomingMessage) -> None:
        number = int(message.body)
        self.begun.append(number)
        self._changed.set()
        await self.gate.wait()
        self.done.append(number)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds, which is looked at whenever a handler begins or ends."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def until_done(self, count: int) -> None:
        await self.until(lambda: len(self.done) >= count)

    async def until_begun(self, count: int) -> None:
        await self.until(lambda: len(self.begun) >= count)


class Samples:
    """Records samples, and waits until there are enough."""

    def __init__(self) -> None:
        self.all: list[float] = []
        self.actions: list[float] = []
        self._changed = asyncio.Event()

    def record(self, sample: Sample) -> None:
        self.all.append(sample.measurement)
        self.actions.append(sample.action)
        self._changed.set()

    def last(self, count: int) -> float:
        """Return the mean of the last ones, 0 as long as there are fewer."""
        return sum(self.all[-count:]) / count if len(self.all) >= count else 0.0

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds, which is looked at after each sample."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds, for conditions without an event."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
