"""Runs of an application under policies of admission, as the lab leaves them: calls of two classes and samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.pipeline.traces import START_US, Row, call, sample, write_calls, write_experiment, write_run, write_samples

KEYS = {"GET /items/{item_id}": "small", "GET /": "small", "GET /about-me": "large"}
KAPPA = 10.0
# A small request costs 3 ms on average, a large one ten times as much.
PROFILE = {
    "version": 1,
    "kind": "profile",
    "unit": "ms",
    "keys": {
        "GET /items/{item_id}": {"mean": 4.0, "requests": 300},
        "GET /": {"mean": 0.0, "requests": 100},
        "GET /about-me": {"mean": 30.0, "requests": 50},
    },
}


def site_call(kind: str, at_s: float, result: str = "ok", response_ms: float = 10.0) -> Row:
    """One call of a client, which begins `at_s` after the run."""
    key = next(key for key, found in KEYS.items() if found == kind)
    return call(
        kind=kind,
        protocol="http",
        role="normal",
        queue=key,
        result=result,
        intended_us=START_US + round(at_s * 1e6),
        response_ns=round(response_ms * 1e6),
    )


def load_samples(loads: Sequence[float], r: float = 0.0, sample_time_s: float = 0.25) -> list[Row]:
    """Samples of the loop `admission`, from the beginning of the measured time on."""
    return [
        sample(
            loop="admission",
            at_us=START_US + round(number * sample_time_s * 1e6),
            sample_time_s=sample_time_s,
            setpoint=r,
            measurement=float(load),
            action=r or float(load),
            sequence=number + 1,
        )
        for number, load in enumerate(loads)
    ]


def write_site_run(
    folder: Path,
    run: str,
    policy: str,
    clients: int,
    calls: Sequence[Row],
    samples: Sequence[Row],
    *,
    length_s: float = 10.0,
    experiment: str = "admission/clients",
    repetition: int = 1,
    factors: Mapping[str, Any] | None = None,
    **workload: Any,
) -> Path:
    """Make a complete run of a policy in the folder of its experiment; return its own."""
    facts = {"kind": "auction", "protocol": "http", "clients": clients, "profile": PROFILE, "classes": KEYS}
    made = write_run(
        folder,
        run,
        length_s=length_s,
        experiment=experiment,
        factors=factors or {"policy": policy, "workload.clients": clients},
        repetition=repetition,
        target={"kind": "auction", "settings": {"policy": policy}},
        workload={**facts, **workload},
        clients={"count": clients, "workers": 1, "busiest_cpu_ratio": 0.3},
        checks={"calls": len(calls), "failed": 0},
    )
    numbered = [{**row, "sequence": number} for number, row in enumerate(calls)]
    write_calls(made / "traces" / "calls-worker-1-1.parquet", numbered)
    if samples:
        write_samples(made / "traces" / "samples-node-1-1.parquet", samples)
    return made


def write_site_experiment(folder: Path, name: str = "admission/clients", **facts: Any) -> Path:
    """Describe an experiment on policies; return its folder."""
    usual = {"title": "Policies over clients", "factors": {"policy": ["none", "dps"], "workload.clients": [100, 200]}}
    return write_experiment(folder, name, **{**usual, "run_count": 0, **facts})


def random_calls(
    random: np.random.Generator, length_s: float, rates: Mapping[tuple[str, str], tuple[float, float]]
) -> list[Row]:
    """Calls at random times: by class and result, how many a second and their median response in ms."""
    rows = []
    for (kind, result), (per_s, median_ms) in rates.items():
        count = random.poisson(per_s * length_s)
        ends = np.sort(random.uniform(0, length_s, count))
        for end_s, took_ms in zip(ends, random.lognormal(np.log(median_ms), 0.6, count), strict=True):
            took = min(took_ms, 8000.0)
            rows.append(site_call(kind, max(end_s - took / 1e3, -10.0), result, took))
    return rows
