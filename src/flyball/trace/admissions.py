"""Records what became of the requests of an application under admission control, and what each has cost.

Cheap enough to record every one; the writer's thread turns records into files. Knows nothing of how it is decided.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa

from flyball.trace.buffer import WORD_BYTES, RecordBuffer, coded
from flyball.trace.calls import Texts
from flyball.trace.files import ADMISSIONS, TraceFiles
from flyball.trace.schema import ADMISSION_SCHEMA, Outcome, names_of
from flyball.trace.writer import RecordWriter

ADMISSION = struct.Struct("bxhi6q")
"""outcome, key and class; then the words of `WORD_COLUMNS`."""

WORD_COLUMNS = ("arrived_ns", "waited_ns", "served_ns", "connections", "busy_ns", "pool_ns")

OTHER = "other"
"""The key of requests whose keys are too many to tell apart."""

BUFFER_RECORDS = 8_192

_pack = ADMISSION.pack_into
_ADMISSION_BYTES = ADMISSION.size
_OUTCOMES = names_of(Outcome)
_CODES = {outcome.name.lower(): int(outcome) for outcome in Outcome}


class AdmissionBuffer(RecordBuffer):
    """Records of requests, packed as `ADMISSION`."""

    __slots__ = ("_keys",)

    def __init__(self, capacity: int, keys: Texts) -> None:
        super().__init__(capacity, ADMISSION.size)
        self._keys = keys

    def take(self, count: int, origin: str, epoch_ns: int) -> pa.RecordBatch:
        by_column, sequence = self._columns_of(count)
        numbers = dict(zip(WORD_COLUMNS, by_column[1:], strict=True))
        columns = {
            **numbers,
            "arrived_us": (numbers["arrived_ns"] + epoch_ns) // 1000,
            "outcome": coded(by_column[0].view(np.int8).reshape(count, WORD_BYTES)[:, 0], _OUTCOMES),
            "key": coded(by_column[0].view(np.int16).reshape(count, WORD_BYTES // 2)[:, 1], self._keys.column()),
            "class_number": by_column[0].view(np.int32).reshape(count, WORD_BYTES // 4)[:, 1].astype(np.int64),
            "application": coded(np.zeros(count, np.int8), pa.array([origin], pa.string())),
            "sequence": np.arange(sequence.start, sequence.stop),
            "weight": np.ones(count, np.int64),
        }
        return pa.RecordBatch.from_arrays(
            [pa.array(columns[name]) for name in ADMISSION_SCHEMA.names], schema=ADMISSION_SCHEMA
        )


class AdmissionWriter(RecordWriter):
    """Writes what became of the requests of one application as Parquet files into a folder.

    `record` belongs to one thread, the event loop's, whose clock is the process's monotonic one. Memory is bounded:
    when the disk cannot follow, records are dropped and counted in `dropped`.
    """

    __slots__ = ("_keys", "_other")

    def __init__(
        self,
        folder: Path,
        name: str,
        rotate_s: float = 5.0,
        rotate_bytes: int = 64 * 2**20,
        keep_bytes: int = 2**62,
        max_buffers: int = 8,
        buffer_records: int = BUFFER_RECORDS,
        most_keys: int = 2**15 - 1,
        files: TraceFiles | None = None,
    ) -> None:
        """Prepare to record; no file is touched and no thread runs before `start`.

        `name` is the application's. Beyond `keep_bytes` the oldest files are removed; by default all are kept.
        `files` replaces where the records go: tests pass a place that blocks or breaks.
        """
        self._keys = Texts(most=most_keys)
        self._other = self._keys.code_of(OTHER)
        files = files or TraceFiles(folder, name, 1.0, rotate_bytes, keep_bytes, table=ADMISSIONS)
        super().__init__(files, name, lambda: AdmissionBuffer(buffer_records, self._keys), rotate_s, max_buffers)

    def record(
        self,
        key: str,
        class_number: int,
        outcome: str,
        arrived_s: float,
        waited_s: float,
        served_s: float,
        connections: int,
        busy_s: float,
        pool_s: float,
    ) -> None:
        """Note what became of a request: its outcome is the name of an `Outcome`, in small letters. Never blocks.

        It arrived at `arrived_s` of the event loop's clock, waited to be admitted, was served, and meanwhile waited
        `pool_s` for the connections that it held for `busy_s` in all.
        """
        buffer = self._buffer
        used_bytes = buffer.used_bytes
        if used_bytes == self._buffer_bytes:
            if not self._change_buffer():
                return
            buffer = self._buffer
            used_bytes = 0
        _pack(
            buffer.words,
            used_bytes,
            _CODES[outcome],
            self._code_of(key),
            class_number,
            round(arrived_s * 1e9),
            round(waited_s * 1e9),
            round(served_s * 1e9),
            connections,
            round(busy_s * 1e9),
            round(pool_s * 1e9),
        )
        buffer.used_bytes = used_bytes + _ADMISSION_BYTES

    def _code_of(self, key: str) -> int:
        try:
            return self._keys.code_of(key)
        except ValueError:
            return self._other
