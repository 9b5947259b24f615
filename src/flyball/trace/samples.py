"""Records the samples of control loops: what they wanted, what they measured, what they did.

A few a second at most, so they are kept for the writer's thread as they come. Knows nothing of what is controlled.
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
        # Which sample of its loop it is: a gap is one that was left out.
        ("q", ("at_ns", "sequence")),
        ("d", ("sample_time_s", "setpoint", "measurement", "action")),
    ),
    derived=_derived,
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
        super().__init__(files, name, SAMPLE, rotate_s, max_buffers, buffer_records, {"loop": self._loops})

    def record(self, sample: Sample) -> None:
        """Note a sample. Never blocks."""
        self._put(
            self._loops.code_of(sample.loop),
            round(sample.at_s * 1e9),
            sample.sequence,
            sample.sample_time_s,
            sample.setpoint,
            sample.measurement,
            sample.action,
        )
