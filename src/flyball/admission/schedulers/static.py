"""Fixed probabilities: a baseline, the admission paper's static probabilistic scheduling."""

from __future__ import annotations

from collections.abc import Sequence

from flyball.admission.schedulers.scheduler import Standing, Turnout, cheaper_waits
from flyball.errors import AdmissionError


class Static:
    """Admits a class with a fixed probability while a cheaper one waits.

    By default the probability of a class is the lowest cost divided by its own. The last probability applies to all
    further classes.
    """

    def __init__(self, probabilities: Sequence[float] | None = None) -> None:
        if probabilities is not None and not (probabilities and all(0.0 < each <= 1.0 for each in probabilities)):
            raise AdmissionError(f"probabilities must be above 0 and at most 1, not {list(probabilities)}")
        self._given = tuple(probabilities) if probabilities is not None else None
        self._costs: tuple[float, ...] = ()

    def probability(self, number: int, classes: Sequence[Standing]) -> float:
        """Return the fixed probability of the class, or 1 if no cheaper one waits."""
        return self._fixed(number, classes[0].cost, classes[number].cost) if cheaper_waits(number, classes) else 1.0

    def end_period(self, turnouts: Sequence[Turnout]) -> None:
        """Note the costs of the classes."""
        self._costs = tuple(turnout.cost for turnout in turnouts)

    def probabilities(self) -> tuple[float, ...]:
        """Return the fixed probability of each class."""
        return tuple(self._fixed(number, self._costs[0], cost) for number, cost in enumerate(self._costs))

    def _fixed(self, number: int, cheapest: float, cost: float) -> float:
        if self._given is None:
            return cheapest / cost
        return self._given[min(number, len(self._given) - 1)]
