"""Records the samples of control loops: what they wanted, what they measured, what they did.

A few a second at most, so they are kept for the writer's thread as they come. Knows nothing of what is controlled.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa

from flyball.control.loop import Sample
from flyball.trace.buffer import RecordBuffer, coded
from flyball.trace.calls import Texts
from flyball.trace.files import SAMPLES, TraceFiles
from flyball.trace.schema import SAMPLE_SCHEMA
from flyball.trace.writer import RecordWriter

SAMPLE = struct.Struct("3q4d")
"""The loop's number, time and sequence; then the numbers of `NUMBER_COLUMNS`."""

NUMBER_COLUMNS = ("sample_time_s", "setpoint", "measurement", "action")

BUFFER_RECORDS = 4_096

_pack = SAMPLE.pack_into
_SAMPLE_BYTES = SAMPLE.size


class SampleBuffer(RecordBuffer):
    """Samples, packed as `SAMPLE`."""

    __slots__ = ("_loops",)

    def __init__(self, capacity: int, loops: Texts) -> None:
        super().__init__(capacity, SAMPLE.size)
        self._loops = loops

    def take(self, count: int, origin: str, epoch_ns: int) -> pa.RecordBatch:
        by_column, _ = self._columns_of(count)
        columns = {
            "loop": coded(by_column[0].astype(np.int32), self._loops.column()),
            "at_us": (by_column[1] + epoch_ns) // 1000,
            # Which sample of its loop it is: a gap is one that was left out.
            "sequence": by_column[2],
            **{name: column.view(np.float64) for name, column in zip(NUMBER_COLUMNS, by_column[3:], strict=True)},
        }
        return pa.RecordBatch.from_arrays(
            [pa.array(columns[name]).cast(SAMPLE_SCHEMA.field(name).type) for name in SAMPLE_SCHEMA.names],
            schema=SAMPLE_SCHEMA,
        )


class SampleWriter(RecordWriter):
    """Writes the samples of the loops of one process as Parquet files into a folder.

    `record` belongs to one thread, the event loop's, whose clock is the process's monotonic one. Memory is bounded:
    when the disk cannot follow, samples are dropped and counted in `dropped`.
    """

    __slots__ = ("_loops",)

    def __init__(
        self,
        folder: Path,
        name: str,
        rotate_s: float = 5.0,
        rotate_bytes: int = 64 * 2**20,
        max_buffers: int = 4,
        buffer_records: int = BUFFER_RECORDS,
        files: TraceFiles | None = None,
    ) -> None:
        """Prepare to record; no file is touched and no thread runs before `start`.

        `name` is the process's. `files` replaces where the samples go: tests pass a place that blocks or breaks.
        """
        self._loops = Texts(most=2**15 - 1)
        # A run's samples are kept whole, so no file is ever too old.
        files = files or TraceFiles(folder, name, 1.0, rotate_bytes, keep_bytes=2**62, table=SAMPLES)
        super().__init__(files, name, lambda: SampleBuffer(buffer_records, self._loops), rotate_s, max_buffers)

    def record(self, sample: Sample) -> None:
        """Note a sample. Never blocks."""
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
            self._loops.code_of(sample.loop),
            round(sample.at_s * 1e9),
            sample.sequence,
            sample.sample_time_s,
            sample.setpoint,
            sample.measurement,
            sample.action,
        )
        buffer.used_bytes = used_bytes + _SAMPLE_BYTES
