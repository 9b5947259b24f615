"""The base of the packets of Telesto's protocol.

Frames, with the method and packet id, are the codec's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from flyball.broker.wire.telesto.fields import finish


@dataclass(slots=True)
class Packet:
    """The base of all packets. Like many of them it has no payload."""

    METHOD: ClassVar[int] = -1

    packet_id: int

    def payload(self) -> bytes:
        """Encode the fields after the packet id."""
        return b""

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        """Return the packet whose payload is `data[at:end]`; raises ProtocolError if it is not exactly that."""
        finish(at, end)
        return cls(packet_id)
