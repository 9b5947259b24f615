"""What can be chosen about admission control."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from flyball.admission.budget import GAIN
from flyball.admission.classes import RequestClasses
from flyball.admission.counts import Served
from flyball.admission.reference import Reference
from flyball.admission.schedulers import Scheduler
from flyball.admission.use import Unit
from flyball.control.loop import Sample
from flyball.errors import AdmissionError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionOptions:
    """Options of Admission and of AdmissionMiddleware."""

    # None: one class at first, divided when enough is known.
    classifier: RequestClasses | None = None
    scheduler: Scheduler | str = "dps"
    # The load to hold, in cost per second; None: found by slow start.
    reference: Reference | float | None = None
    # What cost is counted in.
    unit: Unit | str = Unit.BUSY_MS
    gain: float = GAIN
    period_s: float = 0.25
    # How long the dearest requests may wait, and which part of it the cheapest.
    deadline_s: float = 5.0
    least_deadline_ratio: float = 0.1
    queue_limit: int = 1000
    # How full the pool may be.
    full_ratio: float = 0.75
    # After how long a request is a stream.
    stream_after_s: float = 5.0
    burst_s: float = 0.1
    # Called with what every period came to.
    record: Callable[[Sample], None] | None = None
    # Called with what became of every request.
    note: Callable[[Served], None] | None = None
    name: str = "admission"
    # Draws whom the scheduler's odds let pass: with a seeded one the same run comes again.
    random: Random | None = None

    def __post_init__(self) -> None:
        """Raise AdmissionError with the first number that is not above 0."""
        check_above_0(
            period_s=self.period_s,
            deadline_s=self.deadline_s,
            least_deadline_ratio=self.least_deadline_ratio,
            queue_limit=self.queue_limit,
            full_ratio=self.full_ratio,
            stream_after_s=self.stream_after_s,
        )


def check_above_0(**values: float) -> None:
    for name, value in values.items():
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise AdmissionError(f"{name} is {value!r}; give a number above 0")
