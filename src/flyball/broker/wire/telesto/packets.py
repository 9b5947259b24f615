"""The packets of Telesto's protocol, one class each: their fields, and how those lie in the payload.

The extension's packets are in `extension`; frames, with the method and packet id, are the codec's business.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from flyball.broker.wire.telesto.fields import (
    BYTE,
    INT,
    finish,
    read_count,
    read_ints,
    read_string,
    require,
    write_ints,
    write_string,
)
from flyball.broker.wire.telesto.values import WireMessage, read_message, read_queue, read_queues, write_queue
from flyball.errors import ProtocolError
from flyball.model import Queue


@dataclass(slots=True)
class Packet:
    """What all packets have. This one, like many, has no payload."""

    METHOD: ClassVar[int] = -1

    packet_id: int

    def payload(self) -> bytes:
        """Return the fields behind the packet id, as they go onto the wire."""
        return b""

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        """Return the packet whose payload is `data[at:end]`; raises ProtocolError if it is not exactly that."""
        finish(at, end)
        return cls(packet_id)


@dataclass(slots=True)
class ClientIdPacket(Packet):
    """Packets whose payload is the id of a client."""

    client_id: int

    def payload(self) -> bytes:
        return INT.pack(self.client_id)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        finish(at + 4, end)
        return cls(packet_id, INT.unpack_from(data, at)[0])


@dataclass(slots=True)
class QueueIdPacket(Packet):
    """Packets whose payload is the id of a queue."""

    queue_id: int

    def payload(self) -> bytes:
        return INT.pack(self.queue_id)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        finish(at + 4, end)
        return cls(packet_id, INT.unpack_from(data, at)[0])


@dataclass(slots=True)
class QueueNamePacket(Packet):
    """Packets whose payload is the name of a queue."""

    queue_name: str

    def payload(self) -> bytes:
        return write_string(self.queue_name)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        queue_name, at = read_string(data, at, end)
        finish(at, end)
        return cls(packet_id, queue_name)


@dataclass(slots=True)
class QueuesPacket(Packet):
    """Packets whose payload is an array of queues."""

    queues: list[Queue]

    def payload(self) -> bytes:
        return INT.pack(len(self.queues)) + b"".join([write_queue(queue) for queue in self.queues])

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        queues, at = read_queues(data, at, end)
        finish(at, end)
        return cls(packet_id, queues)


@dataclass(slots=True)
class MessagePacket(Packet):
    """Packets whose payload is one message."""

    message: WireMessage

    def payload(self) -> bytes:
        return self.message.pack()

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        message, at = read_message(data, at, end)
        finish(at, end)
        return cls(packet_id, message)


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
        return BYTE.pack(self.code) + write_string(self.details)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        require(3, at, end)
        code: int = BYTE.unpack_from(data, at)[0]
        details, at = read_string(data, at + 1, end)
        finish(at, end)
        return cls(packet_id, code, details)


@dataclass(slots=True)
class RegisterClient(Packet):
    METHOD: ClassVar[int] = 0x11

    client_name: str
    mode: int

    def payload(self) -> bytes:
        return write_string(self.client_name) + BYTE.pack(self.mode)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        client_name, at = read_string(data, at, end)
        finish(at + 1, end)
        return cls(packet_id, client_name, BYTE.unpack_from(data, at)[0])


@dataclass(slots=True)
class RegisterClientResponse(ClientIdPacket):
    METHOD: ClassVar[int] = 0x12


@dataclass(slots=True)
class IdentifyClient(ClientIdPacket):
    METHOD: ClassVar[int] = 0x13


@dataclass(slots=True)
class IdentifyClientResponse(Packet):
    METHOD: ClassVar[int] = 0x14

    mode: int
    client_name: str

    def payload(self) -> bytes:
        return BYTE.pack(self.mode) + write_string(self.client_name)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        require(3, at, end)
        mode: int = BYTE.unpack_from(data, at)[0]
        client_name, at = read_string(data, at + 1, end)
        finish(at, end)
        return cls(packet_id, mode, client_name)


@dataclass(slots=True)
class DeleteClient(Packet):
    """Delete the client of the connection."""

    METHOD: ClassVar[int] = 0x15


@dataclass(slots=True)
class CreateQueue(QueueNamePacket):
    METHOD: ClassVar[int] = 0x21


@dataclass(slots=True)
class CreateQueueResponse(QueueIdPacket):
    METHOD: ClassVar[int] = 0x22


@dataclass(slots=True)
class DeleteQueue(QueueIdPacket):
    METHOD: ClassVar[int] = 0x23


@dataclass(slots=True)
class GetQueueId(QueueNamePacket):
    METHOD: ClassVar[int] = 0x25


@dataclass(slots=True)
class GetQueueIdResponse(QueueIdPacket):
    METHOD: ClassVar[int] = 0x26


@dataclass(slots=True)
class GetQueueName(QueueIdPacket):
    METHOD: ClassVar[int] = 0x27


@dataclass(slots=True)
class GetQueueNameResponse(QueueNamePacket):
    METHOD: ClassVar[int] = 0x28


@dataclass(slots=True)
class GetQueues(Packet):
    METHOD: ClassVar[int] = 0x29


@dataclass(slots=True)
class GetQueuesResponse(QueuesPacket):
    METHOD: ClassVar[int] = 0x2A


@dataclass(slots=True)
class GetActiveQueues(Packet):
    METHOD: ClassVar[int] = 0x2B


@dataclass(slots=True)
class GetActiveQueuesResponse(QueuesPacket):
    METHOD: ClassVar[int] = 0x2C


@dataclass(slots=True)
class GetMessages(QueueIdPacket):
    METHOD: ClassVar[int] = 0x2D


@dataclass(slots=True)
class GetMessagesResponse(Packet):
    METHOD: ClassVar[int] = 0x2E

    messages: list[WireMessage]

    def payload(self) -> bytes:
        return INT.pack(len(self.messages)) + b"".join([message.pack() for message in self.messages])

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        count = read_count(data, at, end, 31)
        at += 4
        messages: list[WireMessage] = []
        for _ in range(count):
            message, at = read_message(data, at, end)
            messages.append(message)
        finish(at, end)
        return cls(packet_id, messages)


@dataclass(slots=True)
class PutMessage(Packet):
    """Store a message in its own queue and in those of `additional_queue_ids`."""

    METHOD: ClassVar[int] = 0x31

    message: WireMessage
    additional_queue_ids: list[int]

    def payload(self) -> bytes:
        return self.message.pack() + write_ints(self.additional_queue_ids)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        message, at = read_message(data, at, end)
        # Nearly every put names no further queue: four zero bytes end it.
        if end - at == 4 and data[at:end] == b"\0\0\0\0":
            return cls(packet_id, message, [])
        additional_queue_ids, at = read_ints(data, at, end)
        finish(at, end)
        return cls(packet_id, message, additional_queue_ids)


_READ_MESSAGE = struct.Struct(">iib")


@dataclass(slots=True)
class ReadMessage(Packet):
    """Take one message. Sender 0 is any; `read_mode` is a ReadMode, or whatever byte came."""

    METHOD: ClassVar[int] = 0x33

    queue_id: int
    sender_id: int
    read_mode: int

    def payload(self) -> bytes:
        return _READ_MESSAGE.pack(self.queue_id, self.sender_id, self.read_mode)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        if end - at != 9:
            raise ProtocolError(f"a ReadMessage has 9 bytes, not {end - at}")
        queue_id, sender_id, read_mode = _READ_MESSAGE.unpack_from(data, at)
        return cls(packet_id, queue_id, sender_id, read_mode)


@dataclass(slots=True)
class ReadMessageResponse(MessagePacket):
    METHOD: ClassVar[int] = 0x34


_READ_RESPONSE = struct.Struct(">ii")


@dataclass(slots=True)
class ReadResponse(Packet):
    """Take a message addressed to this client that has the given context."""

    METHOD: ClassVar[int] = 0x35

    queue_id: int
    context: int

    def payload(self) -> bytes:
        return _READ_RESPONSE.pack(self.queue_id, self.context)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        finish(at + 8, end)
        queue_id, context = _READ_RESPONSE.unpack_from(data, at)
        return cls(packet_id, queue_id, context)


_COMPLEX_TEST = struct.Struct(">bBhiqfd")


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
        numbers = _COMPLEX_TEST.pack(
            self.byte, 1 if self.boolean else 0, self.short, self.int_, self.long, self.float_, self.double
        )
        return numbers + write_string(self.string)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        require(_COMPLEX_TEST.size, at, end)
        byte, boolean, short, int_, long, float_, double = _COMPLEX_TEST.unpack_from(data, at)
        string, at = read_string(data, at + _COMPLEX_TEST.size, end)
        finish(at, end)
        return cls(packet_id, byte, boolean == 1, short, int_, long, float_, double, string)


@dataclass(slots=True)
class MessageTest(MessagePacket):
    METHOD: ClassVar[int] = 0x72


@dataclass(slots=True)
class QueueTest(Packet):
    METHOD: ClassVar[int] = 0x73

    queue: Queue

    def payload(self) -> bytes:
        return write_queue(self.queue)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        queue, at = read_queue(data, at, end)
        finish(at, end)
        return cls(packet_id, queue)


PLAIN_PACKETS: tuple[type[Packet], ...] = (
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
"""Every packet of the plain protocol."""
