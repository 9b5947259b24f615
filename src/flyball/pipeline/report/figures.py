"""What a plot is: plotly's data and layout as plain dictionaries, with words for those who cannot see it.

Colours are names, `series-1` or `series-1/0.2`: the page knows them in light and dark. It imports no plotly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias

from flyball.pipeline.report.content import Table
from flyball.pipeline.report.words import is_number

COLOURS = 8
"""Series that a colour can tell apart; further ones differ in their dashes."""

REFERENCE_COLOUR = "reference"

_DASHES = ("solid", "dash", "dot", "dashdot")
_SYMBOLS = ("circle", "square", "triangle-up", "x", "star", "triangle-down", "pentagon", "cross")

Axis: TypeAlias = dict[str, Any]
Trace: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One plot, and the same in numbers and in words."""

    title: str
    data: Sequence[Trace]
    layout: dict[str, Any]
    says: str
    """The plot in words: what is on the axes, and the most important numbers."""
    numbers: Table | None = None
    """The plotted numbers as a table."""
    note: str = ""
    is_wide: bool = False
    height_px: int = 360


def colour(index: int, opacity: float = 1.0) -> str:
    """Return the name of the colour of a series, counted from 0."""
    name = f"series-{index % COLOURS + 1}"
    return name if opacity == 1.0 else f"{name}/{opacity}"


def line(index: int) -> dict[str, Any]:
    """Return how the line of a series looks."""
    return {"color": colour(index), "dash": _DASHES[index // COLOURS % len(_DASHES)], "width": 2}


def marker(index: int) -> dict[str, Any]:
    """Return how the points of a series look; colour is not all that tells them apart."""
    return {"color": colour(index), "symbol": _SYMBOLS[index % len(_SYMBOLS)], "size": 8}


def plain(text: str) -> str:
    """Return a text of the data for plotly, which would take some markup in it at its word."""
    return escape(text, quote=False)


def short(value: float | None) -> float | None:
    """Return a number with the digits that a plot can show, None for one that it cannot."""
    return float(f"{value:.5g}") if value is not None and is_number(value) else None


def shorts(values: Iterable[float | None]) -> list[float | None]:
    """Return numbers with the digits that a plot can show."""
    return [short(value) for value in values]


def error_bars(high: Iterable[float | None], low: Iterable[float | None] | None = None) -> dict[str, Any]:
    """Return error bars with these distances from the point; `low` counts downwards and is positive."""
    bars: dict[str, Any] = {"type": "data", "array": shorts(high), "thickness": 1.2, "width": 4}
    if low is not None:
        bars |= {"symmetric": False, "arrayminus": shorts(low)}
    return bars


def axis(title: str, **more: Any) -> Axis:
    """Return an axis with its title."""
    return {"title": {"text": plain(title)}, **more}


def value_axis(title: str, values: Iterable[float | None], *, may_be_log: bool = True) -> Axis:
    """Return an axis for measured values: logarithmic where they differ by a factor of 30, else from zero."""
    positive = [value for value in values if value is not None and is_number(value) and value > 0]
    if may_be_log and positive and max(positive) / min(positive) >= 30:
        return log_axis(title, min(positive), max(positive))
    return axis(title, rangemode="tozero")


def log_axis(title: str, low: float, high: float) -> Axis:
    """Return a logarithmic axis that is labelled at 1, 2 and 5, or at powers of ten if it spans many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    labels = {"tickmode": "array", "tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks]}
    return axis(f"{title}, logarithmic", type="log", **labels)


def level_axis(title: str, levels: Sequence[object]) -> Axis:
    """Return an axis for the levels of a factor: numbers where they are, evenly spaced names otherwise."""
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
    """Whether levels lie more evenly on a logarithmic axis than on a linear one."""
    ordered = sorted(set(numbers))
    if len(ordered) < 3 or ordered[0] <= 0:
        return False
    return ordered[-1] / ordered[0] >= 8 and _unevenness([math.log(value) for value in ordered]) < _unevenness(
        ordered
    )


def _is_even(numbers: Sequence[float]) -> bool:
    """Whether the labels of all levels fit beside each other on a linear axis."""
    ordered = sorted(set(numbers))
    return all(after - before >= (ordered[-1] - ordered[0]) / 14 for before, after in itertools.pairwise(ordered))


def _unevenness(ordered: Sequence[float]) -> float:
    steps = [after - before for before, after in itertools.pairwise(ordered)]
    mean = sum(steps) / len(steps)
    return sum((step / mean - 1) ** 2 for step in steps)
