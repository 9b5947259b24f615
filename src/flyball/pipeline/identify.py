"""The plants behind control loops, from their samples: for the design of controllers.

Spark reduces samples of any number to means and covariances per range of actions; `flyball.control` does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from flyball.control.identification import is_one_way, plant_of
from flyball.control.moments import BLOCK, Moments, Range, edges_of, merged, nothing, quantiles
from flyball.control.plant import model_to_json
from flyball.errors import PipelineError
from flyball.pipeline.schemas import SAMPLES, require


class _Actions(NamedTuple):
    edges: list[float]
    is_one_way: bool


def identify(samples: DataFrame) -> dict[str, Any]:
    """Return a plant for each loop and sample time in `samples`; runs of the same loop count together.

    Two samples make a pair if the second follows the first in `sequence` and in the same run. Raises PipelineError if
    there is no sample.
    """
    require(samples, SAMPLES, "the samples")
    pairs = with_next(samples)
    actions = _actions(pairs)
    if not actions:
        raise PipelineError("there is no pair of samples to identify a plant with: give traces of a control loop")
    moments = _moments(samples.sparkSession, pairs, {key: own.edges for key, own in actions.items()})
    plants = []
    for _, own in moments.groupby(["loop", "sample_time_s"], sort=True):
        loop, sample_time_s = str(own["loop"].iloc[0]), float(own["sample_time_s"].iloc[0])
        one_way = actions[loop, sample_time_s].is_one_way
        plants.append(plant_of(_ranges(own), loop=loop, sample_time_s=sample_time_s, is_one_way=one_way))
    return model_to_json(plants)


def with_next(samples: DataFrame) -> DataFrame:
    """Return the pairs of successive samples: `y`, `u` and `next_y`, and `is_test` for those kept for the test.

    `change` says by how much the next action differs.

    Every third block of ten is for the test, not the last third of all: where the action sweeps, that would be
    another part of the curve.
    """
    order = Window.partitionBy("run", "loop", "sample_time_s").orderBy("sequence")
    block = sf.expr(f"(position - 1) div {BLOCK}")
    return (
        samples.select(
            "loop",
            "sample_time_s",
            sf.col("measurement").alias("y"),
            sf.col("action").alias("u"),
            sf.lead("measurement").over(order).alias("next_y"),
            (sf.lead("action").over(order) - sf.col("action")).alias("change"),
            (sf.lead("sequence").over(order) - sf.col("sequence")).alias("step"),
            sf.row_number().over(order).alias("position"),
        )
        .where("step = 1")
        .select("loop", "sample_time_s", "y", "u", "next_y", "change", (block % 3 == 2).alias("is_test"))
    )


def _actions(pairs: DataFrame) -> dict[tuple[str, float], _Actions]:
    """Return for each loop and sample time where ranges of actions begin, and whether they went but one way."""
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
        (row["loop"], row["sample_time_s"]): _Actions(
            edges_of(row["values"], row["pairs"]), is_one_way(row["least"], row["largest"])
        )
        for row in found
    }


def _moments(spark: SparkSession, pairs: DataFrame, edges: Mapping[tuple[str, float], list[float]]) -> pd.DataFrame:
    rows = [(loop, sample_time_s, inner) for (loop, sample_time_s), inner in edges.items()]
    known = spark.createDataFrame(rows, "loop string, sample_time_s double, edges array<double>")
    names = ("y", "u", "next_y")
    products = [
        sf.covar_pop(one, other).alias(f"{one}*{other}") for i, one in enumerate(names) for other in names[i:]
    ]
    return (
        pairs.join(sf.broadcast(known), ["loop", "sample_time_s"])
        .withColumn("range", sf.expr("size(filter(edges, edge -> u >= edge))"))
        .groupBy("loop", "sample_time_s", "range", "is_test")
        .agg(
            sf.count("*").alias("count"),
            sf.min("u").alias("low"),
            sf.max("u").alias("high"),
            *(sf.avg(name).alias(name) for name in names),
            *products,
        )
        .toPandas()
    )


def _ranges(rows: pd.DataFrame) -> list[Range]:
    """Return the ranges of one loop by their actions."""
    return [
        Range(
            float(own["low"].min()),
            float(own["high"].max()),
            _part(own[~own["is_test"].astype(bool)]),
            _part(own[own["is_test"].astype(bool)]),
        )
        for _, own in rows.groupby("range", sort=True)
    ]


def _part(rows: pd.DataFrame) -> Moments:
    return merged([nothing(), *(_row_moments(row) for row in rows.to_dict("records"))])


def _row_moments(row: Mapping[Any, Any]) -> Moments:
    upper = {
        (0, 0): "y*y",
        (0, 1): "y*u",
        (0, 2): "y*next_y",
        (1, 1): "u*u",
        (1, 2): "u*next_y",
        (2, 2): "next_y*next_y",
    }
    covariance = np.array([[row[upper[min(i, j), max(i, j)]] for j in range(3)] for i in range(3)], dtype=float)
    return Moments(float(row["count"]), np.array([row["y"], row["u"], row["next_y"]], dtype=float), covariance)
