"""Which messages were sent and which were received, exactly: a bit for each, by stream and sequence number.

Each process keeps its own tally; `judge` combines them. Does no I/O.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


class Bitmap:
    """A set of whole numbers from 0 on, one bit each."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, number: int) -> bool:
        """Add the number; return whether it was missing."""
        place, bit = number >> 3, 1 << (number & 7)
        try:
            had = self._bytes[place]
        except IndexError:
            # Grow geometrically, so that the amortized cost per number is constant.
            self._bytes.extend(bytes(2 * place + 64 - len(self._bytes)))
            had = 0
        self._bytes[place] = had | bit
        return not had & bit

    def as_number(self) -> int:
        """Return all bits as one number."""
        return int.from_bytes(self._bytes, "little")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Totals of the messages of all tallies."""

    sent: int
    received: int
    lost: int
    doubled: int
    # Messages that were received although they were not confirmed.
    unsent: int


class Tally:
    """Messages that one process has sent and received. A stream numbers its messages from 0."""

    def __init__(self) -> None:
        self._sent: dict[str, Bitmap] = {}
        self._received: dict[str, Bitmap] = {}
        self._doubled = 0

    def sent(self, stream: str, sequence: int) -> None:
        """Record a message that the server has confirmed."""
        bitmap = self._sent.get(stream)
        if bitmap is None:
            bitmap = self._sent[stream] = Bitmap()
        bitmap.add(sequence)

    def received(self, stream: str, sequence: int) -> bool:
        """Record a received message; return False for a duplicate."""
        bitmap = self._received.get(stream)
        if bitmap is None:
            bitmap = self._received[stream] = Bitmap()
        is_new = bitmap.add(sequence)
        if not is_new:
            self._doubled += 1
        return is_new

    def as_dict(self) -> dict[str, Any]:
        """Return the tally in a form that JSON can represent."""
        return {"sent": _packed(self._sent), "received": _packed(self._received), "doubled": self._doubled}


def judge(tallies: Iterable[Mapping[str, Any]]) -> Verdict:
    """Return the verdict on the tallies of all processes, in the form of `Tally.as_dict`.

    Lost messages were sent and never received; each repeated reception counts as doubled; unsent messages were
    received and never sent.
    """
    sent: dict[str, int] = {}
    received: dict[str, int] = {}
    doubled = 0
    for tally in tallies:
        doubled += tally["doubled"]
        for stream, packed in tally["sent"].items():
            sent[stream] = sent.get(stream, 0) | _unpacked(packed)
        for stream, packed in tally["received"].items():
            here, elsewhere = _unpacked(packed), received.get(stream, 0)
            doubled += (here & elsewhere).bit_count()
            received[stream] = here | elsewhere
    lost = sum((numbers & ~received.get(stream, 0)).bit_count() for stream, numbers in sent.items())
    unsent = sum((numbers & ~sent.get(stream, 0)).bit_count() for stream, numbers in received.items())
    return Verdict(_count(sent), _count(received), lost, doubled, unsent)


def _count(streams: Mapping[str, int]) -> int:
    return sum(numbers.bit_count() for numbers in streams.values())


def _packed(streams: Mapping[str, Bitmap]) -> dict[str, str]:
    packed = {}
    for stream, bitmap in streams.items():
        number = bitmap.as_number()
        raw = number.to_bytes((number.bit_length() + 7) // 8, "little")
        packed[stream] = base64.b64encode(zlib.compress(raw)).decode()
    return packed


def _unpacked(packed: str) -> int:
    return int.from_bytes(zlib.decompress(base64.b64decode(packed)), "little")
