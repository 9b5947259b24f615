"""A buffer of packed trace records, and the way from there to Arrow columns.

A record is eleven machine words: the first holds the three codes, the others one number each. The words
live in an `array`, whose strided slices are the columns: no parsing, no loop in Python, no numpy.
"""

from __future__ import annotations

import struct
from array import array

import pyarrow as pa

from flyball.trace.schema import SCHEMA, Kind, Protocol, Result, names_of

RECORD = struct.Struct("bbb10q")
"""kind, protocol, result; then the words of `WORD_COLUMNS`. Native order: it never leaves the process."""

WORD_COLUMNS = (
    "client_id",
    "queue_id",
    "size_bytes",
    "received_us",
    "wait_ns",
    "parse_ns",
    "engine_ns",
    "store_ns",
    "emit_ns",
    "message_count",
)
WORD_BYTES = 8
WORDS = RECORD.size // WORD_BYTES

_KINDS = names_of(Kind)
_PROTOCOLS = names_of(Protocol)
_RESULTS = names_of(Result)


class TraceBuffer:
    """Room for `capacity` records. One thread packs records in, another takes them out.

    `used_bytes` belongs to the packing thread and grows only after a record is whole; `taken` belongs to the
    other. So the taking thread may take what is there while the buffer is still being filled.
    """

    __slots__ = ("first_sequence", "taken", "used_bytes", "words")

    def __init__(self, capacity: int) -> None:
        self.words = array("q", bytes(capacity * RECORD.size))
        self.used_bytes = 0
        self.taken = 0
        self.first_sequence = 0

    @property
    def waiting(self) -> int:
        """How many records nobody has taken yet."""
        return self.used_bytes // RECORD.size - self.taken

    def take(self, count: int, node: str) -> pa.RecordBatch:
        """Return the next `count` of the waiting records as columns, made by `node`."""
        start = self.taken
        self.taken = start + count
        words = self.words[start * WORDS : self.taken * WORDS]
        codes = words[::WORDS].tobytes()
        columns = {name: _integers(words[place::WORDS]) for place, name in enumerate(WORD_COLUMNS, start=1)}
        columns["kind"] = _texts(codes[0::WORD_BYTES], _KINDS)
        columns["protocol"] = _texts(codes[1::WORD_BYTES], _PROTOCOLS)
        columns["result"] = _texts(codes[2::WORD_BYTES], _RESULTS)
        columns["node"] = _texts(bytes(count), pa.array([node], pa.string()))
        first = self.first_sequence + start
        columns["sequence"] = _integers(array("q", range(first, first + count)))
        return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)

    def clear(self) -> None:
        """Make the buffer empty again. Only when neither thread uses it."""
        self.used_bytes = 0
        self.taken = 0


def _integers(words: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(words), [None, pa.py_buffer(words)])


def _texts(codes: bytes, texts: pa.Array) -> pa.Array:
    indices = pa.Array.from_buffers(pa.int8(), len(codes), [None, pa.py_buffer(codes)])
    return pa.DictionaryArray.from_arrays(indices, texts)
