"""Records samples of control loops: setpoint, measurement, action and tuning.

At most some hundred per second. Independent of the plant.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import pyarrow as pa

from flyball.control.loop import Sample
from flyball.control.tuning import Mode
from flyball.trace.buffer import Columns, Layout, Texts
from flyball.trace.files import SAMPLES, TraceFiles
from flyball.trace.writer import RecordWriter

BUFFER_RECORDS = 4_096

# Distinct loops, gains and versions per buffer; the next one starts a new buffer.
MOST_TEXTS = 2**12

# An unknown mode is an empty text.
_MODES = ("", *Mode)
_CODES = {mode: code for code, mode in enumerate(_MODES)}


def _derived(columns: Columns, epoch_ns: int) -> Columns:
    return {"at_us": (columns["at_ns"] + epoch_ns) // 1000}


SAMPLE = Layout(
    SAMPLES,
    (
        ("i", ("loop",)),
        ("h", ("gains", "fingerprint", "model_version", "mode")),
        ("i", ("padding",)),
        # Sequence number of the sample in its loop: a gap means dropped samples.
        ("q", ("at_ns", "sequence", "started_us")),
        ("d", ("sample_time_s", "setpoint", "measurement", "action", "feedforward", "lowest", "highest")),
    ),
    "process",
    {"mode": pa.array(_MODES, pa.string())},
    derived=_derived,
)


class SampleWriter(RecordWriter):
    """Writes the samples of one process's loops as Parquet files.

    `record` must be called in one thread, the event loop's, whose clock is the monotonic one. Memory is bounded: when
    the disk is too slow, samples are dropped and counted in `dropped`.
    """

    __slots__ = ("_started_us",)

    def __init__(
        self,
        folder: Path,
        name: str,
        rotate_s: float = 5.0,
        rotate_bytes: int = 64 * 2**20,
        keep_bytes: int = 2**62,
        max_buffers: int = 4,
        buffer_records: int = BUFFER_RECORDS,
        files: TraceFiles | None = None,
    ) -> None:
        """Does not touch files or start the thread before `start`.

        `name` is the process's. Beyond `keep_bytes` the oldest files are removed; by default all are kept. `files`
        replaces the destination: tests pass one that blocks or fails.
        """
        # Part of a sample's key: sequence numbers restart at 0 with the process.
        self._started_us = time.time_ns() // 1000
        files = files or TraceFiles(folder, name, 1.0, rotate_bytes, keep_bytes, table=SAMPLES)
        names = ("loop", "gains", "fingerprint", "model_version")
        texts = {each: Texts(most=MOST_TEXTS - 1) for each in names}
        super().__init__(files, name, SAMPLE, rotate_s, max_buffers, buffer_records, texts)

    def record(self, sample: Sample) -> None:
        """Record a sample. Never blocks."""
        tuning = sample.tuning
        codes = self._codes(
            loop=sample.loop,
            gains=tuning.gains,
            fingerprint=tuning.fingerprint,
            model_version=tuning.model_version,
        )
        if codes is None:
            return
        self._put(
            *codes,
            _CODES.get(sample.mode, 0),
            0,
            round(sample.at_s * 1e9),
            sample.sequence,
            self._started_us,
            sample.sample_time_s,
            sample.setpoint,
            sample.measurement,
            sample.action,
            sample.feedforward,
            _limit(tuning.lowest),
            _limit(tuning.highest),
        )


def _limit(limit: float) -> float:
    """Return the limit, or NaN (stored as null) for an infinite one."""
    return limit if math.isfinite(limit) else math.nan
