"""Reads one trace file with Arrow: whether it can be used at all, and which of its rows cannot.

Knows neither Spark nor where the rows go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flyball.pipeline.rules import MOST_WEIGHT, RULES, Rules, problem_of_columns, reasons
from flyball.pipeline.schemas import SCHEMA_VERSION

TRACE_NAMES = ("trace-*.parquet", "calls-*.parquet", "samples-*.parquet", "admissions-*.parquet")
"""What trace files are called. A name that begins with a dot is a file that is not complete."""

REASON = "reason"

_VERSION_KEY = b"flyball.schema_version"
_TABLE_KEY = b"flyball.table"
_SAMPLE_RATIO_KEY = b"flyball.sample_ratio"
_DROPPED_KEY = b"flyball.dropped"
_TRACE_TABLES = ("requests", "calls", "samples", "admissions")
_BATCH_ROWS = 1 << 17


class Malformed(Exception):
    """A file cannot be used; its text says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a file: those that can be used and those that cannot, which have a column `reason`."""

    table: str
    good: pa.RecordBatch
    bad: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Source:
    """A file that has been opened: what its rows are worth, and the rows."""

    parts: Callable[[], Iterator[Part]]
    """Read the rows, a part at a time. Raises Malformed where a part cannot be read."""
    rows: int
    dropped: int = 0
    """How many records its writer could not write, since it started."""
    is_table: bool = False
    """Whether the file may stand in a table as it is, if all its rows are good."""


def open_trace(path: Path) -> Source:
    """Open a trace file. Raises Malformed if it is damaged, or no trace of the version that this pipeline reads."""
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise Malformed(_said(error)) from error
    with file:
        metadata = file.metadata.metadata or {}
        version = metadata.get(_VERSION_KEY, b"").decode("utf-8", "replace")
        if version != str(SCHEMA_VERSION):
            raise Malformed(
                f"has schema version {version}, this pipeline reads {SCHEMA_VERSION}" if version else "is no trace"
            )
        table = metadata.get(_TABLE_KEY, b"requests").decode("utf-8", "replace")
        if table not in _TRACE_TABLES:
            raise Malformed(f"holds the unknown table {table!r}")
        rules = RULES[table]
        problem = problem_of_columns(file.schema_arrow, rules)
        if problem:
            raise Malformed(problem)
        times = _weight_factor(metadata.get(_SAMPLE_RATIO_KEY, b"1.0"))
        return Source(
            parts=lambda: _parts(path, table, rules, times),
            rows=file.metadata.num_rows,
            dropped=_whole(metadata.get(_DROPPED_KEY, b"0")),
            is_table=times == 1,
        )


def part_of(table: str, batch: pa.RecordBatch) -> Part:
    """Divide rows, whose texts are dictionaries, into those that obey the rules of `table` and the others."""
    found = reasons(batch, RULES[table])
    if found is None:
        return Part(table, batch, _with_reason(batch.slice(0, 0), pa.array([], pa.string())))
    is_bad = pc.is_valid(found)
    return Part(table, batch.filter(pc.invert(is_bad)), _with_reason(batch.filter(is_bad), found.filter(is_bad)))


def _with_reason(batch: pa.RecordBatch, reason: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, reason], [*batch.schema.names, REASON])


def _parts(path: Path, table: str, rules: Rules, times: int) -> Iterator[Part]:
    names = list(rules.columns)
    try:
        with pq.ParquetFile(path, read_dictionary=rules.text_columns) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=names, use_threads=False):
                part = part_of(table, batch.select(names))
                if times == 1:
                    yield part
                else:
                    yield Part(table, part.good.slice(0, 0), part.bad)
                    yield part_of(table, _weighted(part.good, times))
    except (OSError, pa.ArrowException) as error:
        raise Malformed(_said(error)) from error


def _weighted(batch: pa.RecordBatch, times: int) -> pa.RecordBatch:
    """Let each row stand for as many more requests as were not recorded."""
    place = batch.schema.get_field_index("weight")
    columns = list(batch.columns)
    columns[place] = pc.multiply(columns[place], times)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


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
    """Return what is wrong in words that mean something to those who know nothing of Parquet's insides."""
    if isinstance(error, FileNotFoundError):
        return "is gone"
    text = " ".join(str(error).split())
    if "magic bytes" in text or "footer" in text.lower() or "size is 0 bytes" in text or "too small" in text:
        return "is truncated, or no Parquet file"
    return f"is damaged: {text[:120]}"
