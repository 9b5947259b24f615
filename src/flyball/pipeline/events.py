"""Requests of nodes and calls of clients in one format, and their position in the measured time of a run.

Only selects columns, so that Spark reads only those that a stage needs. Statistics are elsewhere.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType

from flyball.pipeline.schemas import CALLS, REQUESTS, require, table

# The two sources of events.
NODES, CLIENTS = "nodes", "clients"

# The phases of a request in a node.
PARTS = ("wait", "parse", "engine", "store", "emit")

_TEXT, _WHOLE = StringType(), LongType()

# The measured time of each run: from `from_us` to just before `until_us`, microseconds since 1970.
WINDOWS = table(run=_TEXT, from_us=_WHOLE, until_us=_WHOLE)

# `at_us`: the time of the answer. `service_ns`: the latency without the client's own delay. A value that a source
# does not record is 0.
EVENTS = table(
    run=_TEXT,
    source=_TEXT,
    place=_TEXT,
    kind=_TEXT,
    queue=_TEXT,
    result=_TEXT,
    at_us=_WHOLE,
    latency_ns=_WHOLE,
    service_ns=_WHOLE,
    think_ns=_WHOLE,
    wait_ns=_WHOLE,
    parse_ns=_WHOLE,
    engine_ns=_WHOLE,
    store_ns=_WHOLE,
    emit_ns=_WHOLE,
    size_bytes=_WHOLE,
    message_count=_WHOLE,
    weight=_WHOLE,
)

# `second`: seconds since the start of the measured time, negative before it; a multiple of the run's `point_s`.
PLACED = table(**{field.name: field.dataType for field in EVENTS}, second=_WHOLE)

# Approximate maximum of points in a series over time, whatever the length of its run: it must fit into the driver.
MOST_POINTS = 2000

# Lengths of a point in seconds, in ascending order; each divides all later ones, so that points can be merged.
POINTS_S = (1, 60, 120, 600, 3600, 7200, 21_600, 86_400, 604_800)


def point_s(from_us: int, until_us: int) -> int:
    """Return the length of one point of a run's series in seconds: 1, more for runs over MOST_POINTS s."""
    length_s = (int(until_us) - int(from_us)) // 1_000_000
    return next((point for point in POINTS_S if length_s <= point * MOST_POINTS), POINTS_S[-1])


def of_requests(requests: DataFrame) -> DataFrame:
    """Convert requests, as recorded by nodes, to EVENTS."""
    require(requests, REQUESTS, "the table of requests")
    latency_ns = " + ".join(f"{part}_ns" for part in PARTS)
    return requests.select(
        "run",
        sf.lit(NODES).alias("source"),
        sf.col("node").alias("place"),
        "kind",
        sf.col("queue_id").cast(_TEXT).alias("queue"),
        "result",
        _answered_us("received_us", latency_ns),
        sf.expr(latency_ns).alias("latency_ns"),
        sf.expr(latency_ns).alias("service_ns"),
        _nothing("think_ns"),
        *(f"{part}_ns" for part in PARTS),
        "size_bytes",
        "message_count",
        "weight",
    )


def of_calls(calls: DataFrame) -> DataFrame:
    """Convert calls, as recorded by clients, to EVENTS; their latency counts from the intended time."""
    require(calls, CALLS, "the table of calls")
    latency_ns = "late_ns + response_ns"
    return calls.select(
        "run",
        sf.lit(CLIENTS).alias("source"),
        sf.col("target").alias("place"),
        "kind",
        "queue",
        "result",
        _answered_us("intended_us", latency_ns),
        sf.expr(latency_ns).alias("latency_ns"),
        sf.col("response_ns").alias("service_ns"),
        "think_ns",
        *(_nothing(f"{part}_ns") for part in PARTS),
        "size_bytes",
        "message_count",
        "weight",
    )


def placed(events: DataFrame, windows: DataFrame) -> DataFrame:
    """Convert EVENTS to PLACED, including those outside the measured time; runs without a window are omitted."""
    return _beside_windows(events, windows).select(*PLACED.names)


def within(events: DataFrame, windows: DataFrame) -> DataFrame:
    """Convert EVENTS to the PLACED that were answered in the measured time of their run."""
    inside = "at_us >= from_us and at_us < until_us"
    return _beside_windows(events, windows).where(inside).select(*PLACED.names)


def _beside_windows(events: DataFrame, windows: DataFrame) -> DataFrame:
    require(events, EVENTS, "the table of events")
    require(windows, WINDOWS, "the table of windows")
    # Not `div`, which rounds towards 0: the point before the window would be too long.
    second = sf.expr("cast(floor((at_us - from_us) / (point_s * 1000000D)) as bigint) * point_s")
    # A join on numbers takes a third of the time of one on texts. 64 bits make collisions of runs improbable.
    key = sf.xxhash64("run")
    beside = windows.select(key.alias("run_key"), "from_us", "until_us", point_of_window())
    return events.withColumn("run_key", key).join(sf.broadcast(beside), "run_key").withColumn("second", second)


def point_of_window() -> Column:
    """Return the column `point_s` of WINDOWS, computed like the function `point_s`."""
    fitting = f"filter(array{POINTS_S}, point -> (until_us - from_us) div 1000000 <= point * {MOST_POINTS})"
    return sf.expr(f"cast(coalesce(get({fitting}, 0), {POINTS_S[-1]}) as bigint)").alias("point_s")


def _answered_us(begun_us: str, latency_ns: str) -> Column:
    return sf.expr(f"{begun_us} + ({latency_ns}) div 1000").alias("at_us")


def _nothing(name: str) -> Column:
    return sf.lit(0).cast(_WHOLE).alias(name)
