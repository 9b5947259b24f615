"""Work done in recent rounds of the search for the reference, and its maximum. No clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from statistics import fmean, variance

RECENT_ROUNDS = 16
# Quantile of the normal distribution for 1 % false alarms, one-sided.
SURE = 2.326


@dataclass(frozen=True, slots=True)
class Round:
    """Periods with the same reference, and the work of each, in cost per second."""

    number: int
    reference: float
    works: Sequence[float]

    @property
    def work(self) -> float:
        return fmean(self.works)


class RecentRounds:
    """Recent rounds with enough load."""

    def __init__(self) -> None:
        self._rounds: deque[Round] = deque(maxlen=RECENT_ROUNDS)

    def add(self, found: Round) -> bool:
        """Add a round. Return whether it did clearly less work than others of its reference."""
        before = [work for each in self._rounds if each.reference == found.reference for work in each.works]
        self._rounds.append(found)
        return is_more(before, found.works)

    def forget_before(self, round_number: int) -> None:
        """Forget earlier rounds: the database has changed."""
        self._keep([each for each in self._rounds if each.number >= round_number])

    def forget_above(self, reference: float) -> None:
        """Forget rounds with a higher reference, which was too high."""
        self._keep([each for each in self._rounds if each.reference <= reference])

    def _keep(self, rounds: Sequence[Round]) -> None:
        self._rounds = deque(rounds, maxlen=RECENT_ROUNDS)

    @property
    def most_work(self) -> float | None:
        """The work per second of the second best round, as the best may be chance; None without rounds."""
        best = nlargest(2, (each.work for each in self._rounds))
        return best[-1] if best else None


def is_more(some: Sequence[float], others: Sequence[float]) -> bool:
    """Return whether the mean of `some` is clearly above that of `others`: one-sided Welch test.

    Student's quantile is approximated from the normal one by a Cornish-Fisher expansion.
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
