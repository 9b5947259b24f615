"""Which closed loops held their goal: the repetitions of a cell together, in numbers and in plain words.

It reads the table of closed loops; what the figures in it mean is written with the stage that makes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from flyball.pipeline.report.chapters import Chapter
from flyball.pipeline.report.markup import Child, Html, element, markup, table
from flyball.pipeline.report.words import NOTHING, amount, count_of, level, percent, proper, student, whole

MOST_MEAN_ERROR_RATIO = 0.01
MOST_STD_RATIO = 0.075
"""A loop holds its goal if its mean is so close to it and its deviation so small: 30 messages/s at seed 004's 400."""
SOON_SAMPLES = 10
"""A loop that is disturbed should have settled again after so many."""
MOST_NAMED = 12
"""Loops that a sentence of the summary names."""

CONDITION = "the mean is within 1 % of the goal, the standard deviation at most 7.5 % of it (30 at 400)"

_OWN_FACTORS = ("kind", "controller", "actuator")
"""Factors that a loop's row names anyway, without what stands before the dot."""


@dataclass(frozen=True, slots=True)
class Held:
    """One controller in one cell of an experiment, from one disturbance to the next; means over the repetitions."""

    cell: str
    label: str
    """The controller, and what else sets it apart from others on the same broker."""
    name: str
    """The label, the broker where there are several, and the disturbance."""
    broker: str
    gains: str
    actuator: str
    disturbance: str
    goal: float
    mean: float
    std: float
    settling_samples: float | None
    """The longest of the repetitions; None if one of them never settled."""
    overshoot: float
    """The largest of the repetitions."""
    runs: int
    is_held: bool
    """In each of the repetitions."""


@dataclass(frozen=True, slots=True)
class Published:
    """What others have measured of a controller."""

    label: str
    cell: str
    mean: float
    std: float | None


def held_of(chapter: Chapter) -> list[Held]:
    """Return what each closed loop of a chapter did, in the order of its cells; parts one after the other."""
    rows = chapter.tables["closed_loops"]
    order = {cell: place for place, cell in enumerate(chapter.cells)}
    groups = rows.groupby(["cell", "loop", "part", "disturbance", "goal"], sort=False)
    parts = [(order.get(own["cell"].iloc[0], 0), int(own["part"].iloc[0]), own) for _, own in groups]
    return [_held(chapter, own) for _, _, own in sorted(parts, key=lambda part: part[:2])]


def published_of(chapter: Chapter) -> list[Published]:
    """Return what was published of loops: a mean, and its standard deviation if that was published as well."""
    rows = chapter.tables["references"]
    stds = {
        (row.label, row.cell): float(row.theirs)  # type: ignore[arg-type]
        for row in rows[rows["metric"] == "loop_std"].itertuples()
    }
    return [
        Published(str(row.label), str(row.cell), float(row.theirs), stds.get((row.label, row.cell)))  # type: ignore[arg-type]
        for row in rows[rows["metric"] == "loop_mean"].itertuples()
    ]


def held_table(chapter: Chapter) -> Html:
    """Return all closed loops of a chapter beside what was published of them."""
    found = held_of(chapter)
    if not found:
        return Html("")
    theirs: dict[str, list[Published]] = {}
    for one in published_of(chapter):
        theirs.setdefault(one.cell, []).append(one)
    head = [
        *("Controller", "Broker", "Actuator", "Gains", "After", "Goal", "Mean ± std"),
        *("Settling [samples]", "Overshoot", "Held", "Published", "Runs"),
    ]
    body: list[list[Child]] = [
        [
            one.label,
            proper(one.broker) or NOTHING,
            one.actuator or NOTHING,
            one.gains or NOTHING,
            one.disturbance or NOTHING,
            amount(one.goal),
            student(one.mean, one.std),
            whole(one.settling_samples) if one.settling_samples is not None else "never",
            percent(one.overshoot),
            element("span", "yes" if one.is_held else "no", class_="good-text" if one.is_held else "bad-text"),
            _published(theirs.get(one.cell, []), is_disturbed=bool(one.disturbance)),
            whole(one.runs),
        ]
        for one in found
    ]
    note = element(
        "p",
        f"Held: {CONDITION}, in each repetition. Mean and standard deviation of a sample are averaged over"
        " repetitions, settling and overshoot are the worst of them. tables/closed_loops.csv has each run by itself.",
        class_="note",
    )
    return markup(element("h3", "Closed loops"), note, table("How closed loops did", head, body, numbers_from=5))


def held_words(chapters: Sequence[Chapter]) -> Html:
    """Say in plain words which controllers held their goal and which did not; nothing if no loop was closed."""
    shown: list[Child] = []
    for chapter in chapters:
        found = held_of(chapter)
        if found:
            title = f"{chapter.title}: " if sum(map(_has_loops, chapters)) > 1 else ""
            shown.append(element("li", title, _sentences(found)))
    if not shown:
        return Html("")
    return markup(element("p", f"Closed loops, held if {CONDITION}:"), element("ul", shown, class_="held"))


def _has_loops(chapter: Chapter) -> bool:
    return not chapter.tables["closed_loops"].empty


def _sentences(found: Sequence[Held]) -> str:
    held, lost = [one for one in found if one.is_held], [one for one in found if not one.is_held]
    is_one = len(found) == 1
    if not lost:
        said = [f"{'The only one' if is_one else f'All {len(held)}'} held the goal: {_named(held)}."]
    elif not held:
        none = "The only one did not hold" if is_one else f"None of {len(lost)} held"
        said = [f"{none} the goal: {_named(lost)}."]
    else:
        said = [f"{len(held)} of {len(found)} held the goal: {_named(held)}.", f"The others did not: {_named(lost)}."]
    disturbed = [one for one in found if one.disturbance]
    if disturbed:
        soon = sum(one.settling_samples is not None and one.settling_samples <= SOON_SAMPLES for one in disturbed)
        after = count_of(len(disturbed), "disturbance")
        said.append(f"Settled within {SOON_SAMPLES} samples after {soon} of {after}.")
    return " ".join(said)


def _named(found: Sequence[Held]) -> str:
    said = [f"{one.name} ({student(one.mean, one.std)} for {amount(one.goal)})" for one in found[:MOST_NAMED]]
    more = len(found) - len(said)
    return "; ".join(said) + (f"; and {count_of(more, 'other')}" if more else "")


def _held(chapter: Chapter, own: pd.DataFrame) -> Held:
    first = own.iloc[0]
    settling = own["settling_samples"]
    label = _label(chapter, first.to_dict())
    has_brokers = chapter.tables["closed_loops"]["broker"].nunique() > 1
    where = f" on {proper(str(first['broker']))}" if has_brokers else ""
    return Held(
        cell=str(first["cell"]),
        label=label,
        name=f"{label}{where}" + (f", after {first['disturbance']}" if first["disturbance"] else ""),
        broker=str(first["broker"]),
        gains=str(first["gains"]),
        actuator=str(first["actuator"]),
        disturbance=str(first["disturbance"]),
        goal=float(first["goal"]),
        mean=float(own["mean"].mean()),
        std=float(own["std"].mean()),
        settling_samples=None if settling.isna().any() else float(settling.max()),
        overshoot=float(own["overshoot"].max()),
        runs=len(own),
        is_held=bool(_is_held(own).all()),
    )


def _is_held(rows: pd.DataFrame) -> pd.Series[bool]:
    is_near = (rows["mean"] - rows["goal"]).abs() <= MOST_MEAN_ERROR_RATIO * rows["goal"]
    return is_near & (rows["std"] <= MOST_STD_RATIO * rows["goal"])


def _label(chapter: Chapter, row: Mapping[object, object]) -> str:
    factors = json.loads(str(row["cell"]))
    rows = chapter.tables["closed_loops"]
    has_actuators = rows.loc[rows["controller"] == row["controller"], "actuator"].nunique() > 1
    others = [
        f"{chapter.names.get(name, name)} {level(factors[name])}"
        for name in chapter.factors
        if name in factors and name.rpartition(".")[2] not in _OWN_FACTORS
    ]
    actuator = [str(row["actuator"])] if has_actuators else []
    return ", ".join([str(row["controller"]), *actuator, *others])


def _published(found: Sequence[Published], *, is_disturbed: bool) -> str:
    if is_disturbed:
        return NOTHING
    return "; ".join(f"{student(one.mean, one.std)} ({one.label})" for one in found) or NOTHING
