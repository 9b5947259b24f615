"""What packets carry: messages, drafts, selectors as they lie on the wire, and the numbers that have names.

Integers are those of the wire: 0 stands for "none" wherever Telesto says so. Turning them into the model's
nouns is the server's and the client's business.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from flyball.broker.wire.telesto.fields import (
    INT,
    MAX_STRING_BYTES,
    FrameTooLarge,
    read_bytes,
    read_count,
    read_string,
    require,
    write_string,
)
from flyball.errors import ProtocolError
from flyball.model import Queue

EXTENSION_CLIENT_ID = -1179408706
"""An IdentifyClient with this id, as first packet of a connection, asks for the extension."""

PLAIN_ERROR_LIMIT = 14
"""Error codes from here on exist in wide frames only: they crash the original client."""


class ErrorCode(enum.IntEnum):
    """Why a request was refused."""

    INTERNAL_ERROR = 0
    UNEXPECTED_PACKET = 1
    IO_ERROR = 2
    UNIQUE_CONSTRAINT = 3
    QUEUE_NAME_NOT_UNIQUE = 4
    CLIENT_NOT_EXISTING = 5
    CLIENT_NAME_NOT_UNIQUE = 6
    QUEUE_NOT_EXISTING = 7
    NO_ACTIVE_QUEUES_EXISTING = 8
    NO_QUEUES_EXISTING = 9
    NO_MESSAGES_IN_QUEUE = 10
    NO_MESSAGES_RETRIEVED = 11
    REQUIRED_PARAMETER_MISSING = 12
    CLIENT_MODE_PERMISSION_VIOLATION = 13
    STORE_UNAVAILABLE = 32
    LIMIT_EXCEEDED = 33
    CONSUMER_NOT_EXISTING = 34
    LEASE_NOT_EXISTING = 35
    NOT_LOCAL = 36
    COMMAND_REFUSED = 37
    TOPIC_NOT_EXISTING = 38
    NOT_OWNER = 39


class ReadMode(enum.IntEnum):
    """Which of the visible messages a ReadMessage takes."""

    PRIORITY = 1
    TIME = 2
    """The newest first."""


class Outcome(enum.IntEnum):
    """How a consumer settles a delivery."""

    ACKNOWLEDGE = 1
    REQUEUE = 2
    """Back to its old place."""
    DROP = 3


# Message, up to and including the length of its text.
MESSAGE = struct.Struct(">iiiiibqh")


@dataclass(slots=True)
class WireMessage:
    """Telesto's Message. 0 means: no receiver, no context, no time of arrival."""

    message_id: int
    queue_id: int
    sender_id: int
    receiver_id: int
    context: int
    priority: int
    arrived_ms: int
    text: str

    def pack(self) -> bytes:
        text = self.text.encode()
        if len(text) > MAX_STRING_BYTES:
            raise FrameTooLarge(f"a text of {len(text)} bytes exceeds {MAX_STRING_BYTES}")
        return (
            MESSAGE.pack(
                self.message_id,
                self.queue_id,
                self.sender_id,
                self.receiver_id,
                self.context,
                self.priority,
                self.arrived_ms,
                len(text),
            )
            + text
        )


def read_message(data: bytes, at: int, end: int) -> tuple[WireMessage, int]:
    """Return the Message at `at` and where it ends."""
    text_at = at + 31
    if text_at > end:
        raise ProtocolError(f"a message in a packet that has {end - at} bytes left")
    message_id, queue_id, sender_id, receiver_id, context, priority, arrived_ms, size = MESSAGE.unpack_from(data, at)
    stop: int = text_at + size
    if size < 0 or stop > end:
        raise ProtocolError(f"a text of {size} bytes in a packet that has {end - text_at} left")
    text = data[text_at:stop].decode("utf-8", "replace")
    return WireMessage(message_id, queue_id, sender_id, receiver_id, context, priority, arrived_ms, text), stop


def write_message(message: WireMessage) -> bytes:
    return message.pack()


def read_messages(data: bytes, at: int, end: int) -> tuple[list[WireMessage], int]:
    """Return the array of Message at `at` and where it ends."""
    count = read_count(data, at, end, 31)
    at += 4
    messages: list[WireMessage] = []
    for _ in range(count):
        message, at = read_message(data, at, end)
        messages.append(message)
    return messages, at


def write_messages(messages: Sequence[WireMessage]) -> bytes:
    return INT.pack(len(messages)) + b"".join([message.pack() for message in messages])


def is_one(byte: int) -> bool:
    """Return the boolean that Telesto means by the byte."""
    return byte == 1


def read_queue(data: bytes, at: int, end: int) -> tuple[Queue, int]:
    """Return the Queue at `at` and where it ends."""
    require(6, at, end)
    queue_id: int = INT.unpack_from(data, at)[0]
    name, stop = read_string(data, at + 4, end)
    return Queue(queue_id, name), stop


def write_queue(queue: Queue) -> bytes:
    return INT.pack(queue.id) + write_string(queue.name)


def read_queues(data: bytes, at: int, end: int) -> tuple[list[Queue], int]:
    """Return the array of Queue at `at` and where it ends."""
    count = read_count(data, at, end, 6)
    at += 4
    queues: list[Queue] = []
    for _ in range(count):
        queue, at = read_queue(data, at, end)
        queues.append(queue)
    return queues, at


def write_queues(queues: Sequence[Queue]) -> bytes:
    return INT.pack(len(queues)) + b"".join([write_queue(queue) for queue in queues])


_CLIENT = struct.Struct(">ib")


@dataclass(slots=True)
class WireClient:
    """A client as Clients (54) lists it. The mode is whatever byte came."""

    client_id: int
    mode: int
    name: str

    def pack(self) -> bytes:
        return _CLIENT.pack(self.client_id, self.mode) + write_string(self.name)


def read_client(data: bytes, at: int, end: int) -> tuple[WireClient, int]:
    """Return the client at `at` and where it ends."""
    require(7, at, end)
    client_id, mode = _CLIENT.unpack_from(data, at)
    name, stop = read_string(data, at + 5, end)
    return WireClient(client_id, mode, name), stop


_SELECTOR = struct.Struct(">BiqB")
SELECTOR_BYTES = 14
_UNADDRESSED = 1
_BY_SENDER = 2
_BY_CONTEXT = 4


@dataclass(slots=True)
class WireSelector:
    """Which messages the client of the connection asks for. `order` is 1 oldest, 2 newest, 3 priority."""

    unaddressed: bool = True
    sender: int | None = None
    context: int | None = None
    order: int = 1

    def pack(self) -> bytes:
        flags = _UNADDRESSED if self.unaddressed else 0
        sender = 0
        context = 0
        if self.sender is not None:
            flags |= _BY_SENDER
            sender = self.sender
        if self.context is not None:
            flags |= _BY_CONTEXT
            context = self.context
        return _SELECTOR.pack(flags, sender, context, self.order)


def read_selector(data: bytes, at: int) -> WireSelector:
    """Return the Selector at `at`; the caller has checked that its 14 bytes are there."""
    flags, sender, context, order = _SELECTOR.unpack_from(data, at)
    return WireSelector(
        flags & _UNADDRESSED != 0,
        sender if flags & _BY_SENDER else None,
        context if flags & _BY_CONTEXT else None,
        order,
    )


_PERSISTENT = 1
_REDELIVERED = 2

# Draft, up to and including the length of its properties.
_DRAFT = struct.Struct(">iqiBii")
_DRAFT_PLAIN = struct.Struct(">iqiBiii")
DRAFT_MIN_BYTES = 29


@dataclass(slots=True)
class WireDraft:
    """A message on its way in. 0 means: receiver anyone, no context, lives for ever."""

    body: bytes
    receiver: int = 0
    context: int = 0
    priority: int = 0
    persistent: bool = True
    ttl_ms: int = 0
    properties: bytes = b""

    def pack(self) -> bytes:
        flags = _PERSISTENT if self.persistent else 0
        body = self.body
        properties = self.properties
        if not properties:
            head = _DRAFT_PLAIN.pack(self.receiver, self.context, self.priority, flags, self.ttl_ms, 0, len(body))
            return head + body
        head = _DRAFT.pack(self.receiver, self.context, self.priority, flags, self.ttl_ms, len(properties))
        return b"".join((head, properties, INT.pack(len(body)), body))


def read_draft(data: bytes, at: int, end: int) -> tuple[WireDraft, int]:
    """Return the Draft at `at` and where it ends."""
    if end - at < DRAFT_MIN_BYTES:
        raise ProtocolError(f"a draft in a packet that has {end - at} bytes left")
    receiver, context, priority, flags, ttl_ms, size = _DRAFT.unpack_from(data, at)
    at += 25
    properties = b""
    if size:
        stop = at + size
        if size < 0 or stop > end:
            raise ProtocolError(f"properties of {size} bytes in a packet that has {end - at} left")
        properties = data[at:stop]
        at = stop
    body, stop = read_bytes(data, at, end)
    return WireDraft(body, receiver, context, priority, flags & _PERSISTENT != 0, ttl_ms, properties), stop


# Record, up to and including the length of its properties; and one without properties up to its body.
_RECORD = struct.Struct(">qiiiqiqBii")
_RECORD_PLAIN = struct.Struct(">qiiiqiqBiii")
RECORD_MIN_BYTES = 53


@dataclass(slots=True)
class Record:
    """A message as the server gives it out. 0 means: no sender, receiver anyone, no context."""

    message_id: int
    queue_id: int
    sender: int
    receiver: int
    context: int
    priority: int
    arrived_us: int
    persistent: bool
    redelivered: bool
    delivery_count: int
    properties: bytes
    body: bytes

    def pack(self) -> bytes:
        flags = (_PERSISTENT if self.persistent else 0) | (_REDELIVERED if self.redelivered else 0)
        body = self.body
        properties = self.properties
        if not properties:
            return (
                _RECORD_PLAIN.pack(
                    self.message_id,
                    self.queue_id,
                    self.sender,
                    self.receiver,
                    self.context,
                    self.priority,
                    self.arrived_us,
                    flags,
                    self.delivery_count,
                    0,
                    len(body),
                )
                + body
            )
        head = _RECORD.pack(
            self.message_id,
            self.queue_id,
            self.sender,
            self.receiver,
            self.context,
            self.priority,
            self.arrived_us,
            flags,
            self.delivery_count,
            len(properties),
        )
        return b"".join((head, properties, INT.pack(len(body)), body))


def read_record(data: bytes, at: int, end: int) -> tuple[Record, int]:
    """Return the Record at `at` and where it ends."""
    if end - at < RECORD_MIN_BYTES:
        raise ProtocolError(f"a record in a packet that has {end - at} bytes left")
    message_id, queue_id, sender, receiver, context, priority, arrived_us, flags, deliveries, size = (
        _RECORD.unpack_from(data, at)
    )
    at += 49
    properties = b""
    if size:
        stop = at + size
        if size < 0 or stop > end:
            raise ProtocolError(f"properties of {size} bytes in a packet that has {end - at} left")
        properties = data[at:stop]
        at = stop
    body, stop = read_bytes(data, at, end)
    record = Record(
        message_id,
        queue_id,
        sender,
        receiver,
        context,
        priority,
        arrived_us,
        flags & _PERSISTENT != 0,
        flags & _REDELIVERED != 0,
        deliveries,
        properties,
        body,
    )
    return record, stop
