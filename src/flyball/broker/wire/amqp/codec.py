"""Frames of AMQP 0-9-1: bytes in, commands out, and back.

Sans-IO: the caller owns the socket. The hot paths are reading publishes, acks and deliveries, and writing deliveries;
rare or malformed input is decoded frame by frame. The session decides which method is allowed when.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Mapping
from typing import ClassVar, Final, TypeAlias

from flyball.broker.wire.amqp._generated.methods import (
    CLIENT_METHODS,
    METHODS,
    SERVER_METHODS,
    BasicAck,
    BasicDeliver,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicReturn,
)
from flyball.broker.wire.amqp._generated.reply_codes import ReplyCode
from flyball.broker.wire.amqp.fields import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    AmqpError,
    finish,
    read_octet,
    read_shortstr,
    skip_shortstr,
    write_shortstr,
)
from flyball.broker.wire.amqp.method import Command, Method
from flyball.broker.wire.framing import FrameBuffer

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

# Minimum `frame_max` that a peer may negotiate.
FRAME_MIN_SIZE: Final = 4096

# Maximum frame size before tuning, as in the specification and RabbitMQ 3.10.
HANDSHAKE_FRAME_MAX: Final = FRAME_MIN_SIZE

_FRAME_HEAD_BYTES: Final = 7
_CONTENT_HEAD_BYTES: Final = 12
_BASIC: Final = 60
_CONNECTION: Final = 10
_ACK: Final = BasicAck.CLASS_ID << 16 | BasicAck.METHOD_ID
_NACK: Final = BasicNack.CLASS_ID << 16 | BasicNack.METHOD_ID
_PUBLISH: Final = BasicPublish.CLASS_ID << 16 | BasicPublish.METHOD_ID
_DELIVER: Final = BasicDeliver.CLASS_ID << 16 | BasicDeliver.METHOD_ID

_FRAME_HEAD: Final = struct.Struct(">BHI")
_KEY: Final = struct.Struct(">I")
# A whole method frame up to its fields: type, channel, size, class and method.
_METHOD_HEAD: Final = struct.Struct(">BHII")
_ACK_FIELDS: Final = struct.Struct(">QBB")
_ACK_FRAME_BYTES: Final = 21
_ACK_SIZE: Final = 13
_CONTENT_HEAD: Final = struct.Struct(">HHQ")
# From the end octet of a method frame to the properties: end and type, channel, size, class and weight, body size.
_END_TO_PROPERTIES: Final = struct.Struct(">HHIIQ")
_END_TO_PROPERTIES_BYTES: Final = 20
_HEADER_FOLLOWS: Final = FRAME_END << 8 | FRAME_HEADER
_BASIC_WITHOUT_WEIGHT: Final = _BASIC << 16
# From the end octet of a header frame to the body: end and type, channel, size.
_END_TO_BODY: Final = struct.Struct(">HHI")
_END_TO_BODY_BYTES: Final = 8
_BODY_FOLLOWS: Final = FRAME_END << 8 | FRAME_BODY
# Offset of the exchange's name in a publish's frame: after class, method and ticket.
_ORIGIN_AT: Final = 13
# Offset of the consumer tag in a delivery's frame: after class and method. Delivery tag and bits follow it.
_CONSUMER_AT: Final = 11
_DELIVERY_FIELDS: Final = struct.Struct(">QB")
_DELIVERY_FIELDS_BYTES: Final = 9
_MANDATORY: Final = 1
_IMMEDIATE: Final = 2
# A longer prefix is not cached for the next publish.
_REPEAT_LIMIT: Final = 1024


class ProtocolHeader(Command):
    """The first eight octets of a connection, valid or not."""

    __slots__ = ("raw",)

    NAME: ClassVar[str] = "protocol header"
    FIELDS: ClassVar[tuple[str, ...]] = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.channel = 0
        self.raw = raw


class Heartbeat(Command):
    """A heartbeat frame."""

    __slots__ = ()

    NAME: ClassVar[str] = "heartbeat"


class Publish(Command):
    """A basic.publish with its content, undecoded: `read_origin` reads `origin`, `essentials` reads `properties`.

    Consecutive publishes with equal origin or properties share the object.
    """

    __slots__ = ("body", "immediate", "mandatory", "origin", "properties")

    CLASS_ID: ClassVar[int] = BasicPublish.CLASS_ID
    METHOD_ID: ClassVar[int] = BasicPublish.METHOD_ID
    NAME: ClassVar[str] = BasicPublish.NAME
    FIELDS: ClassVar[tuple[str, ...]] = ("origin", "mandatory", "immediate", "properties", "body")

    def __init__(
        self, channel: int, origin: bytes, mandatory: bool, immediate: bool, properties: bytes, body: bytes
    ) -> None:
        self.channel = channel
        self.origin = origin
        self.mandatory = mandatory
        self.immediate = immediate
        self.properties = properties
        self.body = body


class Oversized(Command):
    """A content header announced a body of `size` octets, more than allowed. The body will be skipped."""

    __slots__ = ("size",)

    CLASS_ID: ClassVar[int] = BasicPublish.CLASS_ID
    METHOD_ID: ClassVar[int] = BasicPublish.METHOD_ID
    NAME: ClassVar[str] = "content header"
    FIELDS: ClassVar[tuple[str, ...]] = ("size",)

    def __init__(self, channel: int, size: int) -> None:
        self.channel = channel
        self.size = size


_Parser: TypeAlias = Callable[[int, bytes, int, int], Method]


def _parse_publish(channel: int, data: bytes, at: int, end: int) -> Publish:
    """Return the publish, still without content, whose fields are `data[at:end]`."""
    bits_at = skip_shortstr(data, skip_shortstr(data, at + 2, end), end)
    bits = read_octet(data, bits_at, end)
    finish(bits_at + 1, end)
    return Publish(channel, data[at + 2 : bits_at], bits & _MANDATORY != 0, bits & _IMMEDIATE != 0, b"", b"")


def _parsers(methods: Mapping[int, type[Method]]) -> dict[int, _Parser]:
    return {key: method.parse for key, method in methods.items()}


_HEARTBEAT: Final = Heartbeat(0)
_FROM_CLIENT: Final = _parsers(CLIENT_METHODS)
_FROM_SERVER: Final = _parsers(SERVER_METHODS)


_WithContent: TypeAlias = "Publish | BasicDeliver | BasicReturn | BasicGetOk"


class _Content:
    """An incomplete content: its command, the number of missing octets, and the received ones."""

    __slots__ = ("body", "command", "has_header", "is_skipped", "missing", "properties")

    def __init__(self, command: _WithContent) -> None:
        self.command: _WithContent = command
        self.has_header = False
        self.is_skipped = False
        self.missing = 0
        self.properties = b""
        # Not a list of pieces: with one octet per frame they would take many times the size of the body.
        self.body = bytearray()


class Decoder(FrameBuffer):
    """Turns the bytes of one direction of a connection into commands.

    After an AmqpError the stream is lost: every further `next_command` raises it again. `frame_max` and
    `channel_max` must be set when they are negotiated; 0 means unlimited. Contents are only collected on channels
    that can use them: see `is_connection_only`, `open_channels` and `is_discarding`.
    """

    __slots__ = (
        "_contents",
        "_from_server",
        "_last_consumer",
        "_last_delivery",
        "_last_origin",
        "_last_publish",
        "_last_publish_frame",
        "_parsers",
        "_repeat",
        "_repeat_body_bytes",
        "_started",
        "channel_max",
        "content_bytes",
        "frame_max",
        "is_connection_only",
        "is_discarding",
        "max_body_bytes",
        "open_channels",
    )

    def __init__(self, frame_max: int, max_body_bytes: int, from_server: bool = False) -> None:
        super().__init__()
        self.frame_max = frame_max
        self.channel_max = 0
        self.max_body_bytes = max_body_bytes
        # Before connection.open: a frame on a channel other than 0 is an error, and is not buffered.
        self.is_connection_only = False
        # The channels whose contents are collected; contents on others are an error. None: all channels.
        self.open_channels: Container[int] | None = None
        # While the connection closes: contents are dropped frame by frame.
        self.is_discarding = False
        # Size of the incomplete contents.
        self.content_bytes = 0
        self._from_server = from_server
        self._parsers: dict[int, _Parser] = _FROM_SERVER if from_server else _FROM_CLIENT
        # A server answers a protocol header with a method, unless it refuses.
        self._started = from_server
        self._contents: dict[int, _Content] = {}
        # Cache, since publishers repeat themselves: the method frame of the last publish, with the end octet, and its
        # decoded fields; after two publishes with equal properties, also all octets from there to the body.
        self._last_publish_frame = b""
        self._last_publish = Publish(0, b"", False, False, b"", b"")
        self._repeat = b""
        self._repeat_body_bytes = 0
        # The same for a server: the last delivery without delivery tag and content, and the octets of these fields.
        self._last_delivery = BasicDeliver(0, "", 0, False, "", "")
        self._last_consumer = self._last_origin = b""

    @property
    def buffered_bytes(self) -> int:
        """Size of incomplete or unread commands."""
        return self.content_bytes + len(self._partial) + len(self._buffer) - self._offset

    def clear(self) -> None:
        """Drop all bytes: nothing more is read from this stream."""
        super().clear()
        self._contents.clear()
        self.content_bytes = 0
        self._last_publish = Publish(0, b"", False, False, b"", b"")
        self._last_publish_frame = self._repeat = b""

    def next_command(self) -> Command | None:
        """Return the next command, or None until more bytes are fed. Raises AmqpError."""
        if self._partial and not self._gather():
            return None
        if self._contents or not self._started:
            return self._next_by_frames()
        buffer = self._buffer
        at = self._offset
        repeat = self._repeat
        if repeat and buffer.startswith(repeat, at):
            start = at + len(repeat)
            stop = start + self._repeat_body_bytes
            if stop < len(buffer) and buffer[stop] == FRAME_END:
                self._offset = stop + 1
                last = self._last_publish
                return Publish(
                    last.channel, last.origin, last.mandatory, last.immediate, last.properties, buffer[start:stop]
                )
        if len(buffer) - at < _ACK_FRAME_BYTES:
            return self._next_by_frames()
        kind, channel, size, key = _METHOD_HEAD.unpack_from(buffer, at)
        if kind == FRAME_METHOD and channel != 0:
            if key == _PUBLISH and not self._from_server:
                publish = self._next_publish(at, channel, size)
                if publish is not None:
                    return publish
            elif key == _ACK and size == _ACK_SIZE:
                tag, bits, end = _ACK_FIELDS.unpack_from(buffer, at + 11)
                if end == FRAME_END:
                    self._offset = at + _ACK_FRAME_BYTES
                    return BasicAck(channel, tag, bits & 1 != 0)
            elif key == _DELIVER and self._from_server:
                delivery = self._next_delivery(at, channel, size)
                if delivery is not None:
                    return delivery
        return self._next_by_frames()

    def _next_publish(self, at: int, channel: int, size: int) -> Publish | None:
        """Return the publish that starts at `at` if it is complete and its body is one frame.

        Return None otherwise, or if it is malformed: decoding frame by frame detects which.
        """
        buffer = self._buffer
        end = at + _FRAME_HEAD_BYTES + size
        body_at, stop = self._whole_content(channel, size, end)
        if stop == 0:
            return None
        if not self._last_publish_frame or not buffer.startswith(self._last_publish_frame, at):
            routing_key_at = at + _ORIGIN_AT + 1 + buffer[at + _ORIGIN_AT]
            if routing_key_at >= end - 1 or routing_key_at + 1 + buffer[routing_key_at] != end - 1:
                return None
            bits = buffer[end - 1]
            self._last_publish_frame = buffer[at : end + 1]
            origin = buffer[at + _ORIGIN_AT : end - 1]
            properties = self._last_publish.properties
            self._last_publish = Publish(
                channel, origin, bits & _MANDATORY != 0, bits & _IMMEDIATE != 0, properties, b""
            )
        last = self._last_publish
        properties = buffer[end + _END_TO_PROPERTIES_BYTES : body_at - _END_TO_BODY_BYTES]
        if properties == last.properties:
            properties = last.properties
            self._repeat = buffer[at:body_at] if body_at - at < _REPEAT_LIMIT else b""
            self._repeat_body_bytes = stop - body_at
        else:
            last.properties = properties
            self._repeat = b""
        self._offset = stop + 1
        return Publish(channel, last.origin, last.mandatory, last.immediate, properties, buffer[body_at:stop])

    def _next_delivery(self, at: int, channel: int, size: int) -> BasicDeliver | None:
        """Return the delivery that starts at `at`, under the conditions of `_next_publish`."""
        buffer = self._buffer
        end = at + _FRAME_HEAD_BYTES + size
        fields_at = at + _CONSUMER_AT + 1 + buffer[at + _CONSUMER_AT]
        body_at, stop = self._whole_content(channel, size, end)
        if stop == 0 or fields_at + _DELIVERY_FIELDS_BYTES > end:
            return None
        consumer = buffer[at + _CONSUMER_AT : fields_at]
        origin = buffer[fields_at + _DELIVERY_FIELDS_BYTES : end]
        if consumer != self._last_consumer or origin != self._last_origin:
            try:
                self._last_delivery = BasicDeliver.parse(channel, buffer, at + _CONSUMER_AT, end)
            except AmqpError:
                return None
            self._last_consumer, self._last_origin = consumer, origin
        tag, bits = _DELIVERY_FIELDS.unpack_from(buffer, fields_at)
        last = self._last_delivery
        properties = buffer[end + _END_TO_PROPERTIES_BYTES : body_at - _END_TO_BODY_BYTES]
        self._offset = stop + 1
        return BasicDeliver(
            channel,
            last.consumer_tag,
            tag,
            bits & 1 != 0,
            last.exchange,
            last.routing_key,
            properties,
            buffer[body_at:stop],
        )

    def _whole_content(self, channel: int, size: int, end: int) -> tuple[int, int]:
        """Return start and end of the body of a content that follows a method frame of `size`, which ends at `end`.

        Return zeros unless the content is complete and its body is one frame.
        """
        buffer = self._buffer
        available = len(buffer)
        frame_max = self.frame_max or available
        if end + _END_TO_PROPERTIES_BYTES > available or size > frame_max:
            return 0, 0
        follows, header_channel, header_size, class_and_weight, body_size = _END_TO_PROPERTIES.unpack_from(
            buffer, end
        )
        body_at = end + 1 + header_size + FRAME_OVERHEAD + _FRAME_HEAD_BYTES
        stop = body_at + body_size
        if (
            follows != _HEADER_FOLLOWS
            or header_channel != channel
            or class_and_weight != _BASIC_WITHOUT_WEIGHT
            or header_size < _CONTENT_HEAD_BYTES
            or header_size > frame_max
            or body_size == 0
            or body_size > self.max_body_bytes
            or body_size > frame_max
            or stop >= available
            or buffer[stop] != FRAME_END
        ):
            return 0, 0
        follows, body_channel, body_frame_size = _END_TO_BODY.unpack_from(buffer, body_at - _END_TO_BODY_BYTES)
        if follows != _BODY_FOLLOWS or body_channel != channel or body_frame_size != body_size:
            return 0, 0
        return body_at, stop

    def _next_by_frames(self) -> Command | None:
        """Like `next_command`, frame by frame."""
        while True:
            buffer = self._buffer
            at = self._offset
            start = at + _FRAME_HEAD_BYTES
            if not self._started:
                return self._protocol_header()
            if start > len(buffer):
                self._wait(_FRAME_HEAD_BYTES)
                return None
            kind, channel, size = _FRAME_HEAD.unpack_from(buffer, at)
            # Like RabbitMQ, tolerate peers that do not count a frame's overhead.
            if size > self.frame_max > 0:
                raise AmqpError(
                    ReplyCode.FRAME_ERROR,
                    f"type {kind}: a frame of {size} octets, {self.frame_max - FRAME_OVERHEAD} are allowed",
                )
            end: int = start + size
            if end >= len(buffer):
                self._wait(FRAME_OVERHEAD + size)
                return None
            if buffer[end] != FRAME_END:
                raise AmqpError(ReplyCode.FRAME_ERROR, f"type {kind}: invalid frame end marker {buffer[end]}")
            command = self._take_frame(kind, channel, start, end)
            self._offset = end + 1
            if command is not None:
                return command

    def _protocol_header(self) -> Command | None:
        stop = self._offset + len(PROTOCOL_HEADER)
        if stop > len(self._buffer):
            self._wait(len(PROTOCOL_HEADER))
            return None
        header = ProtocolHeader(self._buffer[self._offset : stop])
        self._offset = stop
        self._started = True
        return header

    def _take_frame(self, kind: int, channel: int, at: int, end: int) -> Command | None:
        """Accept the frame whose payload is at `at`; return the command that it completes, if any."""
        if channel != 0 and self.is_connection_only:
            raise AmqpError(ReplyCode.UNEXPECTED_FRAME, f"type {kind}: a frame of channel {channel} before open")
        if self.is_discarding and kind in (FRAME_HEADER, FRAME_BODY):
            return None
        if kind == FRAME_METHOD and end - at >= _KEY.size:
            return self._take_method(channel, at, end)
        if kind == FRAME_HEADER and end - at >= _CONTENT_HEAD_BYTES:
            return self._take_header(channel, at, end)
        if kind == FRAME_BODY:
            return self._take_body(channel, at, end)
        if kind != FRAME_HEARTBEAT or at != end:
            raise AmqpError(ReplyCode.FRAME_ERROR, f"type {kind}, {end - at} octets: unknown frame")
        if channel != 0:
            raise AmqpError(ReplyCode.UNEXPECTED_FRAME, f"type {kind}: a heartbeat on channel {channel}")
        return _HEARTBEAT

    def _take_method(self, channel: int, at: int, end: int) -> Command | None:
        key: int = _KEY.unpack_from(self._buffer, at)[0]
        class_id, method_id = key >> 16, key & 0xFFFF
        content = self._contents.get(channel)
        if content is not None:
            if not content.is_skipped:
                raise _unexpected_frame(content)
            # A peer that learns in time that its body is refused need not send the rest.
            self._drop_content(channel, content)
        if key not in METHODS:
            text = f"unknown method {method_id} of class {class_id}"
            raise AmqpError(ReplyCode.NOT_IMPLEMENTED, text, class_id, method_id)
        # On channel 0 the session itself responds to methods that do not belong there.
        parse = METHODS[key].parse if channel == 0 else self._parsers.get(key)
        if parse is None or (channel != 0 and class_id == _CONNECTION):
            raise AmqpError(ReplyCode.COMMAND_INVALID, "unimplemented method", class_id, method_id)
        try:
            if key == _PUBLISH and channel != 0:
                self._begin_content(channel, _parse_publish(channel, self._buffer, at + _KEY.size, end))
                return None
            method = parse(channel, self._buffer, at + _KEY.size, end)
        except AmqpError as error:
            if error.code is ReplyCode.SYNTAX_ERROR:
                # RabbitMQ decides by the ids alone whether arguments or the frame are invalid.
                raise AmqpError(ReplyCode.FRAME_ERROR, f"cannot decode: {error.text}", class_id, method_id) from None
            raise
        if channel != 0 and isinstance(method, BasicDeliver | BasicReturn | BasicGetOk):
            self._begin_content(channel, method)
            return None
        return method

    def _begin_content(self, channel: int, command: _WithContent) -> None:
        if self.is_discarding:
            return
        # RabbitMQ reports the same error, but only after it has buffered the complete content.
        if self.open_channels is not None and channel not in self.open_channels:
            raise AmqpError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'", _BASIC, command.METHOD_ID)
        if len(self._contents) >= self.channel_max > 0:
            raise AmqpError(
                ReplyCode.NOT_ALLOWED,
                f"number of channels opened ({len(self._contents)}) has reached the negotiated channel_max "
                f"({self.channel_max})",
            )
        self._contents[channel] = _Content(command)

    def _take_header(self, channel: int, at: int, end: int) -> Command | None:
        content = self._contents.get(channel)
        if content is None or content.has_header:
            raise _unexpected_frame(content)
        class_id, weight, size = _CONTENT_HEAD.unpack_from(self._buffer, at)
        if weight != 0:
            raise _unexpected_frame(content)
        if class_id != _BASIC:
            text = f"expected content header for class {_BASIC}, got one for class {class_id} instead"
            raise _content_error(ReplyCode.UNEXPECTED_FRAME, text, content)
        properties = self._buffer[at + _CONTENT_HEAD_BYTES : end]
        if size == 0:
            return self._finish_content(channel, content, properties, b"")
        content.has_header = True
        content.missing = size
        if size > self.max_body_bytes:
            content.is_skipped = True
            return Oversized(channel, size)
        content.properties = properties
        self.content_bytes += len(properties)
        return None

    def _take_body(self, channel: int, at: int, end: int) -> Command | None:
        content = self._contents.get(channel)
        if content is None or not content.has_header:
            raise _unexpected_frame(content)
        missing = content.missing - (end - at)
        if missing < 0:
            text = "content body frame exceeds remaining content size"
            raise _content_error(ReplyCode.FRAME_ERROR, text, content)
        content.missing = missing
        if content.is_skipped:
            if missing == 0:
                self._drop_content(channel, content)
            return None
        if missing == 0 and not content.body:
            return self._finish_content(channel, content, content.properties, self._buffer[at:end])
        content.body += memoryview(self._buffer)[at:end]
        self.content_bytes += end - at
        if missing == 0:
            return self._finish_content(channel, content, content.properties, bytes(content.body))
        return None

    def _finish_content(self, channel: int, content: _Content, properties: bytes, body: bytes) -> Command:
        self._drop_content(channel, content)
        command = content.command
        command.properties = properties
        command.body = body
        return command

    def _drop_content(self, channel: int, content: _Content) -> None:
        del self._contents[channel]
        self.content_bytes -= len(content.properties) + len(content.body)


def _unexpected_frame(content: _Content | None) -> AmqpError:
    """Return the error for a frame that does not continue `content`, or that has none to continue."""
    if content is None:
        text = "expected method frame, got non method frame instead"
        return AmqpError(ReplyCode.UNEXPECTED_FRAME, text)
    if content.has_header:
        text = "expected content body, got non content body frame instead"
    else:
        text = f"expected content header for class {_BASIC}, got non content header frame instead"
    return _content_error(ReplyCode.UNEXPECTED_FRAME, text, content)


def _content_error(code: ReplyCode, text: str, content: _Content) -> AmqpError:
    return AmqpError(code, text, _BASIC, content.command.METHOD_ID)


def read_origin(origin: bytes) -> tuple[str, str]:
    """Return exchange and routing key. Raises AmqpError unless `origin` is exactly two short strings."""
    exchange, at = read_shortstr(origin, 0, len(origin))
    routing_key, at = read_shortstr(origin, at, len(origin))
    finish(at, len(origin))
    return exchange, routing_key


def write_origin(exchange: str, routing_key: str) -> bytes:
    return write_shortstr(exchange) + write_shortstr(routing_key)


_DELIVER_IDS: Final = struct.pack(">HH", BasicDeliver.CLASS_ID, BasicDeliver.METHOD_ID)
_GET_OK_FRAME: Final = struct.Struct(">BHIHHQB")
_RETURN_FRAME: Final = struct.Struct(">BHIHHH")
_ACK_FRAME: Final = struct.Struct(">BHIIQBB")
_COUNT: Final = struct.Struct(">I")
_HEADER_FRAME: Final = struct.Struct(">BHIIQ")
_END: Final = b"\xce"


def delivery_prefix(consumer_tag: str) -> bytes:
    """Return the consumer's part of a delivery, for `encode_delivery`."""
    return _DELIVER_IDS + write_shortstr(consumer_tag)


def encode_delivery(
    channel: int,
    prefix: bytes,
    delivery_tag: int,
    redelivered: bool,
    origin: bytes,
    properties: bytes,
    body: bytes,
    frame_max: int,
) -> bytes:
    """Return a basic.deliver with its content; `prefix` is the consumer's, `frame_max` the peer's (0: unlimited)."""
    size = len(body)
    if size == 0 or size > frame_max - FRAME_OVERHEAD:
        head = _FRAME_HEAD.pack(FRAME_METHOD, channel, len(prefix) + 9 + len(origin))
        fields = _DELIVERY_FIELDS.pack(delivery_tag, redelivered)
        return b"".join((head, prefix, fields, origin, _END, encode_content(channel, properties, body, frame_max)))
    # encode_content, inlined for a body of one frame.
    return b"".join(
        (
            _FRAME_HEAD.pack(FRAME_METHOD, channel, len(prefix) + 9 + len(origin)),
            prefix,
            _DELIVERY_FIELDS.pack(delivery_tag, redelivered),
            origin,
            _END_TO_PROPERTIES.pack(
                _HEADER_FOLLOWS, channel, _CONTENT_HEAD_BYTES + len(properties), _BASIC_WITHOUT_WEIGHT, size
            ),
            properties,
            _END_TO_BODY.pack(_BODY_FOLLOWS, channel, size),
            body,
            _END,
        )
    )


def encode_get_ok(
    channel: int,
    delivery_tag: int,
    redelivered: bool,
    message_count: int,
    origin: bytes,
    properties: bytes,
    body: bytes,
    frame_max: int,
) -> bytes:
    """Return a basic.get-ok with its content."""
    head = _GET_OK_FRAME.pack(
        FRAME_METHOD, channel, 17 + len(origin), _BASIC, BasicGetOk.METHOD_ID, delivery_tag, redelivered
    )
    content = encode_content(channel, properties, body, frame_max)
    return b"".join((head, origin, _COUNT.pack(message_count), _END, content))


def encode_return(
    channel: int, reply_code: int, reply_text: str, origin: bytes, properties: bytes, body: bytes, frame_max: int
) -> bytes:
    """Return a basic.return with its content."""
    text = write_shortstr(reply_text)
    size = 6 + len(text) + len(origin)
    head = _RETURN_FRAME.pack(FRAME_METHOD, channel, size, _BASIC, BasicReturn.METHOD_ID, reply_code)
    return b"".join((head, text, origin, _END, encode_content(channel, properties, body, frame_max)))


def encode_content(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """Return the header and body frames of a content; `frame_max` is the peer's (0: unlimited)."""
    size = len(body)
    head = _HEADER_FRAME.pack(
        FRAME_HEADER, channel, _CONTENT_HEAD_BYTES + len(properties), _BASIC_WITHOUT_WEIGHT, size
    )
    step = frame_max - FRAME_OVERHEAD if frame_max else size
    if 0 < size <= step:
        return b"".join((head, properties, _END_TO_BODY.pack(_BODY_FOLLOWS, channel, size), body, _END))
    pieces: list[bytes | memoryview] = [head, properties, _END]
    view = memoryview(body)
    for at in range(0, size, max(step, 1)):
        piece = view[at : at + step]
        pieces += (_FRAME_HEAD.pack(FRAME_BODY, channel, len(piece)), piece, _END)
    return b"".join(pieces)


def encode_ack(channel: int, delivery_tag: int, multiple: bool) -> bytes:
    """Return a basic.ack: a publisher confirm."""
    return _ACK_FRAME.pack(FRAME_METHOD, channel, _ACK_SIZE, _ACK, delivery_tag, multiple, FRAME_END)


def encode_nack(channel: int, delivery_tag: int, multiple: bool) -> bytes:
    """Return a basic.nack: a negative publisher confirm."""
    return _ACK_FRAME.pack(FRAME_METHOD, channel, _ACK_SIZE, _NACK, delivery_tag, multiple, FRAME_END)
