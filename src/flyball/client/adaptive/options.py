"""What can be chosen about an adaptive consumer, besides its queue, its handler and its goal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from flyball.client.adaptive.actuators import ConsumerActuator
from flyball.client.reporting import LoopReporter
from flyball.control.certificate import Certificate
from flyball.control.laws import Law
from flyball.control.limits import Limits
from flyball.control.loop import Sample
from flyball.errors import ControlError


class Design(Protocol):
    """A law with all that belongs to it, as `flyball control design` writes it."""

    @property
    def law(self) -> Law[Any]: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def sample_time_s(self) -> float: ...

    @property
    def smoothing_share(self) -> float | None: ...

    @property
    def certificate(self) -> Certificate | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveOptions:
    """Options of an AdaptiveConsumer. What is None follows from the goal, or from the design."""

    actuator: ConsumerActuator | None = None
    # Without a law and a design there is a law that needs no model.
    law: Law[Any] | None = None
    certificate: Certificate | None = None
    # A law with its certificate, limits, filter and sample time, instead of a law alone.
    design: Design | None = None
    sample_time_s: float | None = None
    limits: Limits | None = None
    # The first action.
    start: float | None = None
    # How many handlers run at once; None: as many as there are messages in the window.
    concurrency: int | None = None
    # What becomes of a message whose handler raises: "requeue" or "reject".
    on_error: str = "requeue"
    # Called with each sample.
    record: Callable[[Sample], None] | None = None
    # Compute and record, and do not act.
    is_shadow: bool = False
    allow_uncertified: bool = False
    # Shows the loop in a node's console, which can switch it between shadow and active.
    reporter: LoopReporter | None = None
    # Of the loop; None: the queue's.
    name: str | None = None
    # How long handlers have to finish when the consumer stops.
    stop_limit_s: float = 30.0

    def __post_init__(self) -> None:
        """Raise ControlError with the first thing that is not as it should be."""
        concurrency = self.concurrency
        is_count = isinstance(concurrency, int) and not isinstance(concurrency, bool) and concurrency >= 1
        if concurrency is not None and not is_count:
            raise ControlError(f"concurrency is the number of handlers at once, 1 or more, not {concurrency!r}")
        if self.on_error not in ("requeue", "reject"):
            raise ControlError(f'on_error is "requeue" or "reject", not {self.on_error!r}')
        if not (math.isfinite(self.stop_limit_s) and self.stop_limit_s >= 0):
            raise ControlError(f"stop_limit_s is a number of seconds, 0 or more, not {self.stop_limit_s!r}")
        if self.design is not None and (self.law is not None or self.certificate is not None):
            raise ControlError("give a design or a law with its certificate, not both")
