"""The cost of each kind of request and its class, small or large: the profile that admission control reads.

One pass of Spark reduces requests to weighted points on a logarithmic scale; classes and figures are computed from
those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pyspark.ml.clustering import KMeans, KMeansModel
from pyspark.ml.evaluation import ClusteringEvaluator
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, BooleanType, DoubleType, LongType, StringType

from flyball.errors import PipelineError
from flyball.pipeline.schemas import ADMISSIONS, REQUESTS, require, table

VERSION = 1
# A time after all others.
MOST_US = 1 << 62
# Costs that differ by less than 1/200 are treated as one point, which bounds the number of points.
BUCKETS_PER_E = 200
FEW_CLASSES = 4
MOST_CLASSES = 6
# If the silhouette has dropped by this at FEW_CLASSES, more are not tried, since each number of classes is slow.
HOPELESS = 0.1
# Minimum number of rows for classes.
FEWEST_ROWS = 20
# Minimum silhouette of distinct classes: two halves of one normal distribution reach 0.71, of a uniform one 0.8.
LEAST_SILHOUETTE = 0.82
# Two classes that differ by this factor are kept, distinct or not: otherwise expensive requests would delay cheap
# ones.
WIDE_RATIO = 5.0
# Minimum gain of the silhouette for one more class.
CLEARLY_BETTER = 0.02
SEED = 1
# K-means converges when its centres move by less than this, in standard deviations of ln cost.
TOLERANCE = 0.01

# The columns that `profile_of` needs, in addition to a number `cost`.
ROWS = table(key=REQUESTS["kind"].dataType, weight=REQUESTS["weight"].dataType)

# Spark's k-means refuses arrays that might hold null.
_POINT = table(features=ArrayType(DoubleType(), containsNull=False), weight=DoubleType())

# Requests of a kind by cost: sums over all requests in a bucket, which is null for a cost of 0.
POINTS = table(
    key=StringType(),
    protocol=StringType(),
    is_failed=BooleanType(),
    bucket=LongType(),
    rows=LongType(),
    weight=DoubleType(),
    cost_sum=DoubleType(),
    square_sum=DoubleType(),
)

# The same for an application's requests, in each unit of COSTS_OF_ADMISSIONS. `is_measured`: whether they arrived in
# the measured time of their run. `first_us`, `last_us`: arrival of the first and the last of them.
ADMITTED = table(
    run=StringType(),
    unit=StringType(),
    key=StringType(),
    outcome=StringType(),
    is_measured=BooleanType(),
    bucket=LongType(),
    rows=LongType(),
    weight=DoubleType(),
    cost_sum=DoubleType(),
    square_sum=DoubleType(),
    first_us=LongType(),
    last_us=LongType(),
)

COST_OF_REQUESTS = "parse + engine + store + emit, in which the node worked or held a connection for the request"
# By unit.
COSTS_OF_ADMISSIONS = {
    "ms": "busy: how long the request held connections of the database, all together",
    "connections": "how many times the request took a connection of the database",
}

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Clusters:
    """Classes in ascending order of cost: the bounds between them, as ln cost, and why there are that many."""

    bounds: tuple[float, ...]
    silhouettes: dict[int, float]
    reason: str | None


def profile(requests: DataFrame) -> dict[str, Any]:
    """Return the profile of requests, as `profile_of_costs` does."""
    return profile_of_costs(costs(requests))


def costs(requests: DataFrame) -> DataFrame:
    """Reduce requests to POINTS."""
    require(requests, REQUESTS, "the requests")
    cost_ns = sf.col("parse_ns") + sf.col("engine_ns") + sf.col("store_ns") + sf.col("emit_ns")
    rows = requests.select(
        sf.col("kind").alias("key"),
        "protocol",
        (sf.col("result") == "failed").alias("is_failed"),
        (cost_ns / sf.lit(1e6)).alias("cost"),
        "weight",
    )
    return _counted(rows, "key", "protocol", "is_failed").select(*POINTS.names)


def profile_of_costs(counted: DataFrame) -> dict[str, Any]:
    """Return the profile of requests by their kind, and by protocol and kind; costs are milliseconds.

    The cost excludes `wait_ns`, which is the work for earlier requests. It includes `store_ns`, although the node is
    free meanwhile: for this time the request occupies the database, which is what admission control limits. Failed
    requests are excluded and counted, since a time-out does not show the cost of the request. Raises PipelineError if
    there are no requests.
    """
    require(counted, POINTS, "the costs")
    sums = [sf.sum(name).alias(name) for name in ("rows", "weight", "cost_sum", "square_sum")]
    points = _on_driver(counted.groupBy("key", "protocol", "is_failed", "bucket").agg(*sums))
    failed = points["is_failed"].astype(bool)
    found = _profile(counted.sparkSession, points[~failed], "ms", COST_OF_REQUESTS)
    found["left_out"] = {"failed": int(points.loc[failed, "weight"].sum())}
    found["protocols"] = {
        str(protocol): _keys(own, tuple(found["bounds"]))
        for protocol, own in points[~failed].groupby("protocol", sort=True)
    }
    return found


def profile_of_admissions(admissions: DataFrame, unit: str = "ms") -> dict[str, Any]:
    """Return the profile of an application's requests, as `profile_of_admitted` does."""
    always = admissions.select("run", sf.lit(0).cast("bigint").alias("from_us"), sf.lit(MOST_US).alias("until_us"))
    return profile_of_admitted(admitted(admissions, always.distinct()), unit)


def admitted(admissions: DataFrame, windows: DataFrame) -> DataFrame:
    """Reduce admissions to ADMITTED."""
    require(admissions, ADMISSIONS, "the admissions")
    costs_of = "stack(2, 'ms', busy_ns / 1e6D, 'connections', cast(connections as double)) as (unit, cost)"
    is_measured = sf.expr("arrived_us >= from_us and arrived_us < until_us").alias("is_measured")
    rows = admissions.join(sf.broadcast(windows), "run").select(
        "run", "key", "outcome", "weight", "arrived_us", is_measured, sf.expr(costs_of)
    )
    extent = (sf.min("arrived_us").alias("first_us"), sf.max("arrived_us").alias("last_us"))
    return _counted(rows, "run", "unit", "key", "outcome", "is_measured", extra=extent).select(*ADMITTED.names)


def profile_of_admitted(counted: DataFrame, unit: str = "ms", class_count: int | None = None) -> dict[str, Any]:
    """Return the profile of an application's requests by their key; costs are in a unit of COSTS_OF_ADMISSIONS.

    Only requests served in the measured time are included; its others are counted in `left_out`. `class_count` sets
    the number of classes if the costs can be divided so. Raises PipelineError if none was served.
    """
    require(counted, ADMITTED, "the costs of admissions")
    if unit not in COSTS_OF_ADMISSIONS:
        raise PipelineError(f"unknown unit of cost {unit!r}: give {' or '.join(COSTS_OF_ADMISSIONS)}")
    sums = [sf.sum(name).alias(name) for name in ("rows", "weight", "cost_sum", "square_sum")]
    own = (
        counted.where((sf.col("unit") == unit) & sf.col("is_measured")).groupBy("key", "outcome", "bucket").agg(*sums)
    )
    points = _on_driver(own)
    is_served = points["outcome"] == "served"
    found = _profile(counted.sparkSession, points[is_served], unit, COSTS_OF_ADMISSIONS[unit], class_count)
    left_out = points[~is_served].groupby("outcome", sort=True)["weight"].sum()
    found["left_out"] = {str(outcome): int(weight) for outcome, weight in left_out.items()}
    return found


def profile_of(rows: DataFrame, unit: str, cost: str = "as recorded") -> dict[str, Any]:
    """Return the profile of rows of `key` (any text), `cost` (finite, 0 or more, in `unit`) and `weight`.

    `cost` describes it in words. Raises PipelineError if there are no rows.
    """
    require(rows, ROWS, "the rows")
    return _profile(rows.sparkSession, _points(rows, "key"), unit, cost)


def _points(rows: DataFrame, *keys: str) -> pd.DataFrame:
    """Return the frequency of each cost, to within a bucket, for each combination of `keys`."""
    return _on_driver(_counted(rows, *keys))


def _counted(rows: DataFrame, *keys: str, extra: Sequence[Column] = ()) -> DataFrame:
    cost = sf.col("cost").cast("double")
    # Needs no condition: ln of 0 is null, in the same pass.
    bucket = sf.floor(sf.ln(cost) * BUCKETS_PER_E)
    return rows.groupBy(*keys, bucket.alias("bucket")).agg(
        sf.count("*").alias("rows"),
        sf.sum("weight").cast("double").alias("weight"),
        sf.sum(cost * sf.col("weight")).alias("cost_sum"),
        sf.sum(cost * cost * sf.col("weight")).alias("square_sum"),
        *extra,
    )


def _on_driver(counted: DataFrame) -> pd.DataFrame:
    """Collect costs. One of 0 has no logarithm: it is put into the lowest bucket of the others, and `is_free`."""
    found = counted.toPandas()
    found["is_free"] = found["bucket"].isna()
    smallest = found["bucket"].min()
    found["bucket"] = found["bucket"].fillna(0 if math.isnan(smallest) else smallest).astype("int64")
    return found


def _profile(
    spark: SparkSession, points: pd.DataFrame, unit: str, cost: str, class_count: int | None = None
) -> dict[str, Any]:
    if points.empty:
        raise PipelineError(
            "there is no request to make a profile of: give traces of a node or an application that served some"
        )
    clusters = _clusters(spark, points, class_count)
    classes = _classes(points, clusters.bounds)
    return {
        "version": VERSION,
        "kind": "profile",
        "unit": unit,
        "cost": cost,
        "rows": int(points["rows"].sum()),
        "requests": int(points["weight"].sum()),
        "class_count": len(classes),
        "silhouettes": {str(count): value for count, value in clusters.silhouettes.items()},
        "reason": clusters.reason,
        "bounds": [math.exp(bound) for bound in clusters.bounds],
        "classes": classes,
        "keys": _keys(points, tuple(math.exp(bound) for bound in clusters.bounds)),
    }


def _clusters(spark: SparkSession, points: pd.DataFrame, class_count: int | None) -> Clusters:
    # Free requests are small, whatever the others cost. If they were clustered, they would form a class of their own.
    paid = points[~points["is_free"]]
    by_bucket = paid.groupby("bucket", sort=True)[["rows", "weight", "cost_sum"]].sum()
    places = (by_bucket.index.to_numpy(dtype=float) + 0.5) / BUCKETS_PER_E
    row_count = int(by_bucket["rows"].sum())
    if len(places) < 2:
        return Clusters((), {}, "all requests cost the same")
    if row_count < FEWEST_ROWS:
        return Clusters((), {}, f"{row_count} rows are too few for classes, {FEWEST_ROWS} are needed")
    importance = _importance(by_bucket)
    centre = np.average(places, weights=importance)
    spread = math.sqrt(np.average((places - centre) ** 2, weights=importance))
    standardised = (places - centre) / spread
    if class_count is not None:
        count = min(class_count, len(places))
        silhouette, found = _fit(spark, standardised, importance, [count])[count]
        return Clusters(_bounds(np.sort(found) * spread + centre), {count: silhouette}, None)
    fitted = _fit(spark, standardised, importance, range(2, min(FEW_CLASSES, len(places)) + 1))
    more = range(FEW_CLASSES + 1, min(MOST_CLASSES, len(places)) + 1)
    if more and fitted[FEW_CLASSES][0] >= max(silhouette for silhouette, _ in fitted.values()) - HOPELESS:
        fitted |= _fit(spark, standardised, importance, more)
    silhouettes = {count: silhouette for count, (silhouette, _) in fitted.items()}
    best = max(silhouettes.values())
    is_clear = best >= LEAST_SILHOUETTE
    count = min(count for count, value in silhouettes.items() if value >= best - CLEARLY_BETTER) if is_clear else 2
    centres = np.sort(fitted[count][1]) * spread + centre
    ratio = math.exp(centres[-1] - centres[0])
    if not is_clear and ratio < WIDE_RATIO:
        reason = f"no clear classes: the best silhouette is {best:.2f}, not {LEAST_SILHOUETTE}, and two would differ "
        return Clusters((), silhouettes, f"{reason}by a factor of {ratio:.1f} only")
    return Clusters(_bounds(centres), silhouettes, None)


def _bounds(centres: Numbers) -> tuple[float, ...]:
    return tuple(float(bound) for bound in (centres[1:] + centres[:-1]) / 2)


def _importance(points: pd.DataFrame) -> Numbers:
    """Return the weights of points: half by the number of requests, half by their cost.

    By number alone, rare but expensive requests would not count, and admission control exists for those.
    """
    weights = points["weight"].to_numpy(dtype=float)
    costs = points["cost_sum"].to_numpy(dtype=float)
    importance: Numbers = weights + costs * (weights.sum() / costs.sum())
    return importance


def _fit(
    spark: SparkSession, places: Numbers, weights: Numbers, counts: Sequence[int]
) -> dict[int, tuple[float, Numbers]]:
    """Return silhouette and centres of k-means for each number of classes."""
    # Each point is split in two, since the silhouette counts no cluster of one row, and a row here represents many.
    points = pd.DataFrame({"features": [[place] for place in places.repeat(2)], "weight": (weights / 2).repeat(2)})
    frame = spark.createDataFrame(points, _POINT).coalesce(1).cache()

    def fit(count: int) -> tuple[KMeansModel, float]:
        model = KMeans(k=count, seed=SEED, tol=TOLERANCE, weightCol="weight").fit(frame)
        return model, float(ClusteringEvaluator(weightCol="weight").evaluate(model.transform(frame)))

    # Each fit is dozens of tiny jobs that mostly wait for Spark to plan them: in parallel they take half the time.
    with ThreadPoolExecutor(len(counts)) as pool:
        fitted = list(pool.map(fit, counts))
    frame.unpersist()
    # Not in the threads above: with Spark Connect a new thread has no session.
    return {
        count: (silhouette, np.concatenate(model.clusterCenters()))
        for count, (model, silhouette) in zip(counts, fitted, strict=True)
    }


def _classes(points: pd.DataFrame, bounds: tuple[float, ...]) -> list[dict[str, Any]]:
    """Return the figures of each class in ascending order of cost."""
    number = np.searchsorted(np.array(bounds), _places(points))
    weight, cost = points["weight"].to_numpy(dtype=float), points["cost_sum"].to_numpy(dtype=float)
    found = []
    for which in range(len(bounds) + 1):
        own = number == which
        requests = weight[own].sum()
        centre = math.exp(np.average(_places(points)[own], weights=weight[own]))
        found.append(
            {
                "class": which,
                "centre": centre if cost.sum() > 0 else 0.0,
                "mean": float(cost[own].sum() / requests),
                "below": math.exp(bounds[which]) if which < len(bounds) else None,
                "requests": int(requests),
                "request_ratio": float(requests / weight.sum()),
                "cost_ratio": float(cost[own].sum() / cost.sum()) if cost.sum() > 0 else 0.0,
            }
        )
    return found


def _keys(points: pd.DataFrame, bounds: tuple[float, ...]) -> dict[str, dict[str, Any]]:
    """Return the figures of each key: its frequency, its cost, and the class of most of its requests."""
    return {str(key): _key(own, np.log(np.array(bounds))) for key, own in points.groupby("key", sort=True)}


def _key(points: pd.DataFrame, bounds: Numbers) -> dict[str, Any]:
    merged = points.groupby("bucket", sort=True)[["rows", "weight", "cost_sum", "square_sum"]].sum().reset_index()
    weight = merged["weight"].to_numpy(dtype=float)
    requests = weight.sum()
    mean = float(merged["cost_sum"].sum() / requests)
    variance = float(merged["square_sum"].sum() / requests) - mean * mean
    in_class = np.bincount(np.searchsorted(bounds, _places(merged)), weights=weight)
    return {
        "rows": int(merged["rows"].sum()),
        "requests": int(requests),
        "mean": mean,
        "sd": math.sqrt(max(variance, 0.0)),
        "p50": _percentile(merged, 0.5),
        "p95": _percentile(merged, 0.95),
        "p99": _percentile(merged, 0.99),
        "class": int(in_class.argmax()),
        "class_ratio": float(in_class.max() / requests),
    }


def _places(points: pd.DataFrame) -> Numbers:
    """Return ln cost of each point, at the middle of its bucket."""
    places: Numbers = (points["bucket"].to_numpy(dtype=float) + 0.5) / BUCKETS_PER_E
    return places


def _percentile(points: pd.DataFrame, part: float) -> float:
    """Return the mean cost in the bucket of the quantile `part`; `points` are sorted by bucket."""
    reached = points["weight"].to_numpy(dtype=float).cumsum()
    place = int(np.searchsorted(reached, part * reached[-1]))
    return float(points["cost_sum"].iloc[place] / points["weight"].iloc[place])
