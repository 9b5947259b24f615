"""DPS-1: the class whose head has waited longest for its cost goes first. Stateless, it does not learn."""

from __future__ import annotations

from collections.abc import Sequence

from flyball.admission.schedulers.scheduler import Standing, Turnout, cheaper_waits


class Memoryless:
    """Keeps waits proportional to costs, as far as possible.

    A head ages by one second per second, so an expensive class never catches up with cheap ones whose waits keep
    growing. Each class therefore keeps a share of the turns: its arrivals over those of the cheapest waiting class,
    divided by their cost ratio. It is then admitted with the same fraction as the cheapest, divided likewise.
    """

    def __init__(self) -> None:
        self._last: list[float] = []

    def probability(self, number: int, classes: Sequence[Standing]) -> float:
        """Return 1 if no cheaper class waits or none has waited longer for its cost, else the kept share."""
        if not cheaper_waits(number, classes):
            return 1.0
        own = classes[number]
        slowdown = own.head_age_s / own.cost
        if all(slowdown >= other.head_age_s / other.cost for other in classes[:number] if other.waiting):
            return 1.0
        probability = _kept_share(own, next(other for other in classes if other.waiting))
        if number < len(self._last):
            self._last[number] = probability
        return probability

    def end_period(self, turnouts: Sequence[Turnout]) -> None:
        """Note the number of classes."""
        if len(turnouts) != len(self._last):
            self._last = [1.0] * len(turnouts)

    def probabilities(self) -> tuple[float, ...]:
        """Return the latest kept share of each class."""
        return tuple(self._last)


def _kept_share(own: Standing, cheapest: Standing) -> float:
    """Return the kept share; before arrivals are known, they are assumed to be equal."""
    is_known = own.arrivals_per_s > 0.0 and cheapest.arrivals_per_s > 0.0
    arrivals_ratio = own.arrivals_per_s / cheapest.arrivals_per_s if is_known else 1.0
    return min(1.0, arrivals_ratio * cheapest.cost / own.cost)
