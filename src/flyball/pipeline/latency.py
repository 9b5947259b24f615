"""Distributions of times: weighted percentiles and histograms, from one pass over any number of events.

Times are counted in buckets that grow by one percent, as in an HDR histogram. Unlike percentiles, counts can be
added up over nodes, kinds and runs; a percentile computed from them is off by 0.5 % at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType

from flyball.pipeline.events import CLIENTS, NODES, PLACED
from flyball.pipeline.schemas import require, table
from flyball.pipeline.throughput import METRICS_OF, TIMES

# Number of buckets per factor e of time: each is 1 % wide.
BUCKETS_PER_E = 100

# Number of buckets per bar of the histogram: about 23 bars per factor 10 of time.
BUCKETS_PER_BAR = 10

QUANTILES = {"p5_ms": 0.05, "p50_ms": 0.5, "p90_ms": 0.9, "p95_ms": 0.95, "p99_ms": 0.99, "p999_ms": 0.999}

DATABASE = "database"

# Value of the column `kind` for all kinds together.
ALL = "all"

_TEXT, _WHOLE, _REAL = StringType(), LongType(), DoubleType()
_GROUP = {"run": _TEXT, "source": _TEXT, "place": _TEXT, "kind": _TEXT, "metric": _TEXT}

# `most_ms`: the largest time in the bucket. Bucket 0 holds times of exactly 0.
SPREAD = table(**_GROUP, bucket=IntegerType(), requests=_WHOLE, most_ms=_REAL)

PERCENTILES = table(
    run=_TEXT,
    source=_TEXT,
    kind=_TEXT,
    metric=_TEXT,
    requests=_WHOLE,
    **dict.fromkeys(QUANTILES, _REAL),
    max_ms=_REAL,
)

HISTOGRAM = table(run=_TEXT, source=_TEXT, kind=_TEXT, low_ms=_REAL, high_ms=_REAL, requests=_WHOLE)


def spread(events: DataFrame, one_in: Mapping[str, int] = MappingProxyType({})) -> DataFrame:
    """Count the times of PLACED events in buckets, as SPREAD.

    The response is counted for every event. For the kinds in `one_in` the other times are counted for one event in
    that number, chosen by a hash and weighted accordingly: a million events give as accurate percentiles as a hundred
    million, at a fraction of the cost. All events of a rare kind are counted.
    """
    require(events, PLACED, "the table of placed events")
    of_nodes, of_clients = (_spread_of(events, source, one_in) for source in (NODES, CLIENTS))
    return of_nodes.unionByName(of_clients)


def _spread_of(events: DataFrame, source: str, one_in: Mapping[str, int]) -> DataFrame:
    factor = sf.lit(1)
    for kind, many in one_in.items():
        factor = sf.when(sf.col("kind") == kind, many).otherwise(factor)
    is_chosen = sf.pmod(sf.hash("at_us", "latency_ns"), factor) == 0 if one_in else sf.lit(True)
    times = [
        (time if metric == "response" else sf.when(is_chosen, time)).alias(metric)
        for metric in METRICS_OF[source]
        if (time := sf.expr(TIMES[metric])) is not None
    ]
    kept = ("run", "place", "kind", "weight")
    # Kind and metric are grouping keys: the factor is the same for all rows of a group.
    factor_of_group = sf.when(sf.col("metric") == "response", 1).otherwise(factor)
    return (
        events.where(sf.col("source") == source)
        .select(*kept, *times)
        .unpivot(kept, list(METRICS_OF[source]), "metric", "time_ns")
        .where("time_ns is not null")
        .groupBy(
            "run",
            "place",
            "kind",
            "metric",
            sf.expr(f"cast(ln(time_ns + 1) * {BUCKETS_PER_E} as int)").alias("bucket"),
        )
        .agg(sf.sum("weight").alias("requests"), sf.expr("max(time_ns) / 1e6D").alias("most_ms"))
        .withColumns({"source": sf.lit(source), "requests": sf.col("requests") * factor_of_group})
        .select(*SPREAD.names)
    )


def with_all_kinds(counted: DataFrame) -> DataFrame:
    """Append to a table with the column `kind` a copy of all its rows, as of the kind `all`."""
    return counted.unionByName(counted.withColumn("kind", sf.lit(ALL)))


def percentiles(counted: DataFrame) -> DataFrame:
    """Convert SPREAD to PERCENTILES, for each kind and for all together.

    The metric `database` is `store` without requests that did not wait for the store.
    """
    require(counted, SPREAD, "the table of spreads")
    database = counted.where("metric = 'store' and bucket > 0").withColumn("metric", sf.lit(DATABASE))
    by = ("run", "source", "kind", "metric")
    return with_all_kinds(counted.unionByName(database)).groupBy(*by).agg(*quantile_columns())


def quantile_columns() -> list[Column]:
    """Return the last columns of a table of percentiles as aggregates of SPREAD: requests, QUANTILES and max_ms."""
    shares = ", ".join(f"{share}D" for share in QUANTILES.values())
    found = sf.expr(f"percentile({_middle_ms()}, array({shares}), requests)")
    return [
        sf.sum("requests").alias("requests"),
        # A bucket's middle may exceed all values in it.
        *(sf.least(found[number], sf.max("most_ms")).alias(name) for number, name in enumerate(QUANTILES)),
        sf.max("most_ms").alias("max_ms"),
    ]


def histogram(counted: DataFrame) -> DataFrame:
    """Convert SPREAD to the HISTOGRAM of responses, for each kind and for all together; empty bars have no row."""
    require(counted, SPREAD, "the table of spreads")
    bar = f"(bucket div {BUCKETS_PER_BAR})"
    return (
        with_all_kinds(counted.where("metric = 'response'"))
        .groupBy("run", "source", "kind", sf.expr(bar).alias("bar"))
        .agg(sf.sum("requests").alias("requests"))
        .select(
            "run",
            "source",
            "kind",
            sf.expr(_time_ms(f"bar * {BUCKETS_PER_BAR}")).alias("low_ms"),
            sf.expr(_time_ms(f"(bar + 1) * {BUCKETS_PER_BAR}")).alias("high_ms"),
            "requests",
        )
    )


def _middle_ms() -> str:
    return f"if(bucket = 0, 0D, {_time_ms('(bucket + 0.5D)')})"


def _time_ms(bucket: str) -> str:
    """Return the lower bound of a bucket's times."""
    return f"expm1({bucket} / {BUCKETS_PER_E}D) / 1e6D"
