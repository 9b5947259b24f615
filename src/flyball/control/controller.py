"""Keeps what a law needs between two steps, and sees to it that only possible actions leave it.

Whatever it is fed, the action is a number within its limits.
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
    """A filter for noisy measurements: a new one counts by `share`, all that came before by the rest.

    It is a delay, too. Use it only where it is faster than the loop.
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
    """A law at work on one loop. The setpoint may be changed at any time."""

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
        """The action that was chosen last."""
        return self._action

    @property
    def setpoint(self) -> float:
        """The value that the measurement should have."""
        return self._setpoint

    @setpoint.setter
    def setpoint(self, setpoint: float) -> None:
        if not math.isfinite(setpoint):
            raise ControlError(f"a setpoint is a number, not {setpoint}")
        self._setpoint = setpoint

    def update(self, measurement: float, *, can_rise: bool = True) -> float:
        """Take a measurement; return the action until the next one.

        A measurement that is not a number changes nothing. Where more of the action would do nothing (the queue is
        empty, the handler idle) the loop is open and `can_rise` is False: the action does not grow.
        """
        if not math.isfinite(measurement):
            return self._action
        if self._smoothing is not None:
            measurement = self._smoothed = self._smoothing.next(self._smoothed, measurement)
        self._reading = Reading(self._setpoint, measurement, can_rise)
        state, wanted = self._law.step(self._state, self._reading)
        if math.isnan(wanted):
            # Numbers beyond what can be computed with: forget them.
            self._state = self._law.begin(self._action, None)
            return self._action
        action = self.limits.clamp(wanted)
        if not can_rise:
            action = min(action, self._action)
        self._state = state if action == wanted else self._law.settle(state, action)
        self._action = action
        return action

    def begin_again(self, action: float | None) -> None:
        """Go on from this action, or from the one that it began with: what was chosen meanwhile was not taken."""
        self._action = self._start if action is None else self.limits.clamp(action)
        self._state = self._law.begin(self._action, self._reading)

    def change(self, law: Law[Any]) -> None:
        """Go on with another law, or the same with other gains, from the action as it is now, without a bump."""
        self._state = law.begin(self._action, self._reading)
        self._law = law
