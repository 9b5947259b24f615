"""The admitted cost per second: an integral controller that holds the database's load.

It counts predicted cost, so the plant's gain is about 1 for any requests. Independent of clock and requests.
"""

from __future__ import annotations

import math

from flyball.control.laws import Integral, Reading
from flyball.errors import AdmissionError

# In cost units: 1 would be deadbeat for a plant of gain 1; less is calmer and tolerates prediction errors.
GAIN = 0.3
# Minimum budget as a share of the reference: without requests an idle database would not be noticed.
LEAST_SHARE = 0.05

LIMIT_GAIN = 0.05
# A limit is harmless once the load has reached this share of the reference.
REACHED_SHARE = 0.9
# As a share of the reference: connections count from admission on, but are used a bit later.
MOST_RATIO = 3.0


class BudgetController:
    """u += gain (r - y), all in cost per second.

    No windup: with few requests, u stays between the admitted cost and one r above it. When r changes, u changes in
    proportion at once, and the integral only corrects the rest.
    """

    def __init__(self, start: float, gain: float = GAIN) -> None:
        if not (math.isfinite(gain) and gain > 0):
            raise AdmissionError(f"invalid gain {gain}: use a value above 0 (default: {GAIN})")
        if not (math.isfinite(start) and start > 0):
            raise AdmissionError(f"invalid initial budget {start}: use a cost per second above 0")
        self._law = Integral(gain)
        self._state = self._law.begin(start, None)
        self._reference: float | None = None

    @property
    def value(self) -> float:
        """The budget per second."""
        return self._state.action

    def step(self, reference: float, measured: float, admitted: float) -> float:
        """Return the next budget, from the measured load and the admitted cost of a period."""
        if self._reference is not None:
            self._state = self._law.settle(self._state, self.value * reference / self._reference)
        self._reference = reference
        state, wanted = self._law.step(self._state, Reading(reference, measured))
        budget = max(LEAST_SHARE * reference, min(wanted, admitted + reference))
        self._state = self._law.settle(state, budget)
        return budget


class BusyLimit:
    """Maximum busy connections at admission, if the reference is a number of busy connections.

    Beyond its capacity a database queues requests, and a controller of period means reacts too late: the load would
    oscillate. So the reference also bounds the busy connections at every moment. Where that bound alone keeps the
    load far below the reference, as requests do not use connections all the time, it is raised step by step.
    """

    def __init__(self, reference_ms: float) -> None:
        self._ratio = 1.0
        self._reference_ms = reference_ms

    @property
    def value(self) -> float:
        """Requests may be admitted while fewer connections are busy."""
        return self._ratio * self._reference_ms / 1000.0

    def step(self, reference_ms: float, measured_ms: float, has_held: bool) -> None:
        """Update the limit after a period; `has_held`: whether it has delayed requests."""
        if has_held or measured_ms > self._reference_ms:
            raised = self._ratio + LIMIT_GAIN * (REACHED_SHARE - measured_ms / self._reference_ms)
            self._ratio = min(MOST_RATIO, max(1.0, raised))
        self._reference_ms = reference_ms
