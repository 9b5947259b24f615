"""Options of an adaptive consumer, besides queue, handler and goal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flyball.client.adaptive.actuators import ConsumerActuator
from flyball.client.reporting import LoopReporter
from flyball.control.certificate import Certificate
from flyball.control.laws import Law
from flyball.control.limits import Limits
from flyball.control.loop import Sample
from flyball.errors import ControlError


class Design(Protocol):
    """A control design, as `flyball control design` writes it."""

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
    """Options of an AdaptiveConsumer. None means the default for the goal, or the design's value."""

    actuator: ConsumerActuator | None = None
    # Without a law and a design, a law that needs no model is used.
    law: Law[Any] | None = None
    certificate: Certificate | None = None
    # A law with its certificate, limits, filter and sample time.
    design: Design | None = None
    sample_time_s: float | None = None
    limits: Limits | None = None
    # Initial action.
    start: float | None = None
    # Maximum concurrent handlers; None: as many as the window allows.
    concurrency: int | None = None
    # For a message whose handler raises: "requeue" or "reject".
    on_error: str = "requeue"
    # Folder for trace files of the samples; None: they are not written. Several processes may share it.
    traces: str | Path | None = None
    # Version of the model that the law was designed for, recorded with the samples.
    model_version: str = ""
    # The actuator plays a signal for identification: samples are recorded as those of an open loop.
    is_open: bool = False
    # Called with each sample.
    record: Callable[[Sample], None] | None = None
    # Shadow mode: compute and record, but do not act.
    is_shadow: bool = False
    allow_uncertified: bool = False
    # Shows the loop in a node's console, which can switch between shadow and active mode.
    reporter: LoopReporter | None = None
    # Name of the loop; None: the queue's name.
    name: str | None = None
    # How long handlers have to finish when the consumer stops.
    stop_limit_s: float = 30.0

    def __post_init__(self) -> None:
        """Raise ControlError for the first invalid option."""
        concurrency = self.concurrency
        is_count = isinstance(concurrency, int) and not isinstance(concurrency, bool) and concurrency >= 1
        if concurrency is not None and not is_count:
            raise ControlError(f"invalid concurrency {concurrency!r}: use an integer of at least 1")
        if self.on_error not in ("requeue", "reject"):
            raise ControlError(f'invalid on_error {self.on_error!r}: use "requeue" or "reject"')
        if not (math.isfinite(self.stop_limit_s) and self.stop_limit_s >= 0):
            raise ControlError(f"invalid stop_limit_s {self.stop_limit_s!r}: use seconds, at least 0")
        if self.design is not None and (self.law is not None or self.certificate is not None):
            raise ControlError("design excludes law and certificate: give one or the other")
