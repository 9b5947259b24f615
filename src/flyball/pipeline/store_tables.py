"""The tables of a store: the facts of each file, additive aggregates, and the newest samples of each loop."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType, StructField, StructType

from flyball.pipeline.activity import KEYS, NODE_POINTS, QUEUE_POINTS, TIME_POINTS
from flyball.pipeline.latency import SPREAD
from flyball.pipeline.log_sums import DOWNTIME_SUMS, INTERVAL_SUMS
from flyball.pipeline.policies import ANSWERS
from flyball.pipeline.profile import ADMITTED, POINTS
from flyball.pipeline.schemas import table
from flyball.pipeline.throughput import SECONDS

_TEXT, _WHOLE = StringType(), LongType()

# One row for each check of a file. `problem` is why the whole file is rejected, null if it was ingested.
FILES = StructType(
    [
        StructField("file", _TEXT),
        StructField("run", _TEXT),
        StructField("table", _TEXT),
        StructField("size_bytes", _WHOLE),
        StructField("modified_us", _WHOLE),
        StructField("rows", _WHOLE),
        StructField("dropped", _WHOLE),
        StructField("problem", _TEXT),
    ]
)

# Invalid rows, by file and reason.
REJECTED = table(file=_TEXT, reason=_TEXT, rows=_WHOLE)

# Columns aggregated by minimum or maximum; all others are summed.
_LEAST = ("first_us",)
_LARGEST = ("last_us", "most_ms")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A table whose rows with equal keys can be merged."""

    schema: StructType
    keys: tuple[str, ...]

    def merged(self, rows: DataFrame) -> DataFrame:
        """Merge rows with equal keys."""
        of = {**dict.fromkeys(_LEAST, sf.min), **dict.fromkeys(_LARGEST, sf.max)}
        values = [name for name in self.schema.names if name not in self.keys]
        added = rows.groupBy(*self.keys).agg(*(of.get(name, sf.sum)(name).alias(name) for name in values))
        return added.select(*self.schema.names)


AGGREGATES = {
    "seconds": Aggregate(SECONDS, ("run", "source", "place", "kind", "queue", "second")),
    "spread": Aggregate(SPREAD, ("run", "source", "place", "kind", "metric", "bucket")),
    "costs": Aggregate(POINTS, ("key", "protocol", "is_failed", "bucket")),
    "admitted": Aggregate(ADMITTED, ("run", "unit", "key", "outcome", "is_measured", "bucket")),
    "intervals": Aggregate(INTERVAL_SUMS, ("run", "node", "second")),
    "downtimes": Aggregate(DOWNTIME_SUMS, ("run", "second", "bucket")),
    "answers": Aggregate(ANSWERS, ("run", "kind", "second", "result", "bucket")),
    "node_points": Aggregate(NODE_POINTS, KEYS["node_points"]),
    "queue_points": Aggregate(QUEUE_POINTS, KEYS["queue_points"]),
    "time_points": Aggregate(TIME_POINTS, KEYS["time_points"]),
}

# Samples of a loop that a store keeps. They cannot be aggregated: identification divides actions into ranges and
# chooses lags that depend on all samples. At one per second this is more than a day, and plants drift.
MOST_SAMPLES = 100_000


def newest(samples: DataFrame, count: int) -> DataFrame:
    """Keep the newest MOST_SAMPLES of each loop; `count` is the number of samples of all loops."""
    if count <= MOST_SAMPLES:
        return samples
    order = Window.partitionBy("run", "loop", "sample_time_s").orderBy(sf.desc("at_us"), sf.desc("sequence"))
    return samples.withColumn("_age", sf.row_number().over(order)).where(f"_age <= {MOST_SAMPLES}").drop("_age")
