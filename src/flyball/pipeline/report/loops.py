"""Plots of closed control loops: how controllers compare, and how each run went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from flyball.pipeline.manifest import View
from flyball.pipeline.report.chapters import ADMISSION, Chapter
from flyball.pipeline.report.content import Table
from flyball.pipeline.report.figures import (
    REFERENCE_COLOUR,
    Figure,
    Trace,
    axis,
    colour,
    error_bars,
    line,
    marker,
    plain,
    shorts,
)
from flyball.pipeline.report.held import Held, held_of, published_of, settling_text
from flyball.pipeline.report.selection import MOST_LINES, spread
from flyball.pipeline.report.words import (
    action_name,
    amount,
    capital,
    duration,
    goal_text,
    percent,
    proper,
    student,
)

MOST_RUNS = 100
"""Closed loops that have a plot of their own; of more, some are chosen."""

MOST_NARROW_PARTS = 3
"""A run with more disturbances than fit below each other has a plot as wide as the page."""


def loop(chapter: Chapter, view: View) -> list[Figure]:
    """Closed loops: first all controllers beside each other and their goal, then each run over time."""
    rows = chapter.tables["loops"]
    rows = rows[rows["is_closed"].astype(bool) & (rows["loop"] != ADMISSION)]
    if rows.empty:
        return []
    runs = [(str(run), str(name), own) for (run, name), own in rows.groupby(["run", "loop"], sort=False)]
    order = {cell: place for place, cell in enumerate(chapter.cells)}
    runs.sort(key=lambda one: (order.get(chapter.cell_of.get(one[0], ""), 0), one[0]))
    shown = spread(runs, MOST_RUNS)
    left_out = f" {len(shown)} of {len(runs)} runs are plotted below." if len(shown) < len(runs) else ""
    found = held_of(chapter)
    compared = [_comparison(chapter, view, found, left_out)] if found else []
    # The last to be kept is the first part, which no disturbance has begun.
    names = {one.cell: one.name for one in reversed(found)}
    return [*compared, *(_run_figure(chapter, run, own, names) for run, _, own in shown)]


def _comparison(chapter: Chapter, view: View, found: Sequence[Held], left_out: str) -> Figure:
    """Mean and standard deviation of each controller: in its own unit, or of the goal where goals differ."""
    goals = {one.goal for one in found}
    is_ratio = len(goals) > 1
    brokers = list(dict.fromkeys(one.broker for one in found))
    is_one = len({one.label for one in found}) == 1 and any(one.disturbance for one in found)
    names = {(one.cell, one.disturbance, one.goal): plain(_place(one, is_one=is_one)) for one in found}
    data = [
        _broker_trace(index, [one for one in found if one.broker == broker], names, is_ratio=is_ratio)
        for index, broker in enumerate(brokers)
    ]
    data += _published_traces(chapter, found, names, is_ratio=is_ratio)
    goal = 100.0 if is_ratio else next(iter(goals))
    places = list(dict.fromkeys(names.values()))
    layout = {
        "scattermode": "group",
        "scattergap": 0.4,
        "xaxis": axis(
            f"Mean ± standard deviation{' [% of the goal]' if is_ratio else _unit(chapter)}",
            range=_range(data, goal),
        ),
        "yaxis": {
            **axis(""),
            "type": "category",
            "categoryorder": "array",
            "categoryarray": places,
            "autorange": "reversed",
        },
        "shapes": [_vertical(goal, "ink-2")],
    }
    title = view.title or "Controllers beside each other and their goal"
    says = f"{title}. " + "; ".join(
        f"{one.name}: {student(one.mean, one.std)} for {goal_text(one.goal)}" for one in found[:MOST_LINES]
    )
    note = "Bars span one standard deviation of a sample to each side; the dotted line is the goal." + left_out
    if len(data) > len(brokers):
        note += " Hollow diamonds: what was published."
    height = 180 + 30 * len(places) * max(1, len(brokers))
    numbers = _comparison_table(title, found)
    return Figure(title, data, layout, says, numbers, note, is_wide=True, height_px=height)


def _broker_trace(
    index: int, own: Sequence[Held], names: Mapping[tuple[str, str, float], str], *, is_ratio: bool
) -> Trace:
    scales = [100 / one.goal if is_ratio else 1.0 for one in own]
    return {
        "type": "scatter",
        "mode": "markers",
        "orientation": "h",
        "offsetgroup": str(index),
        "name": plain(proper(own[0].broker)) or "loop",
        "y": [names[one.cell, one.disturbance, one.goal] for one in own],
        "x": shorts(scale * one.mean for scale, one in zip(scales, own, strict=True)),
        "error_x": error_bars(scale * one.std for scale, one in zip(scales, own, strict=True)),
        "marker": marker(index) | {"size": 10},
        "hovertemplate": "%{y}: %{x:,.4g} ± %{error_x.array:,.3g}",
    }


def _comparison_table(title: str, found: Sequence[Held]) -> Table:
    body = [
        [
            one.name,
            goal_text(one.goal),
            student(one.mean, one.std),
            settling_text(one.settling_samples),
            percent(one.overshoot),
        ]
        for one in found
    ]
    return Table(title, ["Loop", "Goal", "Mean ± std", "Settling [samples]", "Overshoot"], body)


def _unit(chapter: Chapter) -> str:
    """Return the unit of measurement and goal in brackets; the lab's loops are about messages."""
    return " [messages/s]" if chapter.experiment else ""


def _range(traces: Sequence[Trace], goal: float) -> list[float]:
    """Return the range of an axis that shows all bars and the goal, with some room, and nothing below 0."""
    ends = [
        mean + sign * (std or 0.0)
        for trace in traces
        for mean, std in zip(trace["x"], trace["error_x"]["array"], strict=True)
        if mean is not None
        for sign in (-1, 1)
    ]
    low, high = min([0.9 * goal, *ends]), max([1.1 * goal, *ends])
    room = 0.05 * (high - low)
    return [max(0.0, low - room), high + room]


def _place(one: Held, *, is_one: bool) -> str:
    """Return the name of a row: the controller, unless there is only one, and what happened before."""
    after = f"after {one.disturbance}" if one.disturbance else "the beginning" if is_one else ""
    return ", ".join(part for part in ("" if is_one else one.label, after) if part)


def _published_traces(
    chapter: Chapter, found: Sequence[Held], names: Mapping[tuple[str, str, float], str], *, is_ratio: bool
) -> list[Trace]:
    """Return what others measured as hollow diamonds; one that stands beside several brokers is drawn once."""
    goals = {one.cell: one.goal for one in reversed(found) if not one.disturbance}
    points: dict[str, tuple[float, float | None, str]] = {}
    for one in published_of(chapter):
        if one.cell in goals:
            scale = 100 / goals[one.cell] if is_ratio else 1.0
            std = one.std * scale if one.std is not None else None
            points.setdefault(names[one.cell, "", goals[one.cell]], (one.mean * scale, std, plain(one.label)))
    if not points:
        return []
    means, stds, labels = zip(*points.values(), strict=True)
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "orientation": "h",
            "offsetgroup": "published",
            "name": labels[0] if len(set(labels)) == 1 else "published",
            "y": list(points),
            "x": shorts(means),
            "text": list(labels),
            "error_x": error_bars(stds) | {"color": REFERENCE_COLOUR},
            "marker": {
                "symbol": "diamond",
                "size": 11,
                "color": "surface",
                "line": {"width": 2, "color": REFERENCE_COLOUR},
            },
            "hovertemplate": "%{y}, %{text}: %{x:,.4g} ± %{error_x.array:,.3g}",
        }
    ]


def _run_figure(chapter: Chapter, run: str, own: pd.DataFrame, names: Mapping[str, str]) -> Figure:
    """Measurement and goal over time, and the action below them."""
    parts = chapter.tables["closed_loops"]
    parts = parts[(parts["run"] == run) & (parts["loop"] == own["loop"].iloc[0])].sort_values("part")
    title = _run_title(chapter, run, names, parts)
    rate = "Rate" if chapter.experiment else "Measurement"
    action = capital(action_name("" if parts.empty else str(parts["actuator"].iloc[0])))
    times = shorts(own["at_s"])
    data: list[Trace] = [*_band(own, times)] if (own["samples"] > 1).any() else []
    data += [
        _series(rate, times, own["measurement"], 0),
        {
            # A sample is of the time before it, and so is the goal that it was measured for; its action comes after.
            **_series("Goal", times, own["setpoint"], 0),
            "line": {"color": "ink-2", "dash": "dot", "width": 1.5, "shape": "vh"},
        },
        {
            **_series(action.partition(" [")[0], times, own["action"], 1),
            "yaxis": "y2",
            "line": line(1) | {"shape": "hv"},
        },
    ]
    layout = {
        "xaxis": axis("Time since the measurement began [s]", anchor="y2"),
        "yaxis": axis(rate + _unit(chapter), rangemode="tozero", domain=[0.36, 1.0]),
        "yaxis2": axis(action, rangemode="tozero", domain=[0.0, 0.26], anchor="x"),
        "hovermode": "x unified",
        "shapes": [_warm_up(own), *(_vertical(part["from_s"], "series-6") for part in _disturbed(parts))],
        "annotations": [
            _mark(part["from_s"], part["disturbance"], place) for place, part in enumerate(_disturbed(parts))
        ],
    }
    body = [_part_row(part) for part in parts.to_dict("records")]
    says = (
        f"{title}: {rate.lower()}, goal and action over {duration(own['at_s'].max() - own['at_s'].min())}. "
        + "; ".join(
            f"after {row[0]}: goal {row[2]}, {row[3]}, settled after {row[4]} samples" for row in body[:MOST_LINES]
        )
    )
    head = ["After", "From [s]", "Goal", "Mean ± std", "Settling [samples]", "Overshoot"]
    note = "" if (own["samples"] == 1).all() else "Each point is the mean of several samples, the band spans them."
    is_wide = len(parts) > MOST_NARROW_PARTS
    return Figure(title, data, layout, says, Table(title, head, body), note, is_wide=is_wide, height_px=400)


def _part_row(part: Mapping[Any, Any]) -> list[str]:
    settling = part["settling_samples"]
    return [
        str(part["disturbance"]) or "the beginning",
        amount(part["from_s"]),
        goal_text(part["goal"]),
        student(part["mean"], part["std"]),
        settling_text(None if pd.isna(settling) else float(settling)),
        percent(part["overshoot"]),
    ]


def _run_title(chapter: Chapter, run: str, names: Mapping[str, str], parts: pd.DataFrame) -> str:
    if parts.empty:
        return f"Run {run}"
    name = names[parts["cell"].iloc[0]]
    if chapter.experiment is None:
        return f"{name}, {run}" if run else name
    return f"{name}, repetition {parts['repetition'].iloc[0]}" if chapter.experiment.repetitions > 1 else name


def _disturbed(parts: pd.DataFrame) -> list[dict[Any, Any]]:
    return parts[parts["part"] > 1].to_dict("records")


def _series(name: str, times: Sequence[float | None], values: pd.Series[float], index: int) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": times,
        "y": shorts(values),
        "line": line(index),
        "hovertemplate": "%{y:,.4g}",
    }


def _band(own: pd.DataFrame, times: Sequence[float | None]) -> list[Trace]:
    edge = {"type": "scatter", "mode": "lines", "x": times, "line": {"width": 0}, "hoverinfo": "skip"}
    low = {**edge, "name": "low", "y": shorts(own["low"]), "showlegend": False}
    high = {**edge, "name": "high", "y": shorts(own["high"]), "showlegend": False}
    return [low, {**high, "fill": "tonexty", "fillcolor": colour(0, 0.2)}]


def _vertical(at: float, hue: str) -> dict[str, Any]:
    place = {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1}
    return {**place, "line": {"color": hue, "width": 1.2, "dash": "dot"}}


def _warm_up(own: pd.DataFrame) -> dict[str, Any]:
    """Return a shade over the time that is not measured."""
    begin = min(float(own["at_s"].min()), 0.0)
    place = {"type": "rect", "x0": begin, "x1": 0, "yref": "paper", "y0": 0, "y1": 1}
    return {**place, "fillcolor": "muted/0.12", "line": {"width": 0}, "layer": "below"}


def _mark(at: float, says: object, number: int) -> dict[str, Any]:
    # Between the two plots, where no line hides it; one below the next, which may be near.
    place = {
        "x": at,
        "y": 0.29 if number % 2 else 0.335,
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "middle",
        "showarrow": False,
    }
    return {**place, "text": plain(str(says)), "font": {"size": 11, "color": "ink-2"}}
