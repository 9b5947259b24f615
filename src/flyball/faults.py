"""Faults: exceptions that nobody expected. Each is logged with its traceback and counted, and the rest goes on.

A fault is a defect of the node. One that a message, a queue or a client has met must stay with it: whatever serves
several of them catches `Exception` around each one and calls `Faults.note`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from flyball.events import Event

log = logging.getLogger("flyball.faults")

# A fault that repeats is counted each time, but its traceback is logged only so often: the log is to stay readable,
# and the disk free, when every message of a queue meets the same defect.
LOG_EVERY_S = 10.0

# Places whose last traceback is remembered. They are names in the sources, so that there are few of them.
MAX_PLACES = 1000


class Faults:
    """Counts faults by the place that caught them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self.by_place: dict[str, int] = {}
        self.noted = Event[[BaseException]]()
        """A fault was noted: a server ends the connection that it belongs to."""
        self._clock = clock
        self._logged_at_s: dict[tuple[str, str], float] = {}

    def note(self, place: str, error: BaseException, *, quiet: bool = False) -> None:
        """Count a fault and log its traceback, unless one like it was logged just now."""
        self.count += 1
        self.by_place[place] = self.by_place.get(place, 0) + 1
        kind = (place, type(error).__name__)
        now_s = self._clock()
        if now_s - self._logged_at_s.get(kind, -LOG_EVERY_S) >= LOG_EVERY_S:
            if len(self._logged_at_s) >= MAX_PLACES:
                self._logged_at_s.clear()
            self._logged_at_s[kind] = now_s
            log.error("fault in %s; the node goes on faults=%d", place, self.by_place[place], exc_info=error)
        if not quiet:
            self.noted(error)

    def guard(self, place: str, callback: Callable[..., object], *arguments: object) -> None:
        """Call back one of several; what it raises is noted, so that the others are called as well."""
        try:
            callback(*arguments)
        except Exception as error:
            self.note(place, error)

    def report(self) -> dict[str, int]:
        """Return the counts by place."""
        return dict(self.by_place)
