"""The interface of schedulers: the probability with which the head of a class is admitted at its turn.

Independent of budget and clock: the gate queries it, and spends the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Standing:
    """State of one class at an admission. Classes are ordered from cheap to expensive."""

    # Mean cost of a request; above 0.
    cost: float
    waiting: int
    # Wait of the head; 0 if none waits.
    head_age_s: float
    # Averaged over about 30 periods.
    arrivals_per_s: float


@dataclass(frozen=True, slots=True)
class Turnout:
    """Counts of one class in a control period."""

    cost: float
    admitted: int
    # Waiting at its end.
    waiting: int
    # Refused: deadline reached or queue full.
    lost: int
    # Left while waiting.
    left: int = 0


class Scheduler(Protocol):
    """Chooses between waiting classes.

    At least one waiting class must have probability 1: otherwise none would be admitted.
    """

    def probability(self, number: int, classes: Sequence[Standing]) -> float:
        """Return the probability, 0 to 1, that the head of the waiting class `number` is admitted now."""

    def end_period(self, turnouts: Sequence[Turnout]) -> None:
        """Learn from the counts of the period that has just ended.

        The number of classes may have changed.
        """

    def probabilities(self) -> tuple[float, ...]:
        """Return the probability of each class while cheaper ones wait, as far as known, for display."""


def cheaper_waits(number: int, classes: Sequence[Standing]) -> bool:
    """Return whether a class cheaper than `number` has waiting requests."""
    for other in range(number):  # noqa: SIM110 - it is asked for every admission, and a generator takes twice as long
        if classes[other].waiting:
            return True
    return False
