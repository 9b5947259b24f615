"""A client of AMQP 0-9-1 that does only what a test asks for: frames out, frames in, and nothing behind the test's
back. Methods are encoded and decoded by pika, whose codec is not the one under test.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pika import spec

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = b"\xce"
ANSWER_LIMIT_S = 60.0

CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as it came."""

    kind: int
    channel: int
    payload: bytes

    @property
    def method(self) -> Any:
        """The method in it, one of pika's."""
        assert self.kind == METHOD, f"no method in {self}"
        (number,) = struct.unpack_from(">I", self.payload)
        return spec.methods[number]().decode(self.payload, 4)


@dataclass(frozen=True, slots=True)
class Content:
    """A method that carries a message, its header as it came, and the message's body."""

    method: Any
    header: bytes
    body: bytes

    @property
    def properties(self) -> Any:
        return spec.BasicProperties().decode(self.header[12:])

    @property
    def property_bytes(self) -> bytes:
        """The flags and values of the properties, as they came."""
        return self.header[12:]


class ConnectionEnded(Exception):
    """The broker closed the socket."""


class Peer:
    """One connection below the level of client libraries."""

    def __init__(self, host: str, port: int, source: str = "") -> None:
        """Connect, from another address of this machine if `source` names one."""
        self._socket = socket.create_connection((host, port), ANSWER_LIMIT_S, (source, 0) if source else None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def hang_up(self) -> None:
        """End the connection without a word; the reader learns that."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    # Out

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_frame(self, kind: int, channel: int, payload: bytes) -> None:
        self.send_bytes(frame(kind, channel, payload))

    def send(self, method: Any, channel: int = 1) -> None:
        """Send one of pika's methods."""
        self.send_bytes(method_frame(method, channel))

    def publish(
        self,
        body: bytes,
        exchange: str = "",
        routing_key: str = "",
        properties: Any = None,
        *,
        channel: int = 1,
        mandatory: bool = False,
        immediate: bool = False,
    ) -> None:
        """Publish, with the body in one frame."""
        method = spec.Basic.Publish(
            exchange=exchange, routing_key=routing_key, mandatory=mandatory, immediate=immediate
        )
        encoded = b"".join((properties or spec.BasicProperties()).encode())
        self.publish_bytes(method, encoded, [body] if body else [], channel)

    def publish_bytes(self, method: Any, properties: bytes, bodies: Iterable[bytes], channel: int = 1) -> None:
        """Publish with properties as they are encoded, and a frame for each part of the body."""
        parts = list(bodies)
        header = struct.pack(">HHQ", spec.Basic.INDEX, 0, sum(map(len, parts))) + properties
        frames = [method_frame(method, channel), frame(HEADER, channel, header)]
        self.send_bytes(b"".join(frames + [frame(BODY, channel, part) for part in parts]))

    # In

    def read_bytes(self, size: int) -> bytes:
        """Return exactly `size` bytes. Raises ConnectionEnded."""
        while len(self._received) < size:
            try:
                data = self._socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                raise ConnectionEnded(self._received)
            self._received += data
        data, self._received = self._received[:size], self._received[size:]
        return data

    def read_frame(self, *, timeout_s: float = ANSWER_LIMIT_S) -> Frame:
        """Return the next frame, heartbeats included. Raises ConnectionEnded, and TimeoutError."""
        self._socket.settimeout(timeout_s)
        kind, channel, size = struct.unpack(">BHI", self.read_bytes(7))
        payload = self.read_bytes(size)
        assert self.read_bytes(1) == FRAME_END
        return Frame(kind, channel, payload)

    def expect(self, kind: Any, channel: int = 1) -> Any:
        """Return the next method, which has to be of this kind on this channel."""
        got = self.read_frame()
        while got.kind == HEARTBEAT:
            got = self.read_frame()
        method = got.method
        assert (type(method), got.channel) == (kind, channel), f"got {method} on channel {got.channel}"
        return method

    def expect_content(self, kind: Any, channel: int = 1) -> Content:
        """Return the next method, which has to be of this kind, and the message with it."""
        return self._content(self.expect(kind, channel), channel)

    def try_content(self, kind: Any, nothing: Any, channel: int = 1) -> Content | None:
        """Return the next method of the first kind and the message with it, or None if the second kind comes."""
        method = self.read_frame().method
        if isinstance(method, nothing):
            return None
        assert isinstance(method, kind), f"got {method}"
        return self._content(method, channel)

    def _content(self, method: Any, channel: int) -> Content:
        header = self.read_frame()
        assert (header.kind, header.channel) == (HEADER, channel)
        (size,) = struct.unpack_from(">Q", header.payload, 4)
        parts: list[bytes] = []
        while size > 0:
            part = self.read_frame()
            assert (part.kind, part.channel) == (BODY, channel)
            parts.append(part.payload)
            size -= len(part.payload)
        return Content(method, header.payload, b"".join(parts))

    def read_to_end(self) -> list[Frame]:
        """Return all but heartbeats that comes before the broker closes the socket."""
        frames: list[Frame] = []
        while True:
            try:
                got = self.read_frame()
            except ConnectionEnded:
                return frames
            if got.kind != HEARTBEAT:
                frames.append(got)

    def expect_end(self) -> None:
        """Read until the broker closes the socket, and nothing but heartbeats may come before."""
        rest = self.read_to_end()
        assert rest == []

    # Dialogues

    def ask(self, method: Any, answer: Any, channel: int = 1) -> Any:
        """Send a method and return the answer, which has to be of that kind."""
        self.send(method, channel)
        return self.expect(answer, channel)

    def start(self) -> Any:
        """Greet the broker and return its connection.start."""
        self.send_bytes(PROTOCOL_HEADER)
        return self.expect(spec.Connection.Start, 0)

    def log_in(
        self,
        user: str = "guest",
        password: str = "guest",
        *,
        mechanism: str = "PLAIN",
        response: bytes | None = None,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Greet the broker and authenticate; its answer is not read."""
        self.start()
        if properties is None:
            properties = {"capabilities": CAPABILITIES}
        if response is None:
            response = b"\0" + user.encode() + b"\0" + password.encode()
        self.send(start_ok(properties, mechanism, response), 0)

    def tune(self, *, channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 0) -> Any:
        """Read what the broker proposes, which is returned, and answer it."""
        proposal = self.expect(spec.Connection.Tune, 0)
        self.send(spec.Connection.TuneOk(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat), 0)
        return proposal

    def open(
        self,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        *,
        channels: int = 1,
        channel_max: int = 2047,
        frame_max: int = 131072,
        heartbeat: int = 0,
        properties: dict[str, Any] | None = None,
    ) -> Self:
        """Do all that it takes to have an open connection with this number of open channels."""
        self.log_in(user, password, properties=properties)
        self.tune(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)
        self.ask(spec.Connection.Open(virtual_host=vhost), spec.Connection.OpenOk, 0)
        for channel in range(1, channels + 1):
            self.open_channel(channel)
        return self

    def open_channel(self, channel: int = 1) -> None:
        self.ask(spec.Channel.Open(), spec.Channel.OpenOk, channel)

    def expect_channel_close(self, code: int, text: str, caused_by: Any = None, channel: int = 1) -> str:
        """Read the broker's channel.close, confirm it, and return its reply text, which starts with `text`."""
        closed = self.expect(spec.Channel.Close, channel)
        self.send(spec.Channel.CloseOk(), channel)
        return _checked_close(closed, code, text, caused_by)

    def expect_connection_close(self, code: int, text: str, caused_by: Any = None) -> str:
        """Read the broker's connection.close, confirm it, see the end, and return its reply text."""
        closed = self.expect(spec.Connection.Close, 0)
        self.send(spec.Connection.CloseOk(), 0)
        self.expect_end()
        return _checked_close(closed, code, text, caused_by)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def method_frame(method: Any, channel: int = 1) -> bytes:
    return frame(METHOD, channel, method_bytes(method))


def method_bytes(method: Any) -> bytes:
    return struct.pack(">I", method.INDEX) + b"".join(method.encode())


def start_ok(properties: dict[str, Any], mechanism: str, response: bytes, locale: str = "en_US") -> Any:
    return spec.Connection.StartOk(
        client_properties=properties, mechanism=mechanism, response=response, locale=locale
    )


def _checked_close(closed: Any, code: int, text: str, caused_by: Any) -> str:
    reply = str(closed.reply_text)
    assert (closed.reply_code, reply[: len(text)]) == (code, text), f"got {closed.reply_code} {reply}"
    number = 0 if caused_by is None else caused_by.INDEX
    assert (closed.class_id << 16) | closed.method_id == number, f"caused by {closed.class_id}.{closed.method_id}"
    return reply
