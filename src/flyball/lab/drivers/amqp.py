"""AMQP 0-9-1 for the clients of the lab, for RabbitMQ and Flyball alike.

A receiver is a queue of its own, named after the queue and its address. A put is a publish and its confirm, a take a
basic.get without acknowledgement; streams publish and consume with many messages in flight.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import ClassVar, NamedTuple, TypeVar, cast

from flyball.broker.wire import amqp as wire
from flyball.errors import LabError
from flyball.lab.drivers.session import ANY_RECEIVER, QueueRef, Received, Session, Target, wrong
from flyball.trace.schema import Protocol

CHANNEL = 1
MOST_FRAME_BYTES = 131072
MOST_BODY_BYTES = 2**30
CAPABILITIES: dict[str, wire.Value] = {
    "publisher_confirms": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "authentication_failure_close": True,
}

_PERSISTENT = b"\x10\x00\x02"
_TRANSIENT = b"\x10\x00\x01"
# Delivery mode, correlation id and reply-to.
_ADDRESSED = b"\x16\x00\x02"
_PUBLISH_HEAD = struct.Struct(">BHIIH")
_PUBLISH_KEY = wire.BasicPublish.CLASS_ID << 16 | wire.BasicPublish.METHOD_ID
_MANDATORY_AND_END = b"\x01\xce"
_M = TypeVar("_M", bound=wire.Method)


class Delivery(NamedTuple):
    """A message from basic.deliver, and when it was read."""

    tag: int
    body: bytes
    received_ns: int


class AmqpLink(asyncio.Protocol):
    """A connection with one channel: one synchronous request in flight, any number of publishes and deliveries."""

    def __init__(self) -> None:
        self.sent_ns = 0
        self.answered_ns = 0
        # Unconfirmed publishes in order: the callback to call with the time of the confirm.
        self.in_flight: dict[int, Callable[[int], None]] = {}
        self.deliveries: deque[Delivery] = deque()
        self._loop = asyncio.get_running_loop()
        self._decoder = wire.Decoder(MOST_FRAME_BYTES, MOST_BODY_BYTES, from_server=True)
        self._frame_max = MOST_FRAME_BYTES
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[wire.Method] | None = None
        self._news: asyncio.Future[None] | None = None
        self._end: str | None = None
        self._closed = self._loop.create_future()
        self._published = 0
        # All publishes before this one are confirmed.
        self._oldest = 1
        self._is_paused = False
        self._is_blocked = False

    async def log_in(self, target: Target, *, is_transactional: bool = False) -> None:
        """Open connection and channel, in confirm mode, or in transaction mode, where nothing counts until
        `commit`.
        """
        self._write(wire.PROTOCOL_HEADER)
        await self._expect(wire.ConnectionStart)
        response = f"\0{target.user}\0{target.password}".encode()
        properties: dict[str, wire.Value] = {"product": "flyball lab", "capabilities": CAPABILITIES}
        tune = await self.ask(wire.ConnectionStartOk(0, properties, "PLAIN", response, "en_US"), wire.ConnectionTune)
        if tune.frame_max:
            self._frame_max = min(tune.frame_max, MOST_FRAME_BYTES)
        self._write(wire.ConnectionTuneOk(0, tune.channel_max, self._frame_max, 0).encode())
        await self.ask(wire.ConnectionOpen(0, target.vhost), wire.ConnectionOpenOk)
        await self.ask(wire.ChannelOpen(CHANNEL), wire.ChannelOpenOk)
        if is_transactional:
            await self.ask(wire.TxSelect(CHANNEL), wire.TxSelectOk)
        else:
            await self.ask(wire.ConfirmSelect(CHANNEL, False), wire.ConfirmSelectOk)

    async def commit(self) -> None:
        """Commit all publishes and acks since the last commit; they are durable on return."""
        await self.ask(wire.TxCommit(CHANNEL), wire.TxCommitOk)
        self.in_flight.clear()

    async def ask(self, request: wire.Method, expected: type[_M]) -> _M:
        """Send a request and return its answer, which must be of the expected type."""
        self._write(request.encode())
        return await self._expect(expected)

    async def ask_either(self, request: bytes) -> wire.Method:
        """Send an encoded request and return its answer."""
        self._write(request)
        return await self._next_answer()

    def publish(self, routing_key: str, properties: bytes, body: bytes, confirmed: Callable[[int], None]) -> None:
        """Publish to a queue; `confirmed` is called with the time of the broker's confirm."""
        key = routing_key.encode()
        head = _PUBLISH_HEAD.pack(1, CHANNEL, 9 + len(key), _PUBLISH_KEY, 0)
        method = b"%b\0%c%b%b" % (head, len(key), key, _MANDATORY_AND_END)
        self._published += 1
        self.in_flight[self._published] = confirmed
        self._write(method + wire.encode_content(CHANNEL, properties, body, self._frame_max))

    def ack(self, tag: int, *, multiple: bool) -> None:
        """Acknowledge a delivery, with all before it if `multiple`."""
        self._write(wire.encode_ack(CHANNEL, tag, multiple))

    @property
    def is_held_up(self) -> bool:
        """Whether the broker accepts nothing at present: its socket is full, or it sent connection.blocked."""
        return self._is_paused or self._is_blocked

    async def news(self) -> None:
        """Return when something has arrived, or `wake` was called. Raises LabError when the connection ends."""
        if self._end is not None:
            raise LabError(self._end)
        if self._news is None:
            self._news = self._loop.create_future()
        await self._news

    def wake(self) -> None:
        """Let `news` return."""
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)

    async def close(self) -> None:
        """Close the connection gracefully, so that the broker processes all acks."""
        try:
            if self._end is None:
                await self.ask(wire.ConnectionClose(0, 200, "", 0, 0), wire.ConnectionCloseOk)
                self._end = "the connection was closed"
        finally:
            await self.hang_up()

    async def hang_up(self) -> None:
        """Close the connection without connection.close."""
        if self._transport is not None:
            self._transport.close()
            await self._closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        now_ns = time.perf_counter_ns()
        decoder = self._decoder
        decoder.feed(data)
        try:
            while (command := decoder.next_command()) is not None:
                self._take(command, now_ns)
        except wire.AmqpError as error:
            self._fail(f"not AMQP: {error}")
        self.wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail("the server closed the connection" + (f": {error}" if error else ""))
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.wake()

    def _take(self, command: wire.Command, now_ns: int) -> None:
        if isinstance(command, wire.BasicDeliver):
            self.deliveries.append(Delivery(command.delivery_tag, command.body, now_ns))
        elif isinstance(command, wire.BasicAck):
            self._confirm(command.delivery_tag, command.multiple, now_ns)
        elif isinstance(command, wire.BasicNack):
            self._fail(f"the broker refused message {command.delivery_tag} of this client")
        elif isinstance(command, wire.BasicReturn):
            self._fail(f"the broker returned a message to {command.routing_key}: {command.reply_text}")
        elif isinstance(command, wire.ConnectionClose | wire.ChannelClose):
            self._fail(f"the broker closed with {command.reply_code} {command.reply_text}")
        elif isinstance(command, wire.BasicCancel):
            self._fail("the broker cancelled the consumer")
        elif isinstance(command, wire.ConnectionBlocked):
            self._is_blocked = True
        elif isinstance(command, wire.ConnectionUnblocked):
            self._is_blocked = False
        elif isinstance(command, wire.Method):
            self.answered_ns = now_ns
            answer, self._answer = self._answer, None
            if answer is None:
                self._fail(f"the broker spoke unasked: {command}")
            elif not answer.done():
                answer.set_result(command)

    def _confirm(self, tag: int, multiple: bool, now_ns: int) -> None:
        in_flight = self.in_flight
        if not multiple:
            confirmed = in_flight.pop(tag, None)
            if confirmed is not None:
                confirmed(now_ns)
            else:
                self._fail(f"the broker confirmed message {tag}, which is not in flight")
            return
        for older in range(self._oldest, tag + 1):
            confirmed = in_flight.pop(older, None)
            if confirmed is not None:
                confirmed(now_ns)
        self._oldest = tag + 1

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._end is not None:
            raise LabError(self._end or "there is no connection")
        self.sent_ns = time.perf_counter_ns()
        self._transport.write(data)

    async def _expect(self, expected: type[_M]) -> _M:
        answer = await self._next_answer()
        if not isinstance(answer, expected):
            raise wrong(answer, f"what wants a {expected.NAME}")
        return answer

    async def _next_answer(self) -> wire.Method:
        if self._end is not None:
            raise LabError(self._end)
        answer: asyncio.Future[wire.Method] = self._loop.create_future()
        self._answer = answer
        return await answer

    def _fail(self, reason: str) -> None:
        self._end = self._end or reason
        for waiter in (self._answer, self._news):
            if waiter is not None and not waiter.done():
                waiter.set_exception(LabError(self._end))
        self._answer = self._news = None


class AmqpSession(Session):
    """Takes the oldest message first. The set-up chooses addresses."""

    protocol: ClassVar[Protocol] = Protocol.AMQP

    def __init__(self, link: AmqpLink) -> None:
        super().__init__()
        self.link = link
        self._boxes: dict[tuple[QueueRef, int], str] = {}

    async def create_queue(self, name: str) -> QueueRef:
        await self._declare(name)
        return name

    async def create_client(self, name: str, number: int) -> int:
        return number + 1

    async def identify(self, address: int) -> None:
        self.address = address

    async def open_box(self, queue: QueueRef, address: int) -> None:
        await self._declare(self._box(queue, address))

    async def put(self, queue: QueueRef, receiver: int, body: bytes, context: int = 0) -> None:
        link = self.link
        box = str(queue) if receiver == ANY_RECEIVER else self._box(queue, receiver)
        token, sender = b"%d" % context, b"%d" % self.address
        properties = b"%b%c%b%c%b" % (_ADDRESSED, len(token), token, len(sender), sender)
        link.publish(box, properties, body, self._confirmed)
        self.sent_ns = link.sent_ns
        while link.in_flight:
            await link.news()

    async def take(
        self, queue: QueueRef, context: int = 0, *, by_time: bool = True, unaddressed: bool = False
    ) -> Received | None:
        link = self.link
        box = str(queue) if unaddressed else self._box(queue, self.address)
        answer = await link.ask_either(wire.BasicGet(CHANNEL, box, True).encode())
        self.sent_ns = link.sent_ns
        self.answered_ns = link.answered_ns
        if isinstance(answer, wire.BasicGetEmpty):
            return None
        if not isinstance(answer, wire.BasicGetOk):
            raise wrong(answer, "basic.get")
        properties = wire.Properties.decode(answer.properties)
        try:
            return Received(int(properties.reply_to or 0), int(properties.correlation_id or 0), answer.body)
        except ValueError:
            raise wrong(properties, "basic.get") from None

    async def get(self, queue: QueueRef) -> tuple[int, bytes] | None:
        """Return the oldest message and its delivery tag, None if the queue is empty."""
        answer = await self.link.ask_either(wire.BasicGet(CHANNEL, str(queue), False).encode())
        if isinstance(answer, wire.BasicGetEmpty):
            return None
        if not isinstance(answer, wire.BasicGetOk):
            raise wrong(answer, "basic.get")
        return answer.delivery_tag, answer.body

    async def consume(self, queue: QueueRef, prefetch: int, *, no_ack: bool) -> None:
        """Start a consumer with this prefetch, 0 for no limit; `link` collects its deliveries."""
        await self.link.ask(wire.BasicQos(CHANNEL, 0, prefetch, False), wire.BasicQosOk)
        request = wire.BasicConsume(CHANNEL, str(queue), "", False, no_ack, False, False, {})
        await self.link.ask(request, wire.BasicConsumeOk)

    def publish(self, queue: QueueRef, body: bytes, *, persistent: bool, confirmed: Callable[[int], None]) -> int:
        """Publish without waiting and return the time of sending; `confirmed` is called with the time of the
        confirm.
        """
        self.link.publish(str(queue), _PERSISTENT if persistent else _TRANSIENT, body, confirmed)
        return self.link.sent_ns

    async def waiting_in(self, queue: QueueRef) -> int:
        """Return the number of ready messages in the queue."""
        return (await self._declare(str(queue), is_passive=True)).message_count

    async def close(self) -> None:
        await self.link.close()

    async def _declare(self, name: str, *, is_passive: bool = False) -> wire.QueueDeclareOk:
        request = wire.QueueDeclare(CHANNEL, name, is_passive, True, False, False, False, {})
        return await self.link.ask(request, wire.QueueDeclareOk)

    def _box(self, queue: QueueRef, address: int) -> str:
        box = self._boxes.get((queue, address))
        if box is None:
            box = self._boxes[queue, address] = f"{queue}.{address}"
        return box

    def _confirmed(self, now_ns: int) -> None:
        self.answered_ns = now_ns
