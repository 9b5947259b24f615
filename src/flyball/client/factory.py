"""Connection factories: producers and consumers of a queue that are sent to the best node, and move when asked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterable
from typing import Literal, Self, overload

from flyball.backoff import Backoff
from flyball.client.address import NodeAddress
from flyball.client.consumer import Consumer, Delivery, Outcome, queue_named
from flyball.client.errors import ClientClosed, ConnectionFailed, ConnectionLost, InvalidValue, NotSent
from flyball.client.link import TimeLimit
from flyball.client.messages import Content, Draft, batches, content_of
from flyball.client.placement import GONE, PlacedClient, PlacedConnection, PlacementOptions
from flyball.client.values import check_prefetch, check_seconds
from flyball.errors import QueueNotFound, RequestError

log = logging.getLogger(__name__)

DEFAULT_TIME_LIMIT_S = 30.0
DEFAULT_SILENCE_LIMIT_S = 6.0


class ConnectionFactory:
    """Makes producers and consumers of queues, each on the node that suits it best.

    It asks any of the addresses, the next one if one does not answer, and the producer or consumer goes to the node
    that the manager elects. With `clustered=False` nobody is elected: it stays with the first address that answers.
    """

    def __init__(
        self,
        *addresses: str,
        user: str | None = None,
        password: str | None = None,
        vhost: str | None = None,
        clustered: bool = True,
        resend: bool = True,
        time_limit_s: float = DEFAULT_TIME_LIMIT_S,
        silence_limit_s: float = DEFAULT_SILENCE_LIMIT_S,
        backoff: Backoff | None = None,
    ) -> None:
        """Remember where the nodes are; nothing is connected yet.

        Addresses are those of Client.connect. A node that says nothing for `silence_limit_s` is given up. A message
        whose answer was lost with its node is sent again, so it may be there twice; with `resend=False` that is
        ConnectionLost instead.
        """
        if not addresses:
            raise InvalidValue("a factory needs the address of at least one node")
        self._options = PlacementOptions(
            tuple(NodeAddress.parse(address, user=user, password=password, vhost=vhost) for address in addresses),
            clustered,
            resend,
            check_seconds("time_limit_s", time_limit_s, math.inf, above=0),
            check_seconds("silence_limit_s", silence_limit_s, math.inf, above=0),
            backoff or Backoff(),
        )

    @overload
    async def connect(self, role: Literal["producer"], queue: str) -> QueueProducer: ...

    @overload
    async def connect(self, role: Literal["consumer"], queue: str, *, prefetch: float = 10) -> QueueConsumer: ...

    async def connect(self, role: str, queue: str, *, prefetch: float = 10) -> QueueProducer | QueueConsumer:
        """Return a producer or a consumer of a queue, connected to the node that it was sent to.

        Raises ConnectionFailed if no node answers, QueueNotFound, and RequestTimeout if there is no place in time.
        """
        return await self._connect(role, queue, prefetch=prefetch)

    async def _connect(self, role: str, queue: str, *, prefetch: float = 10) -> QueueProducer | QueueConsumer:
        made: QueueProducer | QueueConsumer
        if role == "producer":
            made = QueueProducer(self._options, queue)
        elif role == "consumer":
            made = QueueConsumer(self._options, queue, prefetch)
        else:
            raise InvalidValue(f"the role is producer or consumer, not {role!r}")
        try:
            await made.open()
        except BaseException:
            await made.close()
            raise
        return made


class QueueProducer(PlacedClient):
    """Sends messages to a queue. Made by ConnectionFactory.connect("producer", ...); tasks may share it."""

    ROLE = "producer"

    async def send(
        self,
        body: bytes | str,
        *,
        context: int | None = None,
        priority: int = 0,
        ttl_s: float | None = None,
        persistent: bool = True,
        properties: bytes = b"",
        time_limit_s: float | None = None,
    ) -> None:
        """Send a message; on return it is committed.

        If its node is lost before it has answered, the message is sent again at another one, and may be there twice.
        """
        content = content_of(Draft(body, None, context, priority, ttl_s, persistent, properties))
        async with self._time_limit(time_limit_s):
            await self._put([content])

    async def send_many(self, drafts: Iterable[Draft | bytes | str], *, time_limit_s: float | None = None) -> int:
        """Send many messages, in that order, and return how many. They are published up to 1000 at a time.

        If one fails, those before it are stored. The time limit is for each part.
        """
        count = 0
        for batch in batches(drafts):
            async with self._time_limit(time_limit_s):
                await self._put(batch)
            count += len(batch)
        return count

    def _time_limit(self, time_limit_s: float | None) -> TimeLimit:
        if time_limit_s is None:
            return TimeLimit("send", self._options.time_limit_s)
        return TimeLimit("send", check_seconds("time_limit_s", time_limit_s, math.inf, above=0))

    async def _put(self, contents: list[Content]) -> None:
        while True:
            placed = await self._connected()
            try:
                await placed.put(self._queue_name, contents)
            except (ConnectionFailed, NotSent, QueueNotFound):
                # Surely not stored: the node is gone, or does not have the queue any more.
                self._release(placed)
            except ConnectionLost:
                self._release(placed)
                if not self._options.resend:
                    raise
            else:
                self._retries.reset()
                return

    async def _make_safe(self, placed: PlacedConnection, deadline_at: float) -> bool:
        """Wait until all puts under way are answered; new ones wait."""
        try:
            async with asyncio.timeout_at(deadline_at):
                await placed.answered()
        except TimeoutError:
            log.info("the producer stays: puts are still under way")
            return False
        return True


class QueueConsumer(PlacedClient):
    """Receives messages of a queue, as an asynchronous iterator. Made by ConnectionFactory.connect("consumer", ...).

    Each delivery is to be settled. When the consumer is asked to move it hands out nothing until what it has handed
    out is settled; what is not settled in time goes back, and settling it raises LeaseLost. Tasks may share it.
    """

    ROLE = "consumer"

    def __init__(self, options: PlacementOptions, queue_name: str, prefetch: float) -> None:
        super().__init__(options, queue_name)
        self._prefetch = check_prefetch(prefetch)
        self._subscribing = asyncio.Lock()

    async def open(self) -> None:
        await super().open()
        with contextlib.suppress(*GONE):
            await self._consumer_at(await self._connected())

    @property
    def prefetch(self) -> float:
        """How many messages may be unsettled at a time."""
        return self._prefetch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        delivery = await self.receive()
        if delivery is None:
            raise StopAsyncIteration
        return delivery

    async def receive(self, wait_s: float | None = None) -> Delivery | None:
        """Return the next delivery; None if none comes within `wait_s`, or when the consumer is closed.

        A cancellation loses nothing. Raises QueueNotFound when the queue is deleted.
        """
        if wait_s is None:
            return await self._receive()
        try:
            async with asyncio.timeout(check_seconds("wait_s", wait_s, math.inf)):
                return await self._receive()
        except TimeoutError:
            return None

    async def settle(
        self, deliveries: Iterable[Delivery], outcome: Outcome, *, time_limit_s: float | None = None
    ) -> None:
        """Settle several deliveries in one request: all or none. They must have come from one node."""
        settled = list(deliveries)
        if settled:
            await settled[0]._consumer.settle(settled, outcome, time_limit_s=time_limit_s)

    async def set_prefetch(self, prefetch: float) -> None:
        """Change how many messages may be unsettled at a time; a fraction holds on average."""
        self._prefetch = check_prefetch(prefetch)
        placed = self._placed
        if placed is not None and placed.consumer is not None:
            with contextlib.suppress(*GONE):
                await placed.consumer.set_prefetch(prefetch)

    async def _receive(self) -> Delivery | None:
        while not self._closing.is_set():
            try:
                placed = await self._connected()
            except ClientClosed:
                return None
            try:
                delivery = await (await self._consumer_at(placed)).next()
            except (QueueNotFound, ClientClosed, *GONE):
                self._release(placed)
                continue
            if delivery is not None:
                self._retries.reset()
                return delivery
        return None

    async def _consumer_at(self, placed: PlacedConnection) -> Consumer:
        async with self._subscribing:
            if placed.consumer is None:
                consumer = Consumer(placed.link, queue_named(self._queue_name), {}, self._prefetch)
                await consumer.__aenter__()
                placed.consumer = consumer
            return placed.consumer

    async def _make_safe(self, placed: PlacedConnection, deadline_at: float) -> bool:
        """Wait until what was handed out is settled, or until the time is up: then it goes back."""
        consumer = placed.consumer
        if consumer is None:
            return True
        # If it stays after all, even since it cannot say here that it goes, it subscribes again.
        placed.consumer = None
        with contextlib.suppress(TimeoutError, RequestError, *GONE):
            async with asyncio.timeout_at(deadline_at):
                await consumer.stop()
                await consumer.wait_settled()
        await consumer.close()
        return True
