"""Records admission control as traces, for the pipeline.

Two tables: the outcome of each request, and a sample of each control period.
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
    """The traces of one process of an application, in a folder that processes may share."""

    def __init__(self, folder: Path, name: str) -> None:
        """Does not touch the folder before `start`. `name` is the application's."""
        if not re.fullmatch(r"[\w.-]+", name):
            raise AdmissionError(
                f"invalid name {name!r}: it is part of file names, so use only letters, digits, _ . -"
            )
        self._folder = folder
        self._name = name
        self._writers: tuple[AdmissionWriter, SampleWriter] | None = None

    def start(self) -> None:
        """Start recording. Idempotent."""
        if self._writers is None:
            # Not in the constructor: a forked worker process has its own pid, and no threads of its parent.
            name = f"{self._name}-{os.getpid()}"
            self._writers = AdmissionWriter(self._folder, name), SampleWriter(self._folder, name)
            for writer in self._writers:
                writer.start()

    def stop(self) -> None:
        """Stop once everything is written. Blocks until then; idempotent."""
        writers, self._writers = self._writers, None
        for writer in writers or ():
            writer.stop()

    def note(self, served: Served) -> None:
        """Record the outcome of a request. Never blocks."""
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
