"""Plots of a metric over the levels of a factor: curves, bars, and the network between clients and nodes.

The seed's numbers stand in them as hollow diamonds.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from flyball.pipeline.manifest import View
from flyball.pipeline.report.chapters import CLIENTS, NODES, Chapter
from flyball.pipeline.report.content import Table
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
from flyball.pipeline.report.selection import MOST_LINES, of_kind, quantiles_of, student_of, what, x_of
from flyball.pipeline.report.words import ALL, NOTHING, amount, axis_name, capital, level, metric_name, unit_of, whole

GROUPED = {"barmode": "group", "scattermode": "group", "bargap": 0.3, "bargroupgap": 0.06}
"""The layout of bars beside each other, with the seed's diamonds upon them."""

_Points: TypeAlias = "list[tuple[dict[str, Any], pd.Series[Any]]]"

MOST_NARROW_BARS = 8
"""The names of more bars beside each other need a plot as wide as the page."""


def curve(chapter: Chapter, view: View) -> list[Figure]:
    """A metric over the levels of a factor, a line for each level of another, with the seed's numbers."""
    metric, source, kind = what(chapter, view)
    x = x_of(chapter, view)
    rows = chapter.metric(metric, source, kind)
    if x is None or rows.empty:
        return []
    lines = _lines(chapter, rows, x, view)
    references = _references(chapter, metric, source, kind)
    levels = _levels([cell for points in lines.values() for cell, _ in points], references, x)
    unit = unit_of(metric, str(rows["unit"].iloc[0]))
    values = [float(row["mean"]) for points in lines.values() for _, row in points]
    layout = {
        "xaxis": level_axis(capital(axis_name(chapter.names[x])), levels),
        "yaxis": value_axis(f"{capital(metric_name(metric))} [{unit}]", values, may_be_log=unit == "ms"),
    }
    data = [_line_trace(index, name, points, x, unit) for index, (name, points) in enumerate(lines.items())]
    data += _reference_traces(chapter, references, x, view, list(lines), unit)
    title = view.title or f"{capital(metric_name(metric))} over {chapter.names[x]}{of_kind(kind)}"
    says = _says_lines(f"{title}, in {unit}, measured by {source}", chapter.names[x], lines, x)
    return [Figure(title, data, layout, says, _numbers(chapter, title, unit, rows), _note(source, references))]


def bars(chapter: Chapter, view: View) -> list[Figure]:
    """A metric as bars: by the levels of a factor, or by kind of request where no factor varies."""
    metric, source, kind = what(chapter, view)
    x = x_of(chapter, view)
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
    title = view.title or f"{capital(metric_name(metric))} by {chapter.names[x]}{of_kind(kind)}"
    layout = {
        **GROUPED,
        "xaxis": axis(capital(axis_name(chapter.names[x])), type="category"),
        "yaxis": axis(f"{capital(metric_name(metric))} [{unit}]", rangemode="tozero"),
    }
    says = _says_lines(f"{title}, in {unit}, measured by {source}", chapter.names[x], lines, x)
    is_wide = max(len(points) for points in lines.values()) > MOST_NARROW_BARS
    numbers = _numbers(chapter, title, unit, rows)
    return [Figure(title, data, layout, says, numbers, _note(source, references), is_wide=is_wide)]


def network(chapter: Chapter, view: View) -> list[Figure]:
    """What clients wait beyond what nodes work: both response times and their difference."""
    kind = view.request
    x = x_of(chapter, view)
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
        **GROUPED,
        "xaxis": axis(
            capital(axis_name(chapter.names[x])) if x and len(chapter.factors) == 1 else "", type="category"
        ),
        "yaxis": axis("Time [ms]", rangemode="tozero"),
    }
    cells = list(dict.fromkeys(cell for rows in parts.values() for cell in rows["cell"]))
    by_cell = {name: rows.set_index("cell") for name, rows in parts.items()}
    body = [
        [
            chapter.cell_name(cell),
            *(student_of(rows.loc[cell]) if cell in rows.index else NOTHING for rows in by_cell.values()),
        ]
        for cell in cells
    ]
    head = ["Cell", *(f"{capital(name)} [ms]" for name in parts)]
    says = f"{title}, in ms. " + "; ".join(
        f"{row[0]}: " + ", ".join(f"{n} {v}" for n, v in zip(parts, row[1:], strict=True))
        for row in body[:MOST_LINES]
    )
    return [Figure(title, data, layout, says, Table(title, head, body))]


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
    return ", ".join(f"{chapter.names[name]} {level(cell[name])}" for name in ordered) or chapter.subject


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
        "offsetgroup": str(index),
        "error_y": error_bars(row["half_width"] for row in rows) | {"color": "ink-2"},
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
    body = [[kind, student_of(row), quantiles_of(row)] for kind, row in rows]
    head = ["Requests", f"{unit}, by Student", f"{unit}, by quantiles"]
    says = f"{title}, in {unit}, seen by {source}. " + "; ".join(f"{row[0]}: {row[1]}" for row in body)
    return [Figure(title, data, layout, says, Table(title, head, body), f"Seen by {source}.")]


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
        # On bars of its own colour a diamond could not be seen.
        has_own_colour = name in lines and len(lines) > 1 and not is_category
        hue = colour(lines.index(name)) if has_own_colour else REFERENCE_COLOUR
        full = f"{label}: {name}" if len(lines) > 1 else label
        trace = _reference_trace(full, places, part, hue, unit)
        is_beside_a_bar = is_category and name in lines
        traces.append(trace | {"offsetgroup": str(lines.index(name))} if is_beside_a_bar else trace)
    return traces


def _reference_trace(name: str, places: Sequence[object], rows: pd.DataFrame, hue: str, unit: str) -> Trace:
    trace: Trace = {
        "type": "scatter",
        "mode": "markers",
        "name": plain(name),
        "x": list(places),
        "y": shorts(rows["theirs"]),
        "marker": {"symbol": "diamond", "size": 11, "color": "surface", "line": {"width": 2, "color": hue}},
        "hovertemplate": "%{x}: %{y:,.4g} " + unit,
    }
    if rows["theirs_high"].notna().any():
        trace["error_y"] = error_bars(rows["theirs_high"].astype(float), -rows["theirs_low"].astype(float)) | {
            "color": hue
        }
    return trace


def _coordinate(value: object) -> float | str | None:
    return float(value) if isinstance(value, int | float) and is_level_number(value) else plain(level(value))


def _levels(cells: Sequence[Mapping[str, Any]], references: pd.DataFrame, x: str) -> list[Any]:
    found = [cell[x] for cell in cells if x in cell]
    found += [factors[x] for factors in map(json.loads, references["cell"]) if x in factors]
    return list(dict.fromkeys(found))


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


def _numbers(chapter: Chapter, title: str, unit: str, rows: pd.DataFrame) -> Table:
    head = ["Cell", f"{unit}, by Student", f"{unit}, by quantiles", "Repetitions"]
    body = [
        [chapter.cell_name(row["cell"]), student_of(row), quantiles_of(row), whole(row["repetitions"])]
        for _, row in rows.iterrows()
    ]
    return Table(title, head, body)


def _place(chapter: Chapter, cell: str, x: str | None) -> str:
    if x is None or len(chapter.factors) > 1:
        # Plotly breaks lines at this element, and the names themselves are escaped.
        return plain(chapter.cell_name(cell)).replace(", ", "<br>")
    return plain(level(chapter.cells[cell].get(x)))
