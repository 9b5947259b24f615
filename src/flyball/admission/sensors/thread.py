"""A sensor without a pool: the CPU time of the event loop's thread."""

from __future__ import annotations

import time

from flyball.admission.meter import Meter
from flyball.admission.use import Usage


class ThreadSensor:
    """Measures CPU use of the current thread. Read it in the thread that it measures."""

    def __init__(self) -> None:
        self.meter: Meter = _ThreadMeter()


class _ThreadMeter(Meter):
    """Reports the thread's CPU time as the busy time of one connection."""

    @property
    def usage(self) -> Usage:
        return Usage(busy_s=time.thread_time())
