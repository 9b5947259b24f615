"""The contents of packets: messages and queues in wire format, and enumerations.

Integers are as on the wire: 0 stands for "none" where Telesto defines it so. The session converts them to the
broker's types.
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
    read_count,
    read_string,
    require,
    write_string,
)
from flyball.errors import ProtocolError
from flyball.model import Queue


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


class ReadMode(enum.IntEnum):
    """The order in which a ReadMessage chooses from the visible messages."""

    PRIORITY = 1
    # Newest first.
    TIME = 2


# Message, up to and including the length of its text.
MESSAGE = struct.Struct(">iiiiibqh")


@dataclass(slots=True)
class WireMessage:
    """Telesto's Message. 0 means none for receiver, context and time of arrival."""

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
    """Return the Message at `at` and its end."""
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
    """Return the array of Message at `at` and its end."""
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
    """Return Telesto's boolean for a byte."""
    return byte == 1


def read_queue(data: bytes, at: int, end: int) -> tuple[Queue, int]:
    """Return the Queue at `at` and its end."""
    require(6, at, end)
    queue_id: int = INT.unpack_from(data, at)[0]
    name, stop = read_string(data, at + 4, end)
    return Queue(queue_id, name), stop


def write_queue(queue: Queue) -> bytes:
    return INT.pack(queue.id) + write_string(queue.name)


def read_queues(data: bytes, at: int, end: int) -> tuple[list[Queue], int]:
    """Return the array of Queue at `at` and its end."""
    count = read_count(data, at, end, 6)
    at += 4
    queues: list[Queue] = []
    for _ in range(count):
        queue, at = read_queue(data, at, end)
        queues.append(queue)
    return queues, at


def write_queues(queues: Sequence[Queue]) -> bytes:
    return INT.pack(len(queues)) + b"".join([write_queue(queue) for queue in queues])
