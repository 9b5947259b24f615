"""Activity of nodes and their queues over time: CPU, memory, clients, rates, backlog, and times of messages.

A batch is reduced to additive sums per point of time; a gauge is the sum of its values, each multiplied by its
duration. From those sums the module computes tables that fit into the driver.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import DoubleType, LongType, StringType

from flyball.pipeline.events import MOST_POINTS, POINTS_S, WINDOWS, point_of_window
from flyball.pipeline.schemas import NODES, QUEUES, TIMES, require, table

_TEXT, _WHOLE, _REAL = StringType(), LongType(), DoubleType()

NODE_GAUGES = (
    *("memory_bytes", "held_bytes", "connections", "channels", "consumers"),
    *("queues", "ready", "unacked"),
)
NODE_COUNTS = ("published", "delivered", "acked", "confirmed", "read_bytes", "written_bytes")
QUEUE_GAUGES = ("ready", "unacked", "consumers")
QUEUE_COUNTS = ("published", "delivered", "acked")

# `at_s`: the start of a point, seconds since 1970.
_NODE_KEYS = {"run": _TEXT, "node": _TEXT, "at_s": _WHOLE}
_QUEUE_KEYS = {"run": _TEXT, "node": _TEXT, "vhost": _TEXT, "queue": _TEXT, "at_s": _WHOLE}

# Sums of each point: `recorded_s` is the duration of its records, a gauge is in its unit times seconds.
NODE_POINTS = table(
    **_NODE_KEYS,
    recorded_s=_REAL,
    cpu_s=_REAL,
    store_cpu_s=_REAL,
    **dict.fromkeys(NODE_GAUGES, _REAL),
    **dict.fromkeys(NODE_COUNTS, _WHOLE),
)
QUEUE_POINTS = table(
    **_QUEUE_KEYS,
    recorded_s=_REAL,
    **dict.fromkeys(QUEUE_GAUGES, _REAL),
    **dict.fromkeys(QUEUE_COUNTS, _WHOLE),
)
# The number of messages whose time was in a bucket, and the sum of their times.
TIME_POINTS = table(**_QUEUE_KEYS, metric=_TEXT, below_us=_WHOLE, timed=_WHOLE, messages=_WHOLE, sum_us=_WHOLE)

KEYS = {
    "node_points": tuple(_NODE_KEYS),
    "queue_points": tuple(_QUEUE_KEYS),
    "time_points": (*_QUEUE_KEYS, "metric", "below_us"),
}

# The number of busiest queues of a run that have their own rows over time.
MOST_QUEUES = 20

TIMES_OF = ("wait", "service")
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
TIME_COLUMNS = tuple(
    column for metric in TIMES_OF for column in (f"{metric}_mean_ms", *(f"{metric}_{p}_ms" for p in QUANTILES))
)

# `second` counts from the start of the measured time; rates are per second, CPU in cores.
NODE_COLUMNS = (
    *("run", "node", "second", "recorded_s", "cpu_ratio", "store_cpu_ratio"),
    *NODE_GAUGES,
    *(f"{name}_per_s" for name in NODE_COUNTS),
)
QUEUE_COLUMNS = (
    *("run", "vhost", "queue", "second", "recorded_s"),
    *QUEUE_GAUGES,
    *(f"{name}_per_s" for name in QUEUE_COUNTS),
    *TIME_COLUMNS,
)


def node_points(rows: DataFrame, windows: DataFrame) -> DataFrame:
    """Add up the seconds of nodes into NODE_POINTS."""
    require(rows, NODES, "the seconds of nodes")
    sums = {"cpu_s": _sum("cpu_ns / 1e9D"), "store_cpu_s": _sum("store_cpu_ns / 1e9D")}
    return _points(rows, windows, KEYS["node_points"], sums, NODE_GAUGES, NODE_COUNTS).select(*NODE_POINTS.names)


def queue_points(rows: DataFrame, windows: DataFrame) -> DataFrame:
    """Add up the seconds of queues into QUEUE_POINTS."""
    require(rows, QUEUES, "the seconds of queues")
    return _points(rows, windows, KEYS["queue_points"], {}, QUEUE_GAUGES, QUEUE_COUNTS).select(*QUEUE_POINTS.names)


def time_points(rows: DataFrame, windows: DataFrame) -> DataFrame:
    """Add up the times of messages into TIME_POINTS."""
    require(rows, TIMES, "the times of messages")
    counts = [_sum(name).alias(name) for name in ("timed", "messages", "sum_us")]
    return _at(rows, windows).groupBy(*KEYS["time_points"]).agg(*counts).select(*TIME_POINTS.names)


def _points(
    rows: DataFrame,
    windows: DataFrame,
    keys: tuple[str, ...],
    sums: Mapping[str, Column],
    gauges: tuple[str, ...],
    counts: tuple[str, ...],
) -> DataFrame:
    added = {
        "recorded_s": _sum("elapsed_ns / 1e9D"),
        **sums,
        **{name: _sum(f"cast({name} as double) * elapsed_ns / 1e9D") for name in gauges},
        **{name: _sum(name) for name in counts},
    }
    return _at(rows, windows).groupBy(*keys).agg(*(column.alias(name) for name, column in added.items()))


def _sum(expression: str) -> Column:
    return sf.expr(f"sum({expression})")


def _at(rows: DataFrame, windows: DataFrame) -> DataFrame:
    """Add `at_s`: the point of time of a row, whose length depends on that of its run."""
    require(windows, WINDOWS, "the table of windows")
    known = sf.broadcast(windows.select("run", point_of_window()))
    point = sf.expr("cast(floor(at_us / (point_s * 1000000D)) as bigint) * point_s")
    return rows.join(known, "run").withColumn("at_s", point)


def nodes_over_time(points: DataFrame, windows: pd.DataFrame) -> pd.DataFrame:
    """Turn NODE_POINTS into at most MOST_POINTS points of each node."""
    found = _few_points(points, KEYS["node_points"])
    length = found["recorded_s"].clip(lower=1e-9)
    return (
        found.assign(
            cpu_ratio=found["cpu_s"] / length,
            store_cpu_ratio=found["store_cpu_s"] / length,
            **{name: found[name] / length for name in NODE_GAUGES},
            **{f"{name}_per_s": found[name] / length for name in NODE_COUNTS},
            second=_seconds(found, windows),
        )
        .sort_values(["run", "node", "second"])[list(NODE_COLUMNS)]
        .reset_index(drop=True)
    )


def queues_over_time(points: DataFrame, times: DataFrame, windows: pd.DataFrame) -> pd.DataFrame:
    """Turn QUEUE_POINTS and TIME_POINTS into at most MOST_POINTS points of each of the busiest queues.

    The parts of a queue on several nodes are added up.
    """
    keys = ("run", "vhost", "queue", "at_s")
    busiest = Window.partitionBy("run").orderBy(sf.desc("volume"), "vhost", "queue")
    events = sf.expr("sum(published + delivered + acked)").alias("volume")
    busy = (
        points.groupBy("run", "vhost", "queue")
        .agg(events)
        .withColumn("place", sf.row_number().over(busiest))
        .where(f"place <= {MOST_QUEUES}")
        .select("run", "vhost", "queue")
    )
    of_busy = sf.broadcast(busy)
    found = _few_points(points.join(of_busy, ["run", "vhost", "queue"]), keys)
    length = found["recorded_s"].clip(lower=1e-9)
    nodes = found["nodes"].clip(lower=1)
    found = found.assign(
        # All nodes of a queue recorded the same time.
        **{name: found[name] / length * nodes for name in QUEUE_GAUGES},
        **{f"{name}_per_s": found[name] / length * nodes for name in QUEUE_COUNTS},
    )
    measured = _few_points(times.join(of_busy, ["run", "vhost", "queue"]), (*keys, "metric", "below_us"), like=found)
    for metric in TIMES_OF:
        found = found.merge(_quantiles(measured[measured["metric"] == metric], metric, keys), "left", on=list(keys))
    found["second"] = _seconds(found, windows)
    ordered = found.sort_values(["run", "vhost", "queue", "second"])
    return ordered[list(QUEUE_COLUMNS)].reset_index(drop=True)


def _few_points(points: DataFrame, keys: tuple[str, ...], like: pd.DataFrame | None = None) -> pd.DataFrame:
    """Merge points into longer ones, such that each series has at most MOST_POINTS.

    `like` provides the length of the points by run; without it, it follows from the extent of the run.
    """
    if like is None:
        extents = points.groupBy("run").agg(sf.min("at_s").alias("first"), sf.max("at_s").alias("last")).collect()
        lengths = {row["run"]: _length_s(row["first"], row["last"]) for row in extents}
    else:
        lengths = dict(zip(like["run"], like["length_s"], strict=True))
    if not lengths:
        names = dict.fromkeys([*keys, *points.columns, "nodes", "length_s"])
        return pd.DataFrame({name: pd.Series(dtype="float64") for name in names}).astype({"run": "object"})
    known = points.sparkSession.createDataFrame(list(lengths.items()), "run string, length_s bigint")
    values = [name for name in points.columns if name not in (*keys, "node")]
    longer = points.join(sf.broadcast(known), "run").withColumn("at_s", sf.expr("at_s div length_s * length_s"))
    added = longer.groupBy(*keys, "length_s").agg(
        *(sf.sum(name).alias(name) for name in values), sf.count_distinct("node").alias("nodes")
    )
    found: pd.DataFrame = added.toArrow().to_pandas()
    return found


def _length_s(first_s: int, last_s: int) -> int:
    return next((length for length in POINTS_S if (last_s - first_s) // length < MOST_POINTS), POINTS_S[-1])


def _seconds(found: pd.DataFrame, windows: pd.DataFrame) -> pd.Series[int]:
    """Return the start of points, in seconds since the start of the measured time of their run."""
    begins = windows.set_index("run")["from_us"] // 1_000_000
    return (found["at_s"] - found["run"].map(begins).fillna(0)).astype("int64")


def _quantiles(rows: pd.DataFrame, metric: str, keys: tuple[str, ...]) -> pd.DataFrame:
    """Return mean and quantiles of one time of messages, from the counts of buckets, in milliseconds."""
    names = [f"{metric}_mean_ms", *(f"{metric}_{name}_ms" for name in QUANTILES)]
    found = []
    for key, own in rows.sort_values("below_us").groupby(list(keys)):
        counted = own["messages"].to_numpy(dtype=float).cumsum()
        below_ms = own["below_us"].to_numpy(dtype=float) / 1000.0
        places = [int(np.searchsorted(counted, share * counted[-1])) for share in QUANTILES.values()]
        mean_ms = float(own["sum_us"].sum()) / float(counted[-1]) / 1000.0
        found.append((*key, mean_ms, *(float(below_ms[min(place, len(below_ms) - 1)]) for place in places)))
    columns = [*keys, *names]
    return pd.DataFrame(found, columns=columns) if found else rows[list(keys)].reindex(columns=columns).iloc[:0]
