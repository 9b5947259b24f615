"""Identifies the plants of control loops from their samples, for the design of controllers.

Spark reduces any number of samples to means and covariances: of lagged samples, to find delay and order and to test
the model, and of pairs per range of actions, to fit it. `flyball.control` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType

from flyball.control.identification import Shape, plant_of, structure_of
from flyball.control.lagged import FEW, MAX_SEGMENTS, LagMoments, Lags
from flyball.control.model_file import model_to_json
from flyball.control.moments import BLOCK, Moments, Numbers, Range, edges_of, merged, moments_of, nothing, quantiles
from flyball.errors import PipelineError
from flyball.pipeline.schemas import SAMPLES, require

LAGS = Lags()
# A loop and its sample time.
Key = tuple[str, float]

_KEY = [StructField("loop", StringType()), StructField("sample_time_s", DoubleType())]
_MOMENTS = [
    StructField("count", DoubleType()),
    StructField("means", ArrayType(DoubleType())),
    StructField("covariance", ArrayType(DoubleType())),
]
# Moments of lagged samples of one segment of time.
LAGGED = StructType([*_KEY, StructField("segment", LongType()), *_MOMENTS])
# Moments of the pairs of one range of actions.
RANGES = StructType(
    [
        *_KEY,
        StructField("range", LongType()),
        StructField("is_test", LongType()),
        StructField("low", DoubleType()),
        StructField("high", DoubleType()),
        *_MOMENTS,
    ]
)
LAG_COLUMNS = [
    *(f"y{lag}" for lag in range(1, LAGS.measurements + 1)),
    *(f"u{lag}" for lag in range(1, LAGS.actions + 1)),
]
# In the order of `Lags`.
_LAGGED_ROW = [
    "next_y",
    "y",
    *(f"y{lag}" for lag in range(1, LAGS.measurements + 1)),
    "u",
    *(f"u{lag}" for lag in range(1, LAGS.actions + 1)),
]


class _Actions(NamedTuple):
    values: list[float]
    pairs: int
    changes: tuple[float, float]


def identify(samples: DataFrame) -> dict[str, Any]:
    """Return a plant for each loop and sample time in `samples`; runs of the same loop are combined.

    Two samples form a pair if the second follows the first in `sequence` and in the same run. Raises PipelineError if
    there are no samples.
    """
    require(samples, SAMPLES, "the samples")
    pairs = with_next(samples)
    actions = _actions(pairs)
    if not actions:
        raise PipelineError("there is no pair of samples to identify a plant with: give traces of a control loop")
    empty = LagMoments(FEW, ())
    lagged = _lag_moments(pairs, actions, LAGS)
    few = [key for key in actions if key not in lagged or lagged[key].total.count < LAGS.rows_needed]
    if few:
        wanted = samples.sparkSession.createDataFrame(few, "loop string, sample_time_s double")
        lagged |= _lag_moments(pairs.join(sf.broadcast(wanted), ["loop", "sample_time_s"]), actions, FEW)
    shapes = {key: structure_of(lagged.get(key, empty)) for key in actions}
    moments = _moments(samples.sparkSession, pairs, actions, shapes)
    plants = []
    for key in sorted(actions):
        own = moments[(moments["loop"] == key[0]) & (moments["sample_time_s"] == key[1])]
        evidence, shape = lagged.get(key, empty), shapes[key]
        plants.append(plant_of(_ranges(own, shape.order), evidence, shape, loop=key[0], sample_time_s=key[1]))
    return model_to_json(plants)


def lag_moments(samples: DataFrame) -> dict[Key, LagMoments]:
    """Return the moments of lagged samples of each loop and sample time.

    They are additive: those of further samples of the same loop are merged with `LagMoments.merge`.
    """
    require(samples, SAMPLES, "the samples")
    pairs = with_next(samples)
    return _lag_moments(pairs, _actions(pairs), LAGS)


def with_next(samples: DataFrame) -> DataFrame:
    """Return the pairs of successive samples: `y`, `u` and `next_y`, with the samples before them.

    `age` is the number of preceding samples without a gap; `y1` and `u1` are of the sample before, and so on.
    `change` is the difference to the next action, and `position` counts in the run.
    """
    # Each process numbers its own samples, from 0 after each start.
    run = ["run", "loop", "sample_time_s", "process", "started_us"]
    order = Window.partitionBy(*run).orderBy("sequence")
    # In samples without a gap the difference of sequence and position is constant.
    row = Window.partitionBy(*run, "row").orderBy("sequence")
    # The part that compensates for a measured disturbance does not move the measurement.
    samples = samples.withColumn("acted", sf.col("action") - sf.coalesce("feedforward", sf.lit(0.0)))
    lags = [
        *(sf.lag("measurement", lag).over(order).alias(f"y{lag}") for lag in range(1, LAGS.measurements + 1)),
        *(sf.lag("acted", lag).over(order).alias(f"u{lag}") for lag in range(1, LAGS.actions + 1)),
    ]
    return (
        samples.select(
            *run,
            "at_us",
            "sequence",
            sf.col("measurement").alias("y"),
            sf.col("acted").alias("u"),
            sf.lead("measurement").over(order).alias("next_y"),
            (sf.lead("acted").over(order) - sf.col("acted")).alias("change"),
            (sf.lead("sequence").over(order) - sf.col("sequence")).alias("step"),
            sf.row_number().over(order).alias("position"),
            *lags,
        )
        .withColumn("row", sf.col("sequence") - sf.col("position"))
        .withColumn("age", sf.row_number().over(row) - 1)
        .where("step = 1")
        .select("loop", "sample_time_s", "at_us", "y", "u", "next_y", "change", "position", "age", *LAG_COLUMNS)
    )


def _actions(pairs: DataFrame) -> dict[Key, _Actions]:
    """Return for each loop and sample time quantiles of the actions, and their smallest and largest change."""
    found = (
        pairs.groupBy("loop", "sample_time_s")
        .agg(
            sf.percentile_approx("u", quantiles(), 1000).alias("values"),
            sf.count("*").alias("pairs"),
            sf.min("change").alias("least"),
            sf.max("change").alias("largest"),
        )
        .collect()
    )
    return {
        (row["loop"], row["sample_time_s"]): _Actions(row["values"], row["pairs"], (row["least"], row["largest"]))
        for row in found
    }


def _lag_moments(pairs: DataFrame, actions: Mapping[Key, _Actions], lags: Lags) -> dict[Key, LagMoments]:
    columns = [_LAGGED_ROW[LAGS.y(lag)] for lag in range(-1, lags.measurements + 1)]
    columns += [_LAGGED_ROW[LAGS.u(lag)] for lag in range(lags.actions + 1)]
    own = Window.partitionBy("loop", "sample_time_s")
    place = sf.row_number().over(own.orderBy("at_us", "position")) - 1
    segment = sf.floor(place * MAX_SEGMENTS / sf.count("*").over(own)).alias("segment")
    rows = pairs.where(f"age >= {lags.reach}").select("loop", "sample_time_s", segment, *columns)
    by = ["loop", "sample_time_s", "segment"]

    def reduced(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for part in parts:
            found = [
                (*key, *_as_row(moments_of(group[columns].to_numpy(dtype=float).T)))
                for key, group in part.groupby(by)
            ]
            yield pd.DataFrame(found, columns=LAGGED.names)

    merging = _merging(len(by), LAGGED)
    found: dict[Key, list[Moments]] = {}
    for row in rows.mapInPandas(reduced, LAGGED).groupBy(*by).applyInPandas(merging, LAGGED).orderBy(*by).collect():
        found.setdefault((row["loop"], row["sample_time_s"]), []).append(_from_row(row.asDict()))
    return {key: LagMoments(lags, tuple(parts), actions[key].changes) for key, parts in found.items()}


def _moments(
    spark: SparkSession, pairs: DataFrame, actions: Mapping[Key, _Actions], shapes: Mapping[Key, Shape]
) -> pd.DataFrame:
    """Return RANGES: the moments for each loop's delay and order, per range of its actions."""
    known = spark.createDataFrame(
        [
            (*key, edges_of(own.values, own.pairs), shapes[key].delay, shapes[key].order)
            for key, own in actions.items()
        ],
        "loop string, sample_time_s double, edges array<double>, delay long, order long",
    )
    by = ["loop", "sample_time_s", "range", "is_test"]
    rows = (
        pairs.join(sf.broadcast(known), ["loop", "sample_time_s"])
        .withColumn("reach", sf.expr("delay + order - 1"))
        .where("age >= reach")
        .withColumn(
            "acting", sf.expr(f"element_at(array({', '.join(_LAGGED_ROW[LAGS.u(0) :])}), cast(delay + 1 as int))")
        )
        .withColumn("range", sf.expr("cast(size(filter(edges, edge -> acting >= edge)) as long)"))
        # Every third block of ten is for the test, not the last third of all: where the action sweeps, that would be
        # another part of the curve.
        .withColumn("is_test", sf.expr(f"cast((position - 1 - reach) div {BLOCK} % 3 = 2 as long)"))
        .select(*by, "acting", "delay", "order", *_LAGGED_ROW)
    )

    def reduced(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for part in parts:
            found = []
            for key, group in part.groupby(by):
                delay, order = int(group["delay"].iloc[0]), int(group["order"].iloc[0])
                values = group[_LAGGED_ROW].to_numpy(dtype=float).T
                acting = group["acting"]
                moments = moments_of(values[[*LAGS.regressors(delay, order), 0]])
                found.append((*key, float(acting.min()), float(acting.max()), *_as_row(moments)))
            yield pd.DataFrame(found, columns=RANGES.names)

    return rows.mapInPandas(reduced, RANGES).groupBy(*by).applyInPandas(_merging(len(by), RANGES), RANGES).toPandas()


def _merging(keys: int, schema: StructType) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Return a function that merges the rows of one group of moments."""
    names = schema.names

    def merge(rows: pd.DataFrame) -> pd.DataFrame:
        together = merged([_from_row(row) for row in rows.to_dict("records")])
        bounds = (rows["low"].min(), rows["high"].max()) if "low" in names else ()
        return pd.DataFrame([(*rows.iloc[0][names[:keys]], *bounds, *_as_row(together))], columns=names)

    return merge


def _ranges(rows: pd.DataFrame, order: int) -> list[Range]:
    """Return the ranges of one loop by their actions."""
    empty = nothing(2 * order + 1)
    found = [
        Range(
            float(own["low"].min()),
            float(own["high"].max()),
            *(
                merged([empty, *(_from_row(row) for row in own[own["is_test"] == part].to_dict("records"))])
                for part in (0, 1)
            ),
        )
        for _, own in rows.groupby("range", sort=True)
    ]
    return found or [Range(0.0, 0.0, empty, empty)]


def _as_row(moments: Moments) -> tuple[float, list[float], list[float]]:
    return moments.count, moments.means.tolist(), moments.covariance.ravel().tolist()


def _from_row(row: Mapping[Any, Any]) -> Moments:
    means: Numbers = np.array(row["means"], dtype=float)
    return Moments(float(row["count"]), means, np.array(row["covariance"], dtype=float).reshape(len(means), -1))
