"""DPS-1: the class whose first has waited longest for its cost goes first. Sees what waits now and learns nothing."""

from __future__ import annotations

from collections.abc import Sequence

from flyball.admission.schedulers.scheduler import Standing, Turnout, cheaper_waits


class Memoryless:
    """Holds the waits of all classes in proportion to their costs, as far as that is possible.

    A head ages by one second a second and no faster, so a dear one that must catch up with cheap ones that wait ever
    longer never does. Each class therefore keeps a share of the turns: its arrivals over those of the cheapest that
    waits, divided by how much dearer it is. Of its requests then the same fraction passes as of the cheapest, divided
    likewise.
    """

    def __init__(self) -> None:
        self._last: list[float] = []

    def probability(self, number: int, classes: Sequence[Standing]) -> float:
        """Return 1 if no cheaper class waits or none has waited longer for its cost, else the share it keeps."""
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
        """Note how many classes there are."""
        if len(turnouts) != len(self._last):
            self._last = [1.0] * len(turnouts)

    def probabilities(self) -> tuple[float, ...]:
        """Return the share that each class kept when it was last used."""
        return tuple(self._last)


def _kept_share(own: Standing, cheapest: Standing) -> float:
    """Return it as if both came equally often while it is not known how often they come."""
    is_known = own.arrivals_per_s > 0.0 and cheapest.arrivals_per_s > 0.0
    arrivals_ratio = own.arrivals_per_s / cheapest.arrivals_per_s if is_known else 1.0
    return min(1.0, arrivals_ratio * cheapest.cost / own.cost)
