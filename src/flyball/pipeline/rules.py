"""What a row of a trace must be like: the rules of `docs/reference/traces.md`, checked on Arrow batches.

Knows no files. The columns are those of the tables without `run`, which is where a file lies. A batch that obeys
costs a minimum and a maximum for each column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, DoubleType, LongType, StringType, StructType

from flyball.pipeline import schemas

KINDS = [
    *("ping", "register", "identify", "put", "take", "peek", "list", "consume", "deliver", "settle", "create_queue"),
    *("delete_queue", "look_up", "purge", "status", "other", "small", "large"),
]
PROTOCOLS = ["telesto", "thorbang", "amqp", "http", "link"]
RESULTS = ["ok", "empty", "refused", "failed"]
OUTCOMES = ["served", "failed", "refused", "left"]

MOST = 10**15
"""No duration, size or count is larger: nanoseconds of eleven days. So sums of a few do not overflow."""
MOST_WEIGHT = 10**6
"""No row stands for more requests, with all that its file was sampled: squares of weights can be added up."""
MOST_MESSAGES = 10**9
"""No request has more messages, so that these can be weighted and added up."""
FIRST_US = 915_148_800_000_000
LAST_US = 4_102_444_800_000_000
"""The years 1999 and 2100: what is outside comes from a clock that was not set."""

Range = tuple[float, float]

_TEXT, _WHOLE, _REAL = pa.string(), pa.int64(), pa.float64()
_IN_ARROW: dict[DataType, pa.DataType] = {StringType(): _TEXT, LongType(): _WHOLE, DoubleType(): _REAL}
_COUNT: Range = (0, MOST)
_TIME: Range = (FIRST_US, LAST_US)
_FINITE: Range = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Rules:
    """The columns of one table and what may stand in them. No column may be null."""

    time_column: str
    """When it happened, in microseconds since 1970."""
    columns: Mapping[str, pa.DataType]
    ranges: Mapping[str, Range]
    """Least and largest value."""
    texts: Mapping[str, list[str]] = field(default_factory=dict)
    """All texts there are, for columns that do not take any."""

    @property
    def text_columns(self) -> list[str]:
        return [name for name, kind in self.columns.items() if kind == _TEXT]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(list(self.columns.items()))


def _rules(time_column: str, table: StructType, **special: Range) -> Rules:
    columns = {field.name: _IN_ARROW[field.dataType] for field in table if field.name != "run"}
    whole = {name: _COUNT for name, kind in columns.items() if kind == _WHOLE}
    real = {name: _FINITE for name, kind in columns.items() if kind == _REAL}
    texts = {"kind": KINDS, "protocol": PROTOCOLS, "result": RESULTS, "outcome": OUTCOMES}
    return Rules(
        time_column=time_column,
        columns=columns,
        ranges={**whole, **real, time_column: _TIME, **special},
        texts={name: known for name, known in texts.items() if name in columns},
    )


REQUEST_RULES = _rules(
    "received_us",
    schemas.REQUESTS,
    weight=(1, MOST_WEIGHT),
    message_count=(0, MOST_MESSAGES),
)

CALL_RULES = _rules(
    "intended_us",
    schemas.CALLS,
    weight=(1, MOST_WEIGHT),
    message_count=(0, MOST_MESSAGES),
)

SAMPLE_RULES = _rules(
    "at_us",
    schemas.SAMPLES,
    sample_time_s=(1e-9, MOST),
)

ADMISSION_RULES = _rules("arrived_us", schemas.ADMISSIONS, weight=(1, MOST_WEIGHT))

INTERVAL_RULES = _rules(
    "at_us",
    schemas.INTERVALS,
)

DOWNTIME_RULES = _rules("at_us", schemas.DOWNTIMES)

RULES: Mapping[str, Rules] = {
    "requests": REQUEST_RULES,
    "calls": CALL_RULES,
    "samples": SAMPLE_RULES,
    "admissions": ADMISSION_RULES,
    "intervals": INTERVAL_RULES,
    "downtimes": DOWNTIME_RULES,
}
"""By the name of the table."""


def problem_of_columns(schema: pa.Schema, rules: Rules) -> str | None:
    """Return what keeps a file of this schema from being read, or None. Further columns do no harm."""
    missing = [name for name in rules.columns if name not in schema.names]
    if missing:
        return f"lacks the columns {', '.join(missing)}" if len(missing) > 1 else f"lacks the column {missing[0]}"
    for name, wanted in rules.columns.items():
        found = schema.field(name).type
        plain = found.value_type if pa.types.is_dictionary(found) else found
        if plain != wanted:
            return f"has {found} in the column {name}, not {wanted}"
    return None


def reasons(batch: pa.RecordBatch, rules: Rules) -> pa.Array | None:
    """Return for each row why it cannot be used, null for the good ones; None if all are good.

    `batch` has the columns of the rules, texts as dictionaries.
    """
    found: pa.Array | None = None
    for name in rules.columns:
        for reason, is_bad in _suspects(name, batch.column(name), rules):
            earlier = pa.nulls(len(batch), pa.string()) if found is None else found
            found = pc.if_else(pc.and_(pc.is_null(earlier), is_bad), reason, earlier)
    return None if found is None or found.null_count == len(found) else found


def _suspects(name: str, column: pa.Array, rules: Rules) -> list[tuple[str, pa.Array]]:
    """Return the rules that some row may break, as a reason and whether it holds for each row."""
    suspects = []
    if column.null_count:
        suspects.append((f"{name} is missing", pc.is_null(column)))
    if name in rules.texts:
        is_known = pc.is_in(column.dictionary, value_set=pa.array(rules.texts[name]))
        if not pc.all(is_known).as_py():
            suspects.append((f"{name} is none that is known", _is_false(is_known.take(column.indices))))
    if name in rules.ranges:
        suspects += _out_of_range(name, column, *rules.ranges[name])
    return suspects


def _out_of_range(name: str, column: pa.Array, low: float, high: float) -> list[tuple[str, pa.Array]]:
    if pa.types.is_floating(column.type):
        is_fine = pc.and_(pc.is_finite(column), pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high)))
        return [] if pc.all(is_fine).as_py() else [(f"{name} is no sound number", _is_false(is_fine))]
    extremes = pc.min_max(column).as_py()
    suspects = []
    if extremes["min"] is not None and extremes["min"] < low:
        what = {0: "negative", 1: "not above 0"}.get(int(low), "too small")
        suspects.append((f"{name} is {what}", _is_true(pc.less(column, low))))
    if extremes["max"] is not None and extremes["max"] > high:
        suspects.append((f"{name} is too large", _is_true(pc.greater(column, high))))
    return suspects


def _is_true(answers: pa.Array) -> pa.Array:
    """Missing values have a reason of their own."""
    return pc.fill_null(answers, False)


def _is_false(answers: pa.Array) -> pa.Array:
    return pc.invert(pc.fill_null(answers, True))
