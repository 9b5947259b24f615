"""The footer of a trace file: the table that the file contains, its number of rows, and whether it is readable.

Runs in Spark's workers, on a file or on its bytes. Independent of Spark and of the store.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from flyball.pipeline.places import is_local, path_of
from flyball.pipeline.rules import FIRST_US, LAST_US, MOST_WEIGHT, RULES, problem_of_columns
from flyball.pipeline.schemas import SCHEMA_VERSION

# Patterns of the names of trace files. The name of an incomplete file starts with a dot.
TRACE_NAMES = tuple(
    f"{prefix}-*.parquet" for prefix in ("trace", "calls", "samples", "admissions", "nodes", "queues", "times")
)

REASON = "reason"

VERSION_KEY = b"flyball.schema_version"
TABLE_KEY = b"flyball.table"
_SAMPLE_RATIO_KEY = b"flyball.sample_ratio"
_DROPPED_KEY = b"flyball.dropped"

# The facts of one file, as a Spark schema. `problem` is null if the file is readable.
FACTS = (
    "file string, table string, rows bigint, factor bigint, dropped bigint, first_us bigint, last_us bigint,"
    " problem string"
)
_FACTS = pa.schema(
    [
        ("file", pa.string()),
        ("table", pa.string()),
        ("rows", pa.int64()),
        ("factor", pa.int64()),
        ("dropped", pa.int64()),
        ("first_us", pa.int64()),
        ("last_us", pa.int64()),
        ("problem", pa.string()),
    ]
)


class Malformed(Exception):
    """A file cannot be read; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a log: the valid ones, and the invalid ones with a column `reason`."""

    table: str
    good: pa.RecordBatch
    bad: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Source:
    """An open log."""

    # Read the rows in parts. Raises Malformed where a part cannot be read.
    parts: Callable[[], Iterator[Part]]
    rows: int


def part_of(table: str, batch: pa.RecordBatch) -> Part:
    """Return rows of a log; Spark checks them against the rules of their table when it reads them."""
    nothing = batch.slice(0, 0)
    none = pa.array([], pa.string())
    return Part(table, batch, pa.RecordBatch.from_arrays([*nothing.columns, none], [*nothing.schema.names, REASON]))


def check_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert batches of `file`, or `file` and `content`, to FACTS."""
    yield from _checked(batches, is_deep=False)


def check_files_deeply(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do the same, and read every row to detect damage."""
    yield from _checked(batches, is_deep=True)


def _checked(batches: Iterable[pa.RecordBatch], *, is_deep: bool) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        files = batch.column(0).to_pylist()
        contents = batch.column(1).to_pylist() if batch.num_columns > 1 else [None] * len(files)
        rows = [_facts(file, content, is_deep=is_deep) for file, content in zip(files, contents, strict=True)]
        yield pa.RecordBatch.from_pylist(rows, schema=_FACTS)


def _facts(file: str, content: bytes | None, *, is_deep: bool) -> dict[str, object]:
    facts: dict[str, object] = {"file": file, "rows": 0, "factor": 1, "dropped": 0}
    try:
        opened = io.BytesIO(content) if content is not None else path_of(file) if is_local(file) else None
        assert opened is not None, f"{file} came without its content"
        with pq.ParquetFile(opened) as parquet:
            facts["rows"] = parquet.metadata.num_rows
            facts |= _usable(parquet)
            if is_deep:
                for _ in parquet.iter_batches(columns=list(RULES[str(facts["table"])].columns)):
                    pass
    except (OSError, pa.ArrowException) as error:
        facts["problem"] = _said(error)
    except Malformed as error:
        facts["problem"] = str(error)
    return facts


def _usable(parquet: pq.ParquetFile) -> dict[str, object]:
    metadata = parquet.metadata.metadata or {}
    version = metadata.get(VERSION_KEY, b"").decode("utf-8", "replace")
    if version != str(SCHEMA_VERSION):
        raise Malformed(
            f"has schema version {version}, this pipeline reads {SCHEMA_VERSION}" if version else "is not a trace"
        )
    table = metadata.get(TABLE_KEY, b"requests").decode("utf-8", "replace")
    if table not in RULES:
        raise Malformed(f"holds the unknown table {table!r}")
    problem = problem_of_columns(parquet.schema_arrow, RULES[table])
    if problem:
        raise Malformed(problem)
    first_us, last_us = _extent(parquet.metadata, RULES[table].time_column)
    return {
        "table": table,
        "factor": _weight_factor(metadata.get(_SAMPLE_RATIO_KEY, b"1.0")),
        "dropped": _whole(metadata.get(_DROPPED_KEY, b"0")),
        "first_us": first_us,
        "last_us": last_us,
    }


def _extent(metadata: pq.FileMetaData, time_column: str) -> tuple[int | None, int | None]:
    """Return the approximate first and last time in a file, by its statistics; None where its clock was not set."""
    place = metadata.schema.names.index(time_column)
    found = [metadata.row_group(number).column(place).statistics for number in range(metadata.num_row_groups)]
    times = [time for one in found if one is not None and one.has_min_max for time in (one.min, one.max)]
    sound = [time for time in times if FIRST_US <= time <= LAST_US]
    return min(sound, default=None), max(sound, default=None)


def _weight_factor(ratio: bytes) -> int:
    try:
        share = float(ratio)
    except ValueError:
        share = 0.0
    if not 1 / MOST_WEIGHT <= share <= 1:
        raise Malformed(f"has the sample ratio {ratio.decode('utf-8', 'replace')}, not one from 0.000001 to 1")
    return round(1 / share)


def _whole(text: bytes) -> int:
    return int(text) if text.isdigit() else 0


def _said(error: Exception) -> str:
    """Describe a Parquet error without terms of the format."""
    if isinstance(error, FileNotFoundError):
        return "is gone"
    text = " ".join(str(error).split())
    if "magic bytes" in text or "footer" in text.lower() or "size is 0 bytes" in text or "too small" in text:
        return "is truncated, or not a Parquet file"
    return f"is damaged: {text[:120]}"
