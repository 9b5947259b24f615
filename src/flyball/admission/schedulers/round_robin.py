"""Every class in turn, whatever it costs: a baseline."""

from __future__ import annotations

from collections.abc import Sequence

from flyball.admission.schedulers.scheduler import Standing, Turnout


class RoundRobin:
    """Admits one of each class that waits, then begins anew. Under overload a dear class takes most of the budget."""

    def __init__(self) -> None:
        self._classes = 0

    def probability(self, number: int, classes: Sequence[Standing]) -> float:
        """Return 1."""
        return 1.0

    def end_period(self, turnouts: Sequence[Turnout]) -> None:
        """Note how many classes there are."""
        self._classes = len(turnouts)

    def probabilities(self) -> tuple[float, ...]:
        """Return 1 for each class."""
        return (1.0,) * self._classes
