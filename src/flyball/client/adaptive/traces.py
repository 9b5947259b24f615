"""Writes the samples of a consumer's loop as trace files, for the pipeline."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from flyball.control.loop import Sample
from flyball.trace.samples import SampleWriter

# A file for each minute: at a sample per second a smaller one would be mostly a Parquet footer.
ROTATE_S = 60.0
# Disk space of the files of one consumer; the oldest are deleted.
KEEP_BYTES = 64 * 2**20

_numbers = itertools.count(1)


class LoopTraces:
    """The trace files of one consumer, in a folder that others may share."""

    def __init__(self, folder: Path) -> None:
        """Does not touch the folder before `start`."""
        self._folder = folder
        self._writer: SampleWriter | None = None

    def start(self) -> None:
        """Start writing. Idempotent."""
        if self._writer is None:
            # Not in the constructor: a forked process has a pid of its own, and no threads of its parent.
            name = f"consumer-{os.getpid()}-{next(_numbers)}"
            self._writer = SampleWriter(
                self._folder, name, rotate_s=ROTATE_S, keep_bytes=KEEP_BYTES, max_buffers=2, buffer_records=512
            )
            self._writer.start()

    def stop(self) -> None:
        """Write the rest, and stop. Blocks; idempotent."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.stop()

    def record(self, sample: Sample) -> None:
        """Record a sample. Never blocks."""
        if self._writer is not None:
            self._writer.record(sample)
