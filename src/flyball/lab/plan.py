"""The runs of an experiment, their order and duration, and the reduction to a quick experiment.

Pure computation: runs and writes nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flyball
from flyball.errors import LabError
from flyball.lab.experiment import (
    Experiment,
    Level,
    label_of,
    quick_sweep,
    quick_values,
    slug_of,
    values_of,
)
from flyball.lab.workloads import make_workload

# Target duration of a quick experiment.
QUICK_S = 60.0
# Cells are removed rather than exceeding this duration.
QUICK_LIMIT_S = 80.0
QUICK_LEAST_S = 1.5
QUICK_MOST_S = 10.0
QUICK_LEVELS = 4
QUICK_LEVELS_OF_SEVERAL = 3
# Limits in a quick run: messages in the store, and messages prepared for all clients together.
QUICK_STORED_MESSAGES = 2_000
STORED_MESSAGES = "workload.stored_messages"
PREPARED_MESSAGES = "workload.prepared_messages"

TIMES = ("run.warm_up_s", "run.length_s", "run.cool_down_s")
# If such a number is itself a factor, its largest level becomes this and the others are scaled with it.
QUICK_LARGEST: dict[str, int | float] = {STORED_MESSAGES: 10_000, **dict.fromkeys(TIMES, 0.5 * QUICK_MOST_S)}

LONGEST_SLUG = 80

# Time to start and stop the first node. Estimates, for the expected duration only.
START_S = {
    "embedded": 4.5,
    "postgresql": 2.0,
    "memory": 1.5,
    "null": 1.5,
    "rabbitmq": 4.5,
    "domain": 6.0,
    "auction": 6.0,
    "foreign": 0.5,
}
FURTHER_NODE_S = {
    "embedded": 2.5,
    "postgresql": 0.7,
    "memory": 0.7,
    "null": 0.7,
    "rabbitmq": 0.0,
    "domain": 2.0,
    "auction": 0.0,
    "foreign": 0.0,
}
CLIENTS_START_S = 1.5
STORED_PER_S = 4_000


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run: a cell of the experiment, once."""

    run_id: str
    # The levels of the cell, as results name them.
    factors: dict[str, bool | int | float | str]
    # The experiment with the values of the cell.
    experiment: Experiment
    repetition: int
    seed: int
    is_quick: bool
    # Parameters that its workload derived from the experiment that this one needs.
    prepared: dict[str, Any] = field(default_factory=dict)

    @property
    def expected_s(self) -> float:
        run = self.experiment.run
        return start_s(self.experiment) + run.warm_up_s + run.length_s + run.cool_down_s


@dataclass(frozen=True, slots=True)
class Plan:
    """All runs of an experiment, in order of execution."""

    experiment: Experiment
    runs: tuple[PlannedRun, ...]
    is_quick: bool

    @property
    def expected_s(self) -> float:
        return sum(run.expected_s for run in self.runs)

    def check_packages(self) -> None:
        """Raise LabError if a run needs a package that is not installed here."""
        for run in self.runs:
            make_workload(run.experiment.workload).check_packages()


def plan(experiment: Experiment, *, is_quick: bool = False) -> Plan:
    """Plan the runs. The same description results in the same plan."""
    if is_quick:
        experiment = quickened(experiment)
    cells = list(experiment.cells())
    slugs = _cell_slugs(cells)
    order = random.Random(experiment.run.seed)
    runs: list[PlannedRun] = []
    for repetition in range(1, experiment.run.repetitions + 1):
        # Each repetition has all cells in a new random order, so that drift over time affects all cells alike.
        numbers = list(range(len(cells)))
        order.shuffle(numbers)
        for number in numbers:
            runs.append(
                PlannedRun(
                    f"{experiment.slug}.{slugs[number]}.r{repetition}",
                    {factor: label_of(level) for factor, level in cells[number].items()},
                    experiment.at(cells[number]),
                    repetition,
                    order.randrange(2**31),
                    is_quick,
                )
            )
    return Plan(experiment, tuple(runs), is_quick)


def in_order(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Return the experiments in order, but each after the one it needs. Raises LabError for a cyclic dependency."""
    waiting, done = list(experiments), list[Experiment]()
    while waiting:
        missing = {experiment.name for experiment in waiting}
        ready = next((one for one in waiting if one.needs not in missing), None)
        if ready is None:
            raise LabError(f"experiments need each other: {', '.join(sorted(missing))}")
        waiting.remove(ready)
        done.append(ready)
    return done


def start_s(experiment: Experiment) -> float:
    """Return the approximate time to start the target until the clients of a run can start, and to stop it."""
    target = experiment.target
    kind = target.store.partition(":")[0] if target.kind == "flyball" else target.kind
    kind = "postgresql" if kind == "postgres" else kind
    clients = _number(experiment, "clients") or 1
    stored = (
        _number(experiment, "stored_messages") * target.nodes + _number(experiment, "prepared_messages") * clients
    )
    further_s = FURTHER_NODE_S[kind] * (target.nodes - 1)
    return START_S[kind] + further_s + CLIENTS_START_S + stored / STORED_PER_S


def _number(experiment: Experiment, name: str) -> int:
    """Return a number of the workload, 0 if it has no such parameter."""
    found = experiment.workload.get(name, 0)
    return found if isinstance(found, int) else 0


def quickened(experiment: Experiment) -> Experiment:
    """Return the experiment scaled down to about a minute; its description's quick values take precedence."""
    wanted = quick_values(experiment)
    chosen_sweep = quick_sweep(experiment)
    values: dict[str, object] = {}
    if _number(experiment, "stored_messages") > QUICK_STORED_MESSAGES:
        values[STORED_MESSAGES] = QUICK_STORED_MESSAGES
    if _number(experiment, "prepared_messages") > QUICK_STORED_MESSAGES:
        values[PREPARED_MESSAGES] = QUICK_STORED_MESSAGES
    values["run.repetitions"] = 2 if any(view.kind == "effects" for view in experiment.views) else 1
    quick = experiment.changed({**values, **wanted}).swept(chosen_sweep or _fewer_levels(experiment.sweep))
    while chosen_sweep is None and _least_s(quick) > QUICK_LIMIT_S and _smaller(quick.sweep) != quick.sweep:
        quick = quick.swept(_smaller(quick.sweep))
    return quick.changed(_quick_times(experiment, quick) | {key: wanted[key] for key in wanted.keys() & TIMES})


def _least_s(quick: Experiment) -> float:
    """Return the duration with the shortest runs that still make sense."""
    return sum(start_s(quick.at(cell)) + QUICK_LEAST_S for cell in quick.cells()) * quick.run.repetitions


def _smaller(sweep: Mapping[str, list[Level]]) -> dict[str, list[Level]]:
    """Return a sweep with fewer cells: two levels of each factor, then one, of the last of them first."""
    for least in (2, 1):
        for factor, levels in reversed(list(sweep.items())):
            if len(levels) > least:
                return {**sweep, factor: [levels[0], levels[-1]][:least]}
    return dict(sweep)


def _quick_times(experiment: Experiment, quick: Experiment) -> dict[str, object]:
    """Return the times of each run such that all runs take about a minute."""
    overheads_s = [start_s(quick.at(cell)) for cell in quick.cells()]
    left_s = QUICK_S / quick.run.repetitions - sum(overheads_s)
    each_s = min(max(left_s / len(overheads_s), QUICK_LEAST_S), QUICK_MOST_S)
    parts = zip(TIMES, (0.2, 0.7, 0.1), strict=True)
    return {
        key: round(min(getattr(experiment.run, key.removeprefix("run.")), part * each_s), 2) for key, part in parts
    }


def _fewer_levels(sweep: Mapping[str, list[Level]]) -> dict[str, list[Level]]:
    most = QUICK_LEVELS if len(sweep) == 1 else QUICK_LEVELS_OF_SEVERAL
    return {factor: _scaled(_spread(levels, most), QUICK_LARGEST.get(factor)) for factor, levels in sweep.items()}


def _spread(levels: list[Level], most: int) -> list[Level]:
    """Return the first level, the last, and some between them."""
    if len(levels) <= most:
        return levels
    return [levels[round(place * (len(levels) - 1) / (most - 1))] for place in range(most)]


def _scaled(levels: list[Level], largest: int | float | None) -> list[Level]:
    """Scale the levels down to this largest one, if they are numbers and exceed it."""
    numbers = [level for level in levels if isinstance(level, int | float)]
    if largest is None or len(numbers) < len(levels) or max(numbers) <= largest:
        return levels
    scaled = [number * largest / max(numbers) for number in numbers]
    return list(dict.fromkeys(int(number) if isinstance(largest, int) else round(number, 2) for number in scaled))


def _cell_slugs(cells: list[dict[str, Level]]) -> list[str]:
    """Return a unique name for each cell, in the characters of run ids, readable if possible."""
    slugs = []
    for cell in cells:
        parts = [f"{slug_of(factor.rpartition('.')[2])}-{slug_of(label_of(level))}" for factor, level in cell.items()]
        slugs.append(".".join(parts) or "only")
    if len(set(slugs)) < len(slugs) or max(map(len, slugs)) > LONGEST_SLUG:
        return [f"cell-{number}" for number in range(1, len(cells) + 1)]
    return slugs


def definition_of(laid_out: Plan) -> dict[str, object]:
    """Return everything that influences the results, by dotted names; titles and views are not part of it."""
    experiment = laid_out.experiment
    definition: dict[str, object] = {"flyball": flyball.__version__, "is_quick": laid_out.is_quick}
    for section in ("target", "workload", "clients", "noise", "run"):
        part = getattr(experiment, section)
        document = dict(part) if isinstance(part, dict) else part.model_dump(mode="json")
        definition.update({f"{section}.{key}": value for key, value in document.items()})
    if experiment.needs:
        definition["needs"] = experiment.needs
    definition.pop("target.password")
    definition["target.store"] = label_of(experiment.target.store)
    for factor, levels in experiment.sweep.items():
        definition[f"sweep.{factor}"] = [
            {str(label_of(level)): {key: label_of(value) if isinstance(value, str) else value}}
            for level in levels
            for key, value in values_of(factor, level).items()
        ]
    restored: dict[str, object] = json.loads(json.dumps(definition))
    return restored
