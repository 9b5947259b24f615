"""Buffers of packed trace records, and the way from there to Arrow columns.

A record is some machine words: the first holds the codes, the others one number each. The words live in an
`array`; numpy turns them into columns and computes what lies between the points in time, without a loop in Python.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from array import array
from typing import Any

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

Numbers = npt.NDArray[np.int64]

_KINDS = names_of(Kind)
_PROTOCOLS = names_of(Protocol)
_RESULTS = names_of(Result)


class RecordBuffer(ABC):
    """Room for `capacity` records of one size. One thread packs records in, another takes them out.

    `used_bytes` belongs to the packing thread and grows only after a record is whole; `taken` belongs to the
    other. So the taking thread may take what is there while the buffer is still being filled.
    """

    __slots__ = ("capacity_bytes", "first_sequence", "record_bytes", "taken", "used_bytes", "words")

    def __init__(self, capacity: int, record_bytes: int) -> None:
        self.record_bytes = record_bytes
        self.capacity_bytes = capacity * record_bytes
        self.words = array("q", bytes(self.capacity_bytes))
        self.used_bytes = 0
        self.taken = 0
        self.first_sequence = 0

    @property
    def waiting(self) -> int:
        """How many records nobody has taken yet."""
        return self.used_bytes // self.record_bytes - self.taken

    @abstractmethod
    def take(self, count: int, origin: str, epoch_ns: int) -> pa.RecordBatch:
        """Return the next `count` of the waiting records as columns, made by `origin`.

        `epoch_ns` is what must be added to points in time to count from 1970.
        """

    def clear(self) -> None:
        """Make the buffer empty again. Only when neither thread uses it."""
        self.used_bytes = 0
        self.taken = 0

    def _columns_of(self, count: int) -> tuple[Numbers, range]:
        """Return the next `count` records, a row for each word of a record, and their sequence numbers."""
        start = self.taken
        self.taken = start + count
        words_each = self.record_bytes // WORD_BYTES
        words = np.frombuffer(self.words, np.int64, count * words_each, start * self.record_bytes)
        first = self.first_sequence + start
        return np.ascontiguousarray(words.reshape(count, words_each).T), range(first, first + count)


class TraceBuffer(RecordBuffer):
    """Records of requests, packed as `RECORD`."""

    __slots__ = ()

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, RECORD.size)

    def take(self, count: int, origin: str, epoch_ns: int) -> pa.RecordBatch:
        by_column, sequence = self._columns_of(count)
        codes = by_column[0].view(np.int8).reshape(count, WORD_BYTES)
        numbers = dict(zip(WORD_COLUMNS, by_column[1:], strict=True))
        columns = {
            **numbers,
            **phases_of(numbers),
            "received_us": (numbers["received_ns"] + epoch_ns) // 1000,
            "kind": coded(codes[:, 0], _KINDS),
            "protocol": coded(codes[:, 1], _PROTOCOLS),
            "result": coded(codes[:, 2], _RESULTS),
            "node": coded(np.zeros(count, np.int8), pa.array([origin], pa.string())),
            "sequence": np.arange(sequence.start, sequence.stop),
        }
        return pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in SCHEMA.names], schema=SCHEMA)


def phases_of(at: dict[str, Numbers]) -> dict[str, Numbers]:
    """Return how long each phase took."""
    submitted = np.where(at["submitted_ns"] == 0, at["answered_ns"], at["submitted_ns"])
    return {
        "wait_ns": at["started_ns"] - at["received_ns"],
        "parse_ns": at["parsed_ns"] - at["started_ns"],
        "engine_ns": submitted - at["parsed_ns"],
        "store_ns": np.maximum(at["answered_ns"] - submitted - at["idle_ns"], 0),
        "emit_ns": at["emitted_ns"] - at["answered_ns"],
    }


def coded(codes: npt.NDArray[np.integer[Any]], texts: pa.Array) -> pa.Array:
    """Return the text that each code stands for, as a column."""
    return pa.DictionaryArray.from_arrays(pa.array(codes), texts)
