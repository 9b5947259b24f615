"""Plots of a run over time and of the distribution of its response times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from flyball.pipeline.manifest import View
from flyball.pipeline.report import thinning
from flyball.pipeline.report.chapters import Chapter
from flyball.pipeline.report.content import Table
from flyball.pipeline.report.figures import (
    Figure,
    Trace,
    axis,
    band,
    bars,
    colour,
    line,
    lines,
    log_axis,
    marked_lines,
    plain,
    shorts,
    value_axis,
)
from flyball.pipeline.report.formatting import ALL, amount, capital, duration, metric_name, unit_of, whole
from flyball.pipeline.report.percentiles import Percentiles, percentiles_of
from flyball.pipeline.report.selection import MOST_LINES, of_kind, source_in, spread

# Maximum number of points of a plot over time, in all its lines.
MOST_POINTS = 6000
MOST_POINTS_OF_A_LINE = 600
MOST_BUCKETS = 80

_PERCENTILES = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9", "max": "max"}


def over_time(chapter: Chapter, view: View) -> list[Figure]:
    """A metric over time: a line for each run, or for each kind if there is one run only."""
    metric = view.metric
    is_count = metric in ("throughput", "messages")
    rows = chapter.tables["throughput" if is_count else "series"]
    source = source_in(rows, view.source)
    rows = rows[rows["source"] == source]
    if view.request != ALL:
        rows = rows[rows["kind"] == view.request]
    if rows.empty or not (is_count or f"{metric}_ms" in rows):
        return []
    by = "kind" if rows["run"].nunique() == 1 else "run"
    found = _counts(rows, by, metric) if is_count else _times(rows, by, f"{metric}_ms")
    most = max(60, min(MOST_POINTS_OF_A_LINE, MOST_POINTS // len(found)))
    thinned = {name: thinning.thin(one.values, most, one.weights, one.point_s) for name, one in found.items()}
    labels = _labels_of_lines(chapter, list(found), by)
    unit = unit_of(metric)
    layout = {
        "xaxis": axis("Time since the measurement began [s]", rangemode="tozero"),
        "yaxis": axis(f"{capital(metric_name(metric))} [{unit}]", rangemode="tozero"),
        "hovermode": "x unified" if len(found) <= 6 else "closest",
        "showlegend": len({name for _, name, _ in labels.values()}) > 1,
    }
    title = view.title or f"{capital(metric_name(metric))} over time{of_kind(view.request)}"
    length_s = max(len(one.values) * one.point_s for one in found.values())
    says = f"{title}, in {unit}, seen by {source}, {duration(length_s)}. " + "; ".join(
        f"{labels[name][1]}: mean {amount(one.mean)}, from {amount(one.least)} to {amount(one.most)}"
        for name, one in list(found.items())[:MOST_LINES]
    )
    note = f"Seen by {source}."
    if not all(points.is_whole for points in thinned.values()):
        note += (
            " Each point is the mean of several values; the band around it spans the smallest and largest of them."
        )
    data = [trace for name, points in thinned.items() for trace in _time_traces(labels[name], points)]
    return [Figure(title, data, layout, says, _numbers_over_time(title, unit, found, labels), note, is_wide=True)]


def histogram(chapter: Chapter, view: View) -> list[Figure]:
    """The distribution of response times: bars, or a line for each of several cells."""
    kind = view.request
    rows = chapter.tables["histogram"]
    source = source_in(rows, view.source)
    rows = rows[(rows["source"] == source) & (rows["requests"] > 0)]
    # Where the table has no rows for all kinds together, their sum is the same.
    rows = rows[rows["kind"] == kind] if kind != ALL or ALL in set(rows["kind"]) else rows
    if rows.empty:
        return []
    cells = [cell for cell in chapter.cells if cell in set(rows["cell"])]
    shown = spread(cells, MOST_LINES)
    rows = rows[rows["cell"].isin(shown)]
    buckets = thinning.buckets_for(rows, MOST_BUCKETS)
    counted = {cell: buckets.count(rows[rows["cell"] == cell]) for cell in shown}
    data = [
        _histogram_trace(index, chapter.cell_name(cell), found, is_alone=len(shown) == 1)
        for index, (cell, found) in enumerate(counted.items())
    ]
    low = min(float(found["low_ms"].min()) for found in counted.values())
    high = max(float(found["high_ms"].max()) for found in counted.values())
    layout = {
        "xaxis": log_axis("Response time [ms]", low, high),
        "yaxis": axis("Share of requests [%]", rangemode="tozero"),
        "bargap": 0,
        "showlegend": len(shown) > 1,
    }
    title = view.title or f"Distribution of response times{of_kind(kind)}"
    note = f"Seen by {source}." + (
        f" {len(shown)} of {len(cells)} cells are shown." if len(shown) < len(cells) else ""
    )
    measures = chapter.tables["measures"]
    mine = measures["metric"].eq("response") & measures["source"].eq(source) & measures["kind"].eq(kind)
    means = _percentile_means(measures[mine], "cell")
    says = f"{title}, seen by {source}. " + "; ".join(
        f"{chapter.cell_name(cell)}: median {amount(means[cell]['p50'])} ms, "
        f"99 % within {amount(means[cell]['p99'])} ms"
        for cell in shown
        if cell in means
    )
    head = ["Cell", *(f"{name} [ms]" for name in _PERCENTILES.values())]
    tails = percentiles_of(chapter, source)
    body = [
        [chapter.cell_name(cell), *_texts(means[cell], tails.get((cell, kind)))]
        for cell in chapter.cells
        if cell in means
    ]
    return [Figure(title, data, layout, says, Table(title, head, body) if body else None, note)]


def percentiles(chapter: Chapter, view: View) -> list[Figure]:
    """Response times at several percentiles, a line for each kind of request, or for each cell if there are many."""
    # A view without a metric means throughput, which has no useful percentiles.
    metric = "response" if view.metric == "throughput" else view.metric
    source = chapter.source_of(metric, view.source)
    rows = chapter.tables["measures"]
    rows = rows[(rows["metric"] == metric) & (rows["source"] == source)]
    if rows.empty:
        return []
    by = "kind" if rows["cell"].nunique() == 1 else "cell"
    if by == "cell":
        rows = rows[rows["kind"] == ALL]
    means = _percentile_means(rows, by)
    shown = spread(list(means), MOST_LINES)
    label = {name: chapter.cell_name(name) if by == "cell" else name for name in shown}
    data = [
        marked_lines(label[name], _PERCENTILES.values(), means[name].values(), index, "%{x}: %{y:,.4g} ms")
        for index, name in enumerate(shown)
    ]
    title = view.title or f"Percentiles of the {metric_name(metric)}"
    values = [value for name in shown for value in means[name].values()]
    layout = {
        "xaxis": axis("Percentile", type="category"),
        "yaxis": value_axis(f"{capital(metric_name(metric))} [ms]", values),
    }
    says = f"{title}, in ms, seen by {source}. " + "; ".join(
        f"{label[name]}: median {amount(means[name]['p50'])}, 99 % within {amount(means[name]['p99'])}"
        for name in shown
    )
    head = ["Requests" if by == "kind" else "Cell", *_PERCENTILES.values()]
    tails = percentiles_of(chapter, source, metric)
    keys = {name: (name, ALL) if by == "cell" else (str(rows["cell"].iloc[0]), name) for name in shown}
    body = [[label[name], *_texts(means[name], tails.get(keys[name]))] for name in shown]
    note = f"Seen by {source}; the mean over repetitions."
    return [Figure(title, data, layout, says, Table(f"{title} [ms]", head, body), note)]


@dataclass(frozen=True, slots=True)
class _Line:
    """A value for each point of time, and its weight in a mean; a gap is NaN."""

    values: thinning.Floats
    weights: thinning.Floats | None = None
    # The number of seconds that each value covers.
    point_s: int = 1

    @property
    def mean(self) -> float:
        known = ~np.isnan(self.values)
        if not known.any():
            return math.nan
        return float(np.average(self.values[known], weights=None if self.weights is None else self.weights[known]))

    @property
    def least(self) -> float:
        return float(np.fmin.reduce(self.values))

    @property
    def most(self) -> float:
        return float(np.fmax.reduce(self.values))


def _counts(rows: pd.DataFrame, by: str, metric: str) -> dict[str, _Line]:
    """Return counts per second at each point; a point without requests is zero, not a gap."""
    column = "messages" if metric == "messages" else "requests"
    return {
        name: _Line(_sums(part, column, length, point) / point, point_s=point)
        for name, part, length, point in _parts(rows, by)
    }


def _times(rows: pd.DataFrame, by: str, column: str) -> dict[str, _Line]:
    """Return the mean time at each point; a point without requests is a gap, not zero."""
    found: dict[str, _Line] = {}
    for name, part, length, point in _parts(rows, by):
        sums, counts = _sums(part, column, length, point), _sums(part, "requests", length, point)
        means = np.divide(sums, counts, out=np.full(length, np.nan), where=counts > 0)
        found[name] = _Line(means, counts, point)
    return found


def _point_s(rows: pd.DataFrame) -> int:
    """Return the number of seconds that one row covers; rows of logs do not specify it."""
    known = rows["point_s"].dropna().tolist() if "point_s" in rows else []
    return int(known[0]) if known else 1


def _parts(rows: pd.DataFrame, by: str) -> Iterator[tuple[str, pd.DataFrame, int, int]]:
    """Yield each line's name, rows, number of points, and seconds per point."""
    lengths_s = rows.groupby("run")["second"].max()
    for name, part in rows.groupby(by, sort=by == "kind"):
        point = _point_s(part)
        yield str(name), part, int(lengths_s[part["run"].iloc[0]]) // point + 1, point


def _sums(rows: pd.DataFrame, column: str, length: int, point: int) -> thinning.Floats:
    values = np.zeros(length)
    np.add.at(values, rows["second"].to_numpy(dtype=int) // point, rows[column].to_numpy(dtype=float))
    return values


def _labels_of_lines(chapter: Chapter, names: Sequence[str], by: str) -> dict[str, tuple[int, str, bool]]:
    """Return each line's colour, its name, and whether it is the first with that name: repetitions share one."""
    if by == "kind":
        return {name: (index, name, True) for index, name in enumerate(names)}
    cells = [cell for cell in chapter.cells if cell in {chapter.cell_of[name] for name in names}]
    found: dict[str, tuple[int, str, bool]] = {}
    seen: set[str] = set()
    for name in names:
        cell = chapter.cell_of[name]
        found[name] = (cells.index(cell), chapter.cell_name(cell), cell not in seen)
        seen.add(cell)
    return found


def _time_traces(label: tuple[int, str, bool], points: thinning.Thinned) -> list[Trace]:
    index, name, is_first = label
    group = {"legendgroup": f"line-{index}"}
    at = shorts(points.at)
    thin_line = lines(name, at, points.mean, index, "", line=line(index, width=1.5), showlegend=is_first, **group)
    if points.is_whole:
        return [thin_line]
    unlined = {"width": 0, "color": colour(index)}
    return [*band(at, points.low, points.high, index, 0.18, name=plain(name), line=unlined, **group), thin_line]


def _numbers_over_time(
    title: str, unit: str, found: Mapping[str, _Line], labels: Mapping[str, tuple[int, str, bool]]
) -> Table:
    head = ["Line", f"Mean [{unit}]", f"Least [{unit}]", f"Most [{unit}]", "Points"]
    body = [
        [labels[name][1], *map(amount, (one.mean, one.least, one.most)), whole(len(one.values))]
        for name, one in found.items()
    ]
    return Table(title, head, body)


def _histogram_trace(index: int, name: str, buckets: pd.DataFrame, *, is_alone: bool) -> Trace:
    share = 100 * buckets["requests"] / buckets["requests"].sum()
    hover = "about %{x:,.3g} ms: %{y:,.3g} %"
    if not is_alone:
        return lines(name, np.sqrt(buckets["low_ms"] * buckets["high_ms"]), share, index, hover)
    # The width of a bar is in the axis' units, from its left edge.
    width = shorts(buckets["high_ms"] - buckets["low_ms"])
    return bars(name, buckets["low_ms"], share, index, hover, width=width, offset=0)


def _texts(means: Mapping[str, float], found: Percentiles | None) -> list[str]:
    """Return the texts of a row of percentiles; those in every table have intervals."""
    return [found[name].text if found and name in found else amount(mean) for name, mean in means.items()]


def _percentile_means(rows: pd.DataFrame, by: str) -> dict[str, dict[str, float]]:
    """Return the mean of each percentile over the runs of a cell or kind."""
    return {
        str(name): {column: float(part[column].mean()) for column in _PERCENTILES}
        for name, part in rows.groupby(by, sort=False)
    }
