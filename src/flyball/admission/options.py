"""Options of admission control."""

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
    """Options of Admission and AdmissionMiddleware."""

    # None: starts with one class, which is split once enough is known.
    classifier: RequestClasses | None = None
    scheduler: Scheduler | str = "dps"
    # Setpoint of the load, in cost per second; None: found by slow start.
    reference: Reference | float | None = None
    # Unit of cost.
    unit: Unit | str = Unit.BUSY_MS
    gain: float = GAIN
    period_s: float = 0.25
    # Deadline of the most expensive requests, and the share of it for the cheapest.
    deadline_s: float = 5.0
    least_deadline_ratio: float = 0.1
    queue_limit: int = 1000
    # Maximum share of the pool in use.
    full_ratio: float = 0.75
    # A request that takes longer is a stream.
    stream_after_s: float = 5.0
    burst_s: float = 0.1
    # Called after each period.
    record: Callable[[Sample], None] | None = None
    # Called with the outcome of each request.
    note: Callable[[Served], None] | None = None
    name: str = "admission"
    # Random source of the scheduler; a seeded one makes runs reproducible.
    random: Random | None = None

    def __post_init__(self) -> None:
        """Raise AdmissionError for the first number that is not above 0."""
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
            raise AdmissionError(f"invalid {name} {value!r}: use a number above 0")
