"""The rows of a chapter that a view shows, limited to the number that fits into a plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from flyball.pipeline.manifest import View
from flyball.pipeline.report.chapters import Chapter
from flyball.pipeline.report.formatting import ALL, quantiles, student

# Lines of a plot of distributions, and facts in its description: more cannot be distinguished.
MOST_LINES = 8

T = TypeVar("T")


def what(chapter: Chapter, view: View) -> tuple[str, str, str]:
    """Return the metric, its source, and the kind of requests; the source is one with data, if any."""
    return view.metric, chapter.source_of(view.metric, view.source), view.request


def source_in(rows: pd.DataFrame, wanted: str) -> str:
    """Return the source of the rows: the wanted one, or another one if that has no data."""
    found = sorted(set(rows["source"]))
    return wanted if wanted in found or not found else str(found[0])


def x_of(chapter: Chapter, view: View) -> str | None:
    """Return the factor along the axis: the view's, or else the first varied one."""
    if view.x in chapter.names:
        return view.x
    return chapter.factors[0] if chapter.factors else None


def of_kind(kind: str) -> str:
    """Return the part of a title about the kind of requests."""
    return "" if kind == ALL else f", {kind}"


def spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` of them, the first and the last included."""
    if len(items) <= most:
        return list(items)
    return [items[round(at)] for at in np.linspace(0, len(items) - 1, most)]


def student_of(row: pd.Series[Any]) -> str:
    """Return a row's mean with its interval by Student."""
    return student(row["mean"], row["half_width"])


def quantiles_of(row: pd.Series[Any]) -> str:
    """Return a row's mean with its interval by quantiles."""
    return quantiles(row["mean"], row["low"], row["high"])
