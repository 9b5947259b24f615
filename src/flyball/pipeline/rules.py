"""The validity rules for rows of a trace, from `docs/reference/traces.md`, as Spark expressions.

Independent of files. A column missing in a file is null: OPTIONAL ones get their default, a row without any other
column is rejected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, DoubleType, LongType, StringType, StructField, StructType

from flyball.pipeline import schemas

# Limit of every duration, size and count: eleven days in nanoseconds. So sums of a few do not overflow.
MOST = 10**15
# Maximum number of requests per row, including the file's sampling, so that squares of weights can be summed.
MOST_WEIGHT = 10**6
# Maximum number of messages per request, so that they can be weighted and summed.
MOST_MESSAGES = 10**9
# The years 1999 and 2100: a time outside is from a clock that was not set.
FIRST_US = 915_148_800_000_000
LAST_US = 4_102_444_800_000_000
# Kinds, protocols and results are open: those added by a later version are counted like others.
LONGEST_KIND = 64

Range = tuple[float, float]

_TEXT, _WHOLE, _REAL = pa.string(), pa.int64(), pa.float64()
_IN_ARROW: dict[DataType, pa.DataType] = {StringType(): _TEXT, LongType(): _WHOLE, DoubleType(): _REAL}
_COUNT: Range = (0, MOST)
_TIME: Range = (FIRST_US, LAST_US)
_FINITE: Range = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Rules:
    """The columns of one table and their valid values."""

    # The column with the time, in microseconds since 1970.
    time_column: str
    columns: Mapping[str, pa.DataType]
    # Minimum and maximum.
    ranges: Mapping[str, Range]
    # Columns that a file may lack, with their defaults.
    optional: Mapping[str, str | int] = field(default_factory=dict)
    # Columns that a file may lack and that may be null.
    nullable: frozenset[str] = frozenset()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(list(self.columns.items()))

    @property
    def text_columns(self) -> list[str]:
        return [name for name, kind in self.columns.items() if kind == _TEXT]


def _rules(time_column: str, table: StructType, optional: tuple[str, ...] = (), **special: Range) -> Rules:
    columns = {field.name: _IN_ARROW[field.dataType] for field in table if field.name != "run"}
    whole = {name: _COUNT for name, kind in columns.items() if kind == _WHOLE}
    real = {name: _FINITE for name, kind in columns.items() if kind == _REAL}
    defaults: dict[str, str | int] = {name: "" if columns[name] == _TEXT else 0 for name in optional}
    return Rules(
        time_column=time_column,
        columns=columns,
        ranges={**whole, **real, time_column: _TIME, **special},
        optional={**defaults, "weight": 1} if "weight" in optional else defaults,
        nullable=frozenset(field.name for field in table if field.nullable),
    )


_WEIGHED: dict[str, Range] = {"weight": (1, MOST_WEIGHT), "message_count": (0, MOST_MESSAGES)}
_OF_REQUESTS = ("protocol", "client_id", "size_bytes", "message_count", "sequence", "weight")
_OF_CALLS = (*_OF_REQUESTS, "role", "queue", "think_ns", "worker")
_OF_ADMISSIONS = ("class_number", "waited_ns", "served_ns", "pool_ns", "application", "sequence", "weight")
_OF_SAMPLES = ("feedforward", "mode", "gains", "fingerprint", "model_version", "process", "started_us")
_OF_SECONDS: dict[str, Range] = {"elapsed_ns": (1, MOST)}

RULES: Mapping[str, Rules] = {
    "requests": _rules("received_us", schemas.REQUESTS, (*_OF_REQUESTS, "queue_id"), **_WEIGHED),
    "calls": _rules("intended_us", schemas.CALLS, _OF_CALLS, **_WEIGHED),
    "samples": _rules("at_us", schemas.SAMPLES, _OF_SAMPLES, sample_time_s=(1e-9, MOST), started_us=(0, LAST_US)),
    "admissions": _rules("arrived_us", schemas.ADMISSIONS, _OF_ADMISSIONS, weight=(1, MOST_WEIGHT)),
    "nodes": _rules("at_us", schemas.NODES, ("sequence", "started_us"), **_OF_SECONDS, started_us=(0, LAST_US)),
    "queues": _rules("at_us", schemas.QUEUES, ("sequence",), **_OF_SECONDS),
    "times": _rules("at_us", schemas.TIMES, ("sequence",), messages=(1, MOST_WEIGHT), timed=(1, MOST_WEIGHT)),
    "intervals": _rules("at_us", schemas.INTERVALS),
    "downtimes": _rules("at_us", schemas.DOWNTIMES),
}


def problem_of_columns(schema: pa.Schema, rules: Rules) -> str | None:
    """Return why a file with this schema cannot be read, or None. Additional columns are ignored."""
    may_lack = {*rules.optional, *rules.nullable}
    missing = [name for name in rules.columns if name not in schema.names and name not in may_lack]
    if missing:
        return f"lacks the columns {', '.join(missing)}" if len(missing) > 1 else f"lacks the column {missing[0]}"
    for name, wanted in rules.columns.items():
        if name not in schema.names:
            continue
        found = schema.field(name).type
        plain = found.value_type if pa.types.is_dictionary(found) else found
        if plain != wanted:
            return f"has {found} in the column {name}, not {wanted}"
    return None


def schema_of(table: str) -> StructType:
    """Return the schema for reading files of a table: every column may be missing."""
    columns = [StructField(field.name, field.dataType) for field in schemas.TABLES[table] if field.name != "run"]
    return StructType(columns)


def with_defaults(rows: DataFrame, table: str) -> DataFrame:
    """Fill in default values for columns that the files lack."""
    defaults = RULES[table].optional
    if not defaults:
        # Spark Connect refuses an empty list of columns.
        return rows
    return rows.withColumns({name: sf.coalesce(name, sf.lit(value)) for name, value in defaults.items()})


def is_sound(table: str) -> Column:
    """Return whether a row is valid."""
    tests = [test for _, test in _broken(table)]
    return sf.expr(f"not coalesce({' or '.join(f'({test})' for test in tests)}, true)")


def reason(table: str) -> Column:
    """Return why a row is invalid, null for valid ones."""
    cases = " ".join(f"when {test} then '{says}'" for says, test in _broken(table))
    return sf.expr(f"case {cases} end")


def _broken(table: str) -> list[tuple[str, str]]:
    """Return the possible defects of a row, and the test for each."""
    rules = RULES[table]
    found = []
    for name, kind in rules.columns.items():
        if name not in rules.nullable:
            found.append((f"{name} is missing", f"{name} is null"))
        if name in ("kind", "result", "outcome"):
            found.append((f"{name} is not a name", f"length({name}) not between 1 and {LONGEST_KIND}"))
        if name not in rules.ranges:
            continue
        low, high = rules.ranges[name]
        if kind == _REAL:
            bounds = "" if math.isinf(low) else f" or {name} not between {low}D and {float(high)}D"
            infinite = "cast('Infinity' as double)"
            test = f"isnan({name}) or abs({name}) = {infinite}{bounds}"
            if name in rules.nullable:
                # Without this, the comparison with null would reject the row.
                test = f"{name} is not null and ({test})"
            found.append((f"{name} is not a sound number", test))
            continue
        what = {0: "negative", 1: "not above 0"}.get(int(low), "too small")
        found.append((f"{name} is {what}", f"{name} < {int(low)}"))
        found.append((f"{name} is too large", f"{name} > {int(high)}"))
    return found
