"""Keeps the state of a law between two steps, and bounds its actions.

Whatever the measurements are, the action is a number within its limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from flyball.control.laws import Law, Reading
from flyball.control.limits import Limits
from flyball.errors import ControlError


@dataclass(frozen=True, slots=True)
class Smoothing:
    """An exponential filter for noisy measurements: a new one has the weight `share`, all earlier ones the rest.

    The filter delays the loop. Use it only where it is faster than the loop.
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ControlError(f"the share of a new measurement is above 0 and at most 1, not {self.share}")

    def next(self, smoothed: float | None, measurement: float) -> float:
        """Return the smoothed measurement."""
        if smoothed is None:
            return measurement
        return (1 - self.share) * smoothed + self.share * measurement


class Controller:
    """Runs a law on one loop. The setpoint may be changed at any time."""

    def __init__(
        self, law: Law[Any], limits: Limits, setpoint: float, start: float, smoothing: Smoothing | None = None
    ) -> None:
        self.limits = limits
        self.setpoint = setpoint
        self._law = law
        self._action = limits.clamp(start if math.isfinite(start) else limits.lowest)
        self._start = self._action
        self._state: Any = law.begin(self._action, None)
        self._smoothing = smoothing
        self._smoothed: float | None = None
        self._reading: Reading | None = None

    @property
    def law(self) -> Law[Any]:
        return self._law

    @property
    def smoothing_share(self) -> float | None:
        """The share of a new measurement in the filter; None without one."""
        return None if self._smoothing is None else self._smoothing.share

    @property
    def action(self) -> float:
        """The latest action."""
        return self._action

    @property
    def setpoint(self) -> float:
        """The target value of the measurement."""
        return self._setpoint

    @setpoint.setter
    def setpoint(self, setpoint: float) -> None:
        if not math.isfinite(setpoint):
            raise ControlError(f"a setpoint is a number, not {setpoint}")
        self._setpoint = setpoint

    def update(self, measurement: float, *, can_rise: bool = True) -> float:
        """Process a measurement; return the action until the next one.

        A measurement that is not finite changes nothing. Where a larger action has no effect (the queue is empty, the
        handler idle) the loop is open and `can_rise` is False: the action does not grow.
        """
        if not math.isfinite(measurement):
            return self._action
        if self._smoothing is not None:
            measurement = self._smoothed = self._smoothing.next(self._smoothed, measurement)
        self._reading = Reading(self._setpoint, measurement, can_rise)
        state, wanted = self._law.step(self._state, self._reading)
        if math.isnan(wanted):
            # Overflow, as inf - inf: drop the state and restart the law from the present action.
            self._state = self._law.begin(self._action, None)
            return self._action
        action = self.limits.clamp(wanted)
        if not can_rise:
            action = min(action, self._action)
        self._state = state if action == wanted else self._law.settle(state, action)
        self._action = action
        return action

    def begin_again(self, action: float | None) -> None:
        """Restart from this action, or from the initial one: the actions chosen meanwhile were not applied."""
        self._action = self._start if action is None else self.limits.clamp(action)
        self._state = self._law.begin(self._action, self._reading)

    def change(self, law: Law[Any]) -> None:
        """Switch to another law, or other gains, without a bump in the action (bumpless transfer)."""
        self._state = law.begin(self._action, self._reading)
        self._law = law
