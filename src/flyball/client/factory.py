"""Connection factories: producers and consumers of a queue on the node chosen by the domain, which move on
request.
"""

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
    """Creates producers and consumers of queues, each on the node chosen by the domain.

    It asks the addresses in turn until one answers, and connects to the node that the leader chose. With
    `clustered=False` it stays with the first address that answers.
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
        """Does not connect yet.

        Addresses are those of Client.connect. A connection that is silent for `silence_limit_s` is closed. A message
        whose confirm was lost with its node is sent again, so it may be duplicated; with `resend=False`
        ConnectionLost is raised instead.
        """
        if not addresses:
            raise InvalidValue("no address given: use at least one node's address")
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
        """Return a producer or consumer of a queue, connected to the chosen node.

        Raises ConnectionFailed if no node answers, QueueNotFound, and RequestTimeout without a place in time.
        """
        return await self._connect(role, queue, prefetch=prefetch)

    async def _connect(self, role: str, queue: str, *, prefetch: float = 10) -> QueueProducer | QueueConsumer:
        made: QueueProducer | QueueConsumer
        if role == "producer":
            made = QueueProducer(self._options, queue)
        elif role == "consumer":
            made = QueueConsumer(self._options, queue, prefetch)
        else:
            raise InvalidValue(f"invalid role {role!r}: use producer or consumer")
        try:
            await made.open()
        except BaseException:
            await made.close()
            raise
        return made


class QueueProducer(PlacedClient):
    """Sends messages to a queue. Created by ConnectionFactory.connect("producer", ...); tasks may share it."""

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

        If its node is lost before the confirm, the message is sent again through another one, and may be duplicated.
        """
        content = content_of(Draft(body, None, context, priority, ttl_s, persistent, properties))
        async with self._time_limit(time_limit_s):
            await self._put([content])

    async def send_many(self, drafts: Iterable[Draft | bytes | str], *, time_limit_s: float | None = None) -> int:
        """Send many messages, in order, and return their number. They are published in batches of up to 1000.

        If one fails, earlier ones are stored. The time limit applies to each batch.
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
                # Certainly not stored: the node is down, or no longer has the queue.
                self._release(placed)
            except ConnectionLost:
                self._release(placed)
                if not self._options.resend:
                    raise
            else:
                self._retries.reset()
                return

    async def _make_safe(self, placed: PlacedConnection, deadline_at: float) -> bool:
        """Wait until all pending puts are confirmed; new ones wait."""
        try:
            async with asyncio.timeout_at(deadline_at):
                await placed.answered()
        except TimeoutError:
            log.info("the producer does not move: puts are pending")
            return False
        return True


class QueueConsumer(PlacedClient):
    """Receives messages of a queue, as an asynchronous iterator. Created by ConnectionFactory.connect("consumer",
    ...).

    Each delivery must be settled. When the consumer is asked to move, it pauses until its deliveries are settled;
    those not settled in time are requeued, and settling them raises LeaseLost. Tasks may share it.
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
        """The maximum number of unsettled messages."""
        return self._prefetch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        delivery = await self.receive()
        if delivery is None:
            raise StopAsyncIteration
        return delivery

    async def receive(self, wait_s: float | None = None) -> Delivery | None:
        """Return the next delivery; None if none arrives within `wait_s`, or when the consumer is closed.

        Cancellation-safe. Raises QueueNotFound when the queue is deleted.
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
        """Settle several deliveries in one request: all or none. They must come from one node."""
        settled = list(deliveries)
        if settled:
            await settled[0]._consumer.settle(settled, outcome, time_limit_s=time_limit_s)

    async def set_prefetch(self, prefetch: float) -> None:
        """Change the maximum number of unsettled messages; a fraction holds on average."""
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
        """Wait until all deliveries are settled, or until the deadline: then they are requeued."""
        consumer = placed.consumer
        if consumer is None:
            return True
        # If it does not move after all, it subscribes again.
        placed.consumer = None
        with contextlib.suppress(TimeoutError, RequestError, *GONE):
            async with asyncio.timeout_at(deadline_at):
                await consumer.stop()
                await consumer.wait_settled()
        await consumer.close()
        return True
