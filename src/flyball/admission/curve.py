"""How much work a database does at which load, as far as the last rounds have shown.

Up to the knee more load is more work; beyond it more load only makes everything slower. Knows no clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, variance

STEP_RATIO = 1.15
"""Loads that differ by less are one level."""
MOST_SAMPLES = 36
"""Of each level; older ones are forgotten."""
REMEMBERED_ROUNDS = 24
WORK_SHARE = 0.95
"""Where the work comes so near to its maximum, the knee is near: the maximum itself lies anywhere on a flat top."""
SURE = 1.645
"""The quantile of the normal distribution for 5 % of false alarms on one side."""
VERY_SURE = 2.326
"""The same for 1 %."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One period's load and work, both in cost per second."""

    round_number: int
    load: float
    work: float


@dataclass(slots=True)
class Level:
    """What was seen around one load."""

    seen: deque[Seen] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))

    @property
    def load(self) -> float:
        return fmean(each.load for each in self.seen)

    @property
    def work(self) -> float:
        return fmean(each.work for each in self.seen)

    @property
    def works(self) -> list[float]:
        return [each.work for each in self.seen]


class Curve:
    """Work over load."""

    def __init__(self) -> None:
        self._levels: dict[int, Level] = {}
        self._top: int | None = None

    def __len__(self) -> int:
        return len(self._levels)

    def add(self, round_number: int, samples: Sequence[Seen]) -> bool:
        """Note a round. Return whether it brought clearly less than earlier ones at the same load."""
        load = fmean(each.load for each in samples)
        if load <= 0:
            return False
        number = round(math.log(load) / math.log(STEP_RATIO))
        level = self._levels.setdefault(number, Level())
        has_fallen = is_more(level.works, [each.work for each in samples], VERY_SURE)
        level.seen.extend(samples)
        self._forget_before(round_number - REMEMBERED_ROUNDS)
        self._find_top()
        return has_fallen

    def forget_all_but(self, round_number: int) -> None:
        """Forget what was before a round: the database is not what it was."""
        self._forget_before(round_number)
        self._find_top()

    def forget_above(self, load: float) -> None:
        """Forget what was seen at loads that turned out to be too much, unless there is nothing else."""
        rest = {number: level for number, level in self._levels.items() if level.load <= load}
        self._levels = rest or self._levels
        self._find_top()

    @property
    def most_work(self) -> float:
        """The most work per second, 0 if nothing is known."""
        return 0.0 if self._top is None else self._levels[self._top].work

    @property
    def knee(self) -> float | None:
        """The smallest load that brings the most work; None if nothing is known.

        It is where the curve reaches WORK_SHARE of the most work, and as much further as a straight line would need.
        """
        wanted = WORK_SHARE * self.most_work
        load_before, work_before = 0.0, 0.0
        for level in sorted(self._levels.values(), key=lambda each: each.load):
            load, work = level.load, level.work
            if work >= wanted > work_before:
                part = (wanted - work_before) / (work - work_before)
                return (load_before + part * (load - load_before)) / WORK_SHARE
            load_before, work_before = load, work
        return None

    def _forget_before(self, round_number: int) -> None:
        for number, level in list(self._levels.items()):
            while level.seen and level.seen[0].round_number < round_number:
                level.seen.popleft()
            if not level.seen:
                del self._levels[number]

    def _find_top(self) -> None:
        """Keep the top where it is until another level is clearly higher: noise has a maximum too."""
        levels = self._levels
        if self._top not in levels:
            self._top = max(levels, key=lambda number: levels[number].work, default=None)
        for number in sorted(levels):
            assert self._top is not None
            if is_more(levels[number].works, levels[self._top].works, SURE):
                self._top = number


def is_more(some: Sequence[float], others: Sequence[float], quantile: float) -> bool:
    """Say whether the mean of `some` is clearly above that of `others`: Welch's test on one side.

    `quantile` is that of the normal distribution; Student's is found from it by Cornish and Fisher's expansion.
    """
    if len(some) < 2 or len(others) < 2:
        return False
    parts = variance(some) / len(some), variance(others) / len(others)
    error_square = sum(parts)
    difference = fmean(some) - fmean(others)
    if error_square <= 0:
        return difference > 0
    freedom = error_square**2 / (parts[0] ** 2 / (len(some) - 1) + parts[1] ** 2 / (len(others) - 1))
    cube, fifth = quantile**3, quantile**5
    student = (
        quantile + (cube + quantile) / (4 * freedom) + (5 * fifth + 16 * cube + 3 * quantile) / (96 * freedom**2)
    )
    return difference > student * math.sqrt(error_square)
