"""The comparison of admission policies: the small and large requests that each admitted, and the resulting load.

Works on calls of the kinds `small` and `large` and on the samples of the loop `admission`. The policies are
implemented elsewhere; the set-up of a run is in the lab's `run.json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType

from flyball.pipeline.events import CLIENTS, PLACED, point_of_window
from flyball.pipeline.intervals import Interval, batch_means
from flyball.pipeline.latency import BUCKETS_PER_E, quantile_columns
from flyball.pipeline.loops import ADMISSION
from flyball.pipeline.manifest import Run
from flyball.pipeline.measures import place_of, whole_points
from flyball.pipeline.schemas import SAMPLES, require, table

SMALL, LARGE = "small", "large"
CLASSES = (SMALL, LARGE)

# The policy that admits everything.
UNCONTROLLED = "none"

RESULTS = ("ok", "refused", "failed")

_TEXT, _WHOLE, _REAL = StringType(), LongType(), DoubleType()

# Results and durations of the calls in the measured time: `bucket` and `most_ms` are those of SPREAD.
ANSWERS = table(
    run=_TEXT,
    kind=_TEXT,
    second=_WHOLE,
    result=_TEXT,
    bucket=IntegerType(),
    requests=_WHOLE,
    sum_ms=_REAL,
    most_ms=_REAL,
)

# For each class and second. Times are of calls that were not refused, null without any.
RESPONSE_OVER_TIME = table(
    run=_TEXT,
    kind=_TEXT,
    second=_WHOLE,
    ok=_WHOLE,
    refused=_WHOLE,
    failed=_WHOLE,
    mean_ms=_REAL,
    p50_ms=_REAL,
    p95_ms=_REAL,
)

# Sums over the samples of the loop `admission` in each second of the measured time.
LOADS = table(run=_TEXT, second=_WHOLE, samples=_WHOLE, load=_REAL, load2=_REAL, setpoint=_REAL)

# The load, in cost/s, that was not exceeded in `ratio` of all samples.
LOAD_CDF = table(run=_TEXT, ratio=_REAL, load=_REAL)

# Number of steps of the CDF of the load.
LOAD_STEPS = 200

_KEYS = ("policy", "clients")
_TIMES = ("p50", "p95", "p99")

# Of the table `policies`: a row for each run.
COLUMNS = (
    *(*_KEYS, "goodput", "errors"),
    *("p50_small", "p99_small", "p50_large", "p99_large"),
    *("load_mean", "load_std", "r"),
)

# Of the table `policy_runs`: COLUMNS and further ones. Ratios are of calls, of a class or of both.
RUN_COLUMNS = (
    *("experiment", "run", "repetition", *_KEYS, "calls"),
    *("goodput", "goodput_half_width", "errors", "errors_half_width", "refused", "failed"),
    *(f"{name}_{kind}" for kind in CLASSES for name in ("goodput", "admitted", "failed", *_TIMES, "mean")),
    *(f"mean_{kind}_half_width" for kind in CLASSES),
    *("load_mean", "load_half_width", "load_std", "r", "kappa"),
)


def compared_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs whose manifest specifies which requests are small and which are large."""
    return [run for run in runs if run.workload.get("classes")]


def answers(events: DataFrame, runs: Sequence[Run]) -> DataFrame:
    """Count PLACED events of the measured time as ANSWERS: the only pass over calls."""
    require(events, PLACED, "the table of placed events")
    is_asked = sf.col("run").isin([run.run for run in runs]) & sf.col("kind").isin(*CLASSES)
    return (
        events.where((sf.col("source") == CLIENTS) & is_asked)
        .groupBy(
            "run",
            "kind",
            "second",
            "result",
            sf.expr(f"cast(ln(latency_ns + 1) * {BUCKETS_PER_E} as int)").alias("bucket"),
        )
        .agg(
            sf.sum("weight").alias("requests"),
            sf.expr("sum(cast(latency_ns as double) * weight) / 1e6D").alias("sum_ms"),
            sf.expr("max(latency_ns) / 1e6D").alias("most_ms"),
        )
        .select(*ANSWERS.names)
    )


def response_over_time(counted: DataFrame) -> DataFrame:
    """Convert ANSWERS to RESPONSE_OVER_TIME. A second without calls has no row."""
    require(counted, ANSWERS, "the table of answers")
    by = ("run", "kind", "second")
    ended = counted.groupBy(*by).agg(
        *(sf.expr(f"sum(if(result = '{name}', requests, 0L))").alias(name) for name in RESULTS)
    )
    taken = _waited(counted).groupBy(*by).agg(sf.sum("sum_ms").alias("sum_ms"), *quantile_columns())
    times = taken.select(*by, sf.expr("sum_ms / requests").alias("mean_ms"), "p50_ms", "p95_ms")
    return ended.join(times, list(by), "left").orderBy(*by).select(*RESPONSE_OVER_TIME.names)


def class_percentiles(counted: DataFrame) -> DataFrame:
    """Convert ANSWERS to percentiles of each run and class: the response times of calls that were not refused."""
    require(counted, ANSWERS, "the table of answers")
    return _waited(counted).groupBy("run", "kind").agg(*quantile_columns())


def _waited(counted: DataFrame) -> DataFrame:
    # Refusals are not response times. A time-out is: the client has waited that long.
    return counted.where("result != 'refused'")


def loads(samples: DataFrame, runs: Sequence[Run]) -> DataFrame:
    """Convert SAMPLES to LOADS."""
    return (
        _measured(samples, runs)
        .groupBy("run", sf.expr("(at_us - from_us) div (point_s * 1000000) * point_s").alias("second"))
        .agg(
            sf.count("*").alias("samples"),
            sf.sum("measurement").alias("load"),
            sf.expr("sum(measurement * measurement)").alias("load2"),
            sf.sum("setpoint").alias("setpoint"),
        )
        .orderBy("run", "second")
        .select(*LOADS.names)
    )


def load_cdf(samples: DataFrame, runs: Sequence[Run]) -> DataFrame:
    """Convert SAMPLES to LOAD_CDF, LOAD_STEPS + 1 points of each run."""
    ratios = ", ".join(f"{step / LOAD_STEPS}D" for step in range(LOAD_STEPS + 1))
    found = (
        _measured(samples, runs).groupBy("run").agg(sf.expr(f"percentile(measurement, array({ratios}))").alias("q"))
    )
    return (
        found.select("run", sf.posexplode("q").alias("step", "load"))
        .select("run", (sf.col("step") / sf.lit(float(LOAD_STEPS))).alias("ratio"), "load")
        .orderBy("run", "ratio")
        .select(*LOAD_CDF.names)
    )


def _measured(samples: DataFrame, runs: Sequence[Run]) -> DataFrame:
    """Keep the samples of the loop `admission` in the measured time, and add its start."""
    require(samples, SAMPLES, "the samples")
    rows = [(run.run, run.measured.from_us, run.measured.until_us) for run in runs]
    known = samples.sparkSession.createDataFrame(rows, "run string, from_us bigint, until_us bigint")
    inside = "at_us >= from_us and at_us < until_us"
    return (
        samples.where(sf.col("loop") == ADMISSION)
        .join(sf.broadcast(known.select("*", point_of_window())), "run")
        .where(inside)
    )


def policy_runs(
    over_time: pd.DataFrame, percentiles: pd.DataFrame, loads: pd.DataFrame, runs: Sequence[Run]
) -> pd.DataFrame:
    """Return the table `policy_runs`, with RUN_COLUMNS, from RESPONSE_OVER_TIME, percentiles of classes and LOADS.

    A run in which no call ended has no row. A value that cannot be determined is NaN.
    """
    shapes = {(row["run"], row["kind"]): row for row in percentiles.to_dict("records")}
    rows = []
    for run in runs:
        own = over_time[over_time["run"] == run.run]
        if own.empty:
            continue
        about = {"experiment": run.experiment, "run": run.run, "repetition": run.repetition, "kappa": kappa_of(run)}
        row = {**about, "policy": policy_of(run), "clients": clients_of(run)}
        row |= _ended(own, run)
        for kind in CLASSES:
            row |= _of_class(own[own["kind"] == kind], kind, shapes.get((run.run, kind), {}), run)
        rows.append(row | _load(loads[loads["run"] == run.run]))
    found = pd.DataFrame(rows, columns=list(RUN_COLUMNS)).sort_values(["experiment", *_KEYS, "repetition", "run"])
    numbers = [name for name in RUN_COLUMNS[5:] if name != "calls"]
    return found.astype(dict.fromkeys(numbers, float)).map(_rounded).reset_index(drop=True)


def policies(of_runs: pd.DataFrame) -> pd.DataFrame:
    """Return the table `policies`, with COLUMNS: a row for each of `policy_runs`."""
    return of_runs[list(COLUMNS)].reset_index(drop=True)


def policy_of(run: Run) -> str:
    """Return the name of the policy of a run."""
    settings = run.target.get("settings") or {}
    return str(run.factors.get("policy") or settings.get("policy") or UNCONTROLLED)


def clients_of(run: Run) -> int:
    """Return the initial number of clients of a run; its schedule may change it."""
    return int(run.workload.get("clients") or run.clients.get("count") or 0)


def kappa_of(run: Run) -> float:
    """Return the cost of a large request in small ones, by the profile that the run used, or NaN."""
    keys = (run.workload.get("profile") or {}).get("keys") or {}
    classes = run.workload.get("classes") or {}
    small, large = (
        _mean_cost([keys[key] for key, kind in classes.items() if kind == name and key in keys]) for name in CLASSES
    )
    return large / small if small > 0 else math.nan


def _mean_cost(keys: Sequence[Mapping[str, Any]]) -> float:
    requests = sum(key["requests"] for key in keys)
    return sum(key["mean"] * key["requests"] for key in keys) / requests if requests else math.nan


def _ended(own: pd.DataFrame, run: Run) -> dict[str, Any]:
    """Return the results of the calls of all classes."""
    by_second = own.groupby("second")[list(RESULTS)].sum()
    calls = int(by_second.to_numpy().sum())
    errors = by_second["refused"] + by_second["failed"]
    # Seconds in which no call ended have no error ratio, but count as zero goodput.
    ratio = batch_means(errors.to_numpy(float), by_second.sum(axis=1).to_numpy(float))
    return {
        "calls": calls,
        "goodput": by_second["ok"].sum() / _length_s(run),
        "goodput_half_width": _per_second(by_second["ok"], run).half_width,
        "errors": ratio.mean,
        "errors_half_width": ratio.half_width,
        "refused": by_second["refused"].sum() / calls,
        "failed": by_second["failed"].sum() / calls,
    }


def _of_class(own: pd.DataFrame, kind: str, shape: Mapping[Any, Any], run: Run) -> dict[str, Any]:
    calls, answered = int(own[list(RESULTS)].to_numpy().sum()), own["ok"] + own["failed"]
    waited = own[answered > 0]
    count = answered[answered > 0].to_numpy(float)
    mean = (
        batch_means(waited["mean_ms"].to_numpy(float) * count, count) if len(waited) else Interval(math.nan, math.nan)
    )
    return {
        f"goodput_{kind}": own["ok"].sum() / _length_s(run),
        f"admitted_{kind}": 1 - own["refused"].sum() / calls if calls else math.nan,
        f"failed_{kind}": own["failed"].sum() / calls if calls else math.nan,
        **{f"{name}_{kind}": shape.get(f"{name}_ms", math.nan) for name in _TIMES},
        f"mean_{kind}": mean.mean,
        f"mean_{kind}_half_width": mean.half_width,
    }


def _load(own: pd.DataFrame) -> dict[str, float]:
    count = float(own["samples"].sum())
    if not count:
        return {}
    found = batch_means(own["load"].to_numpy(float), own["samples"].to_numpy(float))
    # Rounding can make a variance of nearly 0 negative.
    variance = max(float(own["load2"].sum()) - count * found.mean**2, 0.0) / max(count - 1, 1.0)
    setpoint = float(own["setpoint"].sum()) / count
    return {
        "load_mean": found.mean,
        "load_half_width": found.half_width,
        "load_std": math.sqrt(variance),
        "r": setpoint if setpoint > 0 else math.nan,
    }


def _per_second(counts: pd.Series[Any], run: Run) -> Interval:
    count, length_s = whole_points(run.measured.from_us, run.measured.until_us)
    places = place_of(counts.index.to_series(), length_s).to_numpy(dtype=int)
    is_inside = (places >= 0) & (places < count)
    filled = np.zeros(count)
    filled[places[is_inside]] = counts.to_numpy(dtype=float)[is_inside]
    return batch_means(filled / max(length_s, 1.0))


def _length_s(run: Run) -> float:
    return (run.measured.until_us - run.measured.from_us) / 1e6


def _rounded(value: Any) -> Any:
    """Return a number with six significant digits: more are noise."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
