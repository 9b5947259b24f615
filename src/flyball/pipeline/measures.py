"""Metrics of each run with their intervals, those of each cell of an experiment, and the papers' for comparison.

Works on the driver with small tables computed by Spark: SERIES of `throughput`, PERCENTILES of `latency`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flyball.pipeline.events import CLIENTS, NODES, point_s
from flyball.pipeline.intervals import batch_means, half_width, quantile_offsets
from flyball.pipeline.latency import ALL, DATABASE, QUANTILES
from flyball.pipeline.manifest import Experiment, Reference, Run, cell_of
from flyball.pipeline.throughput import METRICS_OF

Numbers = npt.NDArray[np.float64]
Row = dict[str, Any]

COLUMNS = (
    *("run", "source", "metric", "kind", "unit", "n", "mean", "sd", "half_width", "low", "high"),
    *("p50", "p90", "p95", "p99", "p999", "max"),
)
CELL_COLUMNS = (
    *("experiment", "cell", "source", "metric", "kind", "unit"),
    *("repetitions", "mean", "half_width", "low", "high"),
)
REFERENCE_COLUMNS = (
    *("experiment", "label", "cell", "source", "metric", "kind", "unit"),
    *("ours", "ours_low", "ours_high", "theirs", "theirs_low", "theirs_high", "ratio"),
)
TELESTO_COLUMNS = (
    "run",
    "metric",
    "kind",
    "unit",
    "n",
    "mean",
    "sd",
    "half_width",
    "low",
    "high",
    "p50",
    "p95",
    "p99",
)

# The kinds that deliver a message to a client: each message is counted once, there.
RECEIVED = ("take", "deliver")

# The ThorBangMQ report's names of phases.
ALSO_CALLED = {"engine": "worker", "store": "persistence"}

# Telesto's metrics (section 5.3), by the source that measures them and our name. Clients, if there are any, measure
# the response time and the messages as defined by the paper: until the response has arrived, and successfully
# received.
TELESTO_NAMES = {
    (NODES, "response"): "middleware response time",
    (NODES, "parse"): "packet parsing duration",
    (NODES, DATABASE): "database response time",
    (NODES, "emit"): "packet emitting duration",
    (NODES, "throughput"): "packet throughput",
    (NODES, "messages"): "message throughput",
}

# Metrics of a closed loop that controls a rate: its mean and standard deviation, and its approach to the goal.
LOOP_UNITS = {"loop_mean": "1/s", "loop_std": "1/s", "loop_settling": "samples", "loop_overshoot": "ratio"}

# For a kind so rare that the sample of times does not contain it.
_NO_SHAPE: Row = dict.fromkeys((*QUANTILES, "max_ms"), float("nan"))
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True, slots=True)
class _Kind:
    """The requests of one kind that one source recorded in a run, by point; points without any are 0."""

    # Length of each point: 1 s, more in a long run, less if the run was shorter.
    length_s: float
    columns: Mapping[str, Numbers]

    def __getitem__(self, name: str) -> Numbers:
        return self.columns[name]

    @property
    def recorded_ratio(self) -> float:
        """The information per request, 1 if all were recorded: (Σw)²/Σw² is the effective size of a sample."""
        return float(self["requests"].sum() / self["weight2"].sum())


def measures(series: pd.DataFrame, percentiles: pd.DataFrame, windows: pd.DataFrame) -> pd.DataFrame:
    """Return the table `measures`: every metric of each run, source and kind, and of all kinds together.

    `series` is SERIES, of which only the whole seconds of the measured time count; `percentiles` is PERCENTILES.
    """
    shapes: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in _records(percentiles):
        shapes.setdefault((row["run"], row["source"], row["kind"]), {})[row["metric"]] = row
    rows: list[Row] = []
    for (run, source), kinds in _kinds(series, windows):
        for kind, seen in kinds.items():
            received = _together(kinds[name] for name in RECEIVED if name in kinds) if kind == ALL else seen
            of_kind = [
                _rate("throughput", seen["requests"] / seen.length_s),
                *([_rate("messages", received["messages"] / seen.length_s)] if received else []),
                *_times(seen, source, shapes.get((run, source, kind), {})),
            ]
            rows += [{"run": run, "source": source, "kind": kind, **row} for row in of_kind]
    found = pd.DataFrame([*rows, *_network(series, windows)], columns=list(COLUMNS))
    return found.astype({"n": "int64", **dict.fromkeys(COLUMNS[6:], "float64")})


def telesto_metrics(measured: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `measures` that are metrics of the Telesto report, under the names of its section 5.3.

    The downtime of workers is not among them: a node has no pool of workers.
    """
    with_clients = set(measured.loc[measured["source"] == CLIENTS, "run"])
    keys = zip(measured["run"], measured["source"], measured["metric"], strict=True)
    names = [_telesto_name(run in with_clients, source, metric) for run, source, metric in keys]
    named = measured.assign(metric=names)
    return named.loc[named["metric"] != "", list(TELESTO_COLUMNS)].reset_index(drop=True)


def cells(measured: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """Return the table `cells`: the mean of each metric over the repetitions of a cell, and its interval by Student.

    `low` and `high` are the means of the repetitions' quantile offsets. For a single repetition its own interval is
    used. Runs without an experiment are not in a cell.
    """
    of_run = {run.run: (run.experiment, run.cell) for run in runs if run.experiment}
    known = measured[measured["run"].isin(of_run)]
    placed = known.assign(
        experiment=[of_run[run][0] for run in known["run"]], cell=[of_run[run][1] for run in known["run"]]
    )
    keys = list(CELL_COLUMNS[:6])
    rows = []
    for key, own in placed.groupby(keys, sort=False):
        count, means = len(own), own["mean"].to_numpy()
        width = half_width(count, float(means.std(ddof=1))) if count > 1 else float(own["half_width"].iloc[0])
        rows.append((*key, count, means.mean(), width, own["low"].mean(), own["high"].mean()))
    return pd.DataFrame(rows, columns=list(CELL_COLUMNS))


def references(cells: pd.DataFrame, experiments: Sequence[Experiment]) -> pd.DataFrame:
    """Return the table `references`: published figures next to ours for the same cells.

    A reference that specifies only some factors is compared with every cell with these levels; one whose cell was not
    measured is compared with NaN. Intervals are offsets from the mean: ours is by Student where theirs is symmetric,
    by quantiles elsewhere.
    """
    rows = [
        _beside(experiment.name, reference, cell, ours)
        for experiment in experiments
        for reference in experiment.references
        for cell, ours in _cells_of(reference, cells[cells["experiment"] == experiment.name])
    ]
    return pd.DataFrame(rows, columns=list(REFERENCE_COLUMNS))


def whole_points(from_us: int, until_us: int) -> tuple[int, float]:
    """Return the number of whole points in a measured time and their length: `point_s`, less in a shorter time."""
    length_us, point_us = int(until_us) - int(from_us), point_s(from_us, until_us) * 1_000_000
    return (length_us // point_us, point_us / 1e6) if length_us >= point_us else (1, max(length_us, 1) / 1e6)


def place_of(second: pd.Series[Any], length_s: float) -> pd.Series[Any]:
    """Return the index of each `second`'s point in its run; points shorter than a second are single."""
    return second // max(int(length_s), 1)


def _kinds(series: pd.DataFrame, windows: pd.DataFrame) -> Iterator[tuple[tuple[str, str], dict[str, _Kind]]]:
    """Yield for each run and source the records of each kind, and of all kinds together."""
    lengths = {run: whole_points(from_us, until_us) for run, from_us, until_us in _rows(windows)}
    sums = [name for name in series.columns if name not in ("run", "source", "place", "kind", "second")]
    for (run, source), own in series.groupby(["run", "source"]):
        count, length_s = lengths[str(run)]
        places = place_of(own["second"], length_s)
        inside = own.assign(second=places)[(places >= 0) & (places < count)]
        kinds = {str(kind): _filled(part, sums, count, length_s) for kind, part in inside.groupby("kind")}
        everything = _together(kinds.values())
        if everything:
            yield (str(run), str(source)), {**kinds, ALL: everything}


def _records(rows: pd.DataFrame) -> list[Row]:
    return [dict(zip(rows.columns, row, strict=True)) for row in rows.itertuples(index=False)]


def _rows(windows: pd.DataFrame) -> Iterable[tuple[str, int, int]]:
    return zip(windows["run"], windows["from_us"], windows["until_us"], strict=True)


def _filled(part: pd.DataFrame, sums: Sequence[str], count: int, length_s: float) -> _Kind:
    columns = {}
    for name in sums:
        columns[name] = np.zeros(count)
        np.add.at(columns[name], part["second"].to_numpy(), part[name].to_numpy())
    return _Kind(length_s, columns)


def _together(kinds: Iterable[_Kind]) -> _Kind | None:
    found = list(kinds)
    if not found:
        return None
    return _Kind(found[0].length_s, {name: sum(kind[name] for kind in found) for name in found[0].columns})  # type: ignore[misc]


def _rate(metric: str, values: Numbers) -> Row:
    """Return the measure of a quantity that is counted in each point."""
    interval = batch_means(values)
    low, high = quantile_offsets(values)
    return {
        "metric": metric,
        "unit": "1/s",
        "n": values.size,
        "mean": interval.mean,
        "sd": values.std(ddof=1) if values.size > 1 else 0.0,
        "half_width": interval.half_width,
        "low": low,
        "high": high,
        **{name: np.quantile(values, share) for name, share in _QUANTILES.items()},
        "max": values.max(),
    }


def _times(seen: _Kind, source: str, shapes: Mapping[str, Row]) -> Iterator[Row]:
    """Yield the measures of times; a metric without values has none."""
    for metric in (*METRICS_OF[source], *([DATABASE] if source == NODES else [])):
        column, counted = ("store", "stored") if metric == DATABASE else (metric, "requests")
        if not seen[counted].any():
            continue
        row = _time(metric, seen[counted], seen[f"{column}_ms"], seen[f"{column}_ms2"], seen.recorded_ratio)
        row |= _shape(row["mean"], shapes.get(metric, _NO_SHAPE))
        yield row
        if metric in ALSO_CALLED:
            yield {**row, "metric": ALSO_CALLED[metric]}


def _time(metric: str, counts: Numbers, sums_ms: Numbers, squares_ms2: Numbers, recorded_ratio: float) -> Row:
    count, mean = counts.sum(), sums_ms.sum() / counts.sum()
    sd = np.sqrt(max(squares_ms2.sum() - count * mean**2, 0.0) / max(count - 1, 1))
    interval = batch_means(sums_ms, counts)
    return {
        "metric": metric,
        "unit": "ms",
        "n": int(count),
        "mean": mean,
        "sd": sd,
        # One point has no batches: the requests are treated as independent.
        "half_width": interval.half_width if counts.size > 1 else half_width(count * recorded_ratio, sd),
    }


def _shape(mean: float, shape: Row) -> Row:
    return {
        "low": shape["p5_ms"] - mean,
        "high": shape["p95_ms"] - mean,
        **{name: shape[f"{name}_ms"] for name in _QUANTILES},
        "max": shape["max_ms"],
    }


def _network(series: pd.DataFrame, windows: pd.DataFrame) -> Iterator[Row]:
    """Yield the measures `network`: the clients' mean time since sending minus the nodes' mean response.

    As in ThorBangMQ (4.15). Deliveries are excluded: their time counts from the publisher.
    """
    seen = dict(_kinds(series[series["kind"] != "deliver"], windows))
    for (run, source), of_clients in seen.items():
        of_nodes = seen.get((run, NODES), {})
        common = [kind for kind in of_clients if kind in of_nodes and kind != ALL]
        if source != CLIENTS or not common:
            continue
        for kind, kinds in [*((kind, [kind]) for kind in common), (ALL, common)]:
            outside, inside = (_together(side[name] for name in kinds) for side in (of_clients, of_nodes))
            assert outside is not None
            assert inside is not None
            longer = batch_means(outside["service_ms"], outside["requests"])
            shorter = batch_means(inside["response_ms"], inside["requests"])
            width = float(np.hypot(longer.half_width, shorter.half_width))
            count, mean = int(outside["requests"].sum()), longer.mean - shorter.mean
            about: Row = {"run": run, "source": CLIENTS, "metric": "network", "kind": kind, "unit": "ms", "n": count}
            yield {**about, "mean": mean, "half_width": width, "low": -width, "high": width}


def _telesto_name(has_clients: bool, source: str, metric: str) -> str:
    if has_clients and metric in ("response", "messages"):
        return TELESTO_NAMES[NODES, metric] if source == CLIENTS else ""
    return TELESTO_NAMES.get((source, metric), "")


def _cells_of(reference: Reference, own: pd.DataFrame) -> list[tuple[str, Row | None]]:
    """Return the cells of a reference, with our figures; its own cell without figures if none was measured."""
    is_same = (
        (own["metric"] == reference.metric) & (own["kind"] == reference.request) & (own["source"] == reference.source)
    )
    found: list[tuple[str, Row | None]] = [
        (row["cell"], row) for row in _records(own[is_same]) if _is_part(reference.factors, json.loads(row["cell"]))
    ]
    return found or [(cell_of(reference.factors), None)]


def _is_part(some: Mapping[str, object], all_of_them: Mapping[str, object]) -> bool:
    return all(name in all_of_them and all_of_them[name] == level for name, level in some.items())


def _beside(experiment: str, reference: Reference, cell: str, ours: Row | None) -> Row:
    is_symmetric = reference.low is not None and reference.high is not None and reference.low == -reference.high
    row: Row = {
        "experiment": experiment,
        "label": reference.label,
        "cell": cell,
        "source": reference.source,
        "metric": reference.metric,
        "kind": reference.request,
        "unit": ours["unit"] if ours else _unit(reference.metric),
        "theirs": reference.mean,
        "theirs_low": reference.low,
        "theirs_high": reference.high,
    }
    if ours:
        row["ours"] = ours["mean"]
        row["ours_low"] = -ours["half_width"] if is_symmetric else ours["low"]
        row["ours_high"] = ours["half_width"] if is_symmetric else ours["high"]
        row["ratio"] = ours["mean"] / reference.mean if reference.mean else float("nan")
    return row


def _unit(metric: str) -> str:
    return "1/s" if metric in ("throughput", "messages", "queue_rate", "queue_peak") else LOOP_UNITS.get(metric, "ms")
