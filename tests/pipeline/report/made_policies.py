"""Makes analyses of policies of admission as the pipeline would: a site that collapses, and policies that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from flyball.pipeline.analysis import Analysis
from flyball.pipeline.manifest import Experiment, Measured, Run, View
from flyball.pipeline.report.chapters import COLUMNS

START_US = 1_760_000_000_000_000
LENGTH_S = 30
R = 1000.0

SCHEDULE = [
    {"at_s": 0, "clients": 200, "small_clients": 0},
    {"at_s": 100, "clients": 200, "small_clients": 100},
    {"at_s": 200, "clients": 400, "small_clients": 100},
]

Row = dict[str, Any]


def collapsing(clients: int, most: int = 150) -> Row:
    """A site without control: fine until it has more than `most` clients."""
    if clients <= most:
        return {"goodput": 0.8 * clients, "p99_small": 100.0}
    return {"goodput": 20.0, "failed": 0.6, "p99_small": 8000.0, "load_std": 2000.0}


def controlled(clients: int) -> Row:
    """A site that refuses what is too much, as the law says for κ = 10: of small ones a half, of large ones 1/11."""
    if clients <= 150:
        return {"goodput": 0.8 * clients, "r": R}
    return {"goodput": 118.0, "refused": 0.5, "r": R, "admitted_small": 0.5, "admitted_large": 1 / 11}


def compared(
    policies: Sequence[str] = ("none", "dps"),
    clients: Sequence[int] = (50, 150, 200, 400),
    *,
    repetitions: int = 1,
    views: Sequence[View] = (),
    changes: Mapping[str, Row] | None = None,
    schedule: Sequence[Row] = (),
) -> Analysis:
    """Policies with each number of clients; `changes` are figures of a policy to replace."""
    factors: dict[str, list[Any]] = {"policy": list(policies), "workload.clients": list(clients)}
    experiment = Experiment(
        "admission/clients", "Clients", factors=factors, repetitions=repetitions, views=list(views)
    )
    runs, rows, cdf, seconds, loops = [], [], [], [], []
    random = np.random.default_rng(3)
    for policy in policies:
        for count in clients:
            for repetition in range(1, repetitions + 1):
                run = _run(policy, count, repetition, schedule)
                found = collapsing(count) if policy == "none" else controlled(count)
                row = _row(run, policy, count, {**found, **(changes or {}).get(policy, {})})
                runs.append(run)
                rows.append(row)
                loads = np.sort(random.normal(row["load_mean"], row["load_std"], 201).clip(0))
                cdf.append(pd.DataFrame({"run": run.run, "ratio": np.linspace(0, 1, 201), "load": loads}))
                seconds += [_second(run.run, kind, at, row) for kind in ("small", "large") for at in range(LENGTH_S)]
                loops.append(_samples(run.run, row, random))
    tables = {
        "policy_runs": pd.DataFrame(rows, columns=list(COLUMNS["policy_runs"])),
        "load_cdf": pd.concat(cdf),
        "response_over_time": pd.DataFrame(seconds, columns=list(COLUMNS["response_over_time"])),
        "loops": pd.concat(loops)[list(COLUMNS["loops"])],
    }
    return Analysis([experiment], runs, tables)


def _run(policy: str, clients: int, repetition: int, schedule: Sequence[Row]) -> Run:
    return Run(
        f"{policy}.{clients}.r{repetition}",
        Measured(START_US, START_US + LENGTH_S * 1_000_000),
        experiment="admission/clients",
        factors={"policy": policy, "workload.clients": clients},
        repetition=repetition,
        target={"kind": "auction", "settings": {"policy": policy}},
        workload={"kind": "auction", "clients": clients, "schedule": list(schedule), "time_scale": 0.1},
    )


def _row(run: Run, policy: str, clients: int, figures: Row) -> Row:
    usual = dict.fromkeys(COLUMNS["policy_runs"][5:], 1.0) | {"refused": 0.0, "failed": 0.0, "r": float("nan")}
    times = {f"{name}_large": value for name, value in (("p50", 80.0), ("p95", 300.0), ("p99", 500.0))}
    small = {"p50_small": 10.0, "p95_small": 30.0, "p99_small": 50.0}
    load = {"load_mean": R, "load_std": 100.0, "kappa": 10.0}
    row = {**usual, **times, **small, **load, **figures}
    about = {"experiment": run.experiment, "run": run.run, "repetition": run.repetition}
    return {**row, **about, "policy": policy, "clients": clients, "errors": row["refused"] + row["failed"]}


def _second(run: str, kind: str, at: int, row: Row) -> Row:
    mean = row[f"p50_{kind}"] + at
    return {"run": run, "kind": kind, "second": at, "ok": 9, "refused": 1, "failed": 1, "mean_ms": mean}


def _samples(run: str, row: Row, random: np.random.Generator) -> pd.DataFrame:
    count = LENGTH_S * 4
    loads = random.normal(row["load_mean"], row["load_std"], count).clip(0)
    setpoint = row["r"] if row["r"] > 0 else 0.0
    facts = {"run": run, "loop": "admission", "is_closed": setpoint > 0, "at_s": np.arange(count) / 4, "samples": 1}
    return pd.DataFrame(
        {
            **facts,
            "setpoint": setpoint,
            "measurement": loads,
            "low": loads,
            "high": loads,
            "action": loads,
            "answer": loads,
        }
    )
