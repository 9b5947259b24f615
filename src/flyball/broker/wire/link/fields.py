"""The frame of the link between nodes, and the errors of invalid ones."""

from __future__ import annotations

import struct
from typing import Final

from flyball.errors import ProtocolError

# The length of a frame, which counts everything after it, and its kind.
HEADER: Final = struct.Struct(">IB")


def frame(kind: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload) + 1, kind) + payload


def wrong_size(size: int, at: int, end: int) -> ProtocolError:
    """Return the error of a frame that does not have `size` bytes between `at` and its end."""
    return ProtocolError(f"a frame has {end - at} bytes left for fields of {size}")


def too_many(count: int, at: int, end: int) -> ProtocolError:
    """Return the error of a frame whose rest cannot hold `count` elements."""
    return ProtocolError(f"{count} elements in a frame that has {end - at} bytes left")


def checked_prefetch(prefetch: float) -> float:
    if not prefetch >= 0:
        raise ProtocolError(f"a prefetch of {prefetch}")
    return prefetch
