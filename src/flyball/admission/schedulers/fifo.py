"""First come, first served, for all classes: a baseline."""

from __future__ import annotations

from collections.abc import Sequence

from flyball.admission.schedulers.scheduler import Standing, Turnout


class Fifo:
    """Admits the request that has waited longest; ties go to the cheapest."""

    def __init__(self) -> None:
        self._classes = 0

    def probability(self, number: int, classes: Sequence[Standing]) -> float:
        """Return 1 for the class whose head has waited longest, 0 for the others."""
        waiting = [each for each in range(len(classes)) if classes[each].waiting]
        return 1.0 if number == max(waiting, key=lambda each: classes[each].head_age_s) else 0.0

    def end_period(self, turnouts: Sequence[Turnout]) -> None:
        """Note the number of classes."""
        self._classes = len(turnouts)

    def probabilities(self) -> tuple[float, ...]:
        """Return 1 for each class: cost does not matter."""
        return (1.0,) * self._classes
