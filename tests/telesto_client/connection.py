"""One connection to a server: requests out, answers matched to them, deliveries handed to their consumers.

It knows frames, packet ids and limits, but not what the packets mean; when it breaks, it is not used again.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, Self, cast

from flyball.broker.wire import telesto as wire
from flyball.errors import InvalidBody, ProtocolError
from tests.telesto_client.errors import ConnectionFailed, ConnectionLost, InvalidValue, NotSent

VERSION = 1
"""The version of the extension that this client speaks."""

_MIN_FRAME_MAX = 1024
_UNSENT_BYTES = 1024 * 1024
"""With more than this unsent, further requests wait until the server has read."""

_CLOSE_TIME_S = 1.0
"""So long a connection may take to send what is left when it is closed."""

_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 120_000}
"""A server that has silently gone is noticed after two minutes."""


class ServerAddress(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `host:port` or `[ipv6]:port`. Raises InvalidValue."""
        found = re.fullmatch(r"(?:\[([^\[\]\s]+)\]|([^\[\]:\s]+)):([0-9]{1,5})", text)
        if found is None or not 0 < int(found[3]) < 65536:
            raise InvalidValue(f"{text!r} is not an address: give host:port or [ipv6]:port")
        return cls(found[1] or found[2], int(found[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Sink(Protocol):
    """Where the deliveries of one consumer go."""

    def opened(self, connection: Connection, consumer_id: int) -> None:
        """The server has accepted the consumer: deliveries may follow at once, so attach the sink."""

    def delivered(self, record: wire.Record) -> None:
        """A message came."""

    def lost(self) -> None:
        """The connection is gone: nothing it delivered can be settled any more."""


class Connection(asyncio.Protocol):
    """An open connection. `request` may be called from many tasks at once.

    At most `max_pending` requests are unanswered at a time, and at most half of those wait for something to
    happen at the server; further ones wait for their turn here.
    """

    def __init__(self, address: ServerAddress, max_pending: int, on_lost: Callable[[Connection], None]) -> None:
        self.address = address
        self.is_wide = False
        self.frame_max = wire.PLAIN_FRAME_MAX
        self.server = ""
        """Name and version of a server that speaks the extension."""
        self.on_move: Callable[[wire.MoveRequested], None] = lambda request: None
        """Called when the server asks a client of a clustered queue to go elsewhere."""
        self._max_pending = max_pending
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = wire.PacketDecoder(from_server=True)
        self._encode: Callable[[wire.Packet], bytes] = wire.encode
        self._last_id = 0
        self._pending: dict[int, tuple[asyncio.Future[wire.Packet], str]] = {}
        self._patient: set[int] = set()
        """Ids of the pending requests that wait for something to happen at the server."""
        self._line: deque[asyncio.Future[None]] = deque()
        self._patient_line: deque[asyncio.Future[None]] = deque()
        """Those who wait for a place among the pending."""
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_write_paused = False
        self._subscribing: dict[int, Sink] = {}
        self._sinks: dict[int, Sink] = {}
        self._loss: str | None = None
        self._closed = asyncio.Event()

    @classmethod
    async def open(
        cls, address: ServerAddress, *, extension: bool, max_pending: int, on_lost: Callable[[Connection], None]
    ) -> Self:
        """Connect and, if `extension`, ask for the extension. Raises ConnectionFailed."""
        connection = cls(address, max_pending, on_lost)
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection, address.host, address.port)
        except OSError as error:
            raise ConnectionFailed(str(address), _reason(error)) from error
        try:
            if extension:
                await connection._ask_for_extension()
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _ask_for_extension(self) -> None:
        try:
            answer = await self.request(wire.IdentifyClient(0, wire.EXTENSION_CLIENT_ID), "connect")
        except ConnectionLost as error:
            raise ConnectionFailed(str(self.address), error.reason) from error
        if not isinstance(answer, wire.Welcome | wire.Error):
            raise ConnectionFailed(str(self.address), f"it answered with {type(answer).__name__}")

    # Requests

    async def request(self, packet: wire.Packet, operation: str, *, waits: bool = False) -> wire.Packet:
        """Send the packet and return its answer, which may be an Error.

        Raises NotSent or ConnectionLost when the connection breaks, InvalidBody if the packet is too large.
        After a cancellation the request may or may not be carried out; its answer is ignored.
        """
        return await (await self.start(packet, operation, waits=waits))

    async def subscribe(self, packet: wire.Consume, sink: Sink) -> wire.Packet:
        """Send the Consume; if it is accepted, its deliveries go to the sink."""
        answer = await self.start(packet, "consume")
        self._subscribing[packet.packet_id] = sink
        return await answer

    def attach(self, consumer_id: int, sink: Sink) -> None:
        """From now on the consumer's deliveries go to the sink."""
        self._sinks[consumer_id] = sink

    def detach(self, consumer_id: int) -> None:
        """From now on the consumer's deliveries go back to their queue."""
        self._sinks.pop(consumer_id, None)

    async def start(self, packet: wire.Packet, operation: str, *, waits: bool = False) -> asyncio.Future[wire.Packet]:
        """Send the packet as soon as there is room; return the future of its answer."""
        line = self._patient_line if waits else self._line
        if line or not self._has_room(waits):
            await self._queue_up(line, waits)
        try:
            answer = self.start_now(packet, operation)
            if waits:
                self._patient.add(packet.packet_id)
        finally:
            self._wake()
        return answer

    def start_now(self, packet: wire.Packet, operation: str) -> asyncio.Future[wire.Packet]:
        """Send the packet, room or not. For what makes room: settling and cancelling."""
        if self._loss is not None:
            raise NotSent(operation, self._loss)
        self.send(packet)
        answer: asyncio.Future[wire.Packet] = self._loop.create_future()
        self._pending[packet.packet_id] = answer, operation
        return answer

    def send(self, packet: wire.Packet) -> None:
        """Send the packet with the next write, whatever its answer."""
        packet.packet_id = self._next_id()
        try:
            data = self._encode(packet)
        except wire.FrameTooLarge as error:
            raise InvalidBody(str(error)) from error
        if len(data) > self.frame_max:
            raise InvalidBody(f"a request of {len(data)} bytes exceeds the server's limit of {self.frame_max}")
        if self._loss is not None:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)
        self._out_bytes += len(data)

    def _next_id(self) -> int:
        while True:
            # Id 0 is the server's own.
            self._last_id = self._last_id % 0x7FFFFFFF + 1
            if self._last_id not in self._pending:
                return self._last_id

    def _flush(self) -> None:
        out, self._out, self._out_bytes = self._out, [], 0
        if out and self._transport is not None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        self._wake()

    # Room

    def _has_room(self, waits: bool) -> bool:
        return (
            len(self._pending) < self._max_pending
            and not self._is_write_paused
            and self._out_bytes < _UNSENT_BYTES
            and not (waits and len(self._patient) >= self._max_pending // 2)
        )

    async def _queue_up(self, line: deque[asyncio.Future[None]], waits: bool) -> None:
        """Return when there is room and nobody is before this one, who stays in line until then."""
        place = self._loop.create_future()
        line.append(place)
        try:
            await place
            while self._loss is None and not self._has_room(waits):
                # Only the first one is woken.
                place = line[0] = self._loop.create_future()
                await place
        except asyncio.CancelledError:
            line.remove(place)
            self._wake()
            raise
        line.remove(place)

    def _wake(self) -> None:
        """Let the next ones in line try, if there is room."""
        for line, waits in ((self._line, False), (self._patient_line, True)):
            if line and not line[0].done() and self._has_room(waits):
                line[0].set_result(None)

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        _keep_alive(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        try:
            self._decoder.feed(data)
            while (packet := self._decoder.next_packet()) is not None:
                if type(packet) is wire.Deliver:
                    self._deliver(packet)
                elif type(packet) is wire.ConsumerEnded:
                    self._end_consumer(packet.consumer_id)
                elif type(packet) is wire.MoveRequested:
                    self.on_move(packet)
                else:
                    self._answered(packet)
        except ProtocolError as error:
            self._lose(f"the server broke the protocol: {error}")
            self.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lose("the server closed it" if exc is None else str(exc))
        self._closed.set()

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._wake()

    # Answers

    def _answered(self, packet: wire.Packet) -> None:
        packet_id = packet.packet_id
        if type(packet) is wire.Welcome:
            self._widen(packet)
        sink = self._subscribing.pop(packet_id, None) if self._subscribing else None
        if sink is not None and isinstance(packet, wire.Consuming):
            # Now, not when the caller wakes: deliveries may follow in the same segment.
            sink.opened(self, packet.consumer_id)
        pending = self._pending.pop(packet_id, None)
        if pending is None:
            return
        answer, _ = pending
        self._patient.discard(packet_id)
        # One that is done was given up by its caller.
        if not answer.done():
            answer.set_result(packet)
        self._wake()

    def _widen(self, welcome: wire.Welcome) -> None:
        if self.is_wide or welcome.version != VERSION or welcome.frame_max < _MIN_FRAME_MAX:
            raise ProtocolError(f"version {welcome.version} and frame_max {welcome.frame_max} in a Welcome")
        self._decoder.widen(welcome.frame_max)
        self._encode = wire.encode_wide
        self.is_wide = True
        self.frame_max = welcome.frame_max
        self.server = welcome.server

    def _deliver(self, packet: wire.Deliver) -> None:
        sink = self._sinks.get(packet.consumer_id)
        if sink is None:
            # It was under way when the consumer was cancelled.
            self.send(wire.Settle(0, packet.consumer_id, wire.Outcome.REQUEUE, [packet.record.message_id]))
        else:
            sink.delivered(packet.record)

    def _end_consumer(self, consumer_id: int) -> None:
        sink = self._sinks.pop(consumer_id, None)
        if sink is not None:
            sink.lost()

    # The end

    @property
    def is_lost(self) -> bool:
        return self._loss is not None

    def _lose(self, reason: str) -> None:
        if self._loss is not None:
            return
        self._loss = reason
        pending, self._pending = self._pending, {}
        for answer, operation in pending.values():
            if not answer.done():
                answer.set_exception(ConnectionLost(operation, reason))
        for line in (self._line, self._patient_line):
            for place in line:
                if not place.done():
                    place.set_result(None)
        sinks = [*self._sinks.values(), *self._subscribing.values()]
        self._sinks.clear()
        self._subscribing.clear()
        for sink in sinks:
            sink.lost()
        self._on_lost(self)

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Send what is left and end it. May be called twice."""
        self._flush()
        self._lose("the client was closed")
        if self._transport is not None:
            self._transport.close()
            try:
                async with asyncio.timeout(_CLOSE_TIME_S):
                    await self._closed.wait()
            except TimeoutError:
                self.abort()
                await self._closed.wait()


def _reason(error: OSError) -> str:
    # asyncio puts the address into the text, which the error has already; resolvers have codes below 0.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


def _keep_alive(peer: socket.socket | None) -> None:
    if peer is None or peer.family not in (socket.AF_INET, socket.AF_INET6):
        return
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
