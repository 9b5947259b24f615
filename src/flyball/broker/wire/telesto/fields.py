"""The field types of Telesto's protocol: strings and arrays in a payload.

Readers accept a buffer with the start of the field and the end of its frame, since further frames may follow in it.
They check sizes before they read or allocate.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from flyball.errors import ProtocolError
from flyball.model import MAX_COPIES

SHORT = struct.Struct(">h")
INT = struct.Struct(">i")

# A string's length is a signed short.
MAX_STRING_BYTES = 0x7FFF


class FrameTooLarge(ProtocolError):
    """A packet does not fit into its frame, or a string not into its length field: it was not encoded."""


def wrong_size(size: int, at: int, end: int) -> ProtocolError:
    """Return the error of a packet that does not have `size` bytes between `at` and its end."""
    if end - at < size:
        return ProtocolError(f"a packet ends {size - (end - at)} bytes short of its fields")
    return ProtocolError(f"a packet's fields and its length disagree by {end - at - size} bytes")


def require(size: int, at: int, end: int) -> None:
    """Raise ProtocolError unless `size` more bytes are left before `end`."""
    if end - at < size:
        raise wrong_size(size, at, end)


def finish(at: int, end: int) -> None:
    """Raise ProtocolError unless the fields end where their frame does."""
    if at != end:
        raise wrong_size(0, at, end)


def read_string(data: bytes, at: int, end: int) -> tuple[str, int]:
    """Return the string at `at` and its end. Invalid UTF-8 becomes U+FFFD."""
    require(2, at, end)
    size: int = SHORT.unpack_from(data, at)[0]
    at += 2
    stop = at + size
    if size < 0 or stop > end:
        raise ProtocolError(f"a string of {size} bytes in a packet that has {end - at} left")
    return data[at:stop].decode("utf-8", "replace"), stop


def write_string(text: str) -> bytes:
    """Return the string, prefixed with its length. Raises FrameTooLarge above 32767 bytes."""
    encoded = text.encode()
    if len(encoded) > MAX_STRING_BYTES:
        raise FrameTooLarge(f"a string of {len(encoded)} bytes exceeds {MAX_STRING_BYTES}")
    return SHORT.pack(len(encoded)) + encoded


def read_count(data: bytes, at: int, end: int, smallest: int) -> int:
    """Return the count of the array at `at`, whose elements take at least `smallest` bytes each.

    A count that cannot fit is refused here, so that no caller allocates for it.
    """
    require(4, at, end)
    count: int = INT.unpack_from(data, at)[0]
    if count < 0 or count * smallest > end - at - 4:
        raise ProtocolError(f"an array of {count} elements in a packet that has {end - at - 4} bytes left")
    return count


def read_ints(data: bytes, at: int, end: int) -> tuple[list[int], int]:
    """Return at most `MAX_COPIES` + 1 elements of the array of int at `at`, and the end of the array."""
    # Most puts list no further queue: four zero bytes.
    if end - at == 4 and data[at:end] == b"\0\0\0\0":
        return [], end
    count = read_count(data, at, end, 4)
    at += 4
    if count == 1:
        return [INT.unpack_from(data, at)[0]], at + 4
    return list(struct.unpack_from(f">{min(count, MAX_COPIES + 1)}i", data, at)), at + 4 * count


def write_ints(values: Sequence[int]) -> bytes:
    return struct.pack(f">i{len(values)}i", len(values), *values)
