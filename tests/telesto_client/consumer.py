"""Consuming: messages come as they arrive, each leased until it is acknowledged, requeued or dropped."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self

from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import Outcome
from flyball.errors import ConsumerNotFound, LeaseNotFound
from tests.telesto_client.connection import Connection
from tests.telesto_client.errors import ConnectionLost, InvalidValue, LeaseLost
from tests.telesto_client.link import Link, expect
from tests.telesto_client.messages import ReceivedMessage, check_prefetch, check_seconds, from_record


class Delivery:
    """One hand-over of a message, to be settled once: by `ack`, `requeue` or `drop`.

    Settling raises LeaseLost when the connection that brought it is gone or its consumer closed: then the message
    goes back to its place, and is delivered again. When it raises ConnectionLost or RequestTimeout the outcome is
    unknown.
    """

    __slots__ = ("_consumer", "_lease", "message")

    def __init__(self, consumer: Consumer, lease: _Lease, message: ReceivedMessage) -> None:
        self._consumer = consumer
        self._lease = lease
        self.message = message

    async def ack(self, *, time_limit_s: float | None = None) -> None:
        """The message is dealt with: remove it. On return that is committed."""
        await self._consumer.settle([self], Outcome.ACKNOWLEDGE, time_limit_s=time_limit_s)

    async def requeue(self, *, time_limit_s: float | None = None) -> None:
        """Put the message back to its old place, for whoever comes next."""
        await self._consumer.settle([self], Outcome.REQUEUE, time_limit_s=time_limit_s)

    async def drop(self, *, time_limit_s: float | None = None) -> None:
        """The message cannot be dealt with: remove it."""
        await self._consumer.settle([self], Outcome.DROP, time_limit_s=time_limit_s)


class _Lease:
    """One subscription on one connection: what was delivered through it and is not settled.

    The connection calls it as its sink.
    """

    def __init__(self, consumer: Consumer) -> None:
        self.connection: Connection | None = None
        self.consumer_id = 0
        self.held: dict[int, Delivery] = {}
        self.is_over = False
        self.settling = 0
        """How many settlements are under way."""
        self.changed = asyncio.Event()
        """Set when something has been settled, or nothing can be any more."""
        self._consumer = consumer

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to be settled, or to be answered."""
        return self.is_over or not (self.held or self.settling)

    def opened(self, connection: Connection, consumer_id: int) -> None:
        self.connection = connection
        self.consumer_id = consumer_id
        if self.is_over:
            # Whoever asked for it was cancelled meanwhile.
            connection.send(wire.Cancel(0, consumer_id))
        else:
            connection.attach(consumer_id, self)

    def delivered(self, record: wire.Record) -> None:
        delivery = Delivery(self._consumer, self, from_record(record))
        self.held[record.message_id] = delivery
        self._consumer._arrived(delivery)

    def lost(self) -> None:
        self.end()

    def end(self) -> None:
        self.is_over = True
        self.held.clear()
        self.changed.set()
        self._consumer._ended(self)


class Consumer:
    """Deliveries of one queue, as an asynchronous iterator inside an `async with` block.

    After a lost connection it subscribes again when the next delivery is asked for. At the end of the block
    whatever is not settled goes back to its place. Several tasks may share a consumer.
    """

    def __init__(
        self,
        link: Link,
        find_queue: Callable[[], Awaitable[int]],
        subject: int | str,
        selector: wire.WireSelector,
        prefetch: float,
    ) -> None:
        self._link = link
        self._find_queue = find_queue
        self._subject = subject
        self._selector = selector
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
        if lease is None or lease.is_over:
            return
        connection, held = lease.connection, list(lease.held)
        lease.end()
        if connection is None:
            return
        connection.detach(lease.consumer_id)
        # All is sent before anything is awaited, so that a cancellation leaves nothing behind. A lost connection
        # and a deleted queue have given everything back already.
        with contextlib.suppress(ConnectionLost, LeaseNotFound, ConsumerNotFound):
            answers = [connection.start_now(wire.Cancel(0, lease.consumer_id), "close")]
            if held:
                settle = wire.Settle(0, lease.consumer_id, Outcome.REQUEUE, held)
                answers.append(connection.start_now(settle, "close"))
            async with self._link.time_limit("close", None):
                for answer in await asyncio.gather(*answers):
                    expect(answer, wire.Success)

    async def stop(self) -> None:
        """Be sent no more, and give back what nobody has seen yet; what was handed out can still be settled.

        From now on `next` returns None. May be called twice.
        """
        self._is_open = False
        unseen, self._ready = list(self._ready), deque()
        self._wakened.set()
        lease = self._lease
        if lease is None or lease.is_over or lease.connection is None:
            return
        with contextlib.suppress(ConnectionLost, LeaseNotFound, ConsumerNotFound):
            async with self._link.time_limit("stop", None):
                expect(await lease.connection.start_now(wire.Cancel(0, lease.consumer_id), "stop"), wire.Success)
                # Now nothing more can come.
                unseen += self._ready
                self._ready.clear()
                await self.settle(unseen, Outcome.REQUEUE)

    async def wait_settled(self) -> None:
        """Wait until all that was handed out is settled, and that is answered, or cannot be any more."""
        lease = self._lease
        while lease is not None and not lease.is_settled:
            lease.changed.clear()
            await lease.changed.wait()

    async def _resubscribe(self) -> None:
        async with self._resubscribing:
            if self._is_open and (self._lease is None or self._lease.is_over):
                await self._subscribe()

    async def _subscribe(self) -> None:
        """Subscribe, on the next connection if need be."""
        lease = _Lease(self)
        self._lease = lease
        try:
            async with self._link.time_limit("consume", None):
                answer = await self._link.run(lambda connection: self._ask(connection, lease), repeatable=True)
                expect(answer, wire.Consuming, self._subject)
        except BaseException:
            # If the server still accepts it, it is cancelled as soon as that is known.
            lease.end()
            raise

    async def _ask(self, connection: Connection, lease: _Lease) -> wire.Packet:
        lease.is_over = False
        packet = wire.Consume(0, await self._find_queue(), self._selector, self._prefetch)
        return await connection.subscribe(packet, lease)

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
        if wait_s is None:
            return await self._next()
        try:
            async with asyncio.timeout(check_seconds("wait_s", wait_s, float("inf"))):
                return await self._next()
        except TimeoutError:
            return None

    async def _next(self) -> Delivery | None:
        while not self._ready:
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
        if lease is None or lease.is_over or lease.connection is None:
            return
        # If the connection breaks, the next subscription brings the new prefetch.
        with contextlib.suppress(ConnectionLost):
            async with self._link.time_limit("set_prefetch", time_limit_s):
                packet = wire.Prefetch(0, lease.consumer_id, self._prefetch)
                answer = await lease.connection.start_now(packet, "set_prefetch")
                expect(answer, wire.Success, lease.consumer_id)

    async def settle(
        self, deliveries: Iterable[Delivery], outcome: Outcome, *, time_limit_s: float | None = None
    ) -> None:
        """Settle several deliveries of this consumer in one request: all or none."""
        settled = list(deliveries)
        if not settled:
            return
        lease = settled[0]._lease
        for delivery in settled:
            if delivery._consumer is not self:
                raise InvalidValue("deliveries of several consumers cannot be settled together")
            if delivery._lease is not lease or lease.held.get(delivery.message.id) is not delivery:
                raise LeaseLost(delivery.message.id)
        connection = lease.connection
        assert connection is not None, "a delivery came through a connection"
        message_ids = [delivery.message.id for delivery in settled]
        async with self._link.time_limit(outcome.name.lower(), time_limit_s):
            answer = connection.start_now(
                wire.Settle(0, lease.consumer_id, outcome, message_ids), outcome.name.lower()
            )
            # From here on its outcome is the server's: it cannot be settled twice.
            for message_id in message_ids:
                lease.held.pop(message_id, None)
            lease.settling += 1
            try:
                expect(await answer, wire.Success, message_ids[0])
            finally:
                lease.settling -= 1
                lease.changed.set()
