"""The range of an actuator's actions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flyball.errors import ControlError


@dataclass(frozen=True, slots=True)
class Limits:
    """The lowest and the highest action."""

    lowest: float
    highest: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lowest) and math.isfinite(self.highest) and self.lowest <= self.highest):
            raise ControlError(f"limits must be two numbers in order, not {self.lowest} and {self.highest}")

    def clamp(self, wanted: float) -> float:
        """Return the nearest action within the limits."""
        return min(max(wanted, self.lowest), self.highest)
