"""Plots of a queue and its clients: rates and ready messages over time, and rates over ready messages."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd

from flyball.pipeline.manifest import View
from flyball.pipeline.report import thinning
from flyball.pipeline.report.chapters import Chapter
from flyball.pipeline.report.content import Table
from flyball.pipeline.report.figures import Figure, Trace, axis, line, lines, marked_lines, samples
from flyball.pipeline.report.formatting import amount, duration, whole

MOST_POINTS = 600
MOST_ROWS = 10
# The number of ranges into which ready messages are divided.
MOST_RANGES = 15

_RATES = {"produced": "production", "consumed": "consumption"}
_NOTE = "Of the first run of the cell. Seen by clients: a message waits from its producer's commit to its delivery."


def queue_over_time(chapter: Chapter, view: View) -> list[Figure]:
    """A plot for each cell: messages produced and consumed per second, and the number of ready ones."""
    return [_over_time(chapter, view, cell, rows) for cell, rows in _first_runs(chapter)]


def rate_over_waiting(chapter: Chapter, view: View) -> list[Figure]:
    """A plot for each cell: the rates over the number of ready messages."""
    return [_over_waiting(chapter, view, cell, rows) for cell, rows in _first_runs(chapter)]


def _first_runs(chapter: Chapter) -> list[tuple[str, pd.DataFrame]]:
    """Return the cells, in order, each with the seconds of its first run."""
    rows = chapter.tables["queue_over_time"]
    found = []
    for cell in chapter.cells:
        own = rows[rows["cell"] == cell]
        if len(own):
            found.append((cell, own[own["run"] == min(own["run"])].sort_values("second")))
    return found


def _title(chapter: Chapter, view: View, cell: str, what: str) -> str:
    name = chapter.cell_name(cell) if chapter.factors else ""
    return ": ".join(text for text in (view.title or what, name) if text)


def _over_time(chapter: Chapter, view: View, cell: str, rows: pd.DataFrame) -> Figure:
    title = _title(chapter, view, cell, "Rates and waiting messages over time")
    data = [_thinned(name, index, rows, column) for index, (column, name) in enumerate(_RATES.items())]
    data.append(_thinned("waiting messages", 2, rows, "waiting", yaxis="y2", line=line(2, dash="dot")))
    layout = {
        "xaxis": axis("Time [s]", rangemode="tozero"),
        "yaxis": axis("Rate [messages/s]", rangemode="tozero"),
        "yaxis2": axis("Waiting messages", rangemode="tozero", overlaying="y", side="right", showgrid=False),
        "hovermode": "x unified",
    }
    says = (
        f"{title}, {duration(len(rows))}: production {amount(rows['produced'].mean())}, consumption"
        f" {amount(rows['consumed'].mean())} messages/s on average; at most {whole(rows['waiting'].max())} waited."
    )
    return Figure(title, data, layout, says, _numbers(title, rows), _NOTE, is_wide=True)


def _thinned(name: str, index: int, rows: pd.DataFrame, column: str, **more: Any) -> Trace:
    found = thinning.thin(rows[column].to_numpy(dtype=float), MOST_POINTS)
    return lines(name, found.at, found.mean, index, **more)


def _over_waiting(chapter: Chapter, view: View, cell: str, rows: pd.DataFrame) -> Figure:
    title = _title(chapter, view, cell, "Rates over waiting messages")
    data: list[Trace] = []
    body: list[list[str]] = []
    said: list[str] = []
    for index, (column, name) in enumerate(_RATES.items()):
        own = rows[rows[column] > 0]
        ranges = _by_waiting(own, column)
        data.append(samples(f"{name}, each second", own["waiting"], own[column], index))
        data.append(marked_lines(name, [waiting for waiting, _ in ranges], [rate for _, rate in ranges], index))
        body += [[name, whole(waiting), amount(rate)] for waiting, rate in ranges]
        if ranges:
            said.append(f"{name} {amount(ranges[0][1])} at {whole(ranges[0][0])}")
            said.append(f"{amount(ranges[-1][1])} at {whole(ranges[-1][0])}")
    layout = {
        "xaxis": axis("Waiting messages", rangemode="tozero"),
        "yaxis": axis("Rate [messages/s]", rangemode="tozero"),
    }
    head = ["Phase", "Waiting messages", "Median rate [messages/s]"]
    says = f"{title}, in messages/s: {', '.join(said)} waiting."
    return Figure(title, data, layout, says, Table(title, head, body), _NOTE)


def _by_waiting(rows: pd.DataFrame, column: str) -> list[tuple[float, float]]:
    """Return the middle of each range of ready messages and the median rate in it."""
    if rows.empty:
        return []
    edges = np.linspace(0, max(float(rows["waiting"].max()), 1.0), MOST_RANGES + 1)
    place = np.clip(np.digitize(rows["waiting"], edges) - 1, 0, MOST_RANGES - 1)
    grouped = rows.groupby(place)
    return [(float(own["waiting"].mean()), float(own[column].median())) for _, own in grouped]


def _numbers(title: str, rows: pd.DataFrame) -> Table:
    bounds = np.linspace(0, len(rows), min(MOST_ROWS, len(rows)) + 1).astype(int)
    parts = [rows.iloc[begin:end] for begin, end in itertools.pairwise(bounds)]
    body = [
        [
            f"{int(part['second'].iloc[0])} to {int(part['second'].iloc[-1]) + 1}",
            amount(part["produced"].mean()),
            amount(part["consumed"].mean()),
            whole(part["waiting"].iloc[-1]),
        ]
        for part in parts
    ]
    return Table(
        title, ["Seconds", "Production [messages/s]", "Consumption [messages/s]", "Waiting at its end"], body
    )
