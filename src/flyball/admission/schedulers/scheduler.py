"""What a scheduler is: it says with which probability the head of a class is admitted when its turn comes.

It decides between classes and knows neither budget nor clock; the gate asks it, and spends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Standing:
    """How one class stands when somebody is to be admitted. Classes go from cheap to dear."""

    # What a request of the class costs on average; above 0.
    cost: float
    waiting: int
    # How long the first has waited; 0 if nobody waits.
    head_age_s: float
    # Averaged over some 30 periods.
    arrivals_per_s: float


@dataclass(frozen=True, slots=True)
class Turnout:
    """What became of one class in a control period."""

    cost: float
    admitted: int
    # Those who wait at its end.
    waiting: int
    # Those who were turned away in it, because their time was up or their queue full.
    lost: int
    # Those who went away by themselves while they waited.
    left: int = 0


class Scheduler(Protocol):
    """Chooses between classes that wait.

    Whatever waits, at least one class that waits has probability 1: else nobody would be admitted.
    """

    def probability(self, number: int, classes: Sequence[Standing]) -> float:
        """Return the probability, 0 to 1, that the head of class `number`, which waits, is admitted now."""

    def end_period(self, turnouts: Sequence[Turnout]) -> None:
        """Learn what became of all classes in the period that has just ended.

        Their number may differ from the last time: requests have been classified anew.
        """

    def probabilities(self) -> tuple[float, ...]:
        """Return the probability of each class while cheaper ones wait, as far as it is known, for people to see."""


def cheaper_waits(number: int, classes: Sequence[Standing]) -> bool:
    """Return whether somebody of a class cheaper than `number` waits."""
    for other in range(number):  # noqa: SIM110 - it is asked for every admission, and a generator takes twice as long
        if classes[other].waiting:
            return True
    return False
