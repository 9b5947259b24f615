"""Plots of closed control loops: a comparison of controllers, and each run over time."""

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
    error_bars,
    hollow_diamond,
    line,
    loop_lines,
    marker,
    plain,
    points,
    shade,
    vertical,
    words_at,
)
from flyball.pipeline.report.formatting import (
    action_name,
    amount,
    capital,
    duration,
    goal_text,
    percent,
    proper,
    student,
)
from flyball.pipeline.report.loop_findings import LoopResult, loop_results, published_of, settling_text
from flyball.pipeline.report.selection import MOST_LINES, spread

# Maximum number of closed loops with a plot of their own; of more, some are chosen.
MOST_RUNS = 100
# A run with more disturbances than this has a plot as wide as the page.
MOST_NARROW_PARTS = 3


def loop(chapter: Chapter, view: View) -> list[Figure]:
    """Closed loops: first all controllers and their goal, then each run over time."""
    rows = chapter.tables["loops"]
    rows = rows[rows["is_closed"].astype(bool) & (rows["loop"] != ADMISSION)]
    if rows.empty:
        return []
    runs = [(str(run), str(name), own) for (run, name), own in rows.groupby(["run", "loop"], sort=False)]
    order = {cell: place for place, cell in enumerate(chapter.cells)}
    runs.sort(key=lambda one: (order.get(chapter.cell_of.get(one[0], ""), 0), one[0]))
    shown = spread(runs, MOST_RUNS)
    left_out = f" {len(shown)} of {len(runs)} runs are plotted below." if len(shown) < len(runs) else ""
    found = loop_results(chapter)
    compared = [_comparison(chapter, view, found, left_out)] if found else []
    # Reversed, so that the first part, which has no disturbance, takes precedence.
    names = {one.cell: one.name for one in reversed(found)}
    return [*compared, *(_run_figure(chapter, run, own, names) for run, _, own in shown)]


def _comparison(chapter: Chapter, view: View, found: Sequence[LoopResult], left_out: str) -> Figure:
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
        "shapes": [vertical(goal, "ink-2")],
    }
    title = view.title or "Controllers and their goal"
    says = f"{title}. " + "; ".join(
        f"{one.name}: {student(one.mean, one.std)} for {goal_text(one.goal)}" for one in found[:MOST_LINES]
    )
    note = "Bars span one standard deviation of a sample to each side; the dotted line is the goal." + left_out
    if len(data) > len(brokers):
        note += " Hollow diamonds: what was published."
    height = 180 + 30 * len(places) * max(1, len(brokers))
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
    numbers = Table(title, ["Loop", "Goal", "Mean ± std", "Settling [samples]", "Overshoot"], body)
    return Figure(title, data, layout, says, numbers, note, is_wide=True, height_px=height)


def _broker_trace(
    index: int, own: Sequence[LoopResult], names: Mapping[tuple[str, str, float], str], *, is_ratio: bool
) -> Trace:
    scales = [100 / one.goal if is_ratio else 1.0 for one in own]
    return points(
        proper(own[0].broker) or "loop",
        [scale * one.mean for scale, one in zip(scales, own, strict=True)],
        [names[one.cell, one.disturbance, one.goal] for one in own],
        marker(index) | {"size": 10},
        "%{y}: %{x:,.4g} ± %{error_x.array:,.3g}",
        error_x=error_bars(scale * one.std for scale, one in zip(scales, own, strict=True)),
        orientation="h",
        offsetgroup=str(index),
    )


def _unit(chapter: Chapter) -> str:
    """Return the unit of measurement and goal in brackets; the lab's loops are about messages."""
    return " [messages/s]" if chapter.experiment else ""


def _range(traces: Sequence[Trace], goal: float) -> list[float]:
    """Return the range of an axis that includes all bars and the goal, with a margin, and nothing below 0."""
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


def _place(one: LoopResult, *, is_one: bool) -> str:
    """Return the name of a row: the controller, unless there is only one, and the preceding disturbance."""
    after = f"after {one.disturbance}" if one.disturbance else "the beginning" if is_one else ""
    return ", ".join(part for part in ("" if is_one else one.label, after) if part)


def _published_traces(
    chapter: Chapter, found: Sequence[LoopResult], names: Mapping[tuple[str, str, float], str], *, is_ratio: bool
) -> list[Trace]:
    """Return published figures as hollow diamonds; one for several brokers is drawn once."""
    goals = {one.cell: one.goal for one in reversed(found) if not one.disturbance}
    found_at: dict[str, tuple[float, float | None, str]] = {}
    for one in published_of(chapter):
        if one.cell in goals:
            scale = 100 / goals[one.cell] if is_ratio else 1.0
            std = one.std * scale if one.std is not None else None
            found_at.setdefault(names[one.cell, "", goals[one.cell]], (one.mean * scale, std, one.label))
    if not found_at:
        return []
    means, stds, labels = zip(*found_at.values(), strict=True)
    return [
        points(
            labels[0] if len(set(labels)) == 1 else "published",
            means,
            list(found_at),
            hollow_diamond(REFERENCE_COLOUR),
            "%{y}, %{text}: %{x:,.4g} ± %{error_x.array:,.3g}",
            error_x=error_bars(stds, color=REFERENCE_COLOUR),
            text=[plain(label) for label in labels],
            orientation="h",
            offsetgroup="published",
        )
    ]


def _run_figure(chapter: Chapter, run: str, own: pd.DataFrame, names: Mapping[str, str]) -> Figure:
    """Measurement and goal over time, and the action below them."""
    parts = chapter.tables["closed_loops"]
    parts = parts[(parts["run"] == run) & (parts["loop"] == own["loop"].iloc[0])].sort_values("part")
    disturbed = parts[parts["part"] > 1].to_dict("records")
    title = _run_title(chapter, run, names, parts)
    rate = "Rate" if chapter.experiment else "Measurement"
    action = capital(action_name("" if parts.empty else str(parts["actuator"].iloc[0])))
    acted = action.partition(" [")[0]
    data = loop_lines(own, {"measurement": rate, "setpoint": "Goal", "action": acted})
    data[-1] |= {"yaxis": "y2", "line": line(1, shape="hv")}
    layout = {
        "xaxis": axis("Time since the measurement began [s]", anchor="y2"),
        "yaxis": axis(rate + _unit(chapter), rangemode="tozero", domain=[0.36, 1.0]),
        "yaxis2": axis(action, rangemode="tozero", domain=[0.0, 0.26], anchor="x"),
        "hovermode": "x unified",
        # The time before the measured time is shaded.
        "shapes": [
            shade(min(float(own["at_s"].min()), 0.0), 0, "muted/0.12"),
            *(vertical(part["from_s"], "series-6") for part in disturbed),
        ],
        # Between the two plots, where they hide no line; at alternating heights, since they may be close together.
        "annotations": [
            words_at(part["from_s"], 0.29 if place % 2 else 0.335, str(part["disturbance"]), yanchor="middle")
            for place, part in enumerate(disturbed)
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
