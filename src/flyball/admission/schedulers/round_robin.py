"""Round robin over classes: a baseline."""

from __future__ import annotations

from collections.abc import Sequence

from flyball.admission.schedulers.scheduler import Standing, Turnout


class RoundRobin:
    """Admits one request of each waiting class in turn. Under overload an expensive class takes most of the
    budget.
    """

    def __init__(self) -> None:
        self._classes = 0

    def probability(self, number: int, classes: Sequence[Standing]) -> float:
        """Return 1."""
        return 1.0

    def end_period(self, turnouts: Sequence[Turnout]) -> None:
        """Note the number of classes."""
        self._classes = len(turnouts)

    def probabilities(self) -> tuple[float, ...]:
        """Return 1 for each class."""
        return (1.0,) * self._classes
