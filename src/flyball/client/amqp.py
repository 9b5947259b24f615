"""One AMQP connection to a node: channels, requests and their answers, confirms, deliveries and heartbeats.

It knows frames and channels, but not what the messages mean; when it breaks, it is not used again. It uses the node's
own codec: aio-pika takes 20 to 40 times as long for a message, and a cancelled request costs a channel there.
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

# With more than this unsent, further messages wait until the node has read.
UNSENT_BYTES = 1024 * 1024

# A connection may take this long to send what is left when it is closed.
CLOSE_TIME_S = 1.0

# Channels that are kept for the next message of the same kind.
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
    """Where the deliveries of one consumer go."""

    def delivered(self, delivery: amqp.BasicDeliver) -> None:
        """A message came."""

    def lost(self) -> None:
        """The consumer has ended: its channel or connection is gone, or its queue was deleted."""


class Confirms:
    """Messages that are published together, until all of them are confirmed."""

    __slots__ = ("_failure", "_left", "answer")

    def __init__(self, count: int, answer: asyncio.Future[None]) -> None:
        self.answer = answer
        self._left = count
        self._failure: FlyballError | None = None

    def one(self, failure: FlyballError | None) -> None:
        """One of them is confirmed, or refused."""
        self._failure = self._failure or failure
        self._left -= 1
        if self._left == 0:
            self.fail(self._failure)

    def note(self, failure: FlyballError) -> None:
        """One of them cannot be routed; its confirm follows."""
        self._failure = self._failure or failure

    def fail(self, failure: FlyballError | None) -> None:
        if self.answer.done():
            return
        if failure is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(failure)


class Channel:
    """One channel. Answers come in the order of the requests, so many may be under way."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        # Why it is closed; None while it is open.
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

        Raises what the node has against it, NotSent if the channel was closed before, and ConnectionLost.
        """
        answer = await self.start(method)
        if not isinstance(answer, kind):
            raise ProtocolError(f"the node answered with {type(answer).__name__}")
        return answer

    def start(self, method: Method, late: Callable[[Method], None] | None = None) -> asyncio.Future[Method]:
        """Send a method; return the future of its answer. `late` gets the answer if the future was cancelled."""
        self._check()
        answer: asyncio.Future[Method] = self.connection.new_future()
        self._requests.append((answer, late))
        self.connection.send(method.encode())
        return answer

    def send(self, data: bytes) -> None:
        """Send what has no answer. Nothing happens on a closed channel."""
        if self.failure is None:
            self.connection.send(data)

    def publish(
        self, exchange: str, routing_key: str, contents: Sequence[tuple[bytes, bytes]]
    ) -> asyncio.Future[None]:
        """Publish messages, properties and bodies; the future is done when all of them are committed.

        It raises QueueNotFound if there is no queue for one of them, MessageRefused if the node does not take one.
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

    # What the node says

    def handle(self, command: Command) -> None:
        if self.failure is not None:
            # We have closed it: what was under way is of no use any more.
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
                    # It was under way when the consumer was cancelled.
                    self.send(amqp.BasicReject(self.number, command.delivery_tag, True).encode())
            case amqp.BasicAck() | amqp.BasicNack():
                self._confirmed(command)
            case amqp.BasicReturn():
                # Which of those that are under way it was, it does not say: all go the same way here.
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
                # No other frame belongs to a channel.
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
        """The channel is over: tell all who wait. The first request is the one that the node complains of."""
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
                # Whoever asked may have been cancelled, and not ask any more.
                answer.exception()
            if not isinstance(failure, ConnectionLost):
                failure = NotSent("a request", str(failure))
        told = self.failure
        if len(waiting) > 1 and not isinstance(told, ConnectionLost):
            # One of them is what the node complains of; of the others nobody knows.
            told = ConnectionLost("put", str(told))
        for confirms in waiting:
            confirms.fail(told)
        sinks, self.sinks = self.sinks, {}
        for sink in sinks.values():
            sink.lost()

    async def close(self) -> None:
        """Close it: the node has carried out all that was sent, and what is not settled has gone back."""
        self.close_soon()
        await self._gone.wait()

    def close_soon(self) -> None:
        """Close it, without waiting for that. What is not settled goes back."""
        self.send(amqp.ChannelClose(self.number, ReplyCode.REPLY_SUCCESS, "", 0, 0).encode())
        self.end(NotSent("a request", "the channel was closed"))


class Connection(asyncio.Protocol):
    """An open connection. Tasks may share it."""

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
        # What is waited for on channel 0.
        self._greeting: asyncio.Future[Method] | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._room: asyncio.Future[None] | None = None
        self._is_write_paused = False
        self._heard_at = self._sent_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._loss: str | None = None
        # Why the node has closed it.
        self._refusal: FlyballError | None = None
        self._closed = asyncio.Event()

    @classmethod
    async def open(
        cls, address: NodeAddress, *, silence_limit_s: float, on_lost: Callable[[Connection], None]
    ) -> Self:
        """Connect and log in. Raises ConnectionFailed, and NotPermitted or CommandRefused if we are not let in."""
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
        # The node says something twice in this time.
        heartbeat_s = max(1, round(self._silence_limit_s / 2))
        tune_ok = amqp.ConnectionTuneOk(0, tune.channel_max, self.frame_max, heartbeat_s)
        await self._ask(tune_ok.encode() + amqp.ConnectionOpen(0, address.vhost).encode(), amqp.ConnectionOpenOk)
        self._beat(heartbeat_s / 2)

    async def _ask(self, data: bytes, kind: type[M]) -> M:
        """Send something on channel 0 and return the answer."""
        self._greeting = self.new_future()
        self.send(data)
        answer = await self._greeting
        if not isinstance(answer, kind):
            raise ConnectionFailed(str(self.address), f"it answered with {answer.NAME}")
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
        """Return the channel for everything of one kind: what is wrong with one thing closes only its channel."""
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
        """Publish to a queue, when there is room, on the channel for this kind; return when all is committed."""
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
        """The channel is closed: its number is free."""
        if self._channels.get(channel.number) is channel:
            del self._channels[channel.number]

    # Writing

    def send(self, data: bytes) -> None:
        """Send the bytes with the next write."""
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
        """Return when there is room for more. Raises NotSent."""
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

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
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
            self._lose(f"the node broke the protocol: {error}")
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
        self._lose("the node closed it" if exc is None else str(exc))
        self._closed.set()

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._wake()

    # Silence

    def _beat(self, period_s: float) -> None:
        """Give the connection up when the node is silent for too long; let it know that we are not."""
        if self._loss is not None:
            return
        now = self._loop.time()
        if now - self._heard_at > self._silence_limit_s:
            self._lose(f"the node was silent for {self._silence_limit_s:g} s")
            self.abort()
            return
        if now - self._sent_at >= period_s:
            self.send(amqp.HEARTBEAT)
        self._timer = self._loop.call_later(period_s / 2, self._beat, period_s)

    # The end

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
            # A node that is busy or stops may be asked again; the rest is about who we are.
            self._greeting.set_exception(self._refusal if isinstance(self._refusal, RequestError) else failed)
        self._wake()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.end(ConnectionLost("a request", reason))
        self._on_lost(self)

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Send what is left and end it: the node has carried out all of it then. May be called twice."""
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
    # asyncio puts the address into the text, which the error has already; resolvers have codes below 0.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)
