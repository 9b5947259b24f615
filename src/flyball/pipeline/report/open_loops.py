"""Plots of open control loops: the measurement after each action, and the plant identified from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from flyball.pipeline.manifest import View, cell_of
from flyball.pipeline.report.chapters import ADMISSION, Chapter
from flyball.pipeline.report.content import Table
from flyball.pipeline.report.figures import Figure, Trace, axis, colour, line, lines, marked_lines, samples, shade
from flyball.pipeline.report.formatting import NOTHING, action_name, amount, capital, whole
from flyball.pipeline.report.formatting import level as level_text
from flyball.pipeline.report.selection import MOST_LINES, spread

# An action with more values than this is divided into this many ranges.
MOST_LEVELS = 40


def open_loop(chapter: Chapter, view: View) -> list[Figure]:
    """Open loops: the measurement after each action, with the plant identified from it."""
    rows = chapter.tables["loops"]
    rows = rows[~rows["is_closed"].astype(bool) & rows["answer"].notna() & (rows["loop"] != ADMISSION)]
    order = {cell: place for place, cell in enumerate(chapter.cells)}
    groups = [(str(cell), str(name), own) for (cell, name), own in rows.groupby(["cell", "loop"], sort=False)]
    groups.sort(key=lambda group: order.get(group[0], 0))
    return [_figure(chapter, view, cell, name, own) for cell, name, own in groups]


def _figure(chapter: Chapter, view: View, cell: str, name: str, own: pd.DataFrame) -> Figure:
    plant = _plant_of(chapter, cell, name)
    action, rate, unit = _quantities(chapter)
    medians = _medians(own)
    data = [
        samples("samples", own["action"], own["answer"], 0),
        marked_lines("median", medians["action"], medians["answer"], 1),
    ]
    at_rest = _line_of(plant)
    if at_rest:
        data.append(at_rest)
    layout = {
        "xaxis": axis(action, rangemode="tozero"),
        "yaxis": axis(f"{rate} one sample later{unit}", rangemode="tozero"),
        "shapes": [shade(plant["linear_range"]["from"], plant["linear_range"]["until"], colour(2, 0.1))]
        if at_rest
        else [],
    }
    where = chapter.cell_name(cell) if chapter.factors else name if chapter.experiment is None else chapter.subject
    title = f"{view.title or f'{rate} over {action.lower()}'}: {where}"
    says = f"{title}. Median " + ", ".join(
        f"{amount(answer)} at {level_text(level)}"
        for level, answer in spread(list(medians.itertuples(index=False, name=None)), MOST_LINES)
    )
    head = [action, f"Median {rate.lower()} one sample later{unit}"]
    body = [[level_text(action), amount(answer)] for action, answer in medians.itertuples(index=False, name=None)]
    numbers = Table(f"{title}, {whole(len(own))} samples", head, body)
    return Figure(title, data, layout, says, numbers, _plant_words(plant))


def _quantities(chapter: Chapter) -> tuple[str, str, str]:
    """Return the names of action and measurement, and the measurement's unit in brackets."""
    if chapter.experiment is None:
        return "Action", "Measurement", ""
    actuator = next((str(run.workload.get("actuator", "")) for run in chapter.runs), "")
    return capital(action_name(actuator)), "Rate", " [messages/s]"


def _plant_of(chapter: Chapter, cell: str, name: str) -> Mapping[str, Any]:
    for plant in chapter.plants:
        if plant["loop"] == name and cell_of(plant.get("factors", json.loads(cell))) == cell:
            return plant
    return {}


def _medians(own: pd.DataFrame) -> pd.DataFrame:
    """Return the median answer for each action, or for ranges of about as many samples where there are many."""
    is_many = own["action"].nunique() > MOST_LEVELS
    by = pd.qcut(own["action"], MOST_LEVELS, duplicates="drop") if is_many else own["action"]
    return own.groupby(by, observed=True)[["action", "answer"]].median().reset_index(drop=True)


def _line_of(plant: Mapping[str, Any]) -> Trace | None:
    """Return the plant's steady state for the actions of its linear range; None if unknown, or if it never
    settles.
    """
    a, edges = plant.get("a"), plant.get("linear_range")
    if a is None or edges is None or abs(a) >= 1:
        return None
    actions = np.array([edges["from"], edges["until"]], dtype=float)
    settled = (plant["b"] * actions + plant["offset"]) / (1 - a)
    return lines("identified plant at rest", actions, settled, 2, "%{x:,.4g}: %{y:,.4g}", line=line(2, width=3))


def _plant_words(plant: Mapping[str, Any]) -> str:
    if not plant:
        return ""
    if plant.get("reason"):
        return f"No plant: {plant['reason']}."
    said = [f"{name} = {amount(plant[name])} ({_interval(plant, name)})" for name in ("a", "b")]
    test = plant.get("test", {}).get("r2")
    fits = f"; R² on samples kept for the test {amount(test)}" if test is not None else ""
    doubts = "".join(f" Warning: {text}." for text in plant.get("warnings", []))
    gain = plant.get("gain")
    worth = f"; at rest one more of action is worth {amount(gain)}" if gain is not None else ""
    return f"y(k+1) = a y(k) + b u(k) + offset with {', '.join(said)}{worth}{fits}. Shaded: its linear range.{doubts}"


def _interval(plant: Mapping[str, Any], name: str) -> str:
    low, high = plant.get("intervals", {}).get(name, (None, None))
    return f"90 %: {amount(low)} to {amount(high)}" if low is not None else NOTHING
