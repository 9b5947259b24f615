"""The proportional-integral law in continuous time, for loops with irregular sample times.

Its gains are per second, and each step receives the time. For loops with a fixed sample time use `laws`: designs and
certificates are made for those.
"""

from __future__ import annotations

from dataclasses import dataclass

from flyball.control.limits import Limits


@dataclass(frozen=True, slots=True)
class PiState:
    """State of the law between two steps."""

    integral: float
    # Time of the last step, in seconds.
    at: float


@dataclass(frozen=True, slots=True)
class PiLaw:
    """action = feedforward + kp * error + integral of ki_per_s * error, within limits.

    Conditional integration: the integral is frozen where the action is at a limit and the error pushes it further, so
    that the action leaves the limit as soon as the error changes sign, and while the loop is open, that is, when the
    plant does not use all that the action allows.
    """

    setpoint: float
    kp: float
    ki_per_s: float
    limits: Limits

    def step(
        self, state: PiState, measurement: float, now: float, *, feedforward: float = 0.0, is_open: bool = False
    ) -> tuple[PiState, float]:
        """Return the next state and the action until the next step."""
        error = self.setpoint - measurement
        integral = state.integral
        if not is_open:
            integral += self.ki_per_s * error * (now - state.at)
        wanted = feedforward + self.kp * error + integral
        action = self.limits.clamp(wanted)
        if (wanted - action) * self.ki_per_s * error > 0:
            integral = state.integral
        return PiState(integral, now), action
