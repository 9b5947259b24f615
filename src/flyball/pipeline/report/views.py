"""The kinds of views that an experiment may ask for: each makes plots from a chapter's tables.

What a view may ask for is in the manifest; what was measured elsewhere than it says is plotted all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from flyball.pipeline.manifest import View
from flyball.pipeline.report import thinning
from flyball.pipeline.report.chapters import CLIENTS, NODES, Chapter
from flyball.pipeline.report.figures import (
    REFERENCE_COLOUR,
    Figure,
    Trace,
    axis,
    colour,
    error_bars,
    is_level_number,
    level_axis,
    line,
    marker,
    plain,
    shorts,
    value_axis,
)
from flyball.pipeline.report.markup import Html, table
from flyball.pipeline.report.words import (
    ALL,
    COMPONENTS,
    PHASES,
    amount,
    capital,
    count_of,
    duration,
    level,
    metric_name,
    percent,
    quantiles,
    student,
    unit_of,
    whole,
)

MOST_POINTS = 6000
"""Points that a plot over time may hold in all its lines."""
MOST_POINTS_OF_A_LINE = 600
MOST_BUCKETS = 80
MOST_LINES = 8
"""Lines of a histogram or of percentiles: more cannot be told apart."""
MOST_BARS = 40

_PERCENTILES = {"p50": "50 %", "p90": "90 %", "p95": "95 %", "p99": "99 %", "p999": "99.9 %", "max": "max"}


def figures_of(chapter: Chapter, view: View) -> list[Figure]:
    """Return the plots of one view; none if its kind is a table or there is nothing to plot."""
    make = KINDS.get(view.kind)
    return make(chapter, view) if make else []


def default_views(chapter: Chapter) -> list[View]:
    """Return the views of an experiment that names none: what it varies, or how it went over time."""
    if chapter.experiment is None:
        return [View("over_time"), View("percentiles", "response"), View("histogram"), View("breakdown")]
    if not chapter.factors:
        return [View("over_time"), View("histogram"), View("breakdown")]
    x, *others = chapter.factors
    curves = [
        View("curve", metric, x=x, series=others[0] if others else None) for metric in ("throughput", "response")
    ]
    return [*curves, View("histogram"), View("breakdown")]


def curve(chapter: Chapter, view: View) -> list[Figure]:
    """A metric over the levels of a factor, a line for each level of another, with the seed's numbers."""
    metric, source, kind = _what(chapter, view)
    x = _x(chapter, view)
    rows = chapter.metric(metric, source, kind)
    if x is None or rows.empty:
        return []
    lines = _lines(chapter, rows, x, view)
    references = _references(chapter, metric, source, kind)
    levels = _levels([cell for points in lines.values() for cell, _ in points], references, x)
    unit = unit_of(metric, str(rows["unit"].iloc[0]))
    values = [float(row["mean"]) for points in lines.values() for _, row in points]
    layout = {
        "xaxis": level_axis(capital(chapter.names[x]), levels),
        "yaxis": value_axis(f"{capital(metric_name(metric))} [{unit}]", values, may_be_log=unit == "ms"),
    }
    data = [_line_trace(index, name, points, x, unit) for index, (name, points) in enumerate(lines.items())]
    data += _reference_traces(chapter, references, x, view, list(lines), unit)
    title = view.title or f"{capital(metric_name(metric))} over {chapter.names[x]}{_of_kind(kind)}"
    says = _says_lines(f"{title}, in {unit}, measured by {source}", chapter.names[x], lines, x)
    return [Figure(title, data, layout, says, _numbers(chapter, title, unit, rows), _note(source, references))]


def bars(chapter: Chapter, view: View) -> list[Figure]:
    """A metric as bars: by the levels of a factor, or by kind of request where no factor varies."""
    metric, source, kind = _what(chapter, view)
    x = _x(chapter, view)
    if x is None:
        return _bars_by_kind(chapter, view, metric, source)
    rows = chapter.metric(metric, source, kind)
    if rows.empty:
        return []
    lines = _lines(chapter, rows, x, view)
    references = _references(chapter, metric, source, kind)
    unit = unit_of(metric, str(rows["unit"].iloc[0]))
    data = []
    for index, (name, points) in enumerate(lines.items()):
        places = [plain(level(cell.get(x))) for cell, _ in points]
        data.append(_bar_trace(index, name, places, [row for _, row in points], unit))
    data += _reference_traces(chapter, references, x, view, list(lines), unit, is_category=True)
    title = view.title or f"{capital(metric_name(metric))} by {chapter.names[x]}{_of_kind(kind)}"
    layout = {
        "barmode": "group",
        "xaxis": axis(capital(chapter.names[x]), type="category"),
        "yaxis": axis(f"{capital(metric_name(metric))} [{unit}]", rangemode="tozero"),
    }
    says = _says_lines(f"{title}, in {unit}, measured by {source}", chapter.names[x], lines, x)
    return [Figure(title, data, layout, says, _numbers(chapter, title, unit, rows), _note(source, references))]


def over_time(chapter: Chapter, view: View) -> list[Figure]:
    """Requests or messages in each second: a line for each run, or for each kind if there is one run only."""
    metric = view.metric
    column = "messages" if metric == "messages" else "requests"
    rows = chapter.tables["throughput"]
    source = _source_in(rows, view.source)
    rows = rows[rows["source"] == source]
    if view.request != ALL:
        rows = rows[rows["kind"] == view.request]
    if rows.empty or metric not in ("throughput", "messages"):
        return []
    by = "kind" if rows["run"].nunique() == 1 else "run"
    sums = rows.groupby([by, "second"])[column].sum()
    names = (
        list(dict.fromkeys(rows[by]))
        if by == "run"
        else list(sums.groupby(level=0).sum().sort_values(ascending=False).index)
    )
    most = max(60, min(MOST_POINTS_OF_A_LINE, MOST_POINTS // len(names)))
    length = int(rows["second"].max()) + 1
    series = {name: _filled(sums.loc[name], length) for name in names}
    thinned = {name: thinning.thin(values, most) for name, values in series.items()}
    unit = unit_of(metric)
    labels = _labels_of_lines(chapter, names, by)
    data: list[Trace] = []
    for name, points in thinned.items():
        data += _time_traces(labels[name], points)
    layout = {
        "xaxis": axis("Time since the measurement began [s]", rangemode="tozero"),
        "yaxis": axis(f"{capital(metric_name(metric))} [{unit}]", rangemode="tozero"),
        "hovermode": "x unified" if len(names) <= 6 else "closest",
    }
    title = view.title or f"{capital(metric_name(metric))} over time"
    says = f"{title}, in {unit}, seen by {source}, {duration(length)}. " + "; ".join(
        f"{labels[name][1]}: mean {amount(float(values.mean()))}, from {amount(float(values.min()))} to {amount(float(values.max()))}"
        for name, values in list(series.items())[:MOST_LINES]
    )
    note = f"Seen by {source}."
    if not all(points.is_whole for points in thinned.values()):
        note += (
            " Each point is the mean of several seconds; the band around it spans their smallest and largest value."
        )
    return [Figure(title, data, layout, says, _numbers_over_time(title, unit, series, labels), note, is_wide=True)]


def histogram(chapter: Chapter, view: View) -> list[Figure]:
    """The distribution of response times, a line for each cell."""
    kind = view.request
    rows = chapter.tables["histogram"]
    source = _source_in(rows, view.source)
    rows = rows[(rows["source"] == source) & (rows["requests"] > 0)]
    # Where the table has no rows for all kinds together, their sum is the same.
    rows = rows[rows["kind"] == kind] if kind != ALL or ALL in set(rows["kind"]) else rows
    if rows.empty:
        return []
    cells = [cell for cell in chapter.cells if cell in set(rows["cell"])]
    shown = _spread(cells, MOST_LINES)
    data: list[Trace] = []
    for index, cell in enumerate(shown):
        data.append(
            _histogram_trace(index, chapter.cell_name(cell), rows[rows["cell"] == cell], is_alone=len(shown) == 1)
        )
    title = view.title or f"Distribution of response times{_of_kind(kind)}"
    layout = {
        "xaxis": axis("Response time [ms], logarithmic", type="log"),
        "yaxis": axis("Share of requests [%]", rangemode="tozero"),
        "bargap": 0,
    }
    numbers = _numbers_of_percentiles(chapter, title, source, kind)
    note = f"Seen by {source}." + (
        f" {len(shown)} of {len(cells)} cells are shown." if len(shown) < len(cells) else ""
    )
    says = f"{title}, seen by {source}. " + _says_medians(chapter, shown, source, kind)
    return [Figure(title, data, layout, says, numbers, note)]


def percentiles(chapter: Chapter, view: View) -> list[Figure]:
    """Response times at several percentiles, a line for each kind of request, or for each cell if there are many."""
    metric, source, _ = _what(chapter, view)
    rows = chapter.tables["measures"]
    rows = rows[(rows["metric"] == metric) & (rows["source"] == source)]
    if rows.empty:
        return []
    by = "kind" if rows["cell"].nunique() == 1 else "cell"
    if by == "cell":
        rows = rows[rows["kind"] == ALL]
    columns = [name for name in _PERCENTILES if name in rows]
    means = rows.groupby(by, sort=False)[columns].mean()
    shown = _spread([str(name) for name in means.index], MOST_LINES)
    label = {name: chapter.cell_name(name) if by == "cell" else name for name in shown}
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": plain(label[name]),
            "x": [_PERCENTILES[column] for column in columns],
            "y": shorts(means.loc[name]),
            "line": line(index),
            "marker": marker(index),
            "hovertemplate": "%{x}: %{y:,.4g} ms",
        }
        for index, name in enumerate(shown)
    ]
    title = view.title or f"Percentiles of the {metric_name(metric)}"
    values = [float(value) for name in shown for value in means.loc[name]]
    layout = {
        "xaxis": axis("So many requests were answered within this time", type="category"),
        "yaxis": value_axis(f"{capital(metric_name(metric))} [ms]", values),
    }
    says = f"{title}, in ms, seen by {source}. " + "; ".join(
        f"{label[name]}: median {amount(means.loc[name, 'p50'])}, 99 % within {amount(means.loc[name, 'p99'])}"
        for name in shown
    )
    head = ["Requests" if by == "kind" else "Cell", *(_PERCENTILES[column] for column in columns)]
    body = [[label[name], *(amount(value) for value in means.loc[name])] for name in shown]
    return [Figure(title, data, layout, says, table(f"{title} [ms]", head, body), f"Seen by {source}.")]


def breakdown(chapter: Chapter, view: View) -> list[Figure]:
    """Where the time of a request goes in a node: phases stacked, for each cell and kind of request."""
    phases = _phases(chapter, view)
    rows = chapter.tables["phases"]
    rows = rows[rows["phase"].isin(phases)]
    kind = view.request
    kinds = sorted(set(rows["kind"]) - {ALL})
    if kind != ALL:
        kinds = [kind]
    cells = [cell for cell in chapter.cells if cell in set(rows["cell"])]
    is_merged = len(cells) * len(kinds) > MOST_BARS or len(kinds) == 1
    rows = rows[rows["kind"].isin(kinds)]
    if rows.empty:
        return []
    means = _phase_means(rows, merge_kinds=is_merged)
    bars_of = [
        key
        for cell in cells
        for key in ([(cell, "")] if is_merged else [(cell, name) for name in kinds])
        if key in means
    ]
    shown = _spread(bars_of, MOST_BARS)
    labels = [_bar_label(chapter, cell, name, is_alone=len(cells) == 1) for cell, name in shown]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": capital(metric_name(phase)),
            "y": [plain(label) for label in labels],
            "x": shorts(means[key].get(phase) for key in shown),
            "marker": {"color": colour(index)},
            "hovertemplate": "%{y}: %{x:,.4g} ms",
        }
        for index, phase in enumerate(phases)
    ]
    title = view.title or f"Where the time goes in a node{_of_kind(kind)}"
    layout = {
        "barmode": "stack",
        "bargap": 0.25,
        "xaxis": axis("Mean time of a request [ms]", rangemode="tozero"),
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
    }
    head = ["Requests", *(f"{capital(metric_name(phase))} [ms]" for phase in phases), "Sum [ms]"]
    body = [
        [label, *(amount(means[key].get(phase)) for phase in phases), amount(sum(means[key].values()))]
        for label, key in zip(labels, shown, strict=True)
    ]
    says = f"{title}: mean time of a request in ms. " + "; ".join(
        f"{label}: {_largest_phase(means[key])}" for label, key in list(zip(labels, shown, strict=True))[:MOST_LINES]
    )
    height = 170 + 26 * len(shown)
    return [Figure(title, data, layout, says, table(title, head, body), is_wide=True, height_px=height)]


def effects(chapter: Chapter, view: View) -> list[Figure]:
    """The effects of a 2^k design with their intervals, the largest first; one plot for each metric."""
    rows = chapter.tables["effects"]
    asked = rows[rows["metric"] == view.metric]
    rows = rows if asked.empty else asked
    return [_effects_of(chapter, view, str(metric), part) for metric, part in rows.groupby("metric", sort=False)]


def network(chapter: Chapter, view: View) -> list[Figure]:
    """What clients wait beyond what nodes work: both response times and their difference."""
    kind = view.request
    x = _x(chapter, view)
    parts = {
        "clients wait": chapter.metric("response", CLIENTS, kind),
        "nodes work": chapter.metric("response", NODES, kind),
        "network": chapter.metric("network", chapter.source_of("network", CLIENTS), kind),
    }
    parts = {name: rows for name, rows in parts.items() if not rows.empty}
    if not parts:
        return []
    title = view.title or "Response time of clients, of nodes, and the network between them"
    data = []
    for index, (name, rows) in enumerate(parts.items()):
        places = [_place(chapter, cell, x) for cell in rows["cell"]]
        points = [row for _, row in rows.iterrows()]
        data.append(_bar_trace(index, name, places, points, "ms"))
    layout = {
        "barmode": "group",
        "xaxis": axis(capital(chapter.names[x]) if x else "", type="category"),
        "yaxis": axis("Time [ms]", rangemode="tozero"),
    }
    cells = list(dict.fromkeys(cell for rows in parts.values() for cell in rows["cell"]))
    by_cell = {name: rows.set_index("cell") for name, rows in parts.items()}
    body = [
        [
            chapter.cell_name(cell),
            *(_student_of(rows.loc[cell]) if cell in rows.index else "–" for rows in by_cell.values()),
        ]
        for cell in cells
    ]
    head = ["Cell", *(f"{capital(name)} [ms]" for name in parts)]
    says = f"{title}, in ms. " + "; ".join(
        f"{row[0]}: " + ", ".join(f"{n} {v}" for n, v in zip(parts, row[1:], strict=True))
        for row in body[:MOST_LINES]
    )
    return [Figure(title, data, layout, says, table(title, head, body))]


KINDS: dict[str, Callable[[Chapter, View], list[Figure]]] = {
    "curve": curve,
    "bars": bars,
    "over_time": over_time,
    "histogram": histogram,
    "percentiles": percentiles,
    "breakdown": breakdown,
    "effects": effects,
    "network": network,
}

_Points: TypeAlias = "list[tuple[dict[str, Any], pd.Series[Any]]]"


def _what(chapter: Chapter, view: View) -> tuple[str, str, str]:
    return view.metric, chapter.source_of(view.metric, view.source), view.request


def _x(chapter: Chapter, view: View) -> str | None:
    """Return the factor along the axis: the one that the view names, or else the first that varies."""
    if view.x in chapter.names:
        return view.x
    return chapter.factors[0] if chapter.factors else None


def _lines(chapter: Chapter, rows: pd.DataFrame, x: str, view: View) -> dict[str, _Points]:
    """Return the points of each line by its name; factors on no axis keep lines apart too."""
    found: dict[str, _Points] = {}
    for _, row in rows.iterrows():
        cell = chapter.cells[row["cell"]]
        found.setdefault(_line_name(chapter, cell, x, view), []).append((cell, row))
    return found


def _line_name(chapter: Chapter, cell: Mapping[str, Any], x: str, view: View) -> str:
    others = [name for name in chapter.factors if name != x and name in cell]
    ordered = sorted(others, key=lambda name: name != view.series)
    return ", ".join(f"{chapter.names[name]} {level(cell[name])}" for name in ordered) or "Flyball"


def _line_trace(index: int, name: str, points: _Points, x: str, unit: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(name),
        "x": [_coordinate(cell.get(x)) for cell, _ in points],
        "y": shorts(row["mean"] for _, row in points),
        "error_y": error_bars(row["half_width"] for _, row in points),
        "line": line(index),
        "marker": marker(index),
        "hovertemplate": "%{x}: %{y:,.4g} ± %{error_y.array:,.3g} " + unit,
    }


def _bar_trace(index: int, name: str, places: Sequence[str], rows: Sequence[pd.Series[Any]], unit: str) -> Trace:
    return {
        "type": "bar",
        "name": plain(name),
        "x": list(places),
        "y": shorts(row["mean"] for row in rows),
        "error_y": error_bars(row["half_width"] for row in rows),
        "marker": {"color": colour(index)},
        "hovertemplate": "%{x}: %{y:,.4g} ± %{error_y.array:,.3g} " + unit,
    }


def _bars_by_kind(chapter: Chapter, view: View, metric: str, source: str) -> list[Figure]:
    kinds = chapter.kinds(metric, source) or [ALL]
    rows = [(kind, row) for kind in kinds for _, row in chapter.metric(metric, source, kind).iterrows()]
    if not rows:
        return []
    unit = unit_of(metric, str(rows[0][1]["unit"]))
    title = view.title or f"{capital(metric_name(metric))} by kind of request"
    data = [_bar_trace(0, metric_name(metric), [plain(kind) for kind, _ in rows], [row for _, row in rows], unit)]
    data += [
        _reference_trace(str(row["label"]), [plain(kind)], pd.DataFrame([row]), REFERENCE_COLOUR, unit)
        for kind in kinds
        for _, row in _references(chapter, metric, source, kind).iterrows()
    ]
    layout = {
        "xaxis": axis("Kind of request", type="category"),
        "yaxis": axis(f"{capital(metric_name(metric))} [{unit}]", rangemode="tozero"),
    }
    body = [[kind, _student_of(row), _quantiles_of(row)] for kind, row in rows]
    head = ["Requests", f"{unit}, by Student", f"{unit}, by quantiles"]
    says = f"{title}, in {unit}, seen by {source}. " + "; ".join(f"{row[0]}: {row[1]}" for row in body)
    return [Figure(title, data, layout, says, table(title, head, body), f"Seen by {source}.")]


def _references(chapter: Chapter, metric: str, source: str, kind: str) -> pd.DataFrame:
    """Return the seed's numbers for what is plotted; it may have measured elsewhere than we plot."""
    rows = chapter.tables["references"]
    rows = rows[(rows["metric"] == metric) & (rows["kind"] == kind) & rows["theirs"].notna()]
    same = rows[rows["source"] == source]
    return rows if same.empty else same


def _reference_traces(
    chapter: Chapter,
    rows: pd.DataFrame,
    x: str,
    view: View,
    lines: list[str],
    unit: str,
    *,
    is_category: bool = False,
) -> list[Trace]:
    """Return the seed's numbers as hollow diamonds, in the colour of the line that they belong to."""
    groups: dict[tuple[str, str], list[Hashable]] = {}
    for index, row in rows.iterrows():
        cell = json.loads(row["cell"])
        if x in cell:
            groups.setdefault((str(row["label"]), _line_name(chapter, cell, x, view)), []).append(index)
    traces = []
    for (label, name), members in groups.items():
        part = rows.loc[members]
        levels = [json.loads(cell)[x] for cell in part["cell"]]
        places = [plain(level(value)) if is_category else _coordinate(value) for value in levels]
        hue = colour(lines.index(name)) if name in lines and len(lines) > 1 else REFERENCE_COLOUR
        full = f"{label}: {name}" if len(lines) > 1 else label
        traces.append(_reference_trace(full, places, part, hue, unit))
    return traces


def _reference_trace(name: str, places: Sequence[object], rows: pd.DataFrame, hue: str, unit: str) -> Trace:
    trace: Trace = {
        "type": "scatter",
        "mode": "markers",
        "name": plain(name),
        "x": list(places),
        "y": shorts(rows["theirs"]),
        "marker": {"symbol": "diamond-open", "size": 11, "color": hue, "line": {"width": 2, "color": hue}},
        "hovertemplate": "%{x}: %{y:,.4g} " + unit,
    }
    if rows["theirs_high"].notna().any():
        trace["error_y"] = error_bars(rows["theirs_high"], [-low for low in rows["theirs_low"]])
    return trace


def _coordinate(value: object) -> float | str | None:
    return float(value) if isinstance(value, int | float) and is_level_number(value) else plain(level(value))


def _levels(cells: Sequence[Mapping[str, Any]], references: pd.DataFrame, x: str) -> list[Any]:
    found = [cell[x] for cell in cells if x in cell]
    found += [factors[x] for factors in map(json.loads, references["cell"]) if x in factors]
    return list(dict.fromkeys(found))


def _of_kind(kind: str) -> str:
    return "" if kind == ALL else f", {kind}"


def _note(source: str, references: pd.DataFrame) -> str:
    seen = f"Measured by {source}; error bars span the 90 % confidence interval."
    return seen if references.empty else f"{seen} Hollow diamonds: the seed's numbers."


def _says_lines(opening: str, x_name: str, lines: Mapping[str, _Points], x: str) -> str:
    parts = []
    for name, points in list(lines.items())[:MOST_LINES]:
        means = [float(row["mean"]) for _, row in points]
        best = int(np.argmax(means))
        ends = " to ".join(f"{amount(means[at])} at {x_name} {level(points[at][0].get(x))}" for at in (0, -1))
        parts.append(f"{name}: from {ends}, most {amount(means[best])} at {level(points[best][0].get(x))}")
    return f"{opening}. {'; '.join(parts)}"


def _numbers(chapter: Chapter, title: str, unit: str, rows: pd.DataFrame) -> Html:
    head = ["Cell", f"{unit}, by Student", f"{unit}, by quantiles", "Repetitions"]
    body = [
        [chapter.cell_name(row["cell"]), _student_of(row), _quantiles_of(row), whole(row["repetitions"])]
        for _, row in rows.iterrows()
    ]
    return table(title, head, body)


def _student_of(row: pd.Series[Any]) -> str:
    return student(row["mean"], row["half_width"])


def _quantiles_of(row: pd.Series[Any]) -> str:
    return quantiles(row["mean"], row["low"], row["high"])


def _filled(sums: pd.Series[Any], length: int) -> thinning.Floats:
    """Return one value for each second; one without requests is a zero, not a gap."""
    values = np.zeros(length)
    values[sums.index.to_numpy(dtype=int)] = sums.to_numpy(dtype=float)
    return values


def _labels_of_lines(chapter: Chapter, names: Sequence[str], by: str) -> dict[str, tuple[int, str, bool]]:
    """Return for each line its colour, its name, and whether it is the first of that name: repetitions share one."""
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
    at = shorts(points.at)
    common: Trace = {"type": "scatter", "mode": "lines", "legendgroup": f"line-{index}", "name": plain(name)}
    traces: list[Trace] = []
    if not points.is_whole:
        outline: Trace = {"hoverinfo": "skip", "showlegend": False, "line": {"width": 0, "color": colour(index)}}
        traces.append({**common, **outline, "x": at, "y": shorts(points.low)})
        traces.append(
            {
                **common,
                **outline,
                "x": at,
                "y": shorts(points.high),
                "fill": "tonexty",
                "fillcolor": colour(index, 0.18),
            }
        )
    thin_line = {**line(index), "width": 1.5}
    traces.append({**common, "x": at, "y": shorts(points.mean), "line": thin_line, "showlegend": is_first})
    return traces


def _numbers_over_time(
    title: str, unit: str, series: Mapping[str, thinning.Floats], labels: Mapping[str, tuple[int, str, bool]]
) -> Html:
    head = ["Line", f"Mean [{unit}]", f"Least [{unit}]", f"Most [{unit}]", "Seconds"]
    body = [
        [
            labels[name][1],
            *(amount(float(value)) for value in (values.mean(), values.min(), values.max())),
            whole(len(values)),
        ]
        for name, values in series.items()
    ]
    return table(title, head, body)


def _source_in(rows: pd.DataFrame, wanted: str) -> str:
    """Return who has measured it: the wanted source, or another one if that has nothing to say."""
    found = sorted(set(rows["source"]))
    return wanted if wanted in found or not found else str(found[0])


def _histogram_trace(index: int, name: str, rows: pd.DataFrame, *, is_alone: bool) -> Trace:
    buckets = thinning.coarsen(rows, MOST_BUCKETS)
    share = 100 * buckets["requests"] / buckets["requests"].sum()
    # A bucket that begins at zero has no place on a logarithmic axis.
    low = buckets["low_ms"].where(buckets["low_ms"] > 0, buckets["high_ms"] / 2)
    middle = np.sqrt(low * buckets["high_ms"])
    trace: Trace = {"name": plain(name), "x": shorts(middle), "y": shorts(share)}
    hover = "about %{x:,.3g} ms: %{y:,.3g} %"
    if is_alone:
        width = shorts(buckets["high_ms"] - low)
        # Bars on a logarithmic axis have their width in the axis' units, from where they begin.
        return trace | {
            "type": "bar",
            "x": shorts(low),
            "width": width,
            "offset": 0,
            "marker": {"color": colour(index)},
            "hovertemplate": hover,
        }
    return trace | {
        "type": "scatter",
        "mode": "lines",
        "line": {**line(index), "shape": "hvh"},
        "hovertemplate": hover,
    }


def _numbers_of_percentiles(chapter: Chapter, title: str, source: str, kind: str) -> Html | None:
    rows = _responses(chapter, source, kind)
    columns = [name for name in _PERCENTILES if name in rows]
    if rows.empty:
        return None
    means = rows.groupby("cell")[columns].mean()
    head = ["Cell", *(f"{_PERCENTILES[column]} [ms]" for column in columns)]
    cells = [cell for cell in chapter.cells if cell in means.index]
    return table(
        title, head, [[chapter.cell_name(cell), *(amount(value) for value in means.loc[cell])] for cell in cells]
    )


def _responses(chapter: Chapter, source: str, kind: str) -> pd.DataFrame:
    rows = chapter.tables["measures"]
    return rows[(rows["metric"] == "response") & (rows["source"] == source) & (rows["kind"] == kind)]


def _says_medians(chapter: Chapter, cells: Sequence[str], source: str, kind: str) -> str:
    rows = _responses(chapter, source, kind)
    means = rows.groupby("cell")[["p50", "p99"]].mean()
    return "; ".join(
        f"{chapter.cell_name(cell)}: median {amount(means.loc[cell, 'p50'])} ms, 99 % within {amount(means.loc[cell, 'p99'])} ms"
        for cell in cells
        if cell in means.index
    )


def _spread(items: list[Any], most: int) -> list[Any]:
    """Return at most so many of them, the first and the last among them."""
    if len(items) <= most:
        return items
    return [items[round(at)] for at in np.linspace(0, len(items) - 1, most)]


def _phases(chapter: Chapter, view: View) -> tuple[str, ...]:
    """Return seed 002's three components where its numbers stand beside ours, and all phases elsewhere."""
    known = set(chapter.tables["phases"]["phase"])
    is_seed = bool(set(chapter.tables["references"]["metric"]) & set(COMPONENTS))
    chosen = COMPONENTS if view.metric in COMPONENTS or is_seed else PHASES
    return tuple(phase for phase in chosen if phase in known)


def _phase_means(rows: pd.DataFrame, *, merge_kinds: bool) -> dict[tuple[str, str], dict[str, float]]:
    """Return the mean of each phase over all nodes and runs of a cell, as often as each was measured."""
    weighted = rows.assign(total=rows["mean_ms"] * rows["requests"], kind="" if merge_kinds else rows["kind"])
    sums = weighted.groupby(["cell", "kind", "phase"])[["total", "requests"]].sum()
    found: dict[tuple[str, str], dict[str, float]] = {}
    for (cell, kind, phase), row in sums.iterrows():  # type: ignore[misc]
        found.setdefault((cell, kind), {})[phase] = float(row["total"] / row["requests"])
    return found


def _bar_label(chapter: Chapter, cell: str, kind: str, *, is_alone: bool) -> str:
    if is_alone:
        return kind or "all requests"
    return f"{chapter.cell_name(cell)}: {kind}" if kind else chapter.cell_name(cell)


def _largest_phase(means: Mapping[str, float]) -> str:
    total = sum(means.values())
    phase = max(means, key=lambda name: means[name])
    share = means[phase] / total if total else 0.0
    return f"{amount(total)} ms, most of it {metric_name(phase)} ({percent(share)})"


def _effects_of(chapter: Chapter, view: View, metric: str, rows: pd.DataFrame) -> Figure:
    ordered = rows.reindex(rows["effect"].abs().sort_values(ascending=False).index)
    terms = [" × ".join(chapter.names.get(part, part) for part in str(term).split(":")) for term in ordered["term"]]
    unit = unit_of(metric)
    title = view.title or f"Effects on the {metric_name(metric)}"
    data: list[Trace] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "effect",
            "y": [plain(term) for term in terms],
            "x": shorts(ordered["effect"]),
            "error_x": error_bars(ordered["high"] - ordered["effect"], ordered["effect"] - ordered["low"]),
            "marker": {"color": colour(0)},
            "text": [percent(share) for share in ordered["share_ratio"]],
            "hovertemplate": "%{y}: %{x:,.4g} " + unit + ", explains %{text}",
            "textposition": "none",
        }
    ]
    layout = {
        "xaxis": axis(f"Effect on the {metric_name(metric)} [{unit}]"),
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
        "showlegend": False,
    }
    body = [
        [
            term,
            amount(row["effect"]),
            f"[{amount(row['low'])}, {amount(row['high'])}]",
            percent(row["share_ratio"]),
            "no: the interval holds zero" if row["low"] <= 0 <= row["high"] else "yes",
        ]
        for term, (_, row) in zip(terms, ordered.iterrows(), strict=True)
    ]
    head = ["Term", f"Effect [{unit}]", "90 % interval", "Variation explained", "Significant"]
    says = f"{title}, in {unit}. " + "; ".join(f"{row[0]}: {row[1]}, explains {row[3]}" for row in body[:MOST_LINES])
    note = f"{count_of(len(body), 'term')}; an effect is half of the change from the low to the high level. Error bars span the 90 % interval."
    return Figure(title, data, layout, says, table(title, head, body), note, height_px=170 + 30 * len(body))


def _place(chapter: Chapter, cell: str, x: str | None) -> str:
    if x is None or len(chapter.factors) > 1:
        return plain(chapter.cell_name(cell))
    return plain(level(chapter.cells[cell].get(x)))
