"""The plant behind a control loop, from its samples: y(k+1) = a·y(k) + b·u(k) + c, for the design of controllers.

Spark reduces samples of any number to means and covariances per range of actions; all else is small and done here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from scipy import stats

from flyball.errors import PipelineError
from flyball.pipeline.schemas import SAMPLES, require

VERSION = 1
MOST_RANGES = 24
"""The actions are divided into so many ranges of about as many samples each, or into their levels if they are few."""
BLOCK = 10
"""Every third block of so many samples is kept for the test."""
FEWEST_PAIRS = 30
TOLERANCE_RATIO = 0.25
"""In the linear range no part may have a gain that differs by more from the gain of the whole."""
CONFIDENCE = 0.9
DOUBTS = 3.5
"""Standard errors beyond which a difference is taken for real: many are looked at, so two would be too few."""
LARGEST_CONDITION = 30.0
"""Above it y and u moved together too closely; it is a correlation of 0.935."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Moments:
    """How many pairs, and the means and covariances of y(k), u(k) and y(k+1)."""

    count: float
    means: Numbers
    covariance: Numbers


@dataclass(frozen=True, slots=True)
class Fit:
    """What least squares found, with the covariance of (a, b)."""

    a: float
    b: float
    offset: float
    covariance: Numbers
    freedom: int
    condition: float


@dataclass(frozen=True, slots=True)
class Range:
    """Pairs whose action lies between `low` and `high`: those to fit and those to test with."""

    low: float
    high: float
    fit: Moments
    test: Moments


def identify(samples: DataFrame) -> dict[str, Any]:
    """Return a plant for each loop and sample time in `samples`; runs of the same loop count together.

    Two samples make a pair if the second follows the first in `sequence` and in the same run. Raises PipelineError if
    there is no sample.
    """
    require(samples, SAMPLES, "the samples")
    pairs = with_next(samples)
    edges = _edges(pairs)
    if not edges:
        raise PipelineError("there is no pair of samples to identify a plant with: give traces of a control loop")
    moments = _moments(samples.sparkSession, pairs, edges)
    plants = [
        _plant(str(own["loop"].iloc[0]), float(own["sample_time_s"].iloc[0]), _ranges(own))
        for _, own in moments.groupby(["loop", "sample_time_s"], sort=True)
    ]
    return {"version": VERSION, "kind": "plant", "model": "y(k+1) = a y(k) + b u(k) + offset", "plants": plants}


def with_next(samples: DataFrame) -> DataFrame:
    """Return the pairs of successive samples: `y`, `u` and `next_y`, and `is_test` for those kept for the test.

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
            (sf.lead("sequence").over(order) - sf.col("sequence")).alias("step"),
            sf.row_number().over(order).alias("position"),
        )
        .where("step = 1")
        .select("loop", "sample_time_s", "y", "u", "next_y", (block % 3 == 2).alias("is_test"))
    )


def _edges(pairs: DataFrame) -> dict[tuple[str, float], list[float]]:
    """Return where ranges of actions begin, but the first, for each loop and sample time."""
    parts = [part / MOST_RANGES for part in range(MOST_RANGES)]
    found = (
        pairs.groupBy("loop", "sample_time_s").agg(sf.percentile_approx("u", parts, 1000).alias("edges")).collect()
    )
    return {(row["loop"], row["sample_time_s"]): sorted(set(row["edges"]))[1:] for row in found}


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
            merged([_row_moments(row) for row in own[~own["is_test"].astype(bool)].to_dict("records")]),
            merged([_row_moments(row) for row in own[own["is_test"].astype(bool)].to_dict("records")]),
        )
        for _, own in rows.groupby("range", sort=True)
    ]


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


def merged(parts: Sequence[Moments]) -> Moments:
    """Return the moments of all parts together."""
    count = sum(part.count for part in parts)
    if count == 0:
        return Moments(0.0, np.zeros(3), np.zeros((3, 3)))
    means = sum((part.count * part.means for part in parts), np.zeros(3)) / count
    shifted = [part.count * (part.covariance + np.outer(part.means - means, part.means - means)) for part in parts]
    return Moments(count, means, sum(shifted, np.zeros((3, 3))) / count)


def least_squares(moments: Moments) -> Fit | None:
    """Return a, b and the offset that fit best, or None if y or u never changed, or only together.

    The normal equations about the mean, with S1 = Σy², S2 = Σuy, S3 = Σu², S4 = Σy·y⁺ and S5 = Σu·y⁺ (y⁺ is y(k+1)):
    a = (S3·S4 - S2·S5) / (S1·S3 - S2²), b = (S1·S5 - S2·S4) / (S1·S3 - S2²). Seed 004 prints S5 as Σu(k)u(k+1),
    which is a misprint. The covariance of (a, b) is s² [[S1, S2], [S2, S3]]⁻¹ with s² = SSE / (n - 3).
    """
    (s1, s2, s4), (_, s3, s5), (_, _, total) = moments.covariance * moments.count
    determinant = s1 * s3 - s2 * s2
    if moments.count < 4 or determinant <= 1e-12 * s1 * s3:
        return None
    a = float((s3 * s4 - s2 * s5) / determinant)
    b = float((s1 * s5 - s2 * s4) / determinant)
    freedom = int(moments.count) - 3
    variance = max(total - a * s4 - b * s5, 0.0) / freedom
    covariance = variance / determinant * np.array([[s3, -s2], [-s2, s1]])
    correlation = min(float(abs(s2)) / math.sqrt(s1 * s3), 1 - 1e-15)
    y, u, next_y = moments.means
    return Fit(a, b, float(next_y - a * y - b * u), covariance, freedom, (1 + correlation) / (1 - correlation))


def errors_of(fit: Fit, moments: Moments) -> tuple[float, float | None]:
    """Return the RMSE of one-step predictions and R², which is None where y never changed."""
    weights = np.array([-fit.a, -fit.b, 1.0])
    mean = float(weights @ moments.means) - fit.offset
    square = max(float(weights @ moments.covariance @ weights), 0.0) + mean * mean
    variance = float(moments.covariance[2, 2])
    return math.sqrt(square), 1 - square / variance if variance > 0 else None


@dataclass(frozen=True, slots=True)
class Curve:
    """What each action adds to the next y besides a·y, whatever the shape; a is the one at constant action."""

    a: float
    a_error: float
    actions: Numbers
    values: Numbers
    errors: Numbers


def curve_of(ranges: Sequence[Range]) -> Curve:
    """Return the curve of a plant y⁺ = a·y + f(u).

    Inside a range f hardly changes, so a is found there from y and u less their means in the range, and f is what
    remains. A straight-line fit over a bent f would take the bend for memory.
    """
    parts = [one.fit for one in ranges if one.fit.count > 1]
    total = sum(part.count for part in parts)
    inside = sum((part.count * part.covariance for part in parts), np.zeros((3, 3)))
    # Scaled, so that the solution does not depend on units; where u stands still in each range only y is left.
    scale = np.sqrt(np.maximum(np.diag(inside)[:2], 1e-300))
    matrix = inside[:2, :2] / np.outer(scale, scale)
    solution = np.linalg.lstsq(matrix, inside[:2, 2] / scale, rcond=1e-9)[0] / scale
    a = float(solution[0])
    residual = max(float(inside[2, 2] - solution @ inside[:2, 2]), 0.0)
    variance = residual / max(total - len(parts) - 2, 1)
    inverse = np.linalg.pinv(matrix, rcond=1e-9)
    return Curve(
        a,
        math.sqrt(variance * inverse[0, 0]) / float(scale[0]),
        np.array([part.means[1] for part in parts]),
        np.array([part.means[2] - a * part.means[0] for part in parts]),
        np.sqrt(variance / np.array([part.count for part in parts])),
    )


def linear_range(curve: Curve) -> tuple[int, int] | None:
    """Return the first and last point of the curve's linear range, or None if there are too few or it has no slope.

    A range is linear if no part of it has a gain that surely differs by more than the tolerance from the gain of the
    whole. Of all such ranges with a gain that is surely not 0 it is the one over which the measurement changes most.
    """
    count = len(curve.actions)
    if count < 3:
        return None
    gains, doubts = _gains(curve)
    best, best_rise = None, 0.0
    for first in range(count - 1):
        for last in range(first + 1, count):
            gain = gains[first, last]
            inner, slack = gains[first : last + 1, first : last + 1], doubts[first : last + 1, first : last + 1]
            part = np.triu_indices(last - first + 1, 1)
            is_linear = bool((np.abs(inner - gain) <= TOLERANCE_RATIO * abs(gain) + slack)[part].all())
            rise = abs(gain) * (curve.actions[last] - curve.actions[first])
            if is_linear and abs(gain) > doubts[first, last] and rise > best_rise:
                best, best_rise = (first, last), rise
    return best


def _gains(curve: Curve) -> tuple[Numbers, Numbers]:
    """Return the slope of a line through the points i..j at [i, j], and how much of it may be chance."""
    count = len(curve.actions)
    gains, doubts = np.zeros((count, count)), np.zeros((count, count))
    weights = 1 / np.maximum(curve.errors, 1e-9 * max(np.abs(curve.values).max(), 1e-300)) ** 2
    for first in range(count):
        for last in range(first + 1, count):
            own = slice(first, last + 1)
            w, u, g = weights[own], curve.actions[own], curve.values[own]
            spread = u - np.average(u, weights=w)
            square = float((w * spread**2).sum())
            gains[first, last] = float((w * spread * g).sum()) / square
            doubts[first, last] = DOUBTS / math.sqrt(square)
    return gains, doubts


def _plant(loop: str, sample_time_s: float, ranges: Sequence[Range]) -> dict[str, Any]:
    usable = [one for one in ranges if one.fit.count > 1]
    pairs = int(sum(one.fit.count + one.test.count for one in ranges))
    about = {"loop": loop, "sample_time_s": sample_time_s, "pairs": pairs}
    if pairs < FEWEST_PAIRS:
        return {**about, "reason": f"{pairs} pairs of samples are too few, {FEWEST_PAIRS} are needed"}
    curve = curve_of(usable)
    chosen, linear = _linear(usable, curve)
    moments = merged([one.fit for one in chosen])
    fit = least_squares(moments)
    if fit is None:
        return {
            **about,
            "reason": "measurement and action stood still or moved in step: let the action change at random",
        }
    width = float(stats.t.ppf((1 + CONFIDENCE) / 2, fit.freedom))
    a_error, b_error = (math.sqrt(fit.covariance[i, i]) for i in (0, 1))
    y, u, _ = moments.means
    return {
        **about,
        "reason": None,
        "a": fit.a,
        "b": fit.b,
        "offset": fit.offset,
        "gain": fit.b / (1 - fit.a) if fit.a != 1 else None,
        "operating_point": {"action": float(u), "measurement": float(y)},
        "standard_errors": {"a": a_error, "b": b_error},
        "covariance": fit.covariance.tolist(),
        "degrees_of_freedom": fit.freedom,
        "confidence_ratio": CONFIDENCE,
        "intervals": {
            "a": [fit.a - width * a_error, fit.a + width * a_error],
            "b": [fit.b - width * b_error, fit.b + width * b_error],
        },
        "condition": fit.condition,
        "fit": _errors(fit, moments),
        "test": _errors(fit, merged([one.test for one in chosen])),
        "linear_range": linear,
        "curve": _points(usable, curve),
        "warnings": _warnings(fit, width, curve_of(chosen)),
    }


def _linear(ranges: Sequence[Range], curve: Curve) -> tuple[Sequence[Range], dict[str, Any]]:
    """Return the ranges to fit and what is known about the linear range; where it cannot be told, all of them."""
    found = linear_range(curve)
    first, last = found or (0, len(ranges) - 1)
    chosen = ranges[first : last + 1]
    reason = None
    if len(ranges) < 3:
        reason = f"the action took {len(ranges)} levels, at least 3 are needed to see a bend: all pairs are used"
    elif found is None:
        reason = "no range has a gain that is surely not 0: all pairs are used"
    elif sum(one.fit.count for one in chosen) < FEWEST_PAIRS:
        reason = "the linear range has too few pairs: all are used, the plant is bent"
        chosen = ranges
    return chosen, {
        "from": ranges[first].low,
        "until": ranges[last].high,
        "is_all": found == (0, len(ranges) - 1),
        "tolerance_ratio": TOLERANCE_RATIO,
        "reason": reason,
    }


def _errors(fit: Fit, moments: Moments) -> dict[str, Any]:
    if moments.count == 0:
        return {"pairs": 0, "rmse": None, "r2": None}
    rmse, r2 = errors_of(fit, moments)
    return {"pairs": int(moments.count), "rmse": rmse, "r2": r2}


def _points(ranges: Sequence[Range], curve: Curve) -> list[dict[str, Any]]:
    """Return the curve as points: where each action would settle, if the loop were left alone."""
    settles = abs(curve.a) < 1
    return [
        {
            "action": float(action),
            "measurement": float(value / (1 - curve.a)) if settles else None,
            "pairs": int(one.fit.count),
        }
        for one, action, value in zip(ranges, curve.actions, curve.values, strict=True)
    ]


def _warnings(fit: Fit, width: float, curve: Curve) -> list[str]:
    a_error, b_error = (math.sqrt(fit.covariance[i, i]) for i in (0, 1))
    found = []
    if fit.condition > LARGEST_CONDITION:
        found.append(
            "measurement and action moved together: the data hardly separate a from b;"
            " let the action change at random around the operating point"
        )
    if abs(fit.a - curve.a) > 0.1 + width * math.hypot(a_error, curve.a_error):
        found.append(
            f"a is {fit.a:.3g} along a straight line but {curve.a:.3g} at constant action: the curve is bent or the"
            " measurement is noisy, do not trust a and b; let the action change at random in a smaller range"
        )
    if abs(fit.b) <= width * b_error:
        found.append("the action has no effect that could be told from chance")
    if abs(fit.a) + width * a_error >= 1:
        found.append("a may be 1 or more: the plant may not settle by itself")
    return found
