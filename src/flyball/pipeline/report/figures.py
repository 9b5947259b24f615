"""A plot: plotly's data and layout as plain dictionaries, with a description for readers who cannot see it.

Colours are names, `series-1` or `series-1/0.2`: the page defines them for light and dark. It imports no plotly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias

import pandas as pd

from flyball.pipeline.report.content import Table
from flyball.pipeline.report.formatting import is_number

# Number of series with their own colour; further ones differ in their dashes.
COLOURS = 8

REFERENCE_COLOUR = "reference"

_DASHES = ("solid", "dash", "dot", "dashdot")
_SYMBOLS = ("circle", "square", "triangle-up", "x", "star", "triangle-down", "pentagon", "cross")

Axis: TypeAlias = dict[str, Any]
Trace: TypeAlias = dict[str, Any]
Numbers: TypeAlias = Iterable[float | None]
# Names must be escaped for plotly, which interprets some markup.
Places: TypeAlias = Iterable[float | str | None]

# The layout of an axis of names, the first at the top.
NAMES_DOWNWARDS: Axis = {"type": "category", "autorange": "reversed", "showgrid": False}


@dataclass(frozen=True)
class Figure:
    """One plot, with its numbers and a description."""

    title: str
    data: Sequence[Trace]
    layout: dict[str, Any]
    # A description of the plot: its axes, and the most important numbers.
    says: str
    numbers: Table | None = None
    note: str = ""
    is_wide: bool = False
    height_px: int = 360


def colour(index: int, opacity: float = 1.0) -> str:
    """Return the name of the colour of a series, counted from 0."""
    name = f"series-{index % COLOURS + 1}"
    return name if opacity == 1.0 else f"{name}/{opacity}"


def line(index: int, **more: Any) -> dict[str, Any]:
    """Return the style of the line of a series."""
    return {"color": colour(index), "dash": _DASHES[index // COLOURS % len(_DASHES)], "width": 2, **more}


def marker(index: int) -> dict[str, Any]:
    """Return the style of the points of a series; series differ in colour and symbol."""
    return {"color": colour(index), "symbol": _SYMBOLS[index % len(_SYMBOLS)], "size": 8}


def lines(name: str, x: Places, y: Places, index: int, hover: str = "%{y:,.4g}", **more: Any) -> Trace:
    """Return a line in the colour of a series."""
    return _trace(name, x, y, hover, mode="lines", line=line(index)) | more


def marked_lines(
    name: str, x: Places, y: Places, index: int, hover: str = "%{x:,.4g}: %{y:,.4g}", **more: Any
) -> Trace:
    """Return a line with marked points, for points that are far apart or have intervals."""
    return lines(name, x, y, index, hover, mode="lines+markers", marker=marker(index)) | more


def points(
    name: str, x: Places, y: Places, look: Mapping[str, Any], hover: str = "%{x:,.4g}: %{y:,.4g}", **more: Any
) -> Trace:
    """Return points without a line."""
    return _trace(name, x, y, hover, mode="markers", marker=dict(look)) | more


def samples(name: str, x: Numbers, y: Numbers, index: int) -> Trace:
    """Return very many points, transparent enough to see lines behind them."""
    return points(name, x, y, {"color": colour(index, 0.3), "size": 5})


def bars(name: str, x: Places, y: Places, index: int, hover: str, **more: Any) -> Trace:
    """Return bars in the colour of a series."""
    return _trace(name, x, y, hover, type="bar", marker={"color": colour(index)}) | more


def band(x: Places, low: Numbers, high: Numbers, index: int, opacity: float = 0.2, **more: Any) -> list[Trace]:
    """Return the area between two lines."""
    edge = {"showlegend": False, "hoverinfo": "skip", "line": {"width": 0}, **more}
    lower, upper = (_trace(name, x, y, "", mode="lines") | edge for name, y in (("low", low), ("high", high)))
    return [lower, upper | {"fill": "tonexty", "fillcolor": colour(index, opacity)}]


def loop_lines(rows: pd.DataFrame, names: Mapping[str, str]) -> list[Trace]:
    """Return the columns of a control loop's samples over time, with a band where samples are combined."""
    # Measurement and setpoint of a sample cover the time before it; its action applies after it.
    looks = {
        "measurement": line(0),
        "setpoint": {"color": "ink-2", "dash": "dot", "width": 1.5, "shape": "vh"},
        "action": line(1, width=1.2, shape="hv"),
    }
    found = band(rows["at_s"], rows["low"], rows["high"], 0) if (rows["samples"] > 1).any() else []
    return [
        *found,
        *(lines(name, rows["at_s"], rows[column], 0, line=looks[column]) for column, name in names.items()),
    ]


def hollow_diamond(hue: str) -> dict[str, Any]:
    """Return the style of a published number."""
    return {"symbol": "diamond", "size": 11, "color": "surface", "line": {"width": 2, "color": hue}}


def stacked(
    labels: Sequence[str], parts: Mapping[str, Numbers], title: str, unit: str, colours: Sequence[int]
) -> tuple[list[Trace], dict[str, Any]]:
    """Return data and layout of horizontal bars, each divided into parts."""
    names = [plain(label) for label in labels]
    edge = {"color": "surface", "width": 1}
    data = [
        bars(name, values, names, index, f"%{{y}}: %{{x:,.4g}}{unit}", orientation="h")
        | {"marker": {"color": colour(index), "line": edge}}
        for (name, values), index in zip(parts.items(), colours, strict=False)
    ]
    layout = {
        "barmode": "stack",
        "bargap": 0.25,
        "legend": {"traceorder": "normal"},
        "xaxis": axis(title, rangemode="tozero"),
        "yaxis": NAMES_DOWNWARDS,
    }
    return data, layout


def vertical(at: float, hue: str, width: float = 1.2) -> dict[str, Any]:
    """Return a dotted line over the whole height of a plot."""
    return _upright(at, at, type="line", line={"color": hue, "width": width, "dash": "dot"})


def shade(begin: float, end: float, hue: str) -> dict[str, Any]:
    """Return a coloured background over the whole height of a plot."""
    return _upright(begin, end, type="rect", fillcolor=hue, line={"width": 0}, layer="below")


def words_at(
    at: float, height: float, text: str, *, is_left: bool = False, yanchor: str = "bottom"
) -> dict[str, Any]:
    """Return a text to the right of a place on the axis, or to the left of it where there is no room."""
    place = {"x": at, "y": height, "yref": "paper", "xanchor": "right" if is_left else "left", "yanchor": yanchor}
    return {**place, "showarrow": False, "text": plain(text), "font": {"size": 11, "color": "ink-2"}}


def plain(text: str) -> str:
    """Return a text of the data with its markup escaped, which plotly would otherwise render."""
    return escape(text, quote=False)


def short(value: float | None) -> float | None:
    """Return a number rounded to the digits visible in a plot, None for one that cannot be plotted."""
    return float(f"{value:.5g}") if value is not None and is_number(value) else None


def shorts(values: Numbers) -> list[float | None]:
    """Return numbers rounded to the digits visible in a plot."""
    return [short(value) for value in values]


def error_bars(high: Numbers, low: Numbers | None = None, **more: Any) -> dict[str, Any]:
    """Return error bars with these distances from the point; `low` counts downwards and is positive."""
    found: dict[str, Any] = {"type": "data", "array": shorts(high), "thickness": 1.2, "width": 4, **more}
    if low is not None:
        found |= {"symmetric": False, "arrayminus": shorts(low)}
    return found


def axis(title: str, **more: Any) -> Axis:
    """Return an axis with its title."""
    return {"title": {"text": plain(title)}, **more}


def value_axis(title: str, values: Numbers, *, may_be_log: bool = True) -> Axis:
    """Return an axis for measured values: logarithmic if they span a factor of 30, else from zero."""
    positive = [value for value in values if value is not None and is_number(value) and value > 0]
    if may_be_log and positive and max(positive) / min(positive) >= 30:
        return log_axis(title, min(positive), max(positive))
    return axis(title, rangemode="tozero")


def log_axis(title: str, low: float, high: float) -> Axis:
    """Return a logarithmic axis with labels at 1, 2 and 5, or at powers of ten if it spans many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    labels = {"tickmode": "array", "tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks]}
    return axis(f"{title}, logarithmic", type="log", **labels)


def level_axis(title: str, levels: Sequence[object]) -> Axis:
    """Return an axis for the levels of a factor: numeric if possible, else evenly spaced names."""
    numbers = [float(value) for value in levels if isinstance(value, int | float) and is_level_number(value)]
    if len(numbers) < len(levels) or not numbers:
        return axis(title, type="category")
    ticks: Axis = {"tickmode": "array", "tickvals": numbers, "ticktext": [f"{value:,g}" for value in numbers]}
    if is_geometric(numbers):
        return axis(f"{title}, logarithmic", type="log", **ticks)
    return axis(title, rangemode="tozero", **(ticks if _is_even(numbers) else {}))


def is_level_number(value: object) -> bool:
    """Whether a level is a number, and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_geometric(numbers: Sequence[float]) -> bool:
    """Whether levels are spaced more evenly on a logarithmic axis than on a linear one."""
    ordered = sorted(set(numbers))
    if len(ordered) < 3 or ordered[0] <= 0:
        return False
    return ordered[-1] / ordered[0] >= 8 and _unevenness([math.log(value) for value in ordered]) < _unevenness(
        ordered
    )


def _trace(name: str, x: Places, y: Places, hover: str, **more: Any) -> Trace:
    found: Trace = {"type": "scatter", "name": plain(name), "x": _places(x), "y": _places(y), **more}
    return found | {"hovertemplate": hover} if hover else found


def _places(values: Places) -> list[float | str | None]:
    return [value if isinstance(value, str) else short(value) for value in values]


def _upright(begin: float, end: float, **look: Any) -> dict[str, Any]:
    return {"x0": begin, "x1": end, "yref": "paper", "y0": 0, "y1": 1, **look}


def _is_even(numbers: Sequence[float]) -> bool:
    """Whether the labels of all levels fit next to each other on a linear axis."""
    ordered = sorted(set(numbers))
    return all(after - before >= (ordered[-1] - ordered[0]) / 14 for before, after in itertools.pairwise(ordered))


def _unevenness(ordered: Sequence[float]) -> float:
    steps = [after - before for before, after in itertools.pairwise(ordered)]
    mean = sum(steps) / len(steps)
    return sum((step / mean - 1) ** 2 for step in steps)
