"""A buffer of packed trace records, and the way from there to Arrow columns.

A record is thirteen machine words: the first holds the three codes, the others one number each. The words live in an
`array`; numpy turns them into columns and computes what lies between the points in time, without a loop in Python.
"""

from __future__ import annotations

import struct
from array import array

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flyball.trace.schema import SCHEMA, Kind, Protocol, Result, names_of

RECORD = struct.Struct("bbb12q")
"""kind, protocol, result; then the words of `WORD_COLUMNS`. Native order: it never leaves the process."""

WORD_COLUMNS = (
    "client_id",
    "queue_id",
    "size_bytes",
    "message_count",
    "received_ns",
    "started_ns",
    "parsed_ns",
    "submitted_ns",
    "idle_ns",
    "answered_ns",
    "emitted_ns",
    "weight",
)
WORD_BYTES = 8
WORDS = RECORD.size // WORD_BYTES

Numbers = npt.NDArray[np.int64]

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

    def take(self, count: int, node: str, epoch_ns: int) -> pa.RecordBatch:
        """Return the next `count` of the waiting records as columns, made by `node`.

        `epoch_ns` is what must be added to their points in time to count from 1970.
        """
        start = self.taken
        self.taken = start + count
        words = np.frombuffer(self.words, np.int64, count * WORDS, start * RECORD.size)
        by_column = np.ascontiguousarray(words.reshape(count, WORDS).T)
        codes = by_column[0].view(np.int8).reshape(count, WORD_BYTES)
        numbers = dict(zip(WORD_COLUMNS, by_column[1:], strict=True))
        first = self.first_sequence + start
        columns = {
            **numbers,
            **_phases(numbers, epoch_ns),
            "kind": _texts(codes[:, 0], _KINDS),
            "protocol": _texts(codes[:, 1], _PROTOCOLS),
            "result": _texts(codes[:, 2], _RESULTS),
            "node": _texts(np.zeros(count, np.int8), pa.array([node], pa.string())),
            "sequence": np.arange(first, first + count),
        }
        return pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in SCHEMA.names], schema=SCHEMA)

    def clear(self) -> None:
        """Make the buffer empty again. Only when neither thread uses it."""
        self.used_bytes = 0
        self.taken = 0


def _phases(at: dict[str, Numbers], epoch_ns: int) -> dict[str, Numbers]:
    """Return how long each phase took, and when the bytes were read."""
    submitted = np.where(at["submitted_ns"] == 0, at["answered_ns"], at["submitted_ns"])
    return {
        "received_us": (at["received_ns"] + epoch_ns) // 1000,
        "wait_ns": at["started_ns"] - at["received_ns"],
        "parse_ns": at["parsed_ns"] - at["started_ns"],
        "engine_ns": submitted - at["parsed_ns"],
        "store_ns": np.maximum(at["answered_ns"] - submitted - at["idle_ns"], 0),
        "emit_ns": at["emitted_ns"] - at["answered_ns"],
    }


def _texts(codes: npt.NDArray[np.int8], texts: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes), texts)
