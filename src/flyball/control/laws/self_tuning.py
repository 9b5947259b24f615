"""A self-tuning regulator: recursive least squares identifies the plant online, and the law is designed for it.

It works in logarithms, where a curve's slope is its elasticity: a number without unit, 1 for a straight line through
the origin, less where the curve bends, for any plant. So nothing needs to be configured for a particular one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from flyball.control.laws.law import Law, Reading, check_gains
from flyball.control.laws.multiplicative import LEAST_ACTION, log_error
from flyball.errors import ControlError

LEAST_MEASUREMENT = 1e-9
# Variance of the initial estimates.
FIRST_VARIANCE = 1.0
# Forgetting would let the covariance grow without bound while nothing changes (estimator windup); one outlier would
# then be trusted at once.
MOST_VARIANCE = 10.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """ln y = elasticity ln u + offset, with the covariance of the two."""

    elasticity: float
    offset: float
    # Variance of the elasticity, covariance of both, variance of the offset; in units of the noise.
    covariance: tuple[float, float, float]

    def updated(self, log_action: float, log_measurement: float, forgetting: float) -> Estimate:
        """Return the estimate after one more sample; older samples are weighted by `forgetting`."""
        p11, p12, p22 = self.covariance
        # gain = P x / (forgetting + x' P x) with x = (ln u, 1)
        first, second = p11 * log_action + p12, p12 * log_action + p22
        scale = forgetting + max(log_action * first + second, 0.0)
        surprise = log_measurement - self.elasticity * log_action - self.offset
        p11 = max(p11 - first * first / scale, 0.0) / forgetting
        p12 = (p12 - first * second / scale) / forgetting
        p22 = max(p22 - second * second / scale, 0.0) / forgetting
        shrink = min(1.0, MOST_VARIANCE / max(p11 + p22, 1e-300))
        return Estimate(
            self.elasticity + first / scale * surprise,
            self.offset + second / scale * surprise,
            (p11 * shrink, p12 * shrink, p22 * shrink),
        )


@dataclass(frozen=True, slots=True)
class Tuning:
    """State of the regulator: the action and the estimate, None before the first sample."""

    action: float
    estimate: Estimate | None


@dataclass(frozen=True, slots=True)
class SelfTuning(Law[Tuning]):
    """ln u += (1 - pole) / elasticity * ln(r / y), with the present estimate of the elasticity, within its limits.

    The limits bound the gain, so that a wrong estimate cannot make the loop unstable: where no plant has an
    elasticity above 1 the loop's gain is at most (1 - pole) / lowest_elasticity. Without proportional part it is
    never less stable on a plant with memory than on one without.
    """

    kind: ClassVar[str] = "self_tuning"

    pole: float = 0.5
    forgetting: float = 0.97
    lowest_elasticity: float = 0.5
    highest_elasticity: float = 1.25

    def __post_init__(self) -> None:
        check_gains(self)
        if not 0 <= self.pole < 1:
            raise ControlError(f"the pole of a self-tuning law is from 0 to below 1, not {self.pole}")
        if not 0.5 <= self.forgetting <= 1:
            raise ControlError(f"the forgetting of a self-tuning law is from 0.5 to 1, not {self.forgetting}")
        if not 0 < self.lowest_elasticity <= self.highest_elasticity:
            raise ControlError("the limits of the elasticity are above 0 and in order")

    def begin(self, action: float, reading: Reading | None) -> Tuning:
        return Tuning(max(action, LEAST_ACTION), None)

    def step(self, state: Tuning, reading: Reading) -> tuple[Tuning, float]:
        estimate = self._learned(state, reading)
        elasticity = self.clipped(estimate) if estimate else 1.0
        wanted = state.action * math.exp((1 - self.pole) / elasticity * log_error(reading))
        return Tuning(wanted, estimate), wanted

    def settle(self, state: Tuning, action: float) -> Tuning:
        return Tuning(max(action, LEAST_ACTION), state.estimate)

    def clipped(self, estimate: Estimate) -> float:
        """Return the elasticity that the law uses."""
        return min(max(estimate.elasticity, self.lowest_elasticity), self.highest_elasticity)

    def _learned(self, state: Tuning, reading: Reading) -> Estimate | None:
        if reading.measurement < LEAST_MEASUREMENT or not reading.can_rise:
            # The measurement is 0 or limited by something else: it carries no information about the curve.
            return state.estimate
        log_action, log_measurement = math.log(state.action), math.log(reading.measurement)
        if state.estimate is None:
            # The initial guess is Little's law: twice the window, twice the rate.
            return Estimate(1.0, log_measurement - log_action, (FIRST_VARIANCE, 0.0, FIRST_VARIANCE))
        return state.estimate.updated(log_action, log_measurement, self.forgetting)
