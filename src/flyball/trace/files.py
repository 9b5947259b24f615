"""Trace files of one node or client process: naming, completion, pruning.

A file gets its final name only when it is complete: a reader that skipped a partial file might never read it
again. Not thread-safe.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flyball.files import close_to_others, make_private_file, make_private_folder
from flyball.trace.schema import (
    ADMISSION_SCHEMA,
    CALL_SCHEMA,
    DROPPED_KEY,
    NODE_KEY,
    NODE_SCHEMA,
    QUEUE_SCHEMA,
    SAMPLE_RATIO_KEY,
    SAMPLE_SCHEMA,
    SCHEMA,
    SCHEMA_VERSION,
    TABLE_KEY,
    TIME_SCHEMA,
    VERSION_KEY,
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a trace: its name, file prefix and columns."""

    name: str
    prefix: str
    schema: pa.Schema


REQUESTS = Table("requests", "trace", SCHEMA)
CALLS = Table("calls", "calls", CALL_SCHEMA)
SAMPLES = Table("samples", "samples", SAMPLE_SCHEMA)
ADMISSIONS = Table("admissions", "admissions", ADMISSION_SCHEMA)
NODES = Table("nodes", "nodes", NODE_SCHEMA)
QUEUES = Table("queues", "queues", QUEUE_SCHEMA)
TIMES = Table("times", "times", TIME_SCHEMA)


class TraceFiles:
    """Writes records of one table to one open file. Not thread-safe.

    `node` is the writer: a node, or the process of clients, control loops or an application.
    """

    def __init__(
        self,
        folder: Path,
        node: str,
        sample_ratio: float,
        rotate_bytes: int,
        keep_bytes: int,
        table: Table = REQUESTS,
    ) -> None:
        if not re.fullmatch(r"[\w.-]+", node):
            raise ValueError(f"node name {node!r} cannot be part of a file name")
        self._folder = folder
        self._rotate_bytes = rotate_bytes
        self._keep_bytes = keep_bytes
        self._prefix = f"{table.prefix}-{node}-"
        self._name = re.compile(rf"{re.escape(self._prefix)}\d{{8}}T\d{{12}}Z-\d+\.parquet")
        self._schema = table.schema.with_metadata(
            {
                VERSION_KEY: str(SCHEMA_VERSION),
                TABLE_KEY: table.name,
                NODE_KEY: node,
                SAMPLE_RATIO_KEY: str(sample_ratio),
            }
        )
        self._texts = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
        self._numbers = [field.name for field in table.schema if pa.types.is_integer(field.type)]
        self._count = 0
        self._path: Path | None = None
        self._sink: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None

    @property
    def is_full(self) -> bool:
        """Whether the open file has reached its maximum size."""
        return self._sink is not None and self._sink.tell() >= self._rotate_bytes

    def write(self, batch: pa.RecordBatch) -> None:
        """Append `batch` to the open file; open one if necessary."""
        writer = self._writer or self._open()
        writer.write_batch(batch)

    def close(self, dropped: int) -> None:
        """Complete the open file, if any, and rename it.

        `dropped` is the total of dropped records, stored in the file.
        """
        if self._path is None or self._writer is None or self._sink is None:
            return
        self._writer.add_key_value_metadata({DROPPED_KEY: str(dropped)})
        self._writer.close()
        self._sink.close()
        self._path.rename(self._path.with_name(self._path.name.removeprefix(".")))
        self._forget()

    def abandon(self) -> None:
        """Discard the open file, if any. Never raises, so that it can follow any error."""
        for part in (self._writer, self._sink):
            if part is not None:
                with contextlib.suppress(OSError, pa.ArrowException):
                    part.close()
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
        self._forget()

    def remove_unfinished(self) -> None:
        """Remove partial files after a crash of this node, and complete those left open by earlier versions."""
        if self._path is None and self._folder.is_dir():
            close_to_others(self._folder)
            for path in self._folder.glob(f".{self._prefix}*"):
                if self._name.fullmatch(path.name[1:]):
                    path.unlink(missing_ok=True)
            for path in self._folder.glob(f"{self._prefix}*"):
                if self._name.fullmatch(path.name):
                    close_to_others(path)

    def prune(self) -> None:
        """Remove this node's oldest complete files beyond the size limit."""
        own = [path for path in self._folder.glob(f"{self._prefix}*") if self._name.fullmatch(path.name)]
        # Names start with the time, so they sort by age. The newest file is kept whatever its size.
        own.sort(key=lambda path: path.name, reverse=True)
        total_bytes = 0
        for place, path in enumerate(own):
            total_bytes += path.stat().st_size
            if place > 0 and total_bytes > self._keep_bytes:
                path.unlink(missing_ok=True)

    def _open(self) -> pq.ParquetWriter:
        make_private_folder(self._folder)
        started = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
        self._count += 1
        self._path = self._folder / f".{self._prefix}{started}-{self._count:06}.parquet"
        make_private_file(self._path)
        self._sink = pa.OSFile(str(self._path), "wb")
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            use_dictionary=self._texts,
            column_encoding=dict.fromkeys(self._numbers, "DELTA_BINARY_PACKED"),
        )
        return self._writer

    def _forget(self) -> None:
        self._path = self._sink = self._writer = None
