"""Records what admission control saw and did as traces, for the pipeline to read.

Two tables: what became of each request, and a sample of each control period. Decides nothing.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from flyball.admission.counts import Served
from flyball.control.loop import Sample
from flyball.errors import AdmissionError
from flyball.trace.admissions import AdmissionWriter
from flyball.trace.samples import SampleWriter


class Recording:
    """The traces of one process of an application, in a folder that several may share."""

    def __init__(self, folder: Path, name: str) -> None:
        """Prepare to record; nothing is touched before `start`. `name` is the application's."""
        if not re.fullmatch(r"[\w.-]+", name):
            raise AdmissionError(
                f"a name becomes part of the names of traces: letters, digits, _ . - only, not {name!r}"
            )
        self._folder = folder
        self._name = name
        self._writers: tuple[AdmissionWriter, SampleWriter] | None = None

    def start(self) -> None:
        """Begin to record. Twice is once."""
        if self._writers is None:
            # Not before: whoever is a worker process has its own number, and no thread of its parent.
            name = f"{self._name}-{os.getpid()}"
            self._writers = AdmissionWriter(self._folder, name), SampleWriter(self._folder, name)
            for writer in self._writers:
                writer.start()

    def stop(self) -> None:
        """Stop when all is written. Blocks for as long as that takes; twice is once."""
        writers, self._writers = self._writers, None
        for writer in writers or ():
            writer.stop()

    def note(self, served: Served) -> None:
        """Record what became of a request. Never blocks."""
        if self._writers is not None:
            self._writers[0].record(
                served.key,
                served.class_number,
                served.outcome,
                served.arrived_s,
                served.waited_s,
                served.served_s,
                served.connections,
                served.busy_s,
                served.waiting_s,
            )

    def record(self, sample: Sample) -> None:
        """Record a control period. Never blocks."""
        if self._writers is not None:
            self._writers[1].record(sample)
