"""A sensor for what has no pool: the CPU time of the thread that the event loop runs in."""

from __future__ import annotations

import time

from flyball.admission.meter import Meter
from flyball.admission.use import Usage


class ThreadSensor:
    """Measures how busy the current thread is. Ask it in the thread that it is to measure, as an event loop's."""

    def __init__(self) -> None:
        self.meter: Meter = _ThreadMeter()


class _ThreadMeter(Meter):
    """Takes the CPU time of the thread for the time that one connection was busy."""

    @property
    def usage(self) -> Usage:
        return Usage(busy_s=time.thread_time())
