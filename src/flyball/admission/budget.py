"""How much cost is admitted a second, so that the database is as busy as it should be: an integral controller.

Cost is predicted cost, so the plant's gain is about 1 whatever the requests are. Knows no clock and no requests.
"""

from __future__ import annotations

import math

from flyball.control.laws import Integral, Reading
from flyball.errors import AdmissionError

GAIN = 0.3
"""In cost units: 1 would be deadbeat for a plant of gain 1; less is quieter and bears costs predicted wrongly."""
LEAST_SHARE = 0.05
"""So much of the reference is always admitted: without any requests nobody would see that the database is free."""

SURGE_RATIO = 1.5
SURGE_CONNECTIONS = 1.0
"""So many times the reference, and so many connections more, may be busy in any moment."""


class BudgetController:
    """u += gain (r - y), all of them cost per second.

    Nothing winds up: when few requests come, u stays within what was admitted and one r above it. When r changes,
    u changes in proportion at once, and the integral only corrects the rest.
    """

    def __init__(self, start: float, gain: float = GAIN) -> None:
        if not (math.isfinite(gain) and gain > 0):
            raise AdmissionError(f"the gain is {gain}; give one above 0, {GAIN} if you have no reason for another")
        if not (math.isfinite(start) and start > 0):
            raise AdmissionError(f"the budget begins with {start}; give a cost per second above 0")
        self._law = Integral(gain)
        self._state = self._law.begin(start, None)
        self._reference: float | None = None

    @property
    def value(self) -> float:
        """The budget per second."""
        return self._state.action

    def step(self, reference: float, measured: float, admitted: float) -> float:
        """Return the next budget, after a period in which so much load was measured and so much was admitted."""
        if self._reference is not None:
            self._state = self._law.settle(self._state, self.value * reference / self._reference)
        self._reference = reference
        state, wanted = self._law.step(self._state, Reading(reference, measured))
        budget = max(LEAST_SHARE * reference, min(wanted, admitted + reference))
        self._state = self._law.settle(state, budget)
        return budget


def most_busy(reference_ms: float) -> float:
    """Return how many connections may be busy when somebody is admitted, if the reference is a number of busy ones.

    Beyond its knee a database piles requests up, and a controller of means over a period sees it too late: the load
    would swing. So the reference bounds busy connections in every moment as well.
    """
    return SURGE_RATIO * reference_ms / 1000.0 + SURGE_CONNECTIONS
