"""Little's law inverted: a window w and a rate y are related by w = y W, so for a rate r use w r / y.

Works on positive quantities, in ratios. It needs no model: units, and the speed of the plant, cancel out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from flyball.control.laws.law import Law, Reading, check_gains
from flyball.errors import ControlError

# Largest ratio of setpoint to measurement, or its inverse, that one sample counts as: limits the effect of outliers.
LARGEST_RATIO = 4.0
# An action of 0 could not be increased by any factor.
LEAST_ACTION = 1e-6


def log_error(reading: Reading) -> float:
    """Return ln(setpoint / measurement), clamped to the limits for one sample."""
    most = math.log(LARGEST_RATIO)
    if reading.measurement <= 0 or reading.setpoint <= 0:
        return math.copysign(most, reading.error) if reading.error else 0.0
    return min(max(math.log(reading.setpoint) - math.log(reading.measurement), -most), most)


@dataclass(frozen=True, slots=True)
class Multiplicative(Law[float]):
    """u *= (r / y) ** exponent.

    In logarithms it is an integral law with the gain `exponent`, on a plant whose gain is the elasticity s of its
    curve. Concave curves through the origin, such as a window's, have 0 <= s <= 1: the pole 1 - exponent s is stable
    for all of them, and does not oscillate up to an exponent of 1.
    """

    kind: ClassVar[str] = "multiplicative"

    exponent: float = 0.5

    def __post_init__(self) -> None:
        check_gains(self)
        if not 0 < self.exponent <= 2:
            raise ControlError(f"the exponent of a multiplicative law is above 0 and at most 2, not {self.exponent}")

    def begin(self, action: float, reading: Reading | None) -> float:
        return max(action, LEAST_ACTION)

    def step(self, state: float, reading: Reading) -> tuple[float, float]:
        wanted = state * math.exp(self.exponent * log_error(reading))
        return wanted, wanted

    def settle(self, state: float, action: float) -> float:
        return max(action, LEAST_ACTION)
