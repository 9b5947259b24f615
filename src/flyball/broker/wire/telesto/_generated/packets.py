"""The packets of Telesto's protocol, one class each.

Made by scripts/generate-wire from protocol.txt: change that, not this.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from flyball.broker.wire.telesto.fields import read_ints, read_string, write_ints, write_string, wrong_size
from flyball.broker.wire.telesto.packet import Packet
from flyball.broker.wire.telesto.values import (
    WireMessage,
    is_one,
    read_message,
    read_messages,
    read_queue,
    read_queues,
    write_message,
    write_messages,
    write_queue,
    write_queues,
)
from flyball.model import Queue

_I32: Final = struct.Struct(">i")
_I32_I32: Final = struct.Struct(">ii")
_I32_I32_I8: Final = struct.Struct(">iib")
_I8: Final = struct.Struct(">b")
_I8_U8_I16_I32_I64_F32_F64: Final = struct.Struct(">bBhiqfd")


@dataclass(slots=True)
class Ping(Packet):
    METHOD: ClassVar[int] = 0x01


@dataclass(slots=True)
class Pong(Packet):
    METHOD: ClassVar[int] = 0x02


@dataclass(slots=True)
class Success(Packet):
    METHOD: ClassVar[int] = 0x03


@dataclass(slots=True)
class Error(Packet):
    """A refusal. `code` is an ErrorCode, or whatever byte a server sent; `details` are for people."""

    METHOD: ClassVar[int] = 0x05

    code: int
    details: str

    def payload(self) -> bytes:
        return _I8.pack(self.code) + write_string(self.details)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        if end - at < 1:
            raise wrong_size(1, at, end)
        code: int = _I8.unpack_from(data, at)[0]
        at += 1
        details, at = read_string(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return cls(packet_id, code, details)


@dataclass(slots=True)
class RegisterClient(Packet):
    METHOD: ClassVar[int] = 0x11

    client_name: str
    mode: int

    def payload(self) -> bytes:
        return write_string(self.client_name) + _I8.pack(self.mode)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        client_name, at = read_string(data, at, end)
        if end - at != 1:
            raise wrong_size(1, at, end)
        mode: int = _I8.unpack_from(data, at)[0]
        return cls(packet_id, client_name, mode)


@dataclass(slots=True)
class RegisterClientResponse(Packet):
    METHOD: ClassVar[int] = 0x12

    client_id: int

    def payload(self) -> bytes:
        return _I32.pack(self.client_id)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        if end - at != 4:
            raise wrong_size(4, at, end)
        client_id: int = _I32.unpack_from(data, at)[0]
        return cls(packet_id, client_id)


@dataclass(slots=True)
class IdentifyClient(Packet):
    METHOD: ClassVar[int] = 0x13

    client_id: int

    def payload(self) -> bytes:
        return _I32.pack(self.client_id)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        if end - at != 4:
            raise wrong_size(4, at, end)
        client_id: int = _I32.unpack_from(data, at)[0]
        return cls(packet_id, client_id)


@dataclass(slots=True)
class IdentifyClientResponse(Packet):
    METHOD: ClassVar[int] = 0x14

    mode: int
    client_name: str

    def payload(self) -> bytes:
        return _I8.pack(self.mode) + write_string(self.client_name)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        if end - at < 1:
            raise wrong_size(1, at, end)
        mode: int = _I8.unpack_from(data, at)[0]
        at += 1
        client_name, at = read_string(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return cls(packet_id, mode, client_name)


@dataclass(slots=True)
class DeleteClient(Packet):
    """Delete the client of the connection."""

    METHOD: ClassVar[int] = 0x15


@dataclass(slots=True)
class CreateQueue(Packet):
    METHOD: ClassVar[int] = 0x21

    queue_name: str

    def payload(self) -> bytes:
        return write_string(self.queue_name)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        queue_name, at = read_string(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return cls(packet_id, queue_name)


@dataclass(slots=True)
class CreateQueueResponse(Packet):
    METHOD: ClassVar[int] = 0x22

    queue_id: int

    def payload(self) -> bytes:
        return _I32.pack(self.queue_id)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        if end - at != 4:
            raise wrong_size(4, at, end)
        queue_id: int = _I32.unpack_from(data, at)[0]
        return cls(packet_id, queue_id)


@dataclass(slots=True)
class DeleteQueue(Packet):
    METHOD: ClassVar[int] = 0x23

    queue_id: int

    def payload(self) -> bytes:
        return _I32.pack(self.queue_id)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        if end - at != 4:
            raise wrong_size(4, at, end)
        queue_id: int = _I32.unpack_from(data, at)[0]
        return cls(packet_id, queue_id)


@dataclass(slots=True)
class GetQueueId(Packet):
    METHOD: ClassVar[int] = 0x25

    queue_name: str

    def payload(self) -> bytes:
        return write_string(self.queue_name)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        queue_name, at = read_string(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return cls(packet_id, queue_name)


@dataclass(slots=True)
class GetQueueIdResponse(Packet):
    METHOD: ClassVar[int] = 0x26

    queue_id: int

    def payload(self) -> bytes:
        return _I32.pack(self.queue_id)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        if end - at != 4:
            raise wrong_size(4, at, end)
        queue_id: int = _I32.unpack_from(data, at)[0]
        return cls(packet_id, queue_id)


@dataclass(slots=True)
class GetQueueName(Packet):
    METHOD: ClassVar[int] = 0x27

    queue_id: int

    def payload(self) -> bytes:
        return _I32.pack(self.queue_id)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        if end - at != 4:
            raise wrong_size(4, at, end)
        queue_id: int = _I32.unpack_from(data, at)[0]
        return cls(packet_id, queue_id)


@dataclass(slots=True)
class GetQueueNameResponse(Packet):
    METHOD: ClassVar[int] = 0x28

    queue_name: str

    def payload(self) -> bytes:
        return write_string(self.queue_name)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        queue_name, at = read_string(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return cls(packet_id, queue_name)


@dataclass(slots=True)
class GetQueues(Packet):
    METHOD: ClassVar[int] = 0x29


@dataclass(slots=True)
class GetQueuesResponse(Packet):
    METHOD: ClassVar[int] = 0x2A

    queues: list[Queue]

    def payload(self) -> bytes:
        return write_queues(self.queues)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        queues, at = read_queues(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return cls(packet_id, queues)


@dataclass(slots=True)
class GetActiveQueues(Packet):
    METHOD: ClassVar[int] = 0x2B


@dataclass(slots=True)
class GetActiveQueuesResponse(Packet):
    METHOD: ClassVar[int] = 0x2C

    queues: list[Queue]

    def payload(self) -> bytes:
        return write_queues(self.queues)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        queues, at = read_queues(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return cls(packet_id, queues)


@dataclass(slots=True)
class GetMessages(Packet):
    METHOD: ClassVar[int] = 0x2D

    queue_id: int

    def payload(self) -> bytes:
        return _I32.pack(self.queue_id)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        if end - at != 4:
            raise wrong_size(4, at, end)
        queue_id: int = _I32.unpack_from(data, at)[0]
        return cls(packet_id, queue_id)


@dataclass(slots=True)
class GetMessagesResponse(Packet):
    METHOD: ClassVar[int] = 0x2E

    messages: list[WireMessage]

    def payload(self) -> bytes:
        return write_messages(self.messages)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        messages, at = read_messages(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return cls(packet_id, messages)


@dataclass(slots=True)
class PutMessage(Packet):
    """Store a message in its own queue and in those of `additional_queue_ids`."""

    METHOD: ClassVar[int] = 0x31

    message: WireMessage
    additional_queue_ids: list[int]

    def payload(self) -> bytes:
        return write_message(self.message) + write_ints(self.additional_queue_ids)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        message, at = read_message(data, at, end)
        additional_queue_ids, at = read_ints(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return cls(packet_id, message, additional_queue_ids)


@dataclass(slots=True)
class ReadMessage(Packet):
    """Take one message. Sender 0 is any; `read_mode` is a ReadMode, or whatever byte came."""

    METHOD: ClassVar[int] = 0x33

    queue_id: int
    sender_id: int
    read_mode: int

    def payload(self) -> bytes:
        return _I32_I32_I8.pack(self.queue_id, self.sender_id, self.read_mode)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        if end - at != 9:
            raise wrong_size(9, at, end)
        queue_id, sender_id, read_mode = _I32_I32_I8.unpack_from(data, at)
        return cls(packet_id, queue_id, sender_id, read_mode)


@dataclass(slots=True)
class ReadMessageResponse(Packet):
    METHOD: ClassVar[int] = 0x34

    message: WireMessage

    def payload(self) -> bytes:
        return write_message(self.message)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        message, at = read_message(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return cls(packet_id, message)


@dataclass(slots=True)
class ReadResponse(Packet):
    """Take a message addressed to this client that has the given context."""

    METHOD: ClassVar[int] = 0x35

    queue_id: int
    context: int

    def payload(self) -> bytes:
        return _I32_I32.pack(self.queue_id, self.context)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        if end - at != 8:
            raise wrong_size(8, at, end)
        queue_id, context = _I32_I32.unpack_from(data, at)
        return cls(packet_id, queue_id, context)


@dataclass(slots=True)
class ComplexTest(Packet):
    """One field of each type. A server parses it and refuses it."""

    METHOD: ClassVar[int] = 0x71

    byte: int
    boolean: bool
    short: int
    int_: int
    long: int
    float_: float
    double: float
    string: str

    def payload(self) -> bytes:
        return _I8_U8_I16_I32_I64_F32_F64.pack(
            self.byte, self.boolean, self.short, self.int_, self.long, self.float_, self.double
        ) + write_string(self.string)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        if end - at < 28:
            raise wrong_size(28, at, end)
        byte, boolean, short, int_, long, float_, double = _I8_U8_I16_I32_I64_F32_F64.unpack_from(data, at)
        at += 28
        boolean = is_one(boolean)
        string, at = read_string(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return cls(packet_id, byte, boolean, short, int_, long, float_, double, string)


@dataclass(slots=True)
class MessageTest(Packet):
    METHOD: ClassVar[int] = 0x72

    message: WireMessage

    def payload(self) -> bytes:
        return write_message(self.message)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        message, at = read_message(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return cls(packet_id, message)


@dataclass(slots=True)
class QueueTest(Packet):
    METHOD: ClassVar[int] = 0x73

    queue: Queue

    def payload(self) -> bytes:
        return write_queue(self.queue)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        queue, at = read_queue(data, at, end)
        if at != end:
            raise wrong_size(0, at, end)
        return cls(packet_id, queue)


# Every packet.
PACKETS: tuple[type[Packet], ...] = (
    Ping,
    Pong,
    Success,
    Error,
    RegisterClient,
    RegisterClientResponse,
    IdentifyClient,
    IdentifyClientResponse,
    DeleteClient,
    CreateQueue,
    CreateQueueResponse,
    DeleteQueue,
    GetQueueId,
    GetQueueIdResponse,
    GetQueueName,
    GetQueueNameResponse,
    GetQueues,
    GetQueuesResponse,
    GetActiveQueues,
    GetActiveQueuesResponse,
    GetMessages,
    GetMessagesResponse,
    PutMessage,
    ReadMessage,
    ReadMessageResponse,
    ReadResponse,
    ComplexTest,
    MessageTest,
    QueueTest,
)
