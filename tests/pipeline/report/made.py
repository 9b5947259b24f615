"""Makes analyses as the pipeline would: tables with plausible numbers, from a seed, without Spark."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from flyball.pipeline.analysis import Analysis
from flyball.pipeline.manifest import Experiment, Measured, Run, View, cell_of
from flyball.pipeline.report.chapters import COLUMNS

KINDS = ("put", "take")
PHASE_SHARES = {"wait": 0.15, "parse": 0.02, "engine": 0.05, "store": 0.7, "emit": 0.08}
COMPONENT_SHARES = {"socket": 0.25, "worker": 0.05, "persistence": 0.7}

MORE_COLUMNS = {"series": ("response_ms",)}

Rows = dict[str, list[dict[str, Any]]]


def experiment(
    name: str = "thorbangmq/clients",
    title: str = "Number of clients",
    factors: Mapping[str, Sequence[Any]] | None = None,
    views: Sequence[View] = (),
    repetitions: int = 2,
    **more: Any,
) -> Experiment:
    """Return the description of an experiment over the number of clients, by default."""
    levels = {"workload.clients": [1, 4, 16, 64]} if factors is None else dict(factors)
    count = repetitions * int(np.prod([len(values) for values in levels.values()]))
    facts = {
        "about": "How throughput grows until the store is busy.",
        "source": "ThorBangMQ report, table 8",
        "run_count": count,
    }
    return Experiment(
        name,
        title,
        factors={key: list(values) for key, values in levels.items()},
        repetitions=repetitions,
        views=list(views),
        **{**facts, **more},
    )


def analysis(
    *experiments: Experiment,
    seconds: int = 20,
    speed: float = 1.0,
    references: bool = True,
    queue: str = "orders",
    models: Mapping[str, dict[str, Any]] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Analysis:
    """Return what the pipeline would find for these experiments; `speed` multiplies throughput.

    `changes` are fields of every run to replace.
    """
    rows: Rows = {name: [] for name in COLUMNS}
    runs: list[Run] = []
    random = np.random.default_rng(7)
    for one in experiments:
        for levels in itertools.product(*one.factors.values()):
            factors = dict(zip(one.factors, levels, strict=True))
            means: list[dict[tuple[str, str, str], float]] = []
            for repetition in range(1, one.repetitions + 1):
                slug = ".".join([one.name.replace("/", "-"), *(f"{level}" for level in levels)]).lower()
                run = _run(one, f"{slug}.r{repetition}", factors, repetition, seconds, changes or {})
                runs.append(run)
                means.append(_fill(rows, run.run, factors, seconds, speed, queue, random))
            _fill_cells(rows, one, factors, means)
        if references:
            _fill_references(rows, one)
        _fill_effects(rows, one)
    return Analysis(list(experiments), runs, _tables(rows), dict(models or {}))


def traces(*names: str, seconds: int = 30) -> Analysis:
    """Return what the pipeline finds in folders of nodes' own traces, which belong to no experiment."""
    rows: Rows = {name: [] for name in COLUMNS}
    random = np.random.default_rng(7)
    for name in names or ("",):
        _fill(rows, name, {}, seconds, 1.0, "orders", random, sources=("nodes",))
    return Analysis([], [], _tables(rows), {})


def _tables(rows: Rows) -> dict[str, pd.DataFrame]:
    return {
        name: pd.DataFrame(found, columns=[*COLUMNS[name], *MORE_COLUMNS.get(name, ())])
        for name, found in rows.items()
    }


def _run(
    one: Experiment, name: str, factors: dict[str, Any], repetition: int, seconds: int, changes: Mapping[str, Any]
) -> Run:
    start_us = 1_760_000_000_000_000
    clients = int(factors.get("workload.clients", 16))
    facts: dict[str, Any] = {
        "experiment": one.name,
        "factors": factors,
        "repetition": repetition,
        "seed": 42 + repetition,
        "is_quick": one.is_quick,
        "target": {"kind": "flyball", "version": "0.1.0", "nodes": 1, "settings": {"trace_most_per_s": 1000}},
        "workload": {"kind": "send_and_pop", "protocol": "thorbang", "clients": clients, "body_bytes": 5},
        "clients": {"count": clients, "workers": 1, "busiest_cpu_ratio": 0.4, "cpu_s": 3.1, "are_bottleneck": False},
        "nodes": [{"name": "node-1", "cpu_s": 1.2, "store_cpu_s": 0.8, "peak_bytes": 80 << 20}],
        "checks": {"calls": 1000 * clients, "failed": 0, "lost": 0, "doubled": 0},
        "environment": {"python": "3.11.7", "platform": "Linux", "cpu_count": 2, "flyball": "0.1.0"},
        "started_at": "2026-01-01T10:00:00Z",
        "ended_at": "2026-01-01T10:01:00Z",
    }
    return Run(name, Measured(start_us, start_us + seconds * 1_000_000), **{**facts, **changes})


def _fill(
    rows: Rows,
    run: str,
    factors: Mapping[str, Any],
    seconds: int,
    speed: float,
    queue: str,
    random: np.random.Generator,
    sources: Sequence[str] = ("clients", "nodes"),
) -> dict[tuple[str, str, str], float]:
    """Add the rows of one run, and return its means by source, metric and kind."""
    clients = float(factors.get("workload.clients", 16))
    scale = float(factors.get("target.nodes", 1)) ** 0.8 * (1.5 if factors.get("target.store") == "memory" else 1.0)
    most = 4000.0 * speed * scale
    throughput = most * clients / (clients + 10) * random.normal(1, 0.02)
    response_ms = 1000 * clients / throughput
    means: dict[tuple[str, str, str], float] = {}
    for source in sources:
        seen_ms = response_ms if source == "clients" else response_ms * 0.8
        for kind, share in (("all", 1.0), ("put", 0.5), ("take", 0.5)):
            kind_ms = seen_ms * {"all": 1.0, "put": 1.2, "take": 0.8}[kind]
            means[source, "throughput", kind] = throughput * share
            means[source, "response", kind] = kind_ms
            rows["measures"].append(
                _measure(run, source, "throughput", kind, "1/s", throughput * share, 0.05, seconds)
            )
            rows["measures"].append(_measure(run, source, "response", kind, "ms", kind_ms, 0.6, 1000))
        for kind in KINDS:
            counted = _throughput(run, source, kind, queue, throughput / 2, seconds, random)
            rows["throughput"] += counted
            rows["series"] += [{**row, "response_ms": row["requests"] * seen_ms} for row in counted]
            rows["histogram"] += _histogram(run, source, kind, seen_ms, throughput / 2 * seconds)
    if "clients" in sources:
        means["clients", "network", "all"] = response_ms * 0.2
    for phase, share in (PHASE_SHARES | COMPONENT_SHARES).items():
        for kind, size in (("put", 1.2), ("take", 0.8)):
            mean_ms = response_ms * 0.8 * share * size
            quantiles = dict(
                zip(("p5_ms", "p50_ms", "p95_ms", "p99_ms"), mean_ms * np.array([0.3, 0.9, 2, 3]), strict=True)
            )
            facts = {"run": run, "node": "node-1", "kind": kind, "phase": phase, "requests": 500}
            rows["phases"].append({**facts, "mean_ms": mean_ms, "sd_ms": mean_ms / 2, **quantiles})
    rows["laws"].append(_law(run, "Little's law", clients, clients * 1.01))
    rows["laws"].append(_law(run, "interactive response-time law", response_ms, response_ms * 0.98))
    return means


def _measure(
    run: str, source: str, metric: str, kind: str, unit: str, mean: float, spread: float, n: int
) -> dict[str, Any]:
    names = ("run", "source", "metric", "kind", "unit", "n", "mean", "sd", "half_width", "low", "high")
    facts = (
        run,
        source,
        metric,
        kind,
        unit,
        n,
        mean,
        mean * spread,
        mean * spread / 5,
        -mean * spread,
        mean * spread * 2,
    )
    above = {"p50": 0.9, "p90": 1.5, "p95": 2.0, "p99": 3.0, "p999": 6.0, "max": 12.0}
    return dict(zip(names, facts, strict=True)) | {name: mean * size for name, size in above.items()}


def _throughput(
    run: str, source: str, kind: str, queue: str, per_s: float, seconds: int, random: np.random.Generator
) -> list[dict[str, Any]]:
    names = ("run", "source", "place", "kind", "queue", "second", "requests", "messages")
    counts = random.poisson(per_s, seconds)
    return [
        dict(zip(names, (run, source, "node-1", kind, queue, second, int(count), int(count)), strict=True))
        for second, count in enumerate(counts)
    ]


def _histogram(run: str, source: str, kind: str, mean_ms: float, requests: float) -> list[dict[str, Any]]:
    bounds = mean_ms * np.geomspace(0.1, 20, 121)
    weights = np.exp(-((np.log(bounds[:-1] / mean_ms)) ** 2) / 0.5)
    counts = np.round(requests * weights / weights.sum())
    return [
        {"run": run, "source": source, "kind": kind, "low_ms": low, "high_ms": high, "requests": int(count)}
        for low, high, count in zip(bounds[:-1], bounds[1:], counts, strict=True)
    ]


def _law(run: str, law: str, expected: float, measured: float) -> dict[str, Any]:
    error = measured / expected - 1
    says = f"expected {expected:.1f}, measured {measured:.1f}"
    facts = (run, law, expected, measured, error, abs(error) < 0.1, says, 0.1)
    return dict(zip(COLUMNS["laws"], facts, strict=True))


def _fill_cells(
    rows: Rows, one: Experiment, factors: Mapping[str, Any], means: Sequence[Mapping[tuple[str, str, str], float]]
) -> None:
    for (source, metric, kind), first in means[0].items():
        values = [found[source, metric, kind] for found in means]
        mean = float(np.mean(values))
        half_width = first * 0.05 if len(values) == 1 else float(_student(len(values)) * np.std(values, ddof=1))
        unit = "1/s" if metric == "throughput" else "ms"
        facts = (one.name, cell_of(factors), source, metric, kind, unit, len(values), mean, half_width)
        row = dict(zip(COLUMNS["cells"], facts, strict=False))
        rows["cells"].append({**row, "low": -0.4 * mean, "high": 0.9 * mean})


def _student(count: int) -> float:
    """Return half of the 90 % interval of a mean, in standard deviations of the values."""
    return float(stats.t.ppf(0.95, count - 1)) / float(np.sqrt(count))


def _fill_references(rows: Rows, one: Experiment) -> None:
    mine = [row for row in rows["cells"] if row["experiment"] == one.name and row["kind"] == "all"]
    for row in mine:
        if row["source"] == "clients" and row["metric"] in ("throughput", "response") and json.loads(row["cell"]):
            theirs = row["mean"] * (0.2 if row["metric"] == "throughput" else 5)
            facts = (one.name, "table 8", *(row[name] for name in ("cell", "source", "metric", "kind", "unit")))
            ours = (row["mean"], row["low"], row["high"])
            values = (*ours, theirs, -0.15 * theirs, 0.15 * theirs, row["mean"] / theirs)
            rows["references"].append(dict(zip(COLUMNS["references"], (*facts, *values), strict=True)))


def _fill_effects(rows: Rows, one: Experiment) -> None:
    if len(one.factors) == 2 and all(len(levels) == 2 for levels in one.factors.values()):
        first, second = one.factors
        for term, effect, share in ((first, 410.0, 0.8), (second, 90.0, 0.15), (f"{first}:{second}", -8.0, 0.01)):
            facts = (one.name, "throughput", term, effect, effect - 20, effect + 20, share)
            rows["effects"].append(dict(zip(COLUMNS["effects"], facts, strict=True)))
