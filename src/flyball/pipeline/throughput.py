"""Counts of each second or longer point: requests, messages, and sums of every measured time.

This is the only pass over the events that counts and sums; means, deviations, series over time and the operational
laws are derived from its small table. Sums are in milliseconds as doubles: integer nanoseconds would overflow.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import DoubleType, LongType, StringType

from flyball.pipeline.events import CLIENTS, NODES, PARTS, PLACED, WINDOWS, point_of_window
from flyball.pipeline.schemas import require, table

# The times that are measured, by metric: the sum of columns of an event, in nanoseconds.
#
# `engine` and `store` are also the ThorBangMQ report's worker and persistence, `socket` its "Socket I/O & Queuing".
TIMES = {
    "response": "latency_ns",
    "service": "service_ns",
    "think": "think_ns",
    "wait": "wait_ns",
    "parse": "parse_ns",
    "engine": "engine_ns",
    "store": "store_ns",
    "emit": "emit_ns",
    "socket": "wait_ns + parse_ns + emit_ns",
}

# The times that each source measures.
METRICS_OF = {
    NODES: ("response", "wait", "parse", "engine", "store", "emit", "socket"),
    CLIENTS: ("response", "service", "think"),
}

# Times of nodes whose sum is the sum of others.
_ADDS_UP = {"response": PARTS, "socket": ("wait", "parse", "emit")}

_TEXT, _WHOLE, _REAL = StringType(), LongType(), DoubleType()
_KEYS = {"run": _TEXT, "source": _TEXT, "place": _TEXT, "kind": _TEXT, "queue": _TEXT, "second": _WHOLE}
_SUMS = {f"{metric}_{what}": _REAL for metric in TIMES for what in ("ms", "ms2")}

# `stored`: requests that waited for the store. `weight2`: the sum of squared weights, from which the uncertainty of
# counts from a sample follows. `<metric>_ms` and `<metric>_ms2`: the sums of a time and of its square. `records`: the
# number of rows, and the start of the first and the last.
SECONDS = table(
    **_KEYS,
    records=_WHOLE,
    first_us=_WHOLE,
    last_us=_WHOLE,
    requests=_WHOLE,
    messages=_WHOLE,
    stored=_WHOLE,
    weight2=_WHOLE,
    **_SUMS,
)

_NOT_IN_SERIES = ("queue", "records", "first_us", "last_us")

# SECONDS of all queues together: at most about MOST_POINTS rows for each kind, which the driver can hold.
SERIES = table(**{field.name: field.dataType for field in SECONDS if field.name not in _NOT_IN_SERIES})

THROUGHPUT = table(**_KEYS, requests=_WHOLE, messages=_WHOLE)

# The columns of a series of throughput for all queues together.
THROUGHPUT_OF_ALL = [name for name in THROUGHPUT.names if name != "queue"]

# The number of busiest queues of a run with their own rows in THROUGHPUT.
MOST_QUEUES = 100

# Value of the column `queue` for all other queues together.
OTHER_QUEUES = "(others)"

_CARRIES_MESSAGES = "kind in ('put', 'take', 'peek', 'list', 'deliver', 'settle', 'purge')"


def seconds(events: DataFrame) -> DataFrame:
    """Count and sum PLACED events per second into SECONDS, multiplied by their `weight`."""
    require(events, PLACED, "the table of placed events")
    of_nodes, of_clients = (_seconds_of(events, source) for source in (NODES, CLIENTS))
    return of_nodes.unionByName(of_clients)


def _seconds_of(events: DataFrame, source: str) -> DataFrame:
    """Count the events of one source. With fewer sums Java can compile the query, which doubles its speed."""
    metrics = METRICS_OF[source]
    sums_of = {metric: _ADDS_UP.get(metric, (metric,)) if source == NODES else (metric,) for metric in metrics}
    added = sorted({part for parts in sums_of.values() for part in parts})
    moved = f"if(result = 'ok' and {_CARRIES_MESSAGES}, message_count * weight, 0L)"
    counted = (
        events.where(sf.col("source") == source)
        .groupBy(*(name for name in _KEYS if name != "source"))
        .agg(
            sf.count("*").alias("records"),
            sf.expr("min(at_us - latency_ns div 1000)").alias("first_us"),
            sf.expr("max(at_us - latency_ns div 1000)").alias("last_us"),
            sf.expr("sum(weight)").alias("requests"),
            sf.expr(f"sum({moved})").alias("messages"),
            sf.expr("sum(if(store_ns > 0, weight, 0L))").alias("stored"),
            sf.expr("sum(weight * weight)").alias("weight2"),
            *(sf.expr(f"sum({_time(part)} * weight)").alias(part) for part in added),
            *(sf.expr(f"sum({_time(m)} * {_time(m)} * weight) / 1e12D").alias(f"{m}_ms2") for m in metrics),
        )
    )
    sums = {f"{metric}_ms": sf.expr(f"({' + '.join(parts)}) / 1e6D") for metric, parts in sums_of.items()}
    unknown = {name: sf.lit(0.0) for name in _SUMS if name.removesuffix("2").removesuffix("_ms") not in metrics}
    return counted.withColumns({"source": sf.lit(source), **sums, **unknown}).select(*SECONDS.names)


def _time(metric: str) -> str:
    return f"cast({TIMES[metric]} as double)"


def measured(counted: DataFrame, windows: DataFrame) -> DataFrame:
    """Keep the whole points of the measured time in SECONDS, SERIES or THROUGHPUT.

    A partial last point is not comparable with others; it is kept only if it is the only one.
    """
    require(windows, WINDOWS, "the table of windows")
    whole = "second >= 0 and second + point_s <= greatest((until_us - from_us) div 1000000, point_s)"
    known = windows.select("*", point_of_window())
    return counted.join(sf.broadcast(known), "run").where(whole).select(*counted.columns)


def joined(counted: DataFrame, windows: DataFrame) -> DataFrame:
    """Merge rows with a `second` into the points of their run, which are longer than those of a part of it."""
    require(windows, WINDOWS, "the table of windows")
    known = windows.select("run", point_of_window())
    second = sf.expr("cast(floor(second / point_s) as bigint) * point_s")
    return counted.join(sf.broadcast(known), "run").withColumn("second", second).select(*counted.columns)


def series(counted: DataFrame) -> DataFrame:
    """Add up SECONDS over queues into SERIES."""
    require(counted, SECONDS, "the table of seconds")
    keys = [name for name in _KEYS if name in SERIES.names]
    return counted.groupBy(*keys).agg(*(sf.sum(name).alias(name) for name in SERIES.names if name not in keys))


def throughput(counted: DataFrame) -> DataFrame:
    """Convert SECONDS to THROUGHPUT. A second without requests has no row.

    For each run and source the MOST_QUEUES busiest queues are separate; the others are summed as OTHER_QUEUES.
    """
    require(counted, SECONDS, "the table of seconds")
    of_queue = ("run", "source", "queue")
    busiest_first = Window.partitionBy("run", "source").orderBy(sf.desc("volume"), "queue")
    busy = (
        counted.groupBy(*of_queue)
        .agg(sf.sum("requests").alias("volume"))
        .withColumn("place_of_queue", sf.row_number().over(busiest_first))
        .where(f"place_of_queue <= {MOST_QUEUES}")
        .select(*of_queue, "place_of_queue")
    )
    queue = sf.expr(f"if(place_of_queue is null, '{OTHER_QUEUES}', queue)")
    return (
        counted.join(sf.broadcast(busy), list(of_queue), "left")
        .withColumn("queue", queue)
        .groupBy(*_KEYS)
        .agg(sf.sum("requests").alias("requests"), sf.sum("messages").alias("messages"))
        .select(*THROUGHPUT.names)
    )
