"""Schedulers: they choose the class to admit next."""

from __future__ import annotations

from collections.abc import Callable

from flyball.admission.schedulers.dps import Dps
from flyball.admission.schedulers.fifo import Fifo
from flyball.admission.schedulers.memoryless import Memoryless
from flyball.admission.schedulers.round_robin import RoundRobin
from flyball.admission.schedulers.scheduler import Scheduler, Standing, Turnout
from flyball.admission.schedulers.static import Static
from flyball.admission.schedulers.strict import Strict
from flyball.errors import AdmissionError

__all__ = [
    "SCHEDULERS",
    "Dps",
    "Fifo",
    "Memoryless",
    "RoundRobin",
    "Scheduler",
    "Standing",
    "Static",
    "Strict",
    "Turnout",
    "make_scheduler",
]

SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "dps": Dps,
    "memoryless": Memoryless,
    "static": Static,
    "round_robin": RoundRobin,
    "strict": Strict,
    "fifo": Fifo,
}


def make_scheduler(name: str) -> Scheduler:
    """Return a new scheduler by name."""
    try:
        return SCHEDULERS[name]()
    except KeyError:
        raise AdmissionError(f"unknown scheduler {name!r}: use one of {', '.join(SCHEDULERS)}") from None
