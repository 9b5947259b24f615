"""Sums that only the logs of the papers' systems provide: intervals of servers, and downtimes of workers.

They are summed per second, or per longer point of a long run, like requests.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType

from flyball.pipeline.events import point_of_window
from flyball.pipeline.latency import BUCKETS_PER_E
from flyball.pipeline.schemas import DOWNTIMES, INTERVALS, require, table

_TEXT, _WHOLE, _REAL = StringType(), LongType(), DoubleType()

# The components of the ThorBangMQ report, as differences of its server's sums.
COMPONENTS = {
    "socket": "total_ns - worker_ns",
    "worker": "worker_ns - persistence_ns",
    "persistence": "persistence_ns",
    "total": "total_ns",
}

# `records`: lines of the log; `answered`: those with answers. For each component `<name>_ms` is its sum;
# `<name>_mean` and `<name>_mean2` are the sums of its mean over the answers of an interval, and of its square.
INTERVAL_SUMS = table(
    run=_TEXT,
    node=_TEXT,
    second=_WHOLE,
    records=_WHOLE,
    first_us=_WHOLE,
    last_us=_WHOLE,
    pushes=_WHOLE,
    pops=_WHOLE,
    answers=_WHOLE,
    answered=_WHOLE,
    **{f"{name}_{what}": _REAL for name in COMPONENTS for what in ("ms", "mean", "mean2")},
)

# `bucket` and `most_ms` are those of SPREAD.
DOWNTIME_SUMS = table(
    run=_TEXT,
    second=_WHOLE,
    bucket=IntegerType(),
    requests=_WHOLE,
    first_us=_WHOLE,
    last_us=_WHOLE,
    sum_ms=_REAL,
    sum_ms2=_REAL,
    most_ms=_REAL,
)


def interval_sums(intervals: DataFrame, alignments: DataFrame) -> DataFrame:
    """Convert INTERVALS to INTERVAL_SUMS. `alignments` has the time from which the seconds of a run are counted."""
    require(intervals, INTERVALS, "the intervals")
    sums = []
    for name, value_ns in COMPONENTS.items():
        value_ms = f"({value_ns}) / 1e6D"
        mean = f"{value_ms} / nullif(answers, 0)"
        sums.append(sf.expr(f"sum(if(answers > 0, {value_ms}, 0D))").alias(f"{name}_ms"))
        sums.append(sf.expr(f"coalesce(sum({mean}), 0D)").alias(f"{name}_mean"))
        sums.append(sf.expr(f"coalesce(sum(({mean}) * ({mean})), 0D)").alias(f"{name}_mean2"))
    return (
        _placed(intervals, alignments)
        .groupBy("run", "node", "second")
        .agg(
            *_extent("records"),
            *(sf.sum(name).alias(name) for name in ("pushes", "pops", "answers")),
            sf.expr("count_if(answers > 0)").alias("answered"),
            *sums,
        )
        .select(*INTERVAL_SUMS.names)
    )


def downtime_sums(downtimes: DataFrame, alignments: DataFrame) -> DataFrame:
    """Convert DOWNTIMES to DOWNTIME_SUMS. `alignments` has the time from which the seconds of a run are counted."""
    require(downtimes, DOWNTIMES, "the downtimes")
    bucket = sf.expr(f"cast(ln(downtime_ns + 1) * {BUCKETS_PER_E} as int)").alias("bucket")
    time_ms = "downtime_ns / 1e6D"
    return (
        _placed(downtimes, alignments)
        .groupBy("run", "second", bucket)
        .agg(
            *_extent("requests"),
            sf.expr(f"sum({time_ms})").alias("sum_ms"),
            sf.expr(f"sum({time_ms} * {time_ms})").alias("sum_ms2"),
            sf.expr(f"max({time_ms})").alias("most_ms"),
        )
        .select(*DOWNTIME_SUMS.names)
    )


def _placed(rows: DataFrame, alignments: DataFrame) -> DataFrame:
    second = sf.expr("cast(floor((at_us - from_us) / (point_s * 1000000D)) as bigint) * point_s")
    known = alignments.select("run", "from_us", point_of_window())
    return rows.join(sf.broadcast(known), "run").withColumn("second", second)


def _extent(count: str) -> tuple[Column, ...]:
    return sf.count("*").alias(count), sf.min("at_us").alias("first_us"), sf.max("at_us").alias("last_us")
