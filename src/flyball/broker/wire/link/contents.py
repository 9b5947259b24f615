"""Messages, selectors and texts in the frames of the link between nodes.

Reading and writing messages is the hot path of the link.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flyball.broker.wire.amqp.codec import read_origin
from flyball.broker.wire.amqp.properties import essentials
from flyball.broker.wire.link.fields import too_many, wrong_size
from flyball.errors import ProtocolError
from flyball.model import Correlation, Message, Order, Selector

_LONG: Final = struct.Struct(">q")
_COUNT: Final = struct.Struct(">I")
_SHORT: Final = struct.Struct(">H")

_DELIVER_HEAD: Final = struct.Struct(">qqqI")
_DELIVER_HEAD_BYTES: Final = 28
# Flag in the delivery count: the message was recovered, and may have been delivered more often.
_RECOVERED: Final = 1 << 31

_CONTENT: Final = struct.Struct(">BiHII")
_CONTENT_BYTES: Final = 15
_PERSISTENT: Final = 1
_HAS_TIME: Final = 2
_HAS_SENDER: Final = 4
_HAS_RECEIVER: Final = 8
_HAS_CONTEXT: Final = 16

_SELECTOR: Final = struct.Struct(">BBqqq")
_SELECTOR_BYTES: Final = 26
# Flags of a selector. Order 0 means that there is no selector.
_UNADDRESSED: Final = 1
_OF_READER: Final = 2
_OF_SENDER: Final = 4
_OF_CONTEXT: Final = 8
_ORDERS: Final = {int(order): order for order in Order}

# The encoding of texts: AMQP names are arbitrary octets; those that are not UTF-8 are lone surrogates.
_ANY_TEXT: Final = "surrogatepass"


@dataclass(slots=True)
class Content:
    """A message on the link, without its id."""

    body: bytes
    properties: bytes = b""
    origin: bytes = b""
    persistent: bool = True
    priority: int = 0
    # Time to live in a put, otherwise the expiry time.
    time_us: int | None = None
    sender: int | None = None
    receiver: int | None = None
    context: int | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.body) + len(self.properties) + len(self.origin)

    @property
    def correlation(self) -> Correlation | None:
        found = (self.sender, self.receiver, self.context)
        return None if found == (None, None, None) else found


@dataclass(slots=True)
class Deliver:
    """A message for a consumer, leased to it."""

    consumer: int
    message_id: int
    arrived_us: int
    delivery_count: int
    content: Content
    # Whether it may have been delivered before its node served the queue.
    recovered: bool = False


def content_of(message: Message) -> Content:
    """Encode a message, with its expiry time."""
    return Content(
        message.body,
        message.properties,
        message.origin,
        message.persistent,
        message.priority,
        message.expires_us,
        message.sender,
        message.receiver,
        message.context,
    )


def read_content(data: bytes, at: int, end: int) -> tuple[Content, int]:
    if end - at < _CONTENT_BYTES:
        raise wrong_size(_CONTENT_BYTES, at, end)
    flags, priority, origin_bytes, properties_bytes, body_bytes = _CONTENT.unpack_from(data, at)
    at += _CONTENT_BYTES
    time_us: int | None = None
    sender: int | None = None
    receiver: int | None = None
    context: int | None = None
    optional: int = (flags & (_HAS_TIME | _HAS_SENDER | _HAS_RECEIVER | _HAS_CONTEXT)).bit_count() * 8
    properties_at: int = at + optional + origin_bytes
    body_at: int = properties_at + properties_bytes
    stop: int = body_at + body_bytes
    if stop > end:
        raise ProtocolError(f"a message that is {stop - end} bytes longer than its frame")
    if optional:
        if flags & _HAS_TIME:
            time_us = _LONG.unpack_from(data, at)[0]
            at += 8
        if flags & _HAS_SENDER:
            sender = _LONG.unpack_from(data, at)[0]
            at += 8
        if flags & _HAS_RECEIVER:
            receiver = _LONG.unpack_from(data, at)[0]
            at += 8
        if flags & _HAS_CONTEXT:
            context = _LONG.unpack_from(data, at)[0]
            at += 8
    origin = data[at:properties_at]
    properties = data[properties_at:body_at]
    if origin:
        # Sent unchanged to clients, which must be able to decode them.
        read_origin(origin)
        essentials(properties)
    content = Content(
        data[body_at:stop],
        properties,
        origin,
        flags & _PERSISTENT != 0,
        priority,
        time_us,
        sender,
        receiver,
        context,
    )
    return content, stop


def write_content(content: Content) -> bytes:
    flags = _PERSISTENT if content.persistent else 0
    optional = b""
    if content.time_us is not None:
        flags |= _HAS_TIME
        optional += _LONG.pack(content.time_us)
    if content.sender is not None:
        flags |= _HAS_SENDER
        optional += _LONG.pack(content.sender)
    if content.receiver is not None:
        flags |= _HAS_RECEIVER
        optional += _LONG.pack(content.receiver)
    if content.context is not None:
        flags |= _HAS_CONTEXT
        optional += _LONG.pack(content.context)
    head = _CONTENT.pack(flags, content.priority, len(content.origin), len(content.properties), len(content.body))
    return b"".join((head, optional, content.origin, content.properties, content.body))


def read_leased(data: bytes, at: int, end: int) -> tuple[Deliver, int]:
    if end - at < _DELIVER_HEAD_BYTES:
        raise wrong_size(_DELIVER_HEAD_BYTES, at, end)
    consumer, message_id, arrived_us, delivery_count = _DELIVER_HEAD.unpack_from(data, at)
    content, at = read_content(data, at + _DELIVER_HEAD_BYTES, end)
    recovered = delivery_count & _RECOVERED != 0
    return Deliver(consumer, message_id, arrived_us, delivery_count & ~_RECOVERED, content, recovered), at


def write_leased(consumer: int, message: Message) -> bytes:
    count = message.delivery_count | _RECOVERED if message.recovered else message.delivery_count
    head = _DELIVER_HEAD.pack(consumer, message.id, message.arrived_us, count)
    return head + write_content(content_of(message))


def read_delivery(data: bytes, at: int, end: int) -> tuple[Deliver | None, int]:
    """Return the message at `at`, if there is one, and its end."""
    if at >= end:
        raise wrong_size(1, at, end)
    return read_leased(data, at + 1, end) if data[at] else (None, at + 1)


def write_delivery(message: Message | None) -> bytes:
    return b"\x00" if message is None else b"\x01" + write_leased(0, message)


def read_deliveries(data: bytes, at: int, end: int) -> tuple[list[Deliver], int]:
    """Return the messages at `at` and their end."""
    if end - at < 4:
        raise wrong_size(4, at, end)
    count: int = _COUNT.unpack_from(data, at)[0]
    at += 4
    if count * (_DELIVER_HEAD_BYTES + _CONTENT_BYTES) > end - at:
        raise too_many(count, at, end)
    messages: list[Deliver] = []
    for _ in range(count):
        message, at = read_leased(data, at, end)
        messages.append(message)
    return messages, at


def write_deliveries(messages: Sequence[Message]) -> bytes:
    return _COUNT.pack(len(messages)) + b"".join([write_leased(0, message) for message in messages])


def read_optional_selector(data: bytes, at: int, end: int) -> tuple[Selector | None, int]:
    """Return the selector at `at`, if there is one, and its end."""
    if end - at < _SELECTOR_BYTES:
        raise wrong_size(_SELECTOR_BYTES, at, end)
    flags, number, reader, sender, context = _SELECTOR.unpack_from(data, at)
    at += _SELECTOR_BYTES
    if number == 0:
        return None, at
    order = _ORDERS.get(number)
    if order is None:
        raise ProtocolError(f"there is no order {number}")
    selector = Selector(
        reader if flags & _OF_READER else None,
        flags & _UNADDRESSED != 0,
        sender if flags & _OF_SENDER else None,
        context if flags & _OF_CONTEXT else None,
        order,
    )
    return selector, at


def read_selector(data: bytes, at: int, end: int) -> tuple[Selector, int]:
    """Return the selector at `at` and its end."""
    selector, stop = read_optional_selector(data, at, end)
    if selector is None:
        raise ProtocolError("a frame without its selector")
    return selector, stop


def write_optional_selector(selector: Selector | None) -> bytes:
    return bytes(_SELECTOR_BYTES) if selector is None else write_selector(selector)


def write_selector(selector: Selector) -> bytes:
    flags = (
        (_UNADDRESSED if selector.unaddressed else 0)
        | (_OF_READER if selector.reader is not None else 0)
        | (_OF_SENDER if selector.sender is not None else 0)
        | (_OF_CONTEXT if selector.context is not None else 0)
    )
    return _SELECTOR.pack(flags, selector.order, selector.reader or 0, selector.sender or 0, selector.context or 0)


def read_name(data: bytes, at: int, end: int) -> tuple[str, int]:
    """Return the text at `at`, of at most 65535 bytes, and its end."""
    if end - at < 2:
        raise wrong_size(2, at, end)
    size: int = _SHORT.unpack_from(data, at)[0]
    return _read_text(data, at + 2, size, end)


def write_name(name: str) -> bytes:
    encoded = name.encode("utf-8", _ANY_TEXT)
    return _SHORT.pack(len(encoded)) + encoded


def read_text(data: bytes, at: int, end: int) -> tuple[str, int]:
    """Return the text at `at` and its end."""
    if end - at < 4:
        raise wrong_size(4, at, end)
    size: int = _COUNT.unpack_from(data, at)[0]
    return _read_text(data, at + 4, size, end)


def write_text(text: str) -> bytes:
    encoded = text.encode("utf-8", _ANY_TEXT)
    return _COUNT.pack(len(encoded)) + encoded


def _read_text(data: bytes, at: int, size: int, end: int) -> tuple[str, int]:
    if end - at < size:
        raise wrong_size(size, at, end)
    try:
        return data[at : at + size].decode("utf-8", _ANY_TEXT), at + size
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a text in a frame makes no sense: {error}") from error
