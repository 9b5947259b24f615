"""The packets of Flyball's extension about clustered queues, whose clients are placed and moved, and about topics."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from flyball.broker.wire.telesto.fields import INT, finish, read_count, read_string, require, write_string
from flyball.broker.wire.telesto.packet import Packet, QueueIdPacket
from flyball.broker.wire.telesto.values import DRAFT_MIN_BYTES, WireDraft, read_draft

_BYTE = struct.Struct(">b")
_INT_INT = struct.Struct(">ii")


@dataclass(slots=True)
class Place(Packet):
    """Where should a client of a queue go? `session_id` is empty for a new one; `avoid` names a node that it lost."""

    METHOD: ClassVar[int] = 0x5C

    role: int
    vhost: str
    queue_name: str
    client_name: str
    session_id: str
    avoid: str

    def payload(self) -> bytes:
        texts = (self.vhost, self.queue_name, self.client_name, self.session_id, self.avoid)
        return _BYTE.pack(self.role) + b"".join([write_string(text) for text in texts])

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        require(1, at, end)
        role: int = _BYTE.unpack_from(data, at)[0]
        texts, at = _read_strings(data, at + 1, end, 5)
        finish(at, end)
        return cls(packet_id, role, *texts)


@dataclass(slots=True)
class Placed(Packet):
    """To this node. An empty address is that of the node which says so."""

    METHOD: ClassVar[int] = 0x5D

    node: str
    address: str
    queue_id: int
    session_id: str

    def payload(self) -> bytes:
        texts = (self.node, self.address, self.session_id)
        return INT.pack(self.queue_id) + b"".join([write_string(text) for text in texts])

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        require(4, at, end)
        queue_id: int = INT.unpack_from(data, at)[0]
        (node, address, session_id), at = _read_strings(data, at + 4, end, 3)
        finish(at, end)
        return cls(packet_id, node, address, queue_id, session_id)


@dataclass(slots=True)
class PlaceLater(Packet):
    """There is no place yet: ask again after so long."""

    METHOD: ClassVar[int] = 0x5E

    retry_ms: int
    reason: str

    def payload(self) -> bytes:
        return INT.pack(self.retry_ms) + write_string(self.reason)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        require(4, at, end)
        reason, stop = read_string(data, at + 4, end)
        finish(stop, end)
        return cls(packet_id, INT.unpack_from(data, at)[0], reason)


@dataclass(slots=True)
class SessionIdPacket(Packet):
    """Packets whose payload is the id of a session of a clustered queue's client."""

    session_id: str

    def payload(self) -> bytes:
        return write_string(self.session_id)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        session_id, at = read_string(data, at, end)
        finish(at, end)
        return cls(packet_id, session_id)


@dataclass(slots=True)
class Arrive(SessionIdPacket):
    """The client that was placed is here, on this connection."""

    METHOD: ClassVar[int] = 0x5F


@dataclass(slots=True)
class Leave(SessionIdPacket):
    """The client needs its place no more."""

    METHOD: ClassVar[int] = 0x60


@dataclass(slots=True)
class MoveRequested(Packet):
    """Nobody asked for it: the client should go on at another node."""

    METHOD: ClassVar[int] = 0x61

    session_id: str
    node: str
    address: str
    queue_id: int
    deadline_ms: int

    def payload(self) -> bytes:
        texts = (self.session_id, self.node, self.address)
        return _INT_INT.pack(self.queue_id, self.deadline_ms) + b"".join([write_string(text) for text in texts])

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        require(8, at, end)
        queue_id, deadline_ms = _INT_INT.unpack_from(data, at)
        (session_id, node, address), at = _read_strings(data, at + 8, end, 3)
        finish(at, end)
        return cls(packet_id, session_id, node, address, queue_id, deadline_ms)


@dataclass(slots=True)
class Publish(Packet):
    """Publish all drafts to a topic, with one key."""

    METHOD: ClassVar[int] = 0x62

    topic: str
    key: str
    drafts: list[WireDraft]

    def payload(self) -> bytes:
        parts = [write_string(self.topic), write_string(self.key), INT.pack(len(self.drafts))]
        parts.extend([draft.pack() for draft in self.drafts])
        return b"".join(parts)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        (topic, key), at = _read_strings(data, at, end, 2)
        count = read_count(data, at, end, DRAFT_MIN_BYTES)
        at += 4
        drafts: list[WireDraft] = []
        for _ in range(count):
            draft, at = read_draft(data, at, end)
            drafts.append(draft)
        finish(at, end)
        return cls(packet_id, topic, key, drafts)


@dataclass(slots=True)
class Subscribe(Packet):
    """Have what is published to a topic and fits the pattern put into a queue, which without a name ends with this
    connection.
    """

    METHOD: ClassVar[int] = 0x63

    topic: str
    subscription: str
    pattern: str

    def payload(self) -> bytes:
        return write_string(self.topic) + write_string(self.subscription) + write_string(self.pattern)

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        (topic, subscription, pattern), at = _read_strings(data, at, end, 3)
        finish(at, end)
        return cls(packet_id, topic, subscription, pattern)


@dataclass(slots=True)
class Subscribed(QueueIdPacket):
    METHOD: ClassVar[int] = 0x64


@dataclass(slots=True)
class Forwarded(Packet):
    """What comes through this connection was sent by a client of another node: pass none of it on."""

    METHOD: ClassVar[int] = 0x65


def _read_strings(data: bytes, at: int, end: int, count: int) -> tuple[list[str], int]:
    """Return so many strings, and where the last ends."""
    texts: list[str] = []
    for _ in range(count):
        text, at = read_string(data, at, end)
        texts.append(text)
    return texts, at


CLUSTERING_PACKETS: tuple[type[Packet], ...] = (
    Place,
    Placed,
    PlaceLater,
    Arrive,
    Leave,
    MoveRequested,
    Publish,
    Subscribe,
    Subscribed,
    Forwarded,
)
"""Every packet in this module."""
