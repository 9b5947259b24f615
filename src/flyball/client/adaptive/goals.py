"""The goals of an adaptive consumer, and the default law for each, which works for any broker and handler.

Pure data. Measurement is in `sensors`, actuation in `actuators`.
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
    """Start handling this many messages per second."""

    unit: ClassVar[str] = "messages/s"

    per_s: float

    def __post_init__(self) -> None:
        _require_positive("rate", self.per_s, "messages per second")

    @property
    def setpoint(self) -> float:
        return self.per_s


@dataclass(frozen=True, slots=True)
class Latency:
    """Hold this average time from a message's arrival at the consumer to its ack."""

    unit: ClassVar[str] = "s"

    seconds: float

    def __post_init__(self) -> None:
        _require_positive("latency", self.seconds, "seconds")

    @property
    def setpoint(self) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Fast:
    """Keep the handlers busy, with at most this many messages waiting on average.

    Needs a limit on concurrent handlers (`concurrency`): without one no message ever waits, and the window grows to
    its limit.
    """

    unit: ClassVar[str] = "messages"

    waiting: float = 1.0

    def __post_init__(self) -> None:
        _require_positive("number of waiting messages", self.waiting, "messages")

    @property
    def setpoint(self) -> float:
        return self.waiting


Goal = Rate | Latency | Fast


def default_law(goal: Goal) -> tuple[Law[Any], Certificate]:
    """Return a law that is stable on every plant that a consumer can have, and its certificate."""
    if isinstance(goal, Fast):
        # One more message in the window adds at most one waiting message, or one busy handler.
        fast = Integral(FAST_GAIN)
        return fast, certify_integral(fast, highest_slope=1.0)
    # Rate over window, or over pace, is concave through the origin (Little's law until saturation); latency over
    # window is flat, then proportional. In logarithms both slopes are between 0 and 1.
    law = Multiplicative()
    return law, certify_model_free(law)


def own_certificate(law: Law[Any], goal: Goal) -> Certificate | None:
    """Return the certificate of a law that needs no model for the goal; None for other laws."""
    if isinstance(goal, Fast) or not isinstance(law, Multiplicative | SelfTuning):
        return None
    return certify_model_free(law)


def _require_positive(what: str, value: object, unit: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type,operator]
        raise ControlError(f"invalid {what} {value!r}: use a number of {unit} above 0")
