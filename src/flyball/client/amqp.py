"""One AMQP connection to a node: channels, requests, confirms, deliveries and heartbeats.

It handles frames and channels, not the meaning of messages; a broken connection is not reused. It uses the node's own
codec: aio-pika takes 20 to 40 times as long per message, and cancelling a request there costs a channel.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, Self, TypeVar, cast

import flyball
from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import AmqpError, Command, Method, ReplyCode, Value
from flyball.client.address import NodeAddress
from flyball.client.errors import ConnectionFailed, ConnectionLost, MessageRefused, NotSent, error_of
from flyball.errors import FlyballError, ProtocolError, QueueNotFound, RequestError

M = TypeVar("M", bound=Method)
T = TypeVar("T")

FRAME_MAX = 1024 * 1024

# With more unsent bytes, publishing waits for the node to read.
UNSENT_BYTES = 1024 * 1024

# How long closing may take to send buffered data.
CLOSE_TIME_S = 1.0

# Channels kept for reuse.
MAX_KEPT_CHANNELS = 100

_CAPABILITIES: dict[str, Value] = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}
_PROPERTIES: dict[str, Value] = {
    "product": "flyball",
    "version": flyball.__version__,
    "platform": "Python",
    "capabilities": _CAPABILITIES,
}


class Sink(Protocol):
    """Receives the deliveries of one consumer."""

    def delivered(self, delivery: amqp.BasicDeliver) -> None:
        """A message was delivered."""

    def lost(self) -> None:
        """The consumer has ended: its channel or connection is closed, or its queue was deleted."""


class Confirms:
    """A batch of published messages, until all are confirmed."""

    __slots__ = ("_failure", "_left", "answer")

    def __init__(self, count: int, answer: asyncio.Future[None]) -> None:
        self.answer = answer
        self._left = count
        self._failure: FlyballError | None = None

    def one(self, failure: FlyballError | None) -> None:
        """One message was confirmed, or nacked."""
        self._failure = self._failure or failure
        self._left -= 1
        if self._left == 0:
            self.fail(self._failure)

    def note(self, failure: FlyballError) -> None:
        """One message was returned as unroutable; its confirm follows."""
        self._failure = self._failure or failure

    def fail(self, failure: FlyballError | None) -> None:
        if self.answer.done():
            return
        if failure is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(failure)


class Channel:
    """A channel. Answers come in the order of requests, so several may be pending."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        # The error that closed it; None while it is open.
        self.failure: FlyballError | None = None
        # By consumer tag.
        self.sinks: dict[str, Sink] = {}
        self._requests: deque[tuple[asyncio.Future[Method], Callable[[Method], None] | None]] = deque()
        self._gone = asyncio.Event()
        self._published = 0
        self._unconfirmed: dict[int, Confirms] = {}

    @property
    def is_idle(self) -> bool:
        return not (self._requests or self._unconfirmed or self.sinks)

    # Requests

    async def call(self, method: Method, kind: type[M]) -> M:
        """Send a method and return its answer.

        Raises the node's error, NotSent if the channel was closed before, and ConnectionLost.
        """
        answer = await self.start(method)
        if not isinstance(answer, kind):
            raise ProtocolError(f"unexpected answer {type(answer).__name__}")
        return answer

    def start(self, method: Method, late: Callable[[Method], None] | None = None) -> asyncio.Future[Method]:
        """Send a method; return the future of its answer. `late` gets the answer if the future was cancelled."""
        self._check()
        answer: asyncio.Future[Method] = self.connection.new_future()
        self._requests.append((answer, late))
        self.connection.send(method.encode())
        return answer

    def send(self, data: bytes) -> None:
        """Send a method without an answer; a no-op on a closed channel."""
        if self.failure is None:
            self.connection.send(data)

    def publish(
        self, exchange: str, routing_key: str, contents: Sequence[tuple[bytes, bytes]]
    ) -> asyncio.Future[None]:
        """Publish messages, given as properties and bodies; the future is done when all are confirmed.

        It raises QueueNotFound if one is unroutable, MessageRefused if one is nacked.
        """
        self._check()
        number, frame_max = self.number, self.connection.frame_max
        head = amqp.BasicPublish(number, exchange, routing_key, True, False).encode()
        confirms = Confirms(len(contents), self.connection.new_future())
        pieces: list[bytes] = []
        for properties, body in contents:
            pieces += (head, amqp.encode_content(number, properties, body, frame_max))
            self._published += 1
            self._unconfirmed[self._published] = confirms
        self.connection.send(b"".join(pieces))
        return confirms.answer

    def _check(self) -> None:
        if self.failure is not None:
            raise NotSent("a request", str(self.failure))

    # Input

    def handle(self, command: Command) -> None:
        if self.failure is not None:
            # This side has closed it: pending input is irrelevant.
            if isinstance(command, amqp.ChannelClose):
                self.connection.send(amqp.ChannelCloseOk(self.number).encode())
            elif isinstance(command, amqp.ChannelCloseOk):
                self.connection.forget(self)
                self._gone.set()
            return
        match command:
            case amqp.BasicDeliver(consumer_tag=tag):
                sink = self.sinks.get(tag)
                if sink is not None:
                    sink.delivered(command)
                else:
                    # Sent before the consumer was cancelled.
                    self.send(amqp.BasicReject(self.number, command.delivery_tag, True).encode())
            case amqp.BasicAck() | amqp.BasicNack():
                self._confirmed(command)
            case amqp.BasicReturn():
                # The return does not say which pending message it was: all on this channel have the same target.
                missing = QueueNotFound(command.routing_key)
                for confirms in set(self._unconfirmed.values()):
                    confirms.note(missing)
            case amqp.BasicCancel(consumer_tag=tag):
                sink = self.sinks.pop(tag, None)
                if sink is not None:
                    sink.lost()
            case amqp.ChannelClose(reply_code=code, reply_text=text):
                self.connection.send(amqp.ChannelCloseOk(self.number).encode())
                self.connection.forget(self)
                self._gone.set()
                self.end(error_of(code, text))
            case Method():
                answer, late = self._requests.popleft()
                if not answer.done():
                    answer.set_result(command)
                elif late is not None:
                    late(command)
            case _:
                # Other frames do not belong to a channel.
                pass

    def _confirmed(self, confirm: amqp.BasicAck | amqp.BasicNack) -> None:
        failure = MessageRefused() if isinstance(confirm, amqp.BasicNack) else None
        last, unconfirmed = confirm.delivery_tag, self._unconfirmed
        if not confirm.multiple:
            confirms = unconfirmed.pop(last, None)
            if confirms is not None:
                confirms.one(failure)
            return
        numbers: list[int] = []
        for number in unconfirmed:
            if number > last:
                break
            numbers.append(number)
        for number in numbers:
            unconfirmed.pop(number).one(failure)

    def end(self, failure: FlyballError) -> None:
        """Close: fail all pending requests. The first one is the one that the node refused."""
        if isinstance(failure, ConnectionLost) and not isinstance(failure, NotSent):
            self._gone.set()
        if self.failure is not None:
            return
        self.failure = failure
        requests, self._requests = self._requests, deque()
        waiting = set(self._unconfirmed.values())
        self._unconfirmed.clear()
        for answer, _ in requests:
            if not answer.done():
                answer.set_exception(failure)
                # Mark as retrieved: a cancelled caller never awaits it.
                answer.exception()
            if not isinstance(failure, ConnectionLost):
                failure = NotSent("a request", str(failure))
        error = self.failure
        if len(waiting) > 1 and not isinstance(error, ConnectionLost):
            # The node refused one of them; the outcome of the others is unknown.
            error = ConnectionLost("put", str(error))
        for confirms in waiting:
            confirms.fail(error)
        sinks, self.sinks = self.sinks, {}
        for sink in sinks.values():
            sink.lost()

    async def close(self) -> None:
        """Close and wait: the node has then executed everything sent before, and requeued unacked deliveries."""
        self.close_soon()
        await self._gone.wait()

    def close_soon(self) -> None:
        """Close without waiting. Unacked deliveries are requeued."""
        self.send(amqp.ChannelClose(self.number, ReplyCode.REPLY_SUCCESS, "", 0, 0).encode())
        self.end(NotSent("a request", "the channel was closed"))


class Connection(asyncio.Protocol):
    """An open connection, shared by tasks."""

    def __init__(self, address: NodeAddress, silence_limit_s: float, on_lost: Callable[[Connection], None]) -> None:
        self.address = address
        self.frame_max = amqp.FRAME_MIN_SIZE
        self.server_properties: dict[str, object] = {}
        self._silence_limit_s = silence_limit_s
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = amqp.Decoder(0, sys.maxsize, from_server=True)
        self._channels: dict[int, Channel] = {}
        self._kept: dict[Hashable, Channel] = {}
        self._opening = asyncio.Lock()
        # The pending answer on channel 0.
        self._greeting: asyncio.Future[Method] | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._room: asyncio.Future[None] | None = None
        self._is_write_paused = False
        self._received_at = self._sent_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._loss: str | None = None
        # The error with which the node closed it.
        self._refusal: FlyballError | None = None
        self._closed = asyncio.Event()

    @classmethod
    async def open(
        cls, address: NodeAddress, *, silence_limit_s: float, on_lost: Callable[[Connection], None]
    ) -> Self:
        """Connect and log in. Raises ConnectionFailed, and NotPermitted or CommandRefused if access is refused."""
        connection = cls(address, silence_limit_s, on_lost)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection, address.host, address.port, ssl=address.tls
            )
        except OSError as error:
            raise ConnectionFailed(str(address), _reason(error)) from error
        try:
            await connection._log_in()
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _log_in(self) -> None:
        address = self.address
        start = await self._ask(amqp.PROTOCOL_HEADER, amqp.ConnectionStart)
        self.server_properties = dict(start.server_properties)
        response = f"\0{address.user}\0{address.password}".encode()
        method = amqp.ConnectionStartOk(0, {**_PROPERTIES}, "PLAIN", response, "en_US")
        tune = await self._ask(method.encode(), amqp.ConnectionTune)
        self.frame_max = min(tune.frame_max or FRAME_MAX, FRAME_MAX)
        # The node sends two heartbeats in this time.
        heartbeat_s = max(1, round(self._silence_limit_s / 2))
        tune_ok = amqp.ConnectionTuneOk(0, tune.channel_max, self.frame_max, heartbeat_s)
        await self._ask(tune_ok.encode() + amqp.ConnectionOpen(0, address.vhost).encode(), amqp.ConnectionOpenOk)
        self._beat(heartbeat_s / 2)

    async def _ask(self, data: bytes, kind: type[M]) -> M:
        """Send a method on channel 0 and return the answer."""
        self._greeting = self.new_future()
        self.send(data)
        answer = await self._greeting
        if not isinstance(answer, kind):
            raise ConnectionFailed(str(self.address), f"unexpected answer {answer.NAME}")
        return answer

    def new_future(self) -> asyncio.Future[T]:
        return self._loop.create_future()

    # Channels

    async def channel(self, *, confirms: bool = False) -> Channel:
        """Open a channel."""
        if self._loss is not None:
            raise NotSent("a request", self._loss)
        number = 1
        while number in self._channels:
            number += 1
        channel = self._channels[number] = Channel(self, number)
        try:
            opened = channel.start(amqp.ChannelOpen(number))
            if confirms:
                await channel.call(amqp.ConfirmSelect(number, False), amqp.ConfirmSelectOk)
            await opened
        except BaseException:
            channel.close_soon()
            raise
        return channel

    async def channel_for(self, key: Hashable, *, confirms: bool = False) -> Channel:
        """Return the channel for this key: an error about one object closes only its channel."""
        channel = self._kept.get(key)
        if channel is not None and channel.failure is None:
            return channel
        async with self._opening:
            channel = self._kept.get(key)
            if channel is None or channel.failure is not None:
                self._drop_unused()
                channel = self._kept[key] = await self.channel(confirms=confirms)
        return channel

    async def publish(self, key: Hashable, queue: str, contents: Sequence[tuple[bytes, bytes]]) -> None:
        """Publish to a queue, on the channel for this key, once there is room; return when all is confirmed."""
        channel = await self.channel_for(key, confirms=True)
        await self.room()
        await channel.publish("", queue, contents)

    def _drop_unused(self) -> None:
        if len(self._kept) < MAX_KEPT_CHANNELS:
            return
        for key, channel in list(self._kept.items()):
            if channel.is_idle:
                del self._kept[key]
                channel.close_soon()
                return

    def forget(self, channel: Channel) -> None:
        """Release the number of a closed channel."""
        if self._channels.get(channel.number) is channel:
            del self._channels[channel.number]

    # Output

    def send(self, data: bytes) -> None:
        """Queue bytes for the next write."""
        if self._loss is not None:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)
        self._out_bytes += len(data)

    @property
    def has_room(self) -> bool:
        return not self._is_write_paused and self._out_bytes <= UNSENT_BYTES

    async def room(self) -> None:
        """Wait for room in the output buffer. Raises NotSent."""
        while self._loss is None and not self.has_room:
            if self._room is None:
                self._room = self.new_future()
            await asyncio.shield(self._room)
        if self._loss is not None:
            raise NotSent("a request", self._loss)

    def _flush(self) -> None:
        out, self._out, self._out_bytes = self._out, [], 0
        if out and self._transport is not None:
            self._sent_at = self._loop.time()
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        self._wake()

    def _wake(self) -> None:
        if self._room is not None and not self._is_write_paused:
            self._room.set_result(None)
            self._room = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES)

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        decoder, channels = self._decoder, self._channels
        try:
            decoder.feed(data)
            while (command := decoder.next_command()) is not None:
                number = getattr(command, "channel", 0)
                channel = channels.get(number)
                if channel is not None:
                    channel.handle(command)
                elif number == 0:
                    self._handle(command)
        except (AmqpError, IndexError) as error:
            self._lose(f"protocol error by the node: {error}")
            self.abort()

    def _handle(self, command: Command) -> None:
        match command:
            case amqp.ConnectionClose(reply_code=code, reply_text=text):
                self._refusal = error_of(code, text)
                self.send(amqp.ConnectionCloseOk(0).encode())
                self._flush()
                if self._transport is not None:
                    self._transport.close()
                self._lose(text)
            case amqp.ConnectionCloseOk():
                if self._transport is not None:
                    self._transport.close()
            case amqp.ConnectionStart() | amqp.ConnectionTune() | amqp.ConnectionOpenOk():
                greeting, self._greeting = self._greeting, None
                if greeting is not None and not greeting.done():
                    greeting.set_result(command)
            case _:
                # A heartbeat, or connection.blocked: a publisher waits for its confirm anyway.
                pass

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lose("closed by the node" if exc is None else str(exc))
        self._closed.set()

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._wake()

    # Heartbeats

    def _beat(self, period_s: float) -> None:
        """Send heartbeats, and close the connection if the node is silent for too long."""
        if self._loss is not None:
            return
        now = self._loop.time()
        if now - self._received_at > self._silence_limit_s:
            self._lose(f"no heartbeat for {self._silence_limit_s:g} s")
            self.abort()
            return
        if now - self._sent_at >= period_s:
            self.send(amqp.HEARTBEAT)
        self._timer = self._loop.call_later(period_s / 2, self._beat, period_s)

    # Close

    @property
    def is_lost(self) -> bool:
        return self._loss is not None

    def _lose(self, reason: str) -> None:
        if self._loss is not None:
            return
        self._loss = reason
        if self._timer is not None:
            self._timer.cancel()
        if self._greeting is not None and not self._greeting.done():
            failed = ConnectionFailed(str(self.address), reason)
            # A busy or stopping node can be retried; other refusals concern the credentials.
            self._greeting.set_exception(self._refusal if isinstance(self._refusal, RequestError) else failed)
        self._wake()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.end(ConnectionLost("a request", reason))
        self._on_lost(self)

    def abort(self) -> None:
        """Close without sending buffered data."""
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Send buffered data and close; the node has then executed all of it. May be called twice."""
        self.send(amqp.ConnectionClose(0, ReplyCode.REPLY_SUCCESS, "", 0, 0).encode())
        self._flush()
        self._lose("the client was closed")
        if self._transport is not None:
            try:
                async with asyncio.timeout(CLOSE_TIME_S):
                    await self._closed.wait()
            except TimeoutError:
                self.abort()
                await self._closed.wait()


def _reason(error: OSError) -> str:
    # asyncio puts the address into the text, where the error has it already; resolver errors have negative codes.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)
