"""The proportional-integral law in continuous time, for loops whose samples come when they come.

Its gains are per second, and each step is given the time. Where samples come at a fixed pace, use `laws`: designs and
certificates are made for those.
"""

from __future__ import annotations

from dataclasses import dataclass

from flyball.control.limits import Limits


@dataclass(frozen=True, slots=True)
class PiState:
    """State of the law between two steps."""

    integral: float
    # When the last step was, in seconds.
    at: float


@dataclass(frozen=True, slots=True)
class PiLaw:
    """action = feedforward + kp * error + integral of ki_per_s * error, within limits.

    The integral stands still while it could only do harm: where the action is at a limit and the error pushes it
    further, so that the way back begins at once, and while the loop is open, that is, when the
    plant does not use all that the action allows.
    """

    setpoint: float
    kp: float
    ki_per_s: float
    limits: Limits

    def step(
        self, state: PiState, measurement: float, now: float, *, feedforward: float = 0.0, is_open: bool = False
    ) -> tuple[PiState, float]:
        """Return the next state and the action to take until the next step."""
        error = self.setpoint - measurement
        integral = state.integral
        if not is_open:
            integral += self.ki_per_s * error * (now - state.at)
        wanted = feedforward + self.kp * error + integral
        action = self.limits.clamp(wanted)
        if (wanted - action) * self.ki_per_s * error > 0:
            integral = state.integral
        return PiState(integral, now), action
