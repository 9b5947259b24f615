"""The packets of Flyball's extension of Telesto's protocol. They travel in wide frames.

Only Welcome, which ends the plain part of a connection, comes in a plain frame.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import ClassVar, Self

from flyball.broker.wire.telesto.fields import (
    INT,
    LONG,
    finish,
    read_bytes,
    read_count,
    read_ints,
    read_longs,
    read_string,
    require,
    write_ints,
    write_longs,
    write_string,
)
from flyball.broker.wire.telesto.packet import ClientIdPacket, Packet, QueueIdPacket
from flyball.broker.wire.telesto.values import (
    DRAFT_MIN_BYTES,
    RECORD_MIN_BYTES,
    SELECTOR_BYTES,
    Record,
    WireClient,
    WireDraft,
    WireSelector,
    read_client,
    read_draft,
    read_record,
    read_selector,
)
from flyball.errors import ProtocolError

_BYTE_INT = struct.Struct(">bi")
_INT_BYTE = struct.Struct(">ib")
_INT_INT = struct.Struct(">ii")
_INT_DOUBLE = struct.Struct(">id")
_INT_LONG_INT = struct.Struct(">iqi")
_BYTE = struct.Struct(">b")
_DOUBLE = struct.Struct(">d")


@dataclass(slots=True)
class ConsumerIdPacket(Packet):
    """Packets whose payload is the id of a consumer."""

    consumer_id: int

    def payload(self) -> bytes:
        return INT.pack(self.consumer_id)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        finish(at + 4, end)
        return cls(packet_id, INT.unpack_from(data, at)[0])


@dataclass(slots=True)
class Welcome(Packet):
    """The server knows the extension: all that follows, in both directions, are wide frames."""

    METHOD: ClassVar[int] = 0x40

    version: int
    frame_max: int
    server: str

    def payload(self) -> bytes:
        return _BYTE_INT.pack(self.version, self.frame_max) + write_string(self.server)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        require(7, at, end)
        version, frame_max = _BYTE_INT.unpack_from(data, at)
        server, at = read_string(data, at + 5, end)
        finish(at, end)
        return cls(packet_id, version, frame_max, server)


@dataclass(slots=True)
class Join(Packet):
    """Become the client of that name, registered if it is new."""

    METHOD: ClassVar[int] = 0x41

    client_name: str
    mode: int

    def payload(self) -> bytes:
        return write_string(self.client_name) + _BYTE.pack(self.mode)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        client_name, at = read_string(data, at, end)
        finish(at + 1, end)
        return cls(packet_id, client_name, _BYTE.unpack_from(data, at)[0])


@dataclass(slots=True)
class Joined(Packet):
    METHOD: ClassVar[int] = 0x42

    client_id: int
    mode: int

    def payload(self) -> bytes:
        return _INT_BYTE.pack(self.client_id, self.mode)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        finish(at + 5, end)
        client_id, mode = _INT_BYTE.unpack_from(data, at)
        return cls(packet_id, client_id, mode)


@dataclass(slots=True)
class Put(Packet):
    """Store each draft in each queue."""

    METHOD: ClassVar[int] = 0x43

    queue_ids: list[int]
    drafts: list[WireDraft]

    def payload(self) -> bytes:
        parts = [write_ints(self.queue_ids), INT.pack(len(self.drafts))]
        parts.extend([draft.pack() for draft in self.drafts])
        return b"".join(parts)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        queue_ids, at = read_ints(data, at, end)
        count = read_count(data, at, end, DRAFT_MIN_BYTES)
        at += 4
        drafts: list[WireDraft] = []
        for _ in range(count):
            draft, at = read_draft(data, at, end)
            drafts.append(draft)
        finish(at, end)
        return cls(packet_id, queue_ids, drafts)


@dataclass(slots=True)
class PutDone(Packet):
    """For each draft, the id of its message in each queue."""

    METHOD: ClassVar[int] = 0x44

    message_ids: list[int]

    def payload(self) -> bytes:
        return write_longs(self.message_ids)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        message_ids, at = read_longs(data, at, end)
        finish(at, end)
        return cls(packet_id, message_ids)


@dataclass(slots=True)
class Take(Packet):
    """Remove up to `most` messages, waiting up to `wait_ms` for the first."""

    METHOD: ClassVar[int] = 0x45

    queue_id: int
    selector: WireSelector
    most: int
    wait_ms: int

    def payload(self) -> bytes:
        return INT.pack(self.queue_id) + self.selector.pack() + _INT_INT.pack(self.most, self.wait_ms)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        finish(at + 12 + SELECTOR_BYTES, end)
        queue_id: int = INT.unpack_from(data, at)[0]
        most, wait_ms = _INT_INT.unpack_from(data, at + 4 + SELECTOR_BYTES)
        return cls(packet_id, queue_id, read_selector(data, at + 4), most, wait_ms)


@dataclass(slots=True)
class Messages(Packet):
    METHOD: ClassVar[int] = 0x46

    records: list[Record]

    def payload(self) -> bytes:
        parts = [INT.pack(len(self.records))]
        parts.extend([record.pack() for record in self.records])
        return b"".join(parts)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        count = read_count(data, at, end, RECORD_MIN_BYTES)
        at += 4
        records: list[Record] = []
        for _ in range(count):
            record, at = read_record(data, at, end)
            records.append(record)
        finish(at, end)
        return cls(packet_id, records)


@dataclass(slots=True)
class Peek(Packet):
    METHOD: ClassVar[int] = 0x47

    queue_id: int
    selector: WireSelector

    def payload(self) -> bytes:
        return INT.pack(self.queue_id) + self.selector.pack()

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        finish(at + 4 + SELECTOR_BYTES, end)
        return cls(packet_id, INT.unpack_from(data, at)[0], read_selector(data, at + 4))


@dataclass(slots=True)
class ListMessages(Packet):
    """Show up to `most` messages with an id above `after_id`, oldest first. The document calls it List."""

    METHOD: ClassVar[int] = 0x48

    queue_id: int
    after_id: int
    most: int

    def payload(self) -> bytes:
        return _INT_LONG_INT.pack(self.queue_id, self.after_id, self.most)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        finish(at + 16, end)
        queue_id, after_id, most = _INT_LONG_INT.unpack_from(data, at)
        return cls(packet_id, queue_id, after_id, most)


@dataclass(slots=True)
class Consume(Packet):
    METHOD: ClassVar[int] = 0x49

    queue_id: int
    selector: WireSelector
    prefetch: float

    def payload(self) -> bytes:
        return INT.pack(self.queue_id) + self.selector.pack() + _DOUBLE.pack(self.prefetch)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        finish(at + 12 + SELECTOR_BYTES, end)
        queue_id: int = INT.unpack_from(data, at)[0]
        prefetch: float = _DOUBLE.unpack_from(data, at + 4 + SELECTOR_BYTES)[0]
        return cls(packet_id, queue_id, read_selector(data, at + 4), prefetch)


@dataclass(slots=True)
class Consuming(ConsumerIdPacket):
    METHOD: ClassVar[int] = 0x4A


@dataclass(slots=True)
class Deliver(Packet):
    """A message leased to a consumer. Nobody asked: the packet id is 0."""

    METHOD: ClassVar[int] = 0x4B

    consumer_id: int
    record: Record

    def payload(self) -> bytes:
        return INT.pack(self.consumer_id) + self.record.pack()

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        require(4, at, end)
        record, stop = read_record(data, at + 4, end)
        if stop != end:
            raise ProtocolError(f"a Deliver is {end - stop} bytes longer than its record")
        return cls(packet_id, INT.unpack_from(data, at)[0], record)


@dataclass(slots=True)
class Prefetch(Packet):
    """Change how many messages a consumer may hold; may be a fraction."""

    METHOD: ClassVar[int] = 0x4C

    consumer_id: int
    prefetch: float

    def payload(self) -> bytes:
        return _INT_DOUBLE.pack(self.consumer_id, self.prefetch)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        finish(at + 12, end)
        consumer_id, prefetch = _INT_DOUBLE.unpack_from(data, at)
        return cls(packet_id, consumer_id, prefetch)


@dataclass(slots=True)
class Cancel(ConsumerIdPacket):
    METHOD: ClassVar[int] = 0x4D


@dataclass(slots=True)
class Settle(Packet):
    """End leases. `outcome` is an Outcome, or whatever byte came."""

    METHOD: ClassVar[int] = 0x4E

    consumer_id: int
    outcome: int
    message_ids: list[int]

    def payload(self) -> bytes:
        return _INT_BYTE.pack(self.consumer_id, self.outcome) + write_longs(self.message_ids)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        require(9, at, end)
        consumer_id, outcome = _INT_BYTE.unpack_from(data, at)
        message_ids, at = read_longs(data, at + 5, end)
        finish(at, end)
        return cls(packet_id, consumer_id, outcome, message_ids)


@dataclass(slots=True)
class Purge(QueueIdPacket):
    METHOD: ClassVar[int] = 0x4F


@dataclass(slots=True)
class Count(Packet):
    METHOD: ClassVar[int] = 0x50

    count: int

    def payload(self) -> bytes:
        return LONG.pack(self.count)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        finish(at + 8, end)
        return cls(packet_id, LONG.unpack_from(data, at)[0])


@dataclass(slots=True)
class Status(Packet):
    METHOD: ClassVar[int] = 0x51


@dataclass(slots=True)
class StatusReport(Packet):
    """The state of the node as UTF-8 JSON."""

    METHOD: ClassVar[int] = 0x52

    report: bytes

    def payload(self) -> bytes:
        return INT.pack(len(self.report)) + self.report

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        report, at = read_bytes(data, at, end)
        finish(at, end)
        return cls(packet_id, report)


@dataclass(slots=True)
class ListClients(Packet):
    METHOD: ClassVar[int] = 0x53


@dataclass(slots=True)
class Clients(Packet):
    METHOD: ClassVar[int] = 0x54

    clients: list[WireClient]

    def payload(self) -> bytes:
        return INT.pack(len(self.clients)) + b"".join([client.pack() for client in self.clients])

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        count = read_count(data, at, end, 7)
        at += 4
        clients: list[WireClient] = []
        for _ in range(count):
            client, at = read_client(data, at, end)
            clients.append(client)
        finish(at, end)
        return cls(packet_id, clients)


@dataclass(slots=True)
class RemoveClient(ClientIdPacket):
    METHOD: ClassVar[int] = 0x55


@dataclass(slots=True)
class ConsumerEnded(ConsumerIdPacket):
    """Nobody asked for it: the consumer's queue is gone, and so is the consumer."""

    METHOD: ClassVar[int] = 0x56


@dataclass(slots=True)
class Manage(Packet):
    """A command to the node's administration as UTF-8 JSON. It may hold a password, and so does not show itself."""

    METHOD: ClassVar[int] = 0x57

    command: bytes = field(repr=False)

    def payload(self) -> bytes:
        return INT.pack(len(self.command)) + self.command

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        command, at = read_bytes(data, at, end)
        finish(at, end)
        return cls(packet_id, command)


@dataclass(slots=True)
class Managed(Packet):
    """What came of a command, as UTF-8 JSON."""

    METHOD: ClassVar[int] = 0x58

    result: bytes

    def payload(self) -> bytes:
        return INT.pack(len(self.result)) + self.result

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        result, at = read_bytes(data, at, end)
        finish(at, end)
        return cls(packet_id, result)


@dataclass(slots=True)
class ListIds(ListMessages):
    """Like ListMessages, but only the ids are told, and not before the messages are committed."""

    METHOD: ClassVar[int] = 0x59


@dataclass(slots=True)
class MessageIds(Packet):
    METHOD: ClassVar[int] = 0x5A

    message_ids: list[int]

    def payload(self) -> bytes:
        return write_longs(self.message_ids)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        message_ids, at = read_longs(data, at, end)
        finish(at, end)
        return cls(packet_id, message_ids)


@dataclass(slots=True)
class Remove(Packet):
    """Remove the oldest messages with an id up to `up_to_id`, `most` of them at the most."""

    METHOD: ClassVar[int] = 0x5B

    queue_id: int
    up_to_id: int
    most: int

    def payload(self) -> bytes:
        return _INT_LONG_INT.pack(self.queue_id, self.up_to_id, self.most)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        finish(at + 16, end)
        queue_id, up_to_id, most = _INT_LONG_INT.unpack_from(data, at)
        return cls(packet_id, queue_id, up_to_id, most)


EXTENSION_PACKETS: tuple[type[Packet], ...] = (
    Welcome,
    Join,
    Joined,
    Put,
    PutDone,
    Take,
    Messages,
    Peek,
    ListMessages,
    Consume,
    Consuming,
    Deliver,
    Prefetch,
    Cancel,
    Settle,
    Purge,
    Count,
    Status,
    StatusReport,
    ListClients,
    Clients,
    RemoveClient,
    ConsumerEnded,
    Manage,
    Managed,
    ListIds,
    MessageIds,
    Remove,
)
"""Every packet of the extension, but for those about clustered queues and topics."""
