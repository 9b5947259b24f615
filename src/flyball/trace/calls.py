"""Records what clients saw of their calls, cheaply enough to record every one.

Texts are numbered once and recorded as numbers; the writer's thread turns records into files. Knows nothing of the
protocols and of who the clients are.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa

from flyball.trace.buffer import WORD_BYTES, RecordBuffer, coded
from flyball.trace.files import CALLS, TraceFiles
from flyball.trace.schema import CALL_SCHEMA, Kind, Protocol, Result, names_of
from flyball.trace.writer import RecordWriter

CALL = struct.Struct("bbbbhh7q")
"""kind, protocol, result, role, target and queue; then the words of `WORD_COLUMNS`."""

WORD_COLUMNS = ("client_id", "size_bytes", "intended_us", "late_ns", "response_ns", "think_ns", "message_count")

BUFFER_RECORDS = 16_384

_pack = CALL.pack_into
_CALL_BYTES = CALL.size
_KINDS = names_of(Kind)
_PROTOCOLS = names_of(Protocol)
_RESULTS = names_of(Result)


class Texts:
    """Numbers texts in the order in which they are first met, from 0 up to a most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._codes: dict[str, int] = {}

    def code_of(self, text: str) -> int:
        """Return the text's number. Raises ValueError when there are too many of them."""
        code = self._codes.get(text)
        if code is None:
            code = len(self._codes)
            if code > self._most:
                raise ValueError(f"there are more than {self._most + 1} texts in one column: {text!r}")
            self._codes[text] = code
        return code

    def column(self) -> pa.Array:
        # Another thread may add texts meanwhile; a copy made in one step has all that any record can name by now.
        return pa.array(list(self._codes), pa.string())


class CallBuffer(RecordBuffer):
    """Records of calls, packed as `CALL`."""

    __slots__ = ("_queues", "_roles", "_targets")

    def __init__(self, capacity: int, roles: Texts, targets: Texts, queues: Texts) -> None:
        super().__init__(capacity, CALL.size)
        self._roles = roles
        self._targets = targets
        self._queues = queues

    def take(self, count: int, origin: str, epoch_ns: int) -> pa.RecordBatch:
        by_column, sequence = self._columns_of(count)
        codes = by_column[0].view(np.int8).reshape(count, WORD_BYTES)
        wide_codes = by_column[0].view(np.int16).reshape(count, WORD_BYTES // 2)
        columns = {
            **dict(zip(WORD_COLUMNS, by_column[1:], strict=True)),
            "kind": coded(codes[:, 0], _KINDS),
            "protocol": coded(codes[:, 1], _PROTOCOLS),
            "result": coded(codes[:, 2], _RESULTS),
            "role": coded(codes[:, 3], self._roles.column()),
            "target": coded(wide_codes[:, 2].astype(np.int8), self._targets.column()),
            "queue": coded(wide_codes[:, 3], self._queues.column()),
            "worker": coded(np.zeros(count, np.int8), pa.array([origin], pa.string())),
            "sequence": np.arange(sequence.start, sequence.stop),
            "weight": np.ones(count, np.int64),
        }
        return pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in CALL_SCHEMA.names], schema=CALL_SCHEMA)


class CallWriter(RecordWriter):
    """Writes what the clients of one process saw as Parquet files into a folder.

    `record` belongs to one thread, the event loop's. Memory is bounded: when the disk cannot follow, records are
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
        """Prepare to record; no file is touched and no thread runs before `start`.

        `files` replaces where the records go: tests pass a place that blocks or breaks.
        """
        self._roles = Texts(most=2**7 - 1)
        self._targets = Texts(most=2**7 - 1)
        self._queues = Texts(most=2**15 - 1)
        # A run's traces are kept whole, so no file is ever too old.
        files = files or TraceFiles(folder, worker, 1.0, rotate_bytes, keep_bytes=2**62, table=CALLS)
        super().__init__(
            files,
            worker,
            lambda: CallBuffer(buffer_records, self._roles, self._targets, self._queues),
            rotate_s,
            max_buffers,
        )

    def role(self, text: str) -> int:
        """Return the number that stands for a role in `record`."""
        return self._roles.code_of(text)

    def target(self, text: str) -> int:
        """Return the number that stands for a target in `record`."""
        return self._targets.code_of(text)

    def queue(self, text: str) -> int:
        """Return the number that stands for a queue in `record`."""
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
        """Note a call that has ended. Never blocks."""
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
        buffer.used_bytes = used_bytes + _CALL_BYTES
