"""Plots of a metric over the levels of a factor: curves, bars, and the network between clients and nodes.

Published numbers are drawn as hollow diamonds.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from flyball.pipeline.manifest import View
from flyball.pipeline.report import figures
from flyball.pipeline.report.chapters import CLIENTS, NODES, Chapter
from flyball.pipeline.report.content import Table
from flyball.pipeline.report.figures import (
    REFERENCE_COLOUR,
    Figure,
    Trace,
    axis,
    colour,
    error_bars,
    hollow_diamond,
    is_level_number,
    level_axis,
    plain,
    value_axis,
)
from flyball.pipeline.report.formatting import (
    ALL,
    NOTHING,
    amount,
    axis_name,
    capital,
    level,
    metric_name,
    unit_of,
    whole,
)
from flyball.pipeline.report.selection import MOST_LINES, of_kind, quantiles_of, student_of, what, x_of

# The layout of bars side by side, with published numbers as diamonds on top.
GROUPED = {"barmode": "group", "scattermode": "group", "bargap": 0.3, "bargroupgap": 0.06}
# With more bars side by side, their names need a plot as wide as the page.
MOST_NARROW_BARS = 8

_HOVER = "%{x}: %{y:,.4g} ± %{error_y.array:,.3g} "

# The factors of a cell, and its row.
Points: TypeAlias = "list[tuple[dict[str, Any], pd.Series[Any]]]"


def curve(chapter: Chapter, view: View) -> list[Figure]:
    """A metric over the levels of a factor, a line for each level of another, with the published numbers."""
    x = x_of(chapter, view)
    return [] if x is None else _over_levels(chapter, view, x, is_bars=False)


def bars(chapter: Chapter, view: View) -> list[Figure]:
    """A metric as bars: by the levels of a factor, or by kind of request where no factor varies."""
    x = x_of(chapter, view)
    return _bars_by_kind(chapter, view) if x is None else _over_levels(chapter, view, x, is_bars=True)


def _over_levels(chapter: Chapter, view: View, x: str, *, is_bars: bool) -> list[Figure]:
    metric, source, kind = what(chapter, view)
    rows = chapter.metric(metric, source, kind)
    if rows.empty:
        return []
    lines = _lines(chapter, rows, x, view)
    references = _references(chapter, metric, source, kind)
    unit = unit_of(metric, str(rows["unit"].iloc[0]))
    x_title, y_title = capital(axis_name(chapter.names[x])), f"{capital(metric_name(metric))} [{unit}]"
    if is_bars:
        draw = bar_of
        layout = {
            **GROUPED,
            "xaxis": axis(x_title, type="category"),
            "yaxis": axis(y_title, rangemode="tozero"),
        }
    else:
        draw = trace_of
        levels = _levels([cell for points in lines.values() for cell, _ in points], references, x)
        layout = {
            "xaxis": level_axis(x_title, levels),
            "yaxis": value_axis(y_title, rows["mean"], may_be_log=unit == "ms"),
        }
    place = _category if is_bars else coordinate
    data = [
        draw(index, name, [place(cell.get(x)) for cell, _ in points], [row for _, row in points], unit)
        for index, (name, points) in enumerate(lines.items())
    ]
    data += _reference_traces(chapter, references, x, view, list(lines), unit, is_category=is_bars)
    over = f"{'by' if is_bars else 'over'} {chapter.names[x]}"
    title = view.title or f"{capital(metric_name(metric))} {over}{of_kind(kind)}"
    says = _says_lines(f"{title}, in {unit}, measured by {source}", chapter.names[x], lines, x)
    is_wide = is_bars and max(len(points) for points in lines.values()) > MOST_NARROW_BARS
    numbers = _numbers(chapter, title, unit, rows)
    return [Figure(title, data, layout, says, numbers, _note(source, references), is_wide=is_wide)]


def network(chapter: Chapter, view: View) -> list[Figure]:
    """The response times of clients and of nodes, and their difference."""
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
        data.append(bar_of(index, name, places, points, "ms"))
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


def _lines(chapter: Chapter, rows: pd.DataFrame, x: str, view: View) -> dict[str, Points]:
    """Return the points of each line by its name; factors that are not on an axis separate lines too."""
    found: dict[str, Points] = {}
    for _, row in rows.iterrows():
        cell = chapter.cells[row["cell"]]
        found.setdefault(_line_name(chapter, cell, x, view), []).append((cell, row))
    return found


def _line_name(chapter: Chapter, cell: Mapping[str, Any], x: str, view: View) -> str:
    return chapter.line_name(cell, x, view.series) or chapter.subject


def trace_of(
    index: int, name: str, places: Sequence[float | str | None], rows: Sequence[pd.Series[Any]], unit: str
) -> Trace:
    """Return a line of means with their intervals."""
    return figures.marked_lines(name, places, _means(rows), index, _HOVER + unit, error_y=_intervals(rows))


def bar_of(
    index: int, name: str, places: Sequence[float | str | None], rows: Sequence[pd.Series[Any]], unit: str
) -> Trace:
    """Return bars of means with their intervals."""
    widths = _intervals(rows) | {"color": "ink-2"}
    return figures.bars(name, places, _means(rows), index, _HOVER + unit, offsetgroup=str(index), error_y=widths)


def _means(rows: Sequence[pd.Series[Any]]) -> list[float]:
    return [row["mean"] for row in rows]


def _intervals(rows: Sequence[pd.Series[Any]]) -> dict[str, Any]:
    return error_bars(row["half_width"] for row in rows)


def _bars_by_kind(chapter: Chapter, view: View) -> list[Figure]:
    metric, source, _ = what(chapter, view)
    kinds = chapter.kinds(metric, source) or [ALL]
    rows = [(kind, row) for kind in kinds for _, row in chapter.metric(metric, source, kind).iterrows()]
    if not rows:
        return []
    unit = unit_of(metric, str(rows[0][1]["unit"]))
    title = view.title or f"{capital(metric_name(metric))} by kind of request"
    data = [bar_of(0, metric_name(metric), [plain(kind) for kind, _ in rows], [row for _, row in rows], unit)]
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
    """Return the published numbers for the plot; their source of measurement may differ from ours."""
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
    """Return the published numbers as hollow diamonds, in the colour of their line."""
    groups: dict[tuple[str, str], list[Hashable]] = {}
    for index, row in rows.iterrows():
        cell = json.loads(row["cell"])
        if x in cell:
            groups.setdefault((str(row["label"]), _line_name(chapter, cell, x, view)), []).append(index)
    traces = []
    for (label, name), members in groups.items():
        part = rows.loc[members]
        levels = [json.loads(cell)[x] for cell in part["cell"]]
        places = [_category(value) if is_category else coordinate(value) for value in levels]
        # A diamond would be invisible on bars of its own colour.
        has_own_colour = name in lines and len(lines) > 1 and not is_category
        hue = colour(lines.index(name)) if has_own_colour else REFERENCE_COLOUR
        full = f"{label}: {name}" if len(lines) > 1 else label
        trace = _reference_trace(full, places, part, hue, unit)
        is_beside_a_bar = is_category and name in lines
        traces.append(trace | {"offsetgroup": str(lines.index(name))} if is_beside_a_bar else trace)
    return traces


def _reference_trace(
    name: str, places: Sequence[float | str | None], rows: pd.DataFrame, hue: str, unit: str
) -> Trace:
    trace = figures.points(name, places, rows["theirs"], hollow_diamond(hue), "%{x}: %{y:,.4g} " + unit)
    if rows["theirs_high"].notna().any():
        high, low = rows["theirs_high"].astype(float), -rows["theirs_low"].astype(float)
        trace["error_y"] = error_bars(high, low, color=hue)
    return trace


def _category(value: object) -> str:
    return plain(level(value))


def coordinate(value: object) -> float | str:
    """Return a level in plotly's form: a number, or a text without markup."""
    return float(value) if isinstance(value, int | float) and is_level_number(value) else _category(value)


def _levels(cells: Sequence[Mapping[str, Any]], references: pd.DataFrame, x: str) -> list[Any]:
    found = [cell[x] for cell in cells if x in cell]
    found += [factors[x] for factors in map(json.loads, references["cell"]) if x in factors]
    return list(dict.fromkeys(found))


def _note(source: str, references: pd.DataFrame) -> str:
    seen = f"Measured by {source}; error bars span the 90 % confidence interval."
    return seen if references.empty else f"{seen} Hollow diamonds: published numbers."


def _says_lines(opening: str, x_name: str, lines: Mapping[str, Points], x: str) -> str:
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
    return _category(chapter.cells[cell].get(x))
