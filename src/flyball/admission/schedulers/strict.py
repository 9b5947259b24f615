"""Cheapest first: a baseline that starves expensive classes when cheaper ones use up the budget."""

from __future__ import annotations

from collections.abc import Sequence

from flyball.admission.schedulers.scheduler import Standing, Turnout, cheaper_waits


class Strict:
    """Admits a class only while no cheaper one waits."""

    def __init__(self) -> None:
        self._classes = 0

    def probability(self, number: int, classes: Sequence[Standing]) -> float:
        """Return 1 if no cheaper class waits, else 0."""
        return 0.0 if cheaper_waits(number, classes) else 1.0

    def end_period(self, turnouts: Sequence[Turnout]) -> None:
        """Note the number of classes."""
        self._classes = len(turnouts)

    def probabilities(self) -> tuple[float, ...]:
        """Return 1 for the cheapest class, 0 for the others."""
        return tuple(1.0 if number == 0 else 0.0 for number in range(self._classes))
