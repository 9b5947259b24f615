"""Consumers: messages are delivered as they arrive, each leased until it is acked, requeued or dropped."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import Method, Value
from flyball.client.amqp import Channel, Connection
from flyball.client.errors import ConnectionLost, InvalidValue, LeaseLost, RequestTimeout
from flyball.client.link import Link
from flyball.client.messages import ReceivedMessage, received
from flyball.client.values import check_prefetch, check_seconds


class Outcome(enum.Enum):
    """Ways to settle a delivered message."""

    ACKNOWLEDGE = "acknowledge"
    # Requeue it at its old position.
    REQUEUE = "requeue"
    # Remove it, or dead-letter it if the queue has a dead-letter exchange.
    DROP = "drop"


class Delivery:
    """A delivered message, to be settled once: by `ack`, `requeue` or `drop`.

    Raises LeaseLost if its connection is lost or its consumer closed: the message is then requeued and delivered
    again. AMQP does not confirm acks: if the node crashes right after one, the message may be delivered again.
    """

    __slots__ = ("_consumer", "_lease", "_tag", "message")

    def __init__(self, consumer: Consumer, lease: _Lease, tag: int, message: ReceivedMessage) -> None:
        self._consumer = consumer
        self._lease = lease
        self._tag = tag
        self.message = message

    async def ack(self, *, time_limit_s: float | None = None) -> None:
        """Ack: remove the message."""
        await self._consumer.settle([self], Outcome.ACKNOWLEDGE, time_limit_s=time_limit_s)

    async def requeue(self, *, time_limit_s: float | None = None) -> None:
        """Requeue the message at its old position."""
        await self._consumer.settle([self], Outcome.REQUEUE, time_limit_s=time_limit_s)

    async def drop(self, *, time_limit_s: float | None = None) -> None:
        """Reject the message: remove or dead-letter it."""
        await self._consumer.settle([self], Outcome.DROP, time_limit_s=time_limit_s)


class _Lease:
    """One subscription on one channel, with its unsettled deliveries. The channel's sink."""

    def __init__(self, consumer: Consumer, channel: Channel, queue: str, tag: str) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        # By delivery tag, in delivery order.
        self.held: dict[int, Delivery] = {}
        self.is_over = False
        # Set after a settlement, and when none is possible any longer.
        self.changed = asyncio.Event()
        self._consumer = consumer

    @property
    def is_settled(self) -> bool:
        """Whether all deliveries are settled."""
        return self.is_over or not self.held

    def delivered(self, delivery: amqp.BasicDeliver) -> None:
        tag = delivery.delivery_tag
        message = received(self.queue, delivery.properties, delivery.body, delivery.redelivered)
        found = self.held[tag] = Delivery(self._consumer, self, tag, message)
        self._consumer._arrived(found)

    def lost(self) -> None:
        self.is_over = True
        self.held.clear()
        self.changed.set()
        self._consumer._ended(self)

    async def cancel(self) -> None:
        """Stop deliveries; earlier ones can still be settled."""
        await self.channel.call(amqp.BasicCancel(self.channel.number, self.tag, False), amqp.BasicCancelOk)

    def settle(self, tags: list[int], outcome: Outcome) -> None:
        """Send the settlements, using `multiple` for ranges: one frame instead of a hundred."""
        number = self.channel.number
        wanted = set(tags)
        first: list[int] = []
        for held in self.held:
            if held not in wanted:
                break
            first.append(held)
        frames: list[bytes] = []
        if len(first) > 1:
            wanted.difference_update(first)
            frames.append(_settlement(number, first[-1], outcome, multiple=True))
        frames += [_settlement(number, tag, outcome, multiple=False) for tag in tags if tag in wanted]
        for tag in tags:
            del self.held[tag]
        self.channel.send(b"".join(frames))
        self.changed.set()


def _settlement(number: int, tag: int, outcome: Outcome, *, multiple: bool) -> bytes:
    if outcome is Outcome.ACKNOWLEDGE:
        return amqp.encode_ack(number, tag, multiple)
    return amqp.BasicNack(number, tag, multiple, outcome is Outcome.REQUEUE).encode()


def queue_named(name: str) -> Callable[[Channel], Awaitable[str]]:
    """Return a function that returns the name of a queue."""

    async def find_queue(_: Channel) -> str:
        return name

    return find_queue


class Consumer:
    """Deliveries of one queue, as an asynchronous iterator inside an `async with` block.

    After a lost connection it subscribes again when the next delivery is requested. At the end of the block unsettled
    messages are requeued. Several tasks may share a consumer.
    """

    def __init__(
        self,
        link: Link,
        find_queue: Callable[[Channel], Awaitable[str]],
        selection: Mapping[str, int | str],
        prefetch: float,
    ) -> None:
        """`find_queue` returns the queue's name; it may declare the queue on the consumer's channel."""
        self._link = link
        self._find_queue = find_queue
        self._selection = {f"x-{name}": value for name, value in selection.items()}
        self._prefetch = check_prefetch(prefetch)
        self._lease: _Lease | None = None
        self._ready: deque[Delivery] = deque()
        self._wakened = asyncio.Event()
        self._is_open = False
        self._resubscribing = asyncio.Lock()

    @property
    def prefetch(self) -> float:
        """The maximum number of unsettled messages."""
        return self._prefetch

    # Lifecycle

    async def __aenter__(self) -> Self:
        self._is_open = True
        await self._subscribe()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop consuming and requeue unsettled messages. May be called twice."""
        self._is_open = False
        self._wakened.set()
        lease = self._lease
        if lease is not None and not lease.is_over:
            with contextlib.suppress(ConnectionLost, RequestTimeout):
                async with self._link.time_limit("close", None):
                    # Waits until the node has executed everything sent before.
                    await lease.channel.close()

    async def stop(self) -> None:
        """Stop deliveries, and requeue those not returned by `next` yet; earlier ones can still be settled.

        From now on `next` returns None. May be called twice.
        """
        self._is_open = False
        self._wakened.set()
        lease = self._lease
        if lease is not None and not lease.is_over:
            with contextlib.suppress(ConnectionLost):
                async with self._link.time_limit("stop", None):
                    await lease.cancel()
            # From here on nothing more arrives.
            unseen, self._ready = list(self._ready), deque()
            if unseen and not lease.is_over:
                lease.settle([delivery._tag for delivery in unseen], Outcome.REQUEUE)

    async def wait_settled(self) -> None:
        """Wait until all returned deliveries are settled, or can no longer be."""
        lease = self._lease
        while lease is not None and not lease.is_settled:
            lease.changed.clear()
            await lease.changed.wait()

    # Taking messages

    async def _subscribe_on(self, connection: Connection) -> None:
        """Subscribe on this connection, to take some messages."""
        self._is_open = True
        self._lease = await self._ask(connection)

    async def _stop_sending(self) -> list[Delivery]:
        """Stop deliveries, and return those that were not taken."""
        lease = self._lease
        assert lease is not None, "subscribed before"
        await lease.cancel()
        return list(self._ready)

    def _acknowledge_all(self) -> None:
        """Ack all deliveries."""
        lease = self._lease
        if lease is not None and lease.held:
            lease.settle(list(lease.held), Outcome.ACKNOWLEDGE)

    def _abandon(self) -> None:
        """Requeue unacked deliveries, without waiting."""
        self._is_open = False
        if self._lease is not None:
            self._lease.channel.close_soon()

    async def _resubscribe(self) -> None:
        async with self._resubscribing:
            if self._is_open and (self._lease is None or self._lease.is_over):
                await self._subscribe()

    async def _subscribe(self) -> None:
        """Subscribe, on the next connection if necessary."""
        async with self._link.time_limit("consume", None):
            self._lease = await self._link.run(self._ask, repeatable=True)

    async def _ask(self, connection: Connection) -> _Lease:
        channel = await connection.channel()
        try:
            queue = await self._find_queue(channel)
            tag = f"flyball-{secrets.token_hex(8)}"
            lease = _Lease(self, channel, queue, tag)
            # Before the await: deliveries may follow the answer in the same segment.
            channel.sinks[tag] = self._lease = lease
            await channel.call(self._request(lease), amqp.BasicConsumeOk)
        except BaseException:
            channel.close_soon()
            raise
        return lease

    def _request(self, lease: _Lease) -> Method:
        arguments: dict[str, Value] = {**self._selection, "x-prefetch": self._prefetch, "x-delivery-count": True}
        return amqp.BasicConsume(lease.channel.number, lease.queue, lease.tag, False, False, False, False, arguments)

    # Callbacks of the lease

    def _arrived(self, delivery: Delivery) -> None:
        self._ready.append(delivery)
        self._wakened.set()

    def _ended(self, lease: _Lease) -> None:
        if lease is self._lease:
            # Deliveries that `next` has not returned are redelivered.
            self._ready.clear()
            self._wakened.set()

    # Deliveries

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        delivery = await self.next()
        if delivery is None:
            raise StopAsyncIteration
        return delivery

    async def next(self, wait_s: float | None = None) -> Delivery | None:
        """Return the next delivery; None if none arrives within `wait_s`, or when the consumer is closed.

        Cancellation-safe. Raises QueueNotFound when the queue is deleted.
        """
        if self._ready and self._is_open:
            # Fast path: most come in bursts.
            return self._ready.popleft()
        if wait_s is None:
            return await self._next()
        try:
            async with asyncio.timeout(check_seconds("wait_s", wait_s, float("inf"))):
                return await self._next()
        except TimeoutError:
            return None

    async def _next(self) -> Delivery | None:
        while not self._ready or not self._is_open:
            if not self._is_open:
                return None
            if self._lease is None or self._lease.is_over:
                await self._resubscribe()
                continue
            self._wakened.clear()
            await self._wakened.wait()
        return self._ready.popleft()

    async def set_prefetch(self, prefetch: float, *, time_limit_s: float | None = None) -> None:
        """Change the maximum number of unsettled messages; a fraction holds on average."""
        self._prefetch = check_prefetch(prefetch)
        lease = self._lease
        if lease is None or lease.is_over:
            return
        # If the connection is lost, the next subscription uses the new prefetch.
        with contextlib.suppress(ConnectionLost):
            async with self._link.time_limit("set_prefetch", time_limit_s):
                await lease.channel.call(self._request(lease), amqp.BasicConsumeOk)

    async def settle(
        self, deliveries: Iterable[Delivery], outcome: Outcome, *, time_limit_s: float | None = None
    ) -> None:
        """Settle several deliveries of this consumer together. Raises LeaseLost, and settles none, if one is lost."""
        settled = list(deliveries)
        if not settled:
            return
        lease = settled[0]._lease
        for delivery in settled:
            if delivery._consumer is not self:
                raise InvalidValue("the deliveries belong to different consumers: settle each consumer's separately")
            if delivery._lease is not lease or lease.held.get(delivery._tag) is not delivery:
                raise LeaseLost(delivery._tag)
        lease.settle([delivery._tag for delivery in settled], outcome)
        connection = lease.channel.connection
        if not connection.has_room:
            with contextlib.suppress(ConnectionLost):
                async with self._link.time_limit(outcome.value, time_limit_s):
                    await connection.room()
