"""Two nodes with a client each, for tests of what the one does with the queues of the other."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from tests.broker.peering.link.domains import HandMadeDomain, client, domain, run


class Two:
    """Two nodes with a client each (a third may look on): the queue `orders` is the second's."""

    def __init__(self, made: HandMadeDomain, here: AbstractChannel, there: AbstractChannel) -> None:
        self.made = made
        self.first, self.second = made.nodes[:2]
        self.here = here
        self.there = there
        self.queue_id = 0

    async def forwarded(self, **options: Any) -> AbstractQueue:
        """Declare a queue at the second node, and return it as the client of the first one has it."""
        await self.there.declare_queue("orders", **{"durable": True, **options})
        self.queue_id = self.queue_state.queue.id
        return await self.here.get_queue("orders")

    @property
    def queue_state(self) -> Any:
        found = self.second.broker.engine.find_queue("orders")
        assert found is not None
        return found

    async def publish(self, *bodies: bytes, channel: AbstractChannel | None = None, **options: Any) -> list[Any]:
        exchange = (channel or self.here).default_exchange
        return [
            await exchange.publish(aio_pika.Message(body, delivery_mode=2, **options), "orders") for body in bodies
        ]

    def bodies(self) -> list[bytes]:
        return [message.body for message in self.queue_state.oldest(0, 1000)]


@asynccontextmanager
async def two_nodes() -> AsyncIterator[Two]:
    async with domain() as made, client(made.nodes[0]) as one, client(made.nodes[1]) as other:
        yield Two(made, await one.channel(), await other.channel())


def with_two_nodes(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in a loop, with two nodes as its first argument."""

    async def go(**fixtures: Any) -> None:
        async with two_nodes() as two:
            await test(two, **fixtures)

    def call(**fixtures: Any) -> None:
        run(go(**fixtures))

    call.__name__ = test.__name__
    # What pytest is to fill in: all but the nodes.
    signature = inspect.signature(test)
    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=list(signature.parameters.values())[1:]
    )
    return call


class Inbox:
    """Records the deliveries of a consumer, in order; nothing is settled."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()

    async def __call__(self, message: AbstractIncomingMessage) -> None:
        await self.messages.put(message)

    async def take(self, count: int) -> list[AbstractIncomingMessage]:
        return [await self.messages.get() for _ in range(count)]


def bodies(messages: list[AbstractIncomingMessage]) -> list[bytes]:
    return [message.body for message in messages]
