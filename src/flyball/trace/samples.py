"""Records samples of control loops: setpoint, measurement, action.

At most a few per second. Independent of the plant.
"""

from __future__ import annotations

from pathlib import Path

from flyball.control.loop import Sample
from flyball.trace.buffer import Columns, Layout, Texts
from flyball.trace.files import SAMPLES, TraceFiles
from flyball.trace.writer import RecordWriter

BUFFER_RECORDS = 4_096


def _derived(columns: Columns, epoch_ns: int) -> Columns:
    return {"at_us": (columns["at_ns"] + epoch_ns) // 1000}


SAMPLE = Layout(
    SAMPLES,
    (
        ("i", ("loop",)),
        # Number of the sample in its loop: a gap means dropped samples.
        ("q", ("at_ns", "sequence")),
        ("d", ("sample_time_s", "setpoint", "measurement", "action")),
    ),
    derived=_derived,
)


class SampleWriter(RecordWriter):
    """Writes the samples of one process's loops as Parquet files.

    `record` must be called in one thread, the event loop's, whose clock is the monotonic one. Memory is bounded: when
    the disk is too slow, samples are dropped and counted in `dropped`.
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
        """Does not touch files or start the thread before `start`.

        `name` is the process's. `files` replaces the destination: tests pass one that blocks or fails.
        """
        self._loops = Texts(most=2**15 - 1)
        # The samples of a run are kept completely.
        files = files or TraceFiles(folder, name, 1.0, rotate_bytes, keep_bytes=2**62, table=SAMPLES)
        super().__init__(files, name, SAMPLE, rotate_s, max_buffers, buffer_records, {"loop": self._loops})

    def record(self, sample: Sample) -> None:
        """Record a sample. Never blocks."""
        self._put(
            self._loops.code_of(sample.loop),
            round(sample.at_s * 1e9),
            sample.sequence,
            sample.sample_time_s,
            sample.setpoint,
            sample.measurement,
            sample.action,
        )
