"""How much work a database has done in the last rounds of a search for its reference, and the most of it.

Knows no clock, and not what follows from it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from statistics import fmean, variance

RECENT_ROUNDS = 16
# The quantile of the normal distribution for 1 % of false alarms on one side.
SURE = 2.326


@dataclass(frozen=True, slots=True)
class Round:
    """Some periods with the same reference, and what work was done in each, in cost per second."""

    number: int
    reference: float
    works: Sequence[float]

    @property
    def work(self) -> float:
        return fmean(self.works)


class RecentRounds:
    """The last rounds in which there was plenty to do."""

    def __init__(self) -> None:
        self._rounds: deque[Round] = deque(maxlen=RECENT_ROUNDS)

    def add(self, found: Round) -> bool:
        """Note a round. Return whether it did clearly less than others of its reference."""
        before = [work for each in self._rounds if each.reference == found.reference for work in each.works]
        self._rounds.append(found)
        return is_more(before, found.works)

    def forget_before(self, round_number: int) -> None:
        """Forget what was before a round: the database is not what it was."""
        self._keep([each for each in self._rounds if each.number >= round_number])

    def forget_above(self, reference: float) -> None:
        """Forget what was seen with larger references: they turned out to be too much."""
        self._keep([each for each in self._rounds if each.reference <= reference])

    def _keep(self, rounds: Sequence[Round]) -> None:
        self._rounds = deque(rounds, maxlen=RECENT_ROUNDS)

    @property
    def most_work(self) -> float | None:
        """The work per second of the second best round, as the best may be chance; None if there was no round."""
        best = nlargest(2, (each.work for each in self._rounds))
        return best[-1] if best else None


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
