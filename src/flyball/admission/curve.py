"""How much work a database does at which load, as far as the last rounds have shown, and where the knee is.

Up to the knee more load is more work; beyond it more load only makes everything slower. Knows no clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np

RECENT_ROUNDS = 16
LIGHT_ROUNDS = 8
LIGHT_RATIO = 0.6
"""What was seen with less than so much of the load that is held is remembered longer: it is rarely seen again."""
FEWEST_ROUNDS = 3
WORTH = 0.25
"""One per cent more load is worth it while it brings so many per cent more work: 1 below a sharp knee, 0 beyond."""
SHARPNESSES = np.array([1.5, 3.0, 8.0])
KNEES = np.geomspace(0.1, 4.0, 60)
"""Where the knee is looked for, as a share of the highest load that was seen."""
EVIDENCE = 4.0
"""Twice the logarithm of how much more likely there must be a knee than none: noise has some knee as well."""
SURE = 2.326
"""The quantile of the normal distribution for 1 % of false alarms on one side."""


@dataclass(frozen=True, slots=True)
class Round:
    """Some periods with the same reference: their loads and what work was done, in cost per second."""

    number: int
    reference: float
    loads: Sequence[float]
    works: Sequence[float]

    @property
    def load(self) -> float:
        return fmean(self.loads)

    @property
    def work(self) -> float:
        return fmean(self.works)


class Curve:
    """Work over load."""

    def __init__(self) -> None:
        self._recent: deque[Round] = deque(maxlen=RECENT_ROUNDS)
        self._light: deque[Round] = deque(maxlen=LIGHT_ROUNDS)

    def add(self, found: Round) -> bool:
        """Note a round with plenty of requests. Return whether it did clearly less than others of its reference."""
        before = [work for each in self._recent if each.reference == found.reference for work in each.works]
        if len(self._recent) == RECENT_ROUNDS:
            self.add_light(self._recent[0])
        self._recent.append(found)
        return is_more(before, found.works)

    def add_light(self, found: Round) -> None:
        """Note a round with little load, for whatever reason; ignored if the load was not so little."""
        if found.load < LIGHT_RATIO * self.highest_load:
            self._light.append(found)

    def forget_before(self, round_number: int) -> None:
        """Forget what was before a round, except with little load: the database is not what it was."""
        for each in self._recent:
            if each.number < round_number:
                self.add_light(each)
        self._keep([each for each in self._recent if each.number >= round_number])

    def forget_above(self, reference: float) -> None:
        """Forget what was seen with larger references: they turned out to be too much."""
        self._keep([each for each in self._recent if each.reference <= reference])

    def _keep(self, rounds: Sequence[Round]) -> None:
        self._recent = deque(rounds, maxlen=RECENT_ROUNDS)

    @property
    def most_work(self) -> float:
        """The most work per second of a recent round, 0 if there was none."""
        return max((each.work for each in self._recent), default=0.0)

    @property
    def highest_load(self) -> float:
        """The load that was reached with the highest of the recent references, 0 if there was none."""
        highest = max((each.reference for each in self._recent), default=0.0)
        return fmean(each.load for each in self._recent if each.reference == highest) if highest else 0.0

    @property
    def knee(self) -> float | None:
        """The load beyond which more is not worth it; inf if it was not reached, None if too little is known.

        Work is e L / (1 + (L/k)^p)^(1/p) at load L, which is e L up to about k and e k beyond it; p says how sharp it
        is. Of them all the one with the least squares of ln(work/load) is taken.
        """
        rounds = [each for each in (*self._light, *self._recent) if each.load > 0 and each.work > 0]
        if len(rounds) < FEWEST_ROUNDS:
            return None
        loads = np.array([each.load for each in rounds])
        eases = np.log(np.array([each.work for each in rounds]) / loads)
        knees, sharpnesses = (grid.ravel() for grid in np.meshgrid(KNEES * loads.max(), SHARPNESSES))
        drops = np.log1p((loads / knees[:, None]) ** sharpnesses[:, None]) / sharpnesses[:, None]
        rests = (eases + drops).var(axis=1)
        best = int(np.argmin(rests))
        is_clear = eases.var() > rests[best] * math.exp(EVIDENCE / len(rounds))
        if not is_clear or knees[best] >= loads.max():
            return math.inf
        return float(knees[best] * ((1 - WORTH) / WORTH) ** (1 / sharpnesses[best]))


def is_more(some: Sequence[float], others: Sequence[float]) -> bool:
    """Say whether the mean of `some` is clearly above that of `others`: Welch's test on one side.

    Student's quantile is found from that of the normal distribution by Cornish and Fisher's expansion.
    """
    if len(some) < 2 or len(others) < 2:
        return False
    parts = variance(some) / len(some), variance(others) / len(others)
    error_square = sum(parts)
    difference = fmean(some) - fmean(others)
    if error_square <= 0:
        return difference > 0
    freedom = error_square**2 / (parts[0] ** 2 / (len(some) - 1) + parts[1] ** 2 / (len(others) - 1))
    cube, fifth = SURE**3, SURE**5
    student = SURE + (cube + SURE) / (4 * freedom) + (5 * fifth + 16 * cube + 3 * SURE) / (96 * freedom**2)
    return difference > student * math.sqrt(error_square)
