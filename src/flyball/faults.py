"""Faults: unexpected exceptions. Each is counted and logged with its traceback, and the node keeps running.

A fault is a bug in the node. It must not spread from the message, queue or client that triggered it: code that serves
several of them catches `Exception` around each one and calls `Faults.note`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from flyball.events import Event

log = logging.getLogger("flyball.faults")

# Interval between tracebacks of the same fault. Every occurrence is counted, but a bug that every message of a queue
# triggers must not flood the log and the disk.
LOG_EVERY_S = 10.0

# Places whose last traceback is remembered. Places are names in the source, so there are few.
MAX_PLACES = 1000


class Faults:
    """Counts faults by the place in the code that caught them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self.by_place: dict[str, int] = {}
        # The server closes the connection that the fault belongs to.
        self.noted = Event[[BaseException]]()
        self._clock = clock
        self._logged_at_s: dict[tuple[str, str], float] = {}

    def note(self, place: str, error: BaseException, *, quiet: bool = False) -> None:
        """Count a fault and log its traceback, unless the same one was logged within `LOG_EVERY_S`."""
        self.count += 1
        self.by_place[place] = self.by_place.get(place, 0) + 1
        kind = (place, type(error).__name__)
        now_s = self._clock()
        if now_s - self._logged_at_s.get(kind, -LOG_EVERY_S) >= LOG_EVERY_S:
            if len(self._logged_at_s) >= MAX_PLACES:
                self._logged_at_s.clear()
            self._logged_at_s[kind] = now_s
            log.error("fault in %s; the node keeps running faults=%d", place, self.by_place[place], exc_info=error)
        if not quiet:
            self.noted(error)

    def guard(self, place: str, callback: Callable[..., object], *arguments: object) -> None:
        """Call a callback and note what it raises, so that the remaining callbacks still run."""
        try:
            callback(*arguments)
        except Exception as error:
            self.note(place, error)

    def report(self) -> dict[str, int]:
        """Return the counts by place."""
        return dict(self.by_place)
