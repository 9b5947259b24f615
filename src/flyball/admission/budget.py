"""How much cost is admitted a second, so that the database is as busy as it should be: an integral controller.

Cost is predicted cost, so the plant's gain is about 1 whatever the requests are. Knows no clock and no requests.
"""

from __future__ import annotations

import math

from flyball.control.laws import Integral, Reading
from flyball.errors import AdmissionError

# In cost units: 1 would be deadbeat for a plant of gain 1; less is quieter and bears costs predicted wrongly.
GAIN = 0.3
# So much of the reference is always admitted: without any requests nobody would see that the database is free.
LEAST_SHARE = 0.05

LIMIT_GAIN = 0.05
# With so much of the reference a limit does no harm.
REACHED_SHARE = 0.9
# As a share of the reference: connections are counted from the admission of a request on, used a bit later.
MOST_RATIO = 3.0


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


class BusyLimit:
    """How many connections may be busy when somebody is admitted, if the reference is a number of busy ones.

    With more than it can do a database piles requests up, and a controller of means over a period sees it too late:
    the load would swing. So the reference bounds busy connections in every moment as well. Where that alone keeps the
    load far below the reference, as requests do not use connections all the time, it is raised step by step.
    """

    def __init__(self, reference_ms: float) -> None:
        self._ratio = 1.0
        self._reference_ms = reference_ms

    @property
    def value(self) -> float:
        """Somebody may be admitted while fewer connections are busy."""
        return self._ratio * self._reference_ms / 1000.0

    def step(self, reference_ms: float, measured_ms: float, has_held: bool) -> None:
        """Note the next reference, after a period with such a load in which somebody was held up by this, or not."""
        if has_held or measured_ms > self._reference_ms:
            raised = self._ratio + LIMIT_GAIN * (REACHED_SHARE - measured_ms / self._reference_ms)
            self._ratio = min(MOST_RATIO, max(1.0, raised))
        self._reference_ms = reference_ms
