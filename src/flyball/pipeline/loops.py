"""The performance of control loops: the deviation of each from its goal, and its settling after a disturbance.

Settling and overshoot are defined in `flyball.control`; the set-up of a run is in the lab's `run.json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType, StructField, StructType

from flyball.control.assessment import Part, assess_parts
from flyball.pipeline.events import CLIENTS
from flyball.pipeline.identify import identify
from flyball.pipeline.intervals import batch_means
from flyball.pipeline.latency import ALL
from flyball.pipeline.manifest import Run
from flyball.pipeline.measures import COLUMNS as MEASURE_COLUMNS
from flyball.pipeline.measures import LOOP_UNITS
from flyball.pipeline.schemas import SAMPLES, require, table

# A row of LOOPS combines several samples of a longer loop.
MOST_POINTS = 2000

# The loop of admission control. Its goal moves continuously, and policies without a goal have samples as well, so
# `policies` evaluates it, not this module.
ADMISSION = "admission"

# Each process of a loop numbers its samples from its start.
_ORDER = ("started_us", "process", "sequence")

_TEXT, _WHOLE, _REAL, _TRUTH = StringType(), LongType(), DoubleType(), BooleanType()

# A loop over time: `at_s` counts from the start of the measured time. `answer` is the measurement after the action,
# null if the next sample is missing.
LOOPS = table(
    run=_TEXT,
    loop=_TEXT,
    is_closed=_TRUTH,
    at_s=_REAL,
    samples=_WHOLE,
    setpoint=_REAL,
    measurement=_REAL,
    low=_REAL,
    high=_REAL,
    action=_REAL,
).add(StructField("answer", _REAL))

# A row for each loop of each run, or for each part of it between two disturbances. A value that cannot be determined
# is null.
CLOSED_LOOPS = StructType(
    [
        StructField("broker", _TEXT),
        StructField("controller", _TEXT),
        StructField("gains", _TEXT),
        StructField("actuator", _TEXT),
        StructField("goal", _REAL),
        StructField("mean", _REAL),
        StructField("std", _REAL),
        StructField("settling_samples", _WHOLE),
        StructField("overshoot", _REAL),
        StructField("experiment", _TEXT),
        StructField("run", _TEXT),
        StructField("repetition", _WHOLE),
        StructField("loop", _TEXT),
        StructField("part", _WHOLE),
        StructField("disturbance", _TEXT),
        StructField("from_s", _REAL),
        StructField("samples", _WHOLE),
        StructField("sample_time_s", _REAL),
        StructField("half_width", _REAL),
    ]
)


@dataclass(frozen=True, slots=True)
class _Facts:
    """The description of a loop in the manifest of its run."""

    broker: str = ""
    # The loop's own name if the manifest has none.
    controller: str = ""
    gains: str = ""
    actuator: str = ""
    experiment: str = ""
    repetition: int = 1


@dataclass(frozen=True, slots=True)
class _Plan:
    """The measured time of a run, and the samples after which it was disturbed."""

    facts: _Facts = _Facts()
    from_us: int = 0
    until_us: int = 1 << 62
    disturbances: tuple[tuple[int, str], ...] = ()


def closed_loops(samples: DataFrame, runs: Sequence[Run]) -> DataFrame:
    """Convert SAMPLES to CLOSED_LOOPS; loops that were open for identification are omitted.

    A part starts where the goal changes or the run's schedule has a disturbance. Its settling and overshoot count
    from there, for the first part from the start of the loop. Mean and deviation are of the steady state, as defined
    by `assess`, within the measured time. `from_s` is the time of the part's disturbance, one sample before it is
    visible.
    """
    require(samples, SAMPLES, "the samples")
    plans = {run.run: _plan(run) for run in runs}

    def found(own: pd.DataFrame) -> pd.DataFrame:
        return _rows(own.sort_values(list(_ORDER)), plans.get(str(own["run"].iloc[0]), _Plan()))

    closed = with_is_closed(samples, runs).where("is_closed").drop("is_closed")
    return closed.groupBy("run", "loop").applyInPandas(found, CLOSED_LOOPS)


def loops(samples: DataFrame, runs: Sequence[Run]) -> DataFrame:
    """Convert SAMPLES to LOOPS, at most MOST_POINTS for each loop."""
    require(samples, SAMPLES, "the samples")
    own = Window.partitionBy("run", "loop")
    order = own.orderBy(*_ORDER)
    begun_us = sf.coalesce("from_us", sf.min("at_us").over(own))
    is_next = sf.lead("sequence").over(order) == sf.col("sequence") + 1
    return (
        with_is_closed(samples, runs)
        .join(sf.broadcast(_begins(samples, runs)), "run", "left")
        .withColumns(
            {
                "at_s": (sf.col("at_us") - begun_us) / 1e6,
                "answer": sf.when(is_next, sf.lead("measurement").over(order)),
                "point": sf.expr(
                    f"(row_number() over (partition by run, loop order by {', '.join(_ORDER)}) - 1)"
                    f" div ceil(count(*) over (partition by run, loop) / {MOST_POINTS}D)"
                ),
            }
        )
        .groupBy("run", "loop", "is_closed", "point")
        .agg(
            sf.min("at_s").alias("at_s"),
            sf.count("*").alias("samples"),
            sf.avg("setpoint").alias("setpoint"),
            sf.avg("measurement").alias("measurement"),
            sf.min("measurement").alias("low"),
            sf.max("measurement").alias("high"),
            sf.avg("action").alias("action"),
            sf.avg("answer").alias("answer"),
        )
        .orderBy("run", "loop", "point")
        .select(*LOOPS.names)
    )


def with_is_closed(samples: DataFrame, runs: Sequence[Run]) -> DataFrame:
    """Add `is_closed` to SAMPLES: whether a controller acted, not a test signal for identification.

    If the manifest does not specify it, a loop with a goal, a setpoint above 0, is closed.
    """
    said = {run.run: run.workload["signal"] == "closed" for run in runs if "signal" in run.workload}
    known = samples.sparkSession.createDataFrame(list(said.items()), "run string, is_said_closed boolean")
    own = Window.partitionBy("run", "loop")
    # Samples of versions before 0.1 do not have a mode.
    said_by_loop = sf.max(
        sf.expr("case when mode in ('shadow', 'active') then true when mode = 'open' then false end")
    ).over(own)
    has_goal = sf.coalesce(said_by_loop, sf.max("setpoint").over(own) > 0)
    return samples.join(sf.broadcast(known), "run", "left").select(
        *samples.columns, sf.coalesce("is_said_closed", has_goal).alias("is_closed")
    )


def plants(samples: DataFrame, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the result of `identify`, separately for each cell of an experiment whose loops were open.

    Closed loops carry little information about the plant, so runs with a controller are omitted; of the others only
    the measured time counts. Raises PipelineError if there are no samples to identify a plant with.
    """
    opened = [run for run in runs if run.workload.get("signal", "closed") != "closed"]
    closed = [run.run for run in runs if run.workload.get("signal") == "closed"]
    cells = list(dict.fromkeys((run.experiment, run.cell) for run in opened))
    first = {key: next(run for run in opened if (run.experiment, run.cell) == key) for key in cells}
    rows = [
        (run.run, f"{cells.index((run.experiment, run.cell))}", run.measured.from_us, run.measured.until_us)
        for run in opened
    ]
    known = samples.sparkSession.createDataFrame(rows, "run string, cell string, from_us bigint, until_us bigint")
    # A loop in another cell has the same name but another plant.
    named = sf.concat_ws("\n", sf.coalesce("cell", sf.lit("")), "loop")
    usable = samples.where(~sf.col("run").isin(closed)) if closed else samples
    model = identify(
        usable.join(sf.broadcast(known), "run", "left")
        .where("from_us is null or from_us <= 0 or (at_us >= from_us and at_us < until_us)")
        .withColumn("loop", named)
        .select(*samples.columns)
    )
    found = []
    for plant in model["plants"]:
        cell, _, loop = plant["loop"].partition("\n")
        found.append({**_about(first[cells[int(cell)]] if cell else None), **plant, "loop": loop})
    return {**model, "plants": found}


def loop_measures(closed: pd.DataFrame) -> pd.DataFrame:
    """Return rows of the table `measures` for CLOSED_LOOPS: LOOP_UNITS of each run, until its first disturbance.

    Only for experiments: their loops control messages per second.
    """
    first = closed[(closed["part"] == 1) & (closed["experiment"] != "")]
    columns = {
        "loop_mean": "mean",
        "loop_std": "std",
        "loop_settling": "settling_samples",
        "loop_overshoot": "overshoot",
    }
    rows = [
        {
            "run": row["run"],
            "source": CLIENTS,
            "metric": metric,
            "kind": ALL,
            "unit": LOOP_UNITS[metric],
            "n": row["samples"],
            "mean": row[column],
            **({"sd": row["std"], "half_width": row["half_width"]} if metric == "loop_mean" else {}),
        }
        for row in first.to_dict("records")
        for metric, column in columns.items()
    ]
    found = pd.DataFrame(rows, columns=list(MEASURE_COLUMNS))
    return found.astype({"n": "int64", **dict.fromkeys(MEASURE_COLUMNS[6:], "float64")})


def gains_of(law: Mapping[str, Any]) -> str:
    """Return the parameters of a law as `kp=0.0016 ki=0.006`; for a long list only its length."""
    return " ".join(f"{name}={_short(value)}" for name, value in law.items() if name not in ("kind", "as", "label"))


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(_short, value)) if len(value) <= 4 else f"({len(value)} values)"
    return str(value)


def _about(run: Run | None) -> dict[str, Any]:
    if run is None:
        return {}
    return {"experiment": run.experiment, "target": str(run.target.get("kind", "")), "factors": run.factors}


def _plan(run: Run) -> _Plan:
    workload = run.workload
    law = workload.get("law_used") or workload.get("law") or {}
    label = next((run.factors[name] for name in run.factors if name.rpartition(".")[2] == "controller"), None)
    facts = _Facts(
        broker=str(run.target.get("kind", "")),
        controller=str(label or law.get("kind", "")),
        gains=gains_of(law),
        actuator=str(workload.get("actuator", "")),
        experiment=run.experiment,
        repetition=run.repetition,
    )
    return _Plan(facts, run.measured.from_us, run.measured.until_us, _disturbances(workload.get("schedule") or ()))


def _disturbances(schedule: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, str], ...]:
    """Return times and descriptions of changes other than of the goal, which the samples record."""
    found = []
    for entry in schedule:
        changes = [
            f"{name.removesuffix('_ratio')} × {value:g}" for name, value in entry.items() if name.endswith("_ratio")
        ]
        if changes:
            found.append((int(entry["at_sample"]), ", ".join(changes)))
    return tuple(sorted(found))


def _begins(samples: DataFrame, runs: Sequence[Run]) -> DataFrame:
    rows = [(run.run, run.measured.from_us) for run in runs]
    return samples.sparkSession.createDataFrame(rows, "run string, from_us bigint")


def _rows(own: pd.DataFrame, plan: _Plan) -> pd.DataFrame:
    """Return CLOSED_LOOPS of one loop from its ordered samples."""
    begun_us = plan.from_us or int(own["at_us"].iloc[0])
    own = own[(own["at_us"] < plan.until_us) & (own["setpoint"] > 0)]
    # A change after a sample is first visible in the next one.
    sequence = own["sequence"].to_numpy()
    disturbances = [(int(np.searchsorted(sequence, after, "right")), says) for after, says in plan.disturbances]
    goals = own["setpoint"].tolist()
    warm_up = int((own["at_us"] < plan.from_us).sum())
    parts = assess_parts(own["measurement"].tolist(), goals, [row for row, _ in disturbances], warm_up=warm_up)
    rows = []
    for number, part in enumerate(parts, 1):
        is_new_goal = part.start > 0 and part.setpoint != goals[part.start - 1]
        begun_by = [f"goal {part.setpoint:g}"] if is_new_goal else []
        begun_by += [says for row, says in disturbances if row == part.start]
        rows.append(
            {
                **asdict(plan.facts),
                **_held(part, own["measurement"].to_numpy(dtype=float)),
                "controller": plan.facts.controller or own["loop"].iloc[0],
                "run": own["run"].iloc[0],
                "loop": own["loop"].iloc[0],
                "part": number,
                "disturbance": ", ".join(begun_by),
                "from_s": round((int(own["at_us"].iloc[max(part.start - 1, 0)]) - begun_us) / 1e6, 3),
                "sample_time_s": float(own["sample_time_s"].iloc[part.start]),
            }
        )
    return pd.DataFrame(rows, columns=CLOSED_LOOPS.names).astype({"settling_samples": "Int64"})


def _held(part: Part, measurements: npt.NDArray[np.float64]) -> dict[str, Any]:
    figures = part.figures
    steady = measurements[part.start + figures.steady_from : part.end]
    return {
        "goal": part.setpoint,
        "mean": _rounded(figures.mean),
        "std": _rounded(figures.std if steady.size > 1 else math.nan),
        "settling_samples": figures.settling_samples,
        "overshoot": _rounded(figures.overshoot),
        "samples": steady.size,
        "half_width": _rounded(batch_means(steady).half_width if steady.size else math.nan),
    }


def _rounded(value: float) -> float:
    """Return the value with six significant digits: more are noise."""
    return float(f"{value:.6g}")
