"""The base of the packets of Telesto's protocol.

The codec adds the frame with method and packet id.
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
        """Return the packet with payload `data[at:end]`. Raises ProtocolError for malformed or additional data."""
        finish(at, end)
        return cls(packet_id)
