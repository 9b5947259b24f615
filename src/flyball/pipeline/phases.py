"""The time of a request in a node, by phase: its five phases, and the ThorBangMQ report's breakdown of think times.

Works on the small tables of `throughput` and `latency`, not on events. `docs/reference/traces.md` maps the papers'
names.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DoubleType, LongType, StringType

from flyball.pipeline.events import NODES
from flyball.pipeline.latency import SPREAD, quantile_columns, with_all_kinds
from flyball.pipeline.schemas import require, table
from flyball.pipeline.throughput import SECONDS

# The metric of each phase; the last three are the ThorBangMQ report's, which add up to the total.
METRIC_OF = {
    "wait": "wait",
    "parse": "parse",
    "engine": "engine",
    "store": "store",
    "emit": "emit",
    "total": "response",
    "socket": "socket",
    "worker": "engine",
    "persistence": "store",
}

_TEXT, _WHOLE, _REAL = StringType(), LongType(), DoubleType()
_KEYS = {"run": _TEXT, "node": _TEXT, "kind": _TEXT, "phase": _TEXT}
_SPREADS = ("p5_ms", "p50_ms", "p95_ms", "p99_ms")

PHASES = table(**_KEYS, requests=_WHOLE, mean_ms=_REAL, sd_ms=_REAL, **dict.fromkeys(_SPREADS, _REAL))


def phases(seconds: DataFrame, spread: DataFrame) -> DataFrame:
    """Convert SECONDS and SPREAD of the measured time to PHASES, for each kind and for all kinds together.

    Means and deviations are computed from the sums over all requests, percentiles from the spread; they are null for
    a kind so rare that the spread does not contain it.
    """
    require(seconds, SECONDS, "the table of seconds")
    require(spread, SPREAD, "the table of spreads")
    return _moments(seconds).join(_percentiles(spread), list(_KEYS), "left").select(*PHASES.names)


def _moments(seconds: DataFrame) -> DataFrame:
    metrics = sorted(set(METRIC_OF.values()))
    sums = ["requests", *(f"{metric}_{power}" for metric in metrics for power in ("ms", "ms2"))]
    added = (
        with_all_kinds(seconds.where(sf.col("source") == NODES))
        .groupBy("run", sf.col("place").alias("node"), "kind")
        .agg(*(sf.sum(name).alias(name) for name in sums))
    )
    each = ", ".join(
        f"struct('{phase}' as phase, {metric}_ms as sum_ms, {metric}_ms2 as sum_ms2)"
        for phase, metric in METRIC_OF.items()
    )
    # Rounding can make a variance of nearly 0 negative.
    variance = "greatest(sum_ms2 - sum_ms * sum_ms / requests, 0D) / greatest(requests - 1, 1L)"
    return added.select("run", "node", "kind", "requests", sf.inline(sf.expr(f"array({each})"))).withColumns(
        {"mean_ms": sf.expr("sum_ms / requests"), "sd_ms": sf.expr(f"sqrt({variance})")}
    )


def _percentiles(spread: DataFrame) -> DataFrame:
    found = (
        with_all_kinds(spread.where(sf.col("source") == NODES))
        .groupBy("run", sf.col("place").alias("node"), "kind", "metric")
        .agg(*quantile_columns())
    )
    phases_of = " ".join(
        f"when '{metric}' then array({', '.join(f'{phase!r}' for phase, of in METRIC_OF.items() if of == metric)})"
        for metric in set(METRIC_OF.values())
    )
    phase = sf.explode(sf.expr(f"case metric {phases_of} end")).alias("phase")
    return found.select("run", "node", "kind", phase, *_SPREADS)
