"""Divides an analysis into chapters: one per experiment, and one for traces without one.

A chapter holds its part of every table, with the cell of each run; it is independent of HTML and plots.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from flyball.pipeline.manifest import Experiment, Run, cell_of
from flyball.pipeline.report.formatting import ALL, cell_name, factor_names, level, target_name

if TYPE_CHECKING:
    # For type annotations only: the module loads Spark.
    from flyball.pipeline.analysis import Analysis

CLIENTS = "clients"
NODES = "nodes"

# The loop of admission control, which has its own plots and tables.
ADMISSION = "admission"

_BY_RUN = (
    *("throughput", "series", "histogram", "phases", "measures", "laws", "loops", "closed_loops"),
    *("policy_runs", "load_cdf", "response_over_time"),
    *("queue_over_time", "placement", "provisioning", "scaling"),
)
_BY_EXPERIMENT = ("cells", "effects", "references")


@dataclass(frozen=True)
class Chapter:
    """One experiment with its runs and its part of the tables."""

    number: int
    title: str
    experiment: Experiment | None
    runs: Sequence[Run]
    # From a run to its cell: the JSON text of its factors.
    cell_of: Mapping[str, str]
    tables: Mapping[str, pd.DataFrame]
    # The plants identified from its open loops, as in `model.json`.
    plants: Sequence[Mapping[str, Any]] = ()

    @property
    def name(self) -> str:
        """Return the name of the experiment on the command line; empty for traces without one."""
        return self.experiment.name if self.experiment else ""

    @property
    def anchor(self) -> str:
        return f"experiment-{self.number}"

    @property
    def subject(self) -> str:
        """Return the names of its targets."""
        return ", ".join(dict.fromkeys(target_name(run.target) for run in self.runs if run.target.get("kind"))) or (
            "Flyball"
        )

    @property
    def is_open(self) -> bool:
        """Whether messages were sent at a given rate: then throughput is an input, and latency the result."""
        return bool(self.runs) and all(
            any(run.workload.get(name) for name in ("rate_per_s", "rate_curve")) for run in self.runs
        )

    @property
    def has_loops(self) -> bool:
        """Whether control loops other than admission control recorded samples."""
        return bool((self.tables["loops"]["loop"] != ADMISSION).any())

    @property
    def has_admission(self) -> bool:
        """Whether admission control recorded its samples."""
        return bool((self.tables["loops"]["loop"] == ADMISSION).any())

    @property
    def has_policies(self) -> bool:
        """Whether policies of admission were compared."""
        return not self.tables["policy_runs"].empty

    @cached_property
    def factors(self) -> list[str]:
        """The factors that differ between the cells, in the experiment's order."""
        found: dict[str, set[str]] = {name: set() for name in self.experiment.factors} if self.experiment else {}
        for factors in self.cells.values():
            for name, value in factors.items():
                found.setdefault(name, set()).add(json.dumps(value))
        return [name for name, values in found.items() if len(values) > 1]

    @cached_property
    def cells(self) -> dict[str, dict[str, Any]]:
        """The factors of each cell, in the order of the experiment's levels."""
        texts = set(self.cell_of.values()) | set(self.tables["cells"].get("cell", pd.Series(dtype=str)))
        parsed = {text: dict(json.loads(text)) for text in texts}
        return dict(sorted(parsed.items(), key=lambda item: self._place(item[1])))

    @cached_property
    def names(self) -> dict[str, str]:
        """Short names of all factors."""
        return factor_names({name: None for factors in self.cells.values() for name in factors})

    def cell_name(self, cell: str) -> str:
        """Return the label of a cell: the factors that distinguish it from the others."""
        factors = self.cells.get(cell) or json.loads(cell)
        return cell_name({name: factors[name] for name in self.factors if name in factors}, self.names)

    def line_name(self, factors: Mapping[str, Any], x: str | None, first: str | None = None) -> str:
        """Return the label of a line over `x`: the factors on no axis, `first` before them."""
        others = [name for name in self.factors if name != x and name in factors]
        ordered = sorted(others, key=lambda name: name != first)
        return ", ".join(f"{self.names[name]} {level(factors[name])}" for name in ordered)

    def metric(self, metric: str, source: str, kind: str = ALL) -> pd.DataFrame:
        """Return the cells' rows of one metric, in the order of the cells."""
        rows = self.tables["cells"]
        found = rows[(rows["metric"] == metric) & (rows["source"] == source) & (rows["kind"] == kind)]
        order = {cell: place for place, cell in enumerate(self.cells)}
        return found.sort_values("cell", key=lambda cells: cells.map(order))

    def source_of(self, metric: str, wanted: str = CLIENTS) -> str:
        """Return the source that measured a metric: the wanted one, or another one if that has no data."""
        rows = self.tables["cells"]
        found = sorted(set(rows.loc[rows["metric"] == metric, "source"]))
        return wanted if wanted in found or not found else str(found[0])

    def kinds(self, metric: str, source: str) -> list[str]:
        """Return the kinds of requests that a metric is known for, without `all`."""
        rows = self.tables["cells"]
        found = rows[(rows["metric"] == metric) & (rows["source"] == source)]
        return sorted(set(found["kind"]) - {ALL})

    def _place(self, factors: Mapping[str, Any]) -> list[tuple[int, int, float, str]]:
        return [_rank(self.experiment, name, factors[name]) for name in self._all_factors(factors)]

    def _all_factors(self, factors: Mapping[str, Any]) -> list[str]:
        named = list(self.experiment.factors) if self.experiment else []
        return [name for name in named if name in factors] + sorted(set(factors) - set(named))


def chapters_of(analysis: Analysis) -> list[Chapter]:
    """Return a chapter for each experiment, and a last one for runs that belong to none of them."""
    known = {experiment.name for experiment in analysis.experiments}
    found: list[Chapter] = []
    for experiment, runs in _as_they_happened(analysis):
        cells = {run.run: run.cell for run in runs}
        tables = _tables_of(analysis, cells)
        for name in _BY_EXPERIMENT:
            table = _table(analysis, name)
            tables[name] = table[table["experiment"] == experiment.name] if "experiment" in table else table
        title = experiment.title or experiment.name
        plants = _plants(analysis, experiment.name)
        found.append(Chapter(len(found) + 1, title, experiment, runs, cells, tables, plants))
    other_runs = [run for run in analysis.runs if run.experiment not in known]
    others = _runs_in_tables(analysis) - {run for chapter in found for run in chapter.cell_of}
    if others:
        found.append(_chapter_of_traces(analysis, len(found) + 1, sorted(others), other_runs))
    return found


def _as_they_happened(analysis: Analysis) -> list[tuple[Experiment, list[Run]]]:
    """Return experiments with their runs, ordered by the start of their first run; those not run are last."""
    found = [(one, [run for run in analysis.runs if run.experiment == one.name]) for one in analysis.experiments]
    # The sort is stable: experiments without known times keep their order.
    return sorted(found, key=lambda pair: min((run.started_at for run in pair[1] if run.started_at), default="~"))


def _chapter_of_traces(analysis: Analysis, number: int, names: list[str], runs: Sequence[Run]) -> Chapter:
    cells = {name: cell_of({"run": name} if len(names) > 1 else {}) for name in names}
    tables = _tables_of(analysis, cells)
    tables["cells"] = _cells_of_measures(tables["measures"])
    for name in ("effects", "references"):
        tables[name] = _table(analysis, name).iloc[:0]
    return Chapter(number, "Traces", None, runs, cells, tables, _plants(analysis, ""))


def _cells_of_measures(measures: pd.DataFrame) -> pd.DataFrame:
    columns = ["cell", "source", "metric", "kind", "unit", "mean", "half_width", "low", "high"]
    return measures[columns].assign(experiment="", repetitions=1)


def _tables_of(analysis: Analysis, cells: Mapping[str, str]) -> dict[str, pd.DataFrame]:
    tables = {name: _table(analysis, name) for name in _BY_RUN}
    mine = {name: table[table["run"].isin(list(cells))] for name, table in tables.items()}
    return {name: table.assign(cell=table["run"].map(dict(cells))) for name, table in mine.items()}


def _runs_in_tables(analysis: Analysis) -> set[str]:
    names = ("measures", "throughput", "loops")
    return {str(run) for name in names for run in _table(analysis, name)["run"].unique()}


def _plants(analysis: Analysis, experiment: str) -> list[Mapping[str, Any]]:
    found = analysis.models.get("model", {}).get("plants", [])
    return [plant for plant in found if plant.get("experiment", "") == experiment]


def _table(analysis: Analysis, name: str) -> pd.DataFrame:
    """Return a table of the analysis, or one without rows if the stage that makes it had no input."""
    found = analysis.tables.get(name)
    return pd.DataFrame(columns=list(COLUMNS[name])) if found is None else found


def _rank(experiment: Experiment | None, name: str, value: object) -> tuple[int, int, float, str]:
    """Order levels as the experiment lists them; others by size, then by text."""
    levels = list(experiment.factors.get(name, ())) if experiment else []
    if value in levels:
        return (0, levels.index(value), 0.0, "")
    if isinstance(value, int | float):
        return (1, 0, float(value), "")
    return (2, 0, 0.0, str(value))


# The tables that a report reads, and their columns; `series` also has sums of times, such as `response_ms`.
COLUMNS = {
    "throughput": ("run", "source", "place", "kind", "queue", "second", "requests", "messages"),
    "series": ("run", "source", "kind", "second", "requests"),
    "histogram": ("run", "source", "kind", "low_ms", "high_ms", "requests"),
    "phases": (
        *("run", "node", "kind", "phase", "requests", "mean_ms", "sd_ms"),
        *("p5_ms", "p50_ms", "p95_ms", "p99_ms"),
    ),
    "measures": (
        *("run", "source", "metric", "kind", "unit", "n", "mean", "sd", "half_width", "low", "high"),
        *("p50", "p90", "p95", "p99", "p999", "max"),
    ),
    "laws": ("run", "law", "expected", "measured", "error_ratio", "holds", "says", "tolerance_ratio"),
    "loops": (
        *("run", "loop", "is_closed", "at_s", "samples", "setpoint", "measurement", "low", "high", "action"),
        "answer",
    ),
    "closed_loops": (
        *("broker", "controller", "gains", "actuator", "goal", "mean", "std", "settling_samples", "overshoot"),
        *("experiment", "run", "repetition", "loop", "part", "disturbance", "from_s", "samples", "sample_time_s"),
        "half_width",
    ),
    "policy_runs": (
        *("experiment", "run", "repetition", "policy", "clients", "calls"),
        *("goodput", "goodput_half_width", "errors", "errors_half_width", "refused", "failed"),
        *("goodput_small", "admitted_small", "failed_small", "p50_small", "p95_small", "p99_small", "mean_small"),
        *("goodput_large", "admitted_large", "failed_large", "p50_large", "p95_large", "p99_large", "mean_large"),
        *("mean_small_half_width", "mean_large_half_width"),
        *("load_mean", "load_half_width", "load_std", "r", "kappa"),
    ),
    "load_cdf": ("run", "ratio", "load"),
    "response_over_time": (*("run", "kind", "second", "ok", "refused", "failed", "mean_ms", "p50_ms", "p95_ms"),),
    "queue_over_time": ("run", "second", "produced", "consumed", "waiting"),
    "placement": ("policy", "throughput", "transfers", "experiment", "run", "repetition"),
    "provisioning": ("policy", "nodes", "throughput", "experiment", "run", "repetition"),
    "scaling": ("nodes", "throughput", "experiment", "run", "repetition"),
    "cells": (
        *("experiment", "cell", "source", "metric", "kind", "unit", "repetitions"),
        *("mean", "half_width", "low", "high"),
    ),
    "effects": ("experiment", "metric", "term", "effect", "low", "high", "share_ratio"),
    "references": (
        *("experiment", "label", "cell", "source", "metric", "kind", "unit"),
        *("ours", "ours_low", "ours_high", "theirs", "theirs_low", "theirs_high", "ratio"),
    ),
    "quarantine": ("file", "reason", "rows"),
}
