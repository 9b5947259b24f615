"""Records the calls of clients; cheap enough for every call.

Texts are numbered once; the writer's thread turns records into files. Independent of protocols.
"""

from __future__ import annotations

from pathlib import Path

from flyball.trace.buffer import Layout, Texts
from flyball.trace.files import CALLS, TraceFiles
from flyball.trace.schema import Kind, Protocol, Result, names_of
from flyball.trace.writer import RecordWriter

BUFFER_RECORDS = 16_384

CALL = Layout(
    CALLS,
    (
        ("b", ("kind", "protocol", "result", "role")),
        ("h", ("target", "queue")),
        ("q", ("client_id", "size_bytes", "intended_us", "late_ns", "response_ns", "think_ns", "message_count")),
    ),
    "worker",
    {"kind": names_of(Kind), "protocol": names_of(Protocol), "result": names_of(Result)},
)


class CallWriter(RecordWriter):
    """Writes the calls of one process's clients as Parquet files.

    `record` must be called in one thread, the event loop's. Memory is bounded: when the disk is too slow, records are
    dropped and counted in `dropped`.
    """

    __slots__ = ("_queues", "_roles", "_targets")

    def __init__(
        self,
        folder: Path,
        worker: str,
        rotate_s: float = 5.0,
        rotate_bytes: int = 64 * 2**20,
        max_buffers: int = 32,
        buffer_records: int = BUFFER_RECORDS,
        files: TraceFiles | None = None,
    ) -> None:
        """Does not touch files or start the thread before `start`.

        `files` replaces the destination: tests pass one that blocks or fails.
        """
        self._roles = Texts(most=2**7 - 1)
        self._targets = Texts(most=2**7 - 1)
        self._queues = Texts(most=2**15 - 1)
        # The traces of a run are kept completely.
        files = files or TraceFiles(folder, worker, 1.0, rotate_bytes, keep_bytes=2**62, table=CALLS)
        texts = {"role": self._roles, "target": self._targets, "queue": self._queues}
        super().__init__(files, worker, CALL, rotate_s, max_buffers, buffer_records, texts)

    def role(self, text: str) -> int:
        """Return the number of a role for `record`."""
        return self._roles.code_of(text)

    def target(self, text: str) -> int:
        """Return the number of a target for `record`."""
        return self._targets.code_of(text)

    def queue(self, text: str) -> int:
        """Return the number of a queue for `record`."""
        return self._queues.code_of(text)

    def record(
        self,
        kind: int,
        protocol: int,
        result: int,
        role: int,
        target: int,
        queue: int,
        client_id: int,
        size_bytes: int,
        intended_us: int,
        late_ns: int,
        response_ns: int,
        think_ns: int,
        message_count: int,
    ) -> None:
        """Record a completed call. Never blocks."""
        self._put(
            kind,
            protocol,
            result,
            role,
            target,
            queue,
            client_id,
            size_bytes,
            intended_us,
            late_ns,
            response_ns,
            think_ns,
            message_count,
        )
