"""Consuming: messages come as they arrive, each leased until it is acknowledged, requeued or dropped."""

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
    """What becomes of a delivered message."""

    ACKNOWLEDGE = "acknowledge"
    # It goes back to its old place.
    REQUEUE = "requeue"
    # It is removed, or goes to the dead-letter exchange of its queue.
    DROP = "drop"


class Delivery:
    """One hand-over of a message, to be settled once: by `ack`, `requeue` or `drop`.

    Settling raises LeaseLost when the connection that brought it is gone or its consumer closed: then the message
    goes back to its place, and is delivered again. AMQP does not answer a settlement: a node that crashes right after
    it may deliver the message again.
    """

    __slots__ = ("_consumer", "_lease", "_tag", "message")

    def __init__(self, consumer: Consumer, lease: _Lease, tag: int, message: ReceivedMessage) -> None:
        self._consumer = consumer
        self._lease = lease
        self._tag = tag
        self.message = message

    async def ack(self, *, time_limit_s: float | None = None) -> None:
        """The message is dealt with: remove it."""
        await self._consumer.settle([self], Outcome.ACKNOWLEDGE, time_limit_s=time_limit_s)

    async def requeue(self, *, time_limit_s: float | None = None) -> None:
        """Put the message back to its old place, for whoever comes next."""
        await self._consumer.settle([self], Outcome.REQUEUE, time_limit_s=time_limit_s)

    async def drop(self, *, time_limit_s: float | None = None) -> None:
        """The message cannot be dealt with: remove it."""
        await self._consumer.settle([self], Outcome.DROP, time_limit_s=time_limit_s)


class _Lease:
    """One subscription on one channel: what was delivered through it and is not settled. The channel's sink."""

    def __init__(self, consumer: Consumer, channel: Channel, queue: str, tag: str) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        # By delivery tag, in the order of delivery.
        self.held: dict[int, Delivery] = {}
        self.is_over = False
        # Set when something has been settled, or nothing can be any more.
        self.changed = asyncio.Event()
        self._consumer = consumer

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to be settled."""
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
        """End the deliveries; what has come can still be settled."""
        await self.channel.call(amqp.BasicCancel(self.channel.number, self.tag, False), amqp.BasicCancelOk)

    def settle(self, tags: list[int], outcome: Outcome) -> None:
        """Tell the node. It understands «all up to this» as well: a frame instead of a hundred."""
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
    """Return what finds a queue that is known by its name."""

    async def find_queue(_: Channel) -> str:
        return name

    return find_queue


class Consumer:
    """Deliveries of one queue, as an asynchronous iterator inside an `async with` block.

    After a lost connection it subscribes again when the next delivery is asked for. At the end of the block
    whatever is not settled goes back to its place. Several tasks may share a consumer.
    """

    def __init__(
        self,
        link: Link,
        find_queue: Callable[[Channel], Awaitable[str]],
        selection: Mapping[str, int | str],
        prefetch: float,
    ) -> None:
        """`find_queue` returns the name of the queue to consume; it may declare it on the channel of the consumer."""
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
        """How many messages may be unsettled at a time."""
        return self._prefetch

    # Life

    async def __aenter__(self) -> Self:
        self._is_open = True
        await self._subscribe()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop consuming and give back what is not settled. May be called twice."""
        self._is_open = False
        self._wakened.set()
        lease = self._lease
        if lease is not None and not lease.is_over:
            with contextlib.suppress(ConnectionLost, RequestTimeout):
                async with self._link.time_limit("close", None):
                    # On return all that was sent is carried out.
                    await lease.channel.close()

    async def stop(self) -> None:
        """Be sent no more, and give back what nobody has seen yet; what was handed out can still be settled.

        From now on `next` returns None. May be called twice.
        """
        self._is_open = False
        self._wakened.set()
        lease = self._lease
        if lease is not None and not lease.is_over:
            with contextlib.suppress(ConnectionLost):
                async with self._link.time_limit("stop", None):
                    await lease.cancel()
            # Now nothing more can come.
            unseen, self._ready = list(self._ready), deque()
            if unseen and not lease.is_over:
                lease.settle([delivery._tag for delivery in unseen], Outcome.REQUEUE)

    async def wait_settled(self) -> None:
        """Wait until all that was handed out is settled, or cannot be any more."""
        lease = self._lease
        while lease is not None and not lease.is_settled:
            lease.changed.clear()
            await lease.changed.wait()

    # Taking with a consumer

    async def _subscribe_on(self, connection: Connection) -> None:
        """Subscribe on this connection, to take some messages."""
        self._is_open = True
        self._lease = await self._ask(connection)

    async def _stop_sending(self) -> list[Delivery]:
        """Be sent no more, and return what came and was not taken."""
        lease = self._lease
        assert lease is not None, "it has subscribed"
        await lease.cancel()
        return list(self._ready)

    def _acknowledge_all(self) -> None:
        """Acknowledge all that came."""
        lease = self._lease
        if lease is not None and lease.held:
            lease.settle(list(lease.held), Outcome.ACKNOWLEDGE)

    def _abandon(self) -> None:
        """Give back what is not acknowledged, without waiting for that."""
        self._is_open = False
        if self._lease is not None:
            self._lease.channel.close_soon()

    async def _resubscribe(self) -> None:
        async with self._resubscribing:
            if self._is_open and (self._lease is None or self._lease.is_over):
                await self._subscribe()

    async def _subscribe(self) -> None:
        """Subscribe, on the next connection if need be."""
        async with self._link.time_limit("consume", None):
            self._lease = await self._link.run(self._ask, repeatable=True)

    async def _ask(self, connection: Connection) -> _Lease:
        channel = await connection.channel()
        try:
            queue = await self._find_queue(channel)
            tag = f"flyball-{secrets.token_hex(8)}"
            lease = _Lease(self, channel, queue, tag)
            # From now on, as deliveries may follow the answer in the same segment.
            channel.sinks[tag] = self._lease = lease
            await channel.call(self._request(lease), amqp.BasicConsumeOk)
        except BaseException:
            channel.close_soon()
            raise
        return lease

    def _request(self, lease: _Lease) -> Method:
        arguments: dict[str, Value] = {**self._selection, "x-prefetch": self._prefetch, "x-delivery-count": True}
        return amqp.BasicConsume(lease.channel.number, lease.queue, lease.tag, False, False, False, False, arguments)

    # What the lease tells

    def _arrived(self, delivery: Delivery) -> None:
        self._ready.append(delivery)
        self._wakened.set()

    def _ended(self, lease: _Lease) -> None:
        if lease is self._lease:
            # What nobody has seen yet is delivered again.
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
        """Return the next delivery; None if none comes within `wait_s`, or when the consumer is closed.

        A cancellation loses nothing. Raises QueueNotFound when the queue is deleted.
        """
        if self._ready and self._is_open:
            # At once: most come in bursts.
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
        """Change how many messages may be unsettled at a time; a fraction holds on average."""
        self._prefetch = check_prefetch(prefetch)
        lease = self._lease
        if lease is None or lease.is_over:
            return
        # If the connection breaks, the next subscription brings the new prefetch.
        with contextlib.suppress(ConnectionLost):
            async with self._link.time_limit("set_prefetch", time_limit_s):
                await lease.channel.call(self._request(lease), amqp.BasicConsumeOk)

    async def settle(
        self, deliveries: Iterable[Delivery], outcome: Outcome, *, time_limit_s: float | None = None
    ) -> None:
        """Settle several deliveries of this consumer together. Raises LeaseLost, and settles none, if one is gone."""
        settled = list(deliveries)
        if not settled:
            return
        lease = settled[0]._lease
        for delivery in settled:
            if delivery._consumer is not self:
                raise InvalidValue("deliveries of several consumers cannot be settled together")
            if delivery._lease is not lease or lease.held.get(delivery._tag) is not delivery:
                raise LeaseLost(delivery._tag)
        lease.settle([delivery._tag for delivery in settled], outcome)
        connection = lease.channel.connection
        if not connection.has_room:
            with contextlib.suppress(ConnectionLost):
                async with self._link.time_limit(outcome.value, time_limit_s):
                    await connection.room()
