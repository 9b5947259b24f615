"""Makes analyses of control loops as the pipeline would: controllers that hold their goal and one that does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from flyball.pipeline.analysis import Analysis
from flyball.pipeline.manifest import Experiment, Measured, Run, View
from flyball.pipeline.report.chapters import COLUMNS

START_US = 1_760_000_000_000_000
CLOSED, OPEN = "prefetch/closed", "prefetch/open"
# The mean and the deviation of each controller.
HELD = {"λ-PI": (400.0, 12.0), "P, printed": (262.0, 128.0)}
PUBLISHED = {"P, printed": (414.37, 216.09)}

Row = dict[str, Any]


def closed(
    brokers: Sequence[str] = ("rabbitmq", "flyball"),
    controllers: Mapping[str, tuple[float, float]] = HELD,
    *,
    repetitions: int = 1,
    parts: Sequence[tuple[str, float]] = (("", 400.0),),
    length: int = 60,
    views: Sequence[View] = (),
) -> Analysis:
    """Closed loops of each controller on each broker; `parts` are disturbances and the goals after them."""
    factors: dict[str, list[Any]] = {"target.kind": list(brokers), "controller": list(controllers)}
    experiment = Experiment(
        CLOSED, "Closed loops", factors=factors, repetitions=repetitions, views=list(views), run_count=0
    )
    random = np.random.default_rng(5)
    runs, loops, rows = [], [], []
    for broker in brokers:
        for controller, held in controllers.items():
            for repetition in range(1, repetitions + 1):
                cell = {"target.kind": broker, "controller": controller}
                run = _run(CLOSED, f"{broker}.{controller}.r{repetition}", cell, repetition, broker, "closed")
                runs.append(run)
                loops.append(_samples(run.run, parts, length, held, random))
                rows += [_part(run, number, part, length, held) for number, part in enumerate(parts, 1)]
    tables = {
        "loops": pd.concat(loops),
        "closed_loops": pd.DataFrame(rows, columns=list(COLUMNS["closed_loops"])).astype(
            {"settling_samples": "Int64"}
        ),
        "references": pd.DataFrame(_references(runs), columns=list(COLUMNS["references"])),
    }
    return Analysis([experiment], runs, tables)


def held_open(signals: Sequence[str] = ("staircase", "prbs"), levels: int = 12, **plant: Any) -> Analysis:
    """Open loops of each signal, whose plant is y = 80 u."""
    experiment = Experiment(OPEN, "Open loops", factors={"workload.signal": list(signals)}, repetitions=1)
    random = np.random.default_rng(5)
    runs, loops, plants = [], [], []
    for signal in signals:
        run = _run(OPEN, f"open.{signal}", {"workload.signal": signal}, 1, "rabbitmq", signal)
        runs.append(run)
        actions = random.choice(np.linspace(1, 12, levels), 200)
        answers = 80 * actions + random.normal(0, 20, 200)
        loops.append(_frame(run.run, is_closed=False, setpoint=0.0, measurement=np.roll(answers, 1), action=actions))
        loops[-1]["answer"] = answers
        plants.append(_plant(run, **plant))
    model = {"version": 1, "kind": "plant", "model": "y(k+1) = a y(k) + b u(k) + offset", "plants": plants}
    return Analysis([experiment], runs, {"loops": pd.concat(loops)}, {"model": model})


def _run(experiment: str, name: str, factors: Row, repetition: int, broker: str, signal: str) -> Run:
    return Run(
        name,
        Measured(START_US, START_US + 60_000_000),
        experiment=experiment,
        factors=factors,
        repetition=repetition,
        target={"kind": broker},
        workload={"kind": "adaptive", "protocol": "amqp", "signal": signal, "actuator": "fractional"},
    )


def _frame(run: str, **columns: Any) -> pd.DataFrame:
    count = len(columns["action"])
    facts = {"run": run, "loop": "orders", "at_s": np.arange(count) - 5.0, "samples": 1, "answer": np.nan}
    found = pd.DataFrame({**facts, **columns})
    return found.assign(low=found["measurement"], high=found["measurement"])[list(COLUMNS["loops"])]


def _samples(
    run: str,
    parts: Sequence[tuple[str, float]],
    length: int,
    held: tuple[float, float],
    random: np.random.Generator,
) -> pd.DataFrame:
    goals = np.repeat([goal for _, goal in parts], length)
    measured = goals * held[0] / 400 + random.normal(0, held[1], goals.size)
    return _frame(run, is_closed=True, setpoint=goals, measurement=measured, action=goals / 80)


def _part(run: Run, number: int, part: tuple[str, float], length: int, held: tuple[float, float]) -> Row:
    disturbance, goal = part
    return {
        "broker": run.target["kind"],
        "controller": run.factors["controller"],
        "gains": "kp=0.00087 ki=0.00248",
        "actuator": "fractional",
        "goal": goal,
        "mean": goal * held[0] / 400,
        "std": held[1],
        "settling_samples": 3 + run.repetition if held[1] < 30 else None,
        "overshoot": 0.05,
        "experiment": run.experiment,
        "run": run.run,
        "repetition": run.repetition,
        "loop": "orders",
        "part": number,
        "disturbance": disturbance,
        "from_s": (number - 1) * length - 5.0,
        "samples": length - 10,
        "sample_time_s": 1.0,
        "half_width": held[1] / 5,
    }


def _references(runs: Sequence[Run]) -> list[Row]:
    rows = []
    for cell, factors in {run.cell: run.factors for run in runs}.items():
        if factors["controller"] in PUBLISHED:
            for metric, theirs in zip(("loop_mean", "loop_std"), PUBLISHED[factors["controller"]], strict=True):
                facts = {
                    "experiment": CLOSED,
                    "label": "prefetch paper",
                    "cell": cell,
                    "source": "clients",
                    "kind": "all",
                }
                rows.append({**facts, "metric": metric, "unit": "1/s", "ours": 1.0, "theirs": theirs})
    return rows


def _plant(run: Run, **changes: Any) -> Row:
    plant = {
        "experiment": run.experiment,
        "target": "rabbitmq",
        "factors": run.factors,
        "loop": "orders",
        "sample_time_s": 1.0,
        "pairs": 199,
        "reason": None,
        "a": 0.02,
        "b": 78.4,
        "offset": 0.0,
        "intervals": {"a": [-0.01, 0.05], "b": [76.0, 80.8]},
        "test": {"pairs": 66, "rmse": 20.0, "r2": 0.97},
        "linear_range": {"from": 1.0, "until": 10.0, "is_all": False, "tolerance_ratio": 0.25, "reason": None},
        "curve": [],
        "warnings": ["measurement and action moved together"] if "staircase" in run.run else [],
    }
    return plant | changes
