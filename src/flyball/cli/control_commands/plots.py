"""The figures of `flyball control`, each a matplotlib Figure. Pure drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flyball.control.plant import Plant
from flyball.errors import ControlError

SUFFIXES = (".svg", ".png")
MOST_COLUMNS = 4
MEASURED, GOAL, DONE, PREDICTED, FAINT = "#1f5fa8", "#c0392b", "#444444", "#e08a1e", "#9bb8d6"


@dataclass(frozen=True, slots=True)
class Trace:
    """Time series of one loop."""

    name: str
    times: Sequence[float]
    measurements: Sequence[float]
    actions: Sequence[float]
    setpoints: Sequence[float]


@dataclass(frozen=True, slots=True)
class Response:
    """Step response of a closed loop, and its poles; `is_centre` marks the estimated plant."""

    name: str
    steps: Sequence[float]
    poles: Sequence[complex]
    is_centre: bool


def check_name(path: Path) -> None:
    """Raise ControlError for an unsupported file name: checked before the work."""
    if path.suffix.lower() not in SUFFIXES:
        raise ControlError(f"unsupported figure format {path}: use {' or '.join(SUFFIXES)}")


def save(figure: Figure, path: Path) -> None:
    """Write the figure as SVG or PNG, by its suffix."""
    check_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Keep text as text: searchable and small.
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(path, dpi=120)


def identification(
    measurements: Sequence[float], actions: Sequence[float], predicted: Sequence[float], plant: Plant
) -> Figure:
    """Plot data and one-step predictions over time, and the measurement over the action with the fitted line.

    `predicted` has a number or NaN for each measurement.
    """
    figure = _figure(9, 7)
    over_time, below, curve = _three(figure)
    times = np.arange(len(measurements)) * plant.sample_time_s
    over_time.plot(times, measurements, color=MEASURED, lw=1.0, label="measurement")
    over_time.plot(times, predicted, color=PREDICTED, lw=1.0, ls="--", label="one-step prediction")
    over_time.set_ylabel("measurement")
    over_time.legend(loc="best", frameon=False)
    below.step(times, actions, where="post", color=DONE, lw=1.0)
    below.set(xlabel="seconds", ylabel="action")
    reach = plant.delay + 1
    curve.plot(actions[:-reach], measurements[reach:], ".", color=FAINT, ms=4, label="next measurement")
    _draw_fit(curve, actions, plant)
    curve.set(xlabel="action", ylabel="measurement")
    curve.legend(loc="best", frameon=False)
    over_time.set_title(f"{plant.loop or 'plant'}: a = {plant.a:.3g}, b = {plant.b:.3g}, gain {plant.gain:.3g}")
    return figure


def design(responses: Sequence[Response], title: str) -> Figure:
    """Plot step responses and poles in the unit circle: the estimated plant in front of its confidence set."""
    figure = _figure(10, 4.6)
    steps, circle = figure.subplots(1, 2, width_ratios=(3, 2))
    turn = np.linspace(0, 2 * np.pi, 200)
    circle.plot(np.cos(turn), np.sin(turn), color=DONE, lw=0.8)
    for response in sorted(responses, key=lambda one: one.is_centre):
        style = {"color": MEASURED, "lw": 1.8, "zorder": 3} if response.is_centre else {"color": FAINT, "lw": 0.7}
        steps.plot(response.steps, drawstyle="steps-post", label=response.name or None, **style)
        real, imaginary = [p.real for p in response.poles], [p.imag for p in response.poles]
        circle.plot(real, imaginary, "x" if response.is_centre else ".", color=style["color"], ms=8, zorder=3)
    steps.axhline(1.0, color=GOAL, lw=0.8, ls="--")
    steps.set(xlabel="samples", ylabel="fraction of the step", title=title)
    low, high = steps.get_ylim()
    # Unstable responses grow without bound, and would flatten the others.
    steps.set_ylim(max(low, -1.0), min(high, 3.0))
    if any(response.name for response in responses):
        steps.legend(loc="best")
    circle.set(aspect="equal", xlabel="real", ylabel="imaginary", title="poles")
    circle.grid(visible=True, lw=0.3)
    return figure


def loops(traces: Sequence[Trace], measurement_label: str, time_label: str) -> Figure:
    """Plot measurement, setpoint and action over time for each loop, side by side."""
    columns = min(len(traces), MOST_COLUMNS)
    rows = -(-len(traces) // columns)
    figure = _figure(max(8.0, 4.0 * columns), 4.6 * rows)
    axes = figure.subplots(2 * rows, columns, sharex=True, sharey="row", squeeze=False, height_ratios=(2, 1) * rows)
    for number in range(rows * columns):
        row, column = divmod(number, columns)
        above, below = axes[2 * row][column], axes[2 * row + 1][column]
        if number >= len(traces):
            above.set_axis_off()
            below.set_axis_off()
            continue
        trace = traces[number]
        above.plot(trace.times, trace.measurements, color=MEASURED, lw=1.0)
        above.step(trace.times, trace.setpoints, where="post", color=GOAL, lw=1.0, ls="--")
        above.set_title(f"{trace.name}, setpoint {trace.setpoints[-1]:.4g}")
        below.step(trace.times, trace.actions, where="post", color=DONE, lw=1.0)
        below.set_xlabel(time_label)
        below.tick_params(labelbottom=True)
        if column == 0:
            above.set_ylabel(measurement_label)
            below.set_ylabel("action")
    return figure


def _draw_fit(axes: Axes, actions: Sequence[float], plant: Plant) -> None:
    if plant.curve:
        axes.plot(*zip(*plant.curve, strict=True), "o-", color=DONE, ms=3, lw=0.8, label="steady state")
    lowest, highest = min(actions), max(actions)
    if plant.linear_range is not None:
        lowest, highest = plant.linear_range.lowest, plant.linear_range.highest
        axes.axvspan(lowest, highest, color=FAINT, alpha=0.2, lw=0, label="linear range")
    left = 1 - sum(plant.all_a)
    if left > 0:
        ends = np.array([lowest, highest])
        axes.plot(ends, plant.gain * ends + plant.offset / left, color=GOAL, lw=1.4, label="model")


def _three(figure: Figure) -> tuple[Axes, Axes, Axes]:
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=(5, 4))[:, 0]
    over_time, below = upper.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    return over_time, below, lower.subplots()


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")
