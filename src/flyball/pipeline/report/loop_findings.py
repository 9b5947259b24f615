"""The closed loops that held their goal: the repetitions of a cell combined, in numbers and in plain words.

It reads the table of closed loops; the stage that computes it defines its figures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from flyball.pipeline.report.chapters import Chapter
from flyball.pipeline.report.content import Findings, Goal, Mark, Passage, Table
from flyball.pipeline.report.formatting import (
    NOTHING,
    count_of,
    factor_text,
    goal_text,
    percent,
    proper,
    student,
    whole,
)

# A loop holds its goal if its mean is this close to it and its deviation this small: 30/s at the paper's 400.
MOST_MEAN_ERROR_RATIO = 0.01
MOST_STD_RATIO = 0.075
# Samples within which a loop should have settled after a disturbance.
SOON_SAMPLES = 10
# Maximum number of loops that a sentence of the summary names.
MOST_NAMED = 20

_MEANINGS = (
    "Mean and standard deviation of a sample are those of the steady state, averaged over repetitions, settling and"
    " overshoot are the worst of them. tables/closed_loops.csv has each run by itself."
)
CONDITION = "the mean is within 1 % of the goal, the standard deviation at most 7.5 % of it (30 at 400)"

# Factors that a loop's row names in any case, without the part before the dot.
_OWN_FACTORS = ("kind", "controller", "actuator")


@dataclass(frozen=True, slots=True)
class LoopResult:
    """One controller in one cell of an experiment, from one disturbance to the next; means over the repetitions."""

    cell: str
    # The controller, and the factors that distinguish it from others on the same broker.
    label: str
    # The label, the broker where there are several, and the disturbance.
    name: str
    broker: str
    gains: str
    actuator: str
    disturbance: str
    goal: float
    mean: float
    std: float
    # The longest of the repetitions; None if one of them never settled.
    settling_samples: float | None
    # The largest of the repetitions.
    overshoot: float
    runs: int
    # Whether the mean is close enough to the goal, in each of the repetitions.
    is_near: bool
    # Whether `is_near` and the deviation is small enough.
    is_held: bool

    @property
    def is_closed(self) -> bool:
        """Whether the controller can act: with gains of 0 its action was set by hand."""
        gains = [float(number) for number in re.findall(r"=(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)", self.gains)]
        return not gains or any(gains)


@dataclass(frozen=True, slots=True)
class Published:
    """A published figure of a controller."""

    label: str
    cell: str
    mean: float
    std: float | None


def loop_results(chapter: Chapter) -> list[LoopResult]:
    """Return the result of each closed loop of a chapter, in the order of its cells; parts in order of time."""
    rows = chapter.tables["closed_loops"]
    order = {cell: place for place, cell in enumerate(chapter.cells)}
    groups = rows.groupby(["cell", "loop", "part", "disturbance", "goal"], sort=False)
    parts = [(order.get(own["cell"].iloc[0], 0), int(own["part"].iloc[0]), own) for _, own in groups]
    return [_held(chapter, own) for _, _, own in sorted(parts, key=lambda part: part[:2])]


def published_of(chapter: Chapter) -> list[Published]:
    """Return the published figures of loops: a mean, and its standard deviation if published."""
    rows = chapter.tables["references"]
    stds = {
        (row.label, row.cell): float(row.theirs)  # type: ignore[arg-type]
        for row in rows[rows["metric"] == "loop_std"].itertuples()
    }
    return [
        Published(str(row.label), str(row.cell), float(row.theirs), stds.get((row.label, row.cell)))  # type: ignore[arg-type]
        for row in rows[rows["metric"] == "loop_mean"].itertuples()
    ]


def loops_table(chapter: Chapter) -> list[Passage]:
    """Return all closed loops of a chapter with the published figures. Columns with equal values are omitted."""
    found = loop_results(chapter)
    if not found:
        return []
    # The lab's loops are about messages; the unit of loops in other traces is unknown.
    unit = " [messages/s]" if chapter.experiment else ""
    theirs: dict[str, list[Published]] = {}
    for one in published_of(chapter):
        theirs.setdefault(one.cell, []).append(one)
    columns: dict[str, Sequence[str | Mark]] = {
        "Controller": [one.label for one in found],
        "Broker": _if_they_differ([proper(one.broker) or NOTHING for one in found]),
        "After": _if_any([one.disturbance or NOTHING for one in found]),
        "Held": [_verdict(one) for one in found],
        f"Goal{unit}": _if_they_differ([goal_text(one.goal) for one in found]),
        f"Mean ± std{unit}": [student(one.mean, one.std) for one in found],
        "Published": _if_any(
            [_published(theirs.get(one.cell, []), is_disturbed=bool(one.disturbance)) for one in found]
        ),
        "Settling [samples]": [settling_text(one.settling_samples) for one in found],
        "Overshoot": [percent(one.overshoot) for one in found],
        "Runs": _if_they_differ([whole(one.runs) for one in found]),
        "Actuator": _if_they_differ([one.actuator or NOTHING for one in found]),
        "Gains": [Mark(one.gains or NOTHING, "verdict") for one in found],
    }
    shown = {name: cells for name, cells in columns.items() if cells}
    names = sum(name in shown for name in ("Controller", "Broker", "After", "Held"))
    rows = list(zip(*shown.values(), strict=True))
    note = Mark(f"{_setting(found)}Held: {CONDITION}, in each repetition. {_MEANINGS}", "note")
    return [Passage("Closed loops", [note, Table("How closed loops did", list(shown), rows, numbers_from=names)])]


def settling_text(samples: float | None) -> str:
    """Return the number of samples until a loop settled."""
    return "never" if samples is None else whole(samples)


def _if_they_differ(cells: list[str]) -> list[str]:
    """Return the cells of a column, empty if all are equal."""
    return cells if len(set(cells)) > 1 else []


def _if_any(cells: list[str]) -> list[str]:
    """Return the cells of a column, empty if none has a value."""
    return cells if set(cells) != {NOTHING} else []


def _verdict(one: LoopResult) -> Mark:
    if not one.is_closed:
        return Mark("set by hand", "verdict")
    return Mark("yes", "good-text") if one.is_held else Mark("no", "bad-text")


def _setting(found: Sequence[LoopResult]) -> str:
    """Return the values common to all loops, which need no column."""
    goals, brokers, actuators, runs = (
        {getattr(one, name) for one in found} for name in ("goal", "broker", "actuator", "runs")
    )
    first = found[0]
    said = [
        f"goal {goal_text(first.goal)}" if len(goals) == 1 else "",
        f"broker {proper(first.broker)}" if len(brokers) == 1 and first.broker else "",
        f"actuator {first.actuator}" if len(actuators) == 1 and first.actuator else "",
        count_of(first.runs, "run") if len(runs) == 1 else "",
    ]
    return f"Of each: {', '.join(part for part in said if part)}. " if any(said) else ""


def loop_findings(chapters: Sequence[Chapter]) -> list[Findings]:
    """Describe in plain words which controllers held their goal and which did not; empty without closed loops."""
    said = {
        chapter.title: [Goal(text) for text in _sentences(found, published_of(chapter))]
        for chapter in chapters
        if (found := loop_results(chapter))
    }
    return [Findings(f"Closed loops, held if {CONDITION}:", said)] if said else []


def _sentences(found: Sequence[LoopResult], published: Sequence[Published]) -> list[str]:
    by_hand, closed = [one for one in found if not one.is_closed], [one for one in found if one.is_closed]
    said = [f"Set by hand, for {_goal_of(found)}: {_named(by_hand)}."] if by_hand else []
    return [*said, *(_of_closed(closed) if closed else []), *_beside(found, published)]


def _of_closed(found: Sequence[LoopResult]) -> list[str]:
    held = sorted((one for one in found if one.is_held), key=lambda one: one.std / one.goal)
    off = [one for one in found if not one.is_held and not one.is_near]
    unsteady = [one for one in found if not one.is_held and one.is_near]
    is_one, goal = len(found) == 1, _goal_of(found)
    if len(held) == len(found):
        said = [f"{'The only closed loop' if is_one else f'All {len(held)}'} held {goal}: {_named(held)}."]
    elif held:
        order = ", the steadiest first" if len(held) > 1 else ""
        said = [f"{len(held)} of {len(found)} held {goal}{order}: {_named(held)}."]
    else:
        said = [f"{'The only closed loop did not hold' if is_one else f'None of {len(found)} held'} {goal}."]
    if off:
        said.append(f"The mean was too far away: {_named(off)}.")
    if unsteady:
        said.append(f"The deviation was too large: {_named(unsteady)}.")
    disturbed = [one for one in found if one.disturbance]
    if disturbed:
        soon = sum(one.settling_samples is not None and one.settling_samples <= SOON_SAMPLES for one in disturbed)
        after = count_of(len(disturbed), "disturbance")
        said.append(f"Settled within {SOON_SAMPLES} samples after {soon} of {after}.")
    return said


def _goal_of(found: Sequence[LoopResult]) -> str:
    goals = {one.goal for one in found}
    return f"the goal of {goal_text(goals.pop())}" if len(goals) == 1 else "the goal"


def _beside(found: Sequence[LoopResult], published: Sequence[Published]) -> list[str]:
    """Compare the published figures of these loops with ours."""
    own = {one.cell: one for one in reversed(found) if not one.disturbance}
    pairs = [
        f"{own[one.cell].name} {student(own[one.cell].mean, own[one.cell].std)} ({student(one.mean, one.std)})"
        for one in published
        if one.cell in own
    ]
    return [f"Ours, and what was published: {'; '.join(pairs[:MOST_NAMED])}."] if pairs else []


def _named(found: Sequence[LoopResult]) -> str:
    has_goals = len({one.goal for one in found}) > 1
    said = [
        f"{one.name} ({student(one.mean, one.std)}{f' for {goal_text(one.goal)}' if has_goals else ''})"
        for one in found[:MOST_NAMED]
    ]
    more = len(found) - len(said)
    return "; ".join(said) + (f"; and {count_of(more, 'other')}" if more else "")


def _held(chapter: Chapter, own: pd.DataFrame) -> LoopResult:
    first = own.iloc[0]
    settling = own["settling_samples"]
    label = _label(chapter, first.to_dict())
    has_brokers = chapter.tables["closed_loops"]["broker"].nunique() > 1
    where = f" on {proper(str(first['broker']))}" if has_brokers else ""
    return LoopResult(
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
        is_near=bool(_is_near(own).all()),
        is_held=bool((_is_near(own) & (own["std"] <= MOST_STD_RATIO * own["goal"])).all()),
    )


def _is_near(rows: pd.DataFrame) -> pd.Series[bool]:
    return (rows["mean"] - rows["goal"]).abs() <= MOST_MEAN_ERROR_RATIO * rows["goal"]


def _label(chapter: Chapter, row: Mapping[object, object]) -> str:
    factors = json.loads(str(row["cell"]))
    rows = chapter.tables["closed_loops"]
    has_actuators = rows.loc[rows["controller"] == row["controller"], "actuator"].nunique() > 1
    others = [
        factor_text(name, factors[name], chapter.names)
        for name in chapter.factors
        if name in factors and name.rpartition(".")[2] not in _OWN_FACTORS
    ]
    actuator = [str(row["actuator"])] if has_actuators else []
    return ", ".join([str(row["controller"]), *actuator, *others])


def _published(found: Sequence[Published], *, is_disturbed: bool) -> str:
    if is_disturbed:
        return NOTHING
    return "; ".join(student(one.mean, one.std) for one in found) or NOTHING
