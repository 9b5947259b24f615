"""What an adaptive consumer is to hold, and the law that holds it on whatever broker and handler there are.

Pure data. How a goal is measured is in `sensors`, how it is reached in `actuators`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from flyball.control.certificate import Certificate
from flyball.control.laws import Integral, Law, Multiplicative, SelfTuning
from flyball.control.model_free import certify_integral, certify_model_free
from flyball.errors import ControlError

FAST_GAIN = 0.5


@dataclass(frozen=True, slots=True)
class Rate:
    """So many messages begin to be handled in a second."""

    unit: ClassVar[str] = "messages/s"

    per_s: float

    def __post_init__(self) -> None:
        _require_positive("a rate", self.per_s, "messages per second")

    @property
    def setpoint(self) -> float:
        return self.per_s


@dataclass(frozen=True, slots=True)
class Latency:
    """From its arrival at the consumer until its acknowledgement a message takes so long, on average."""

    unit: ClassVar[str] = "s"

    seconds: float

    def __post_init__(self) -> None:
        _require_positive("a latency", self.seconds, "seconds")

    @property
    def setpoint(self) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Fast:
    """The handlers always have work, and no more than so many messages wait for them, on average.

    It needs a limit on handlers at once (`concurrency`): without one nothing ever waits, and the window grows to its
    limit.
    """

    unit: ClassVar[str] = "messages"

    waiting: float = 1.0

    def __post_init__(self) -> None:
        _require_positive("a number of waiting messages", self.waiting, "messages")

    @property
    def setpoint(self) -> float:
        return self.waiting


Goal = Rate | Latency | Fast


def default_law(goal: Goal) -> tuple[Law[Any], Certificate]:
    """Return a law that holds the goal on every plant that a consumer can be, and the proof."""
    if isinstance(goal, Fast):
        # One more in the window is at most one more that waits, or one handler less that idles.
        fast = Integral(FAST_GAIN)
        return fast, certify_integral(fast, highest_slope=1.0)
    # The rate over the window, or over the pace, is a concave curve through the origin (Little's law until something
    # saturates); the latency over the window is flat and then proportional. In logarithms the slope of both lies
    # between 0 and 1.
    law = Multiplicative()
    return law, certify_model_free(law)


def own_certificate(law: Law[Any], goal: Goal) -> Certificate | None:
    """Return the certificate of a law that needs no model for the goal; None if it needs one."""
    if isinstance(goal, Fast) or not isinstance(law, Multiplicative | SelfTuning):
        return None
    return certify_model_free(law)


def _require_positive(what: str, value: object, unit: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type,operator]
        raise ControlError(f"{what} to hold is a number of {unit} above 0, not {value!r}")
