"""Counts what is taken of a database, while it is taken.

Sensors tell a `Meter` what happens at a pool. Whose request it was follows from the context in which the connection
was asked for. Knows no driver.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from flyball.admission.use import Usage, Use

# The request that this code works for. Tasks and threads that it starts with a copy of its context count for it.
current_use: ContextVar[Use | None] = ContextVar("flyball_current_use", default=None)


class Meter:
    """Adds up what is taken of one or several pools. All of it may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._connections = 0
        self._busy_s = 0.0
        self._waiting_s = 0.0
        # How many connections are held now.
        self.busy = 0
        # How many are waited for now.
        self.waiting = 0
        # How many there can be at most, None if nobody has said.
        self.size: int | None = None
        self._since_s = clock()
        self._sizes: dict[int, int | None] = {}

    def size_of(self, pool: object, size: int | None) -> None:
        """Note how many connections a pool can have at most; None if it has no bound."""
        with self._lock:
            self._sizes[id(pool)] = size
            sizes = [each for each in self._sizes.values() if each is not None]
            self.size = sum(sizes) if len(sizes) == len(self._sizes) else None

    def ask(self) -> Hold:
        """Note that the code of the current context asks for a connection. Tell the `Hold` how it goes on."""
        hold = Hold(self, current_use.get(), self._clock())
        with self._lock:
            self._pass(hold.since_s)
            self.waiting += 1
        return hold

    @property
    def usage(self) -> Usage:
        """What has been taken until now."""
        with self._lock:
            self._pass(self._clock())
            return Usage(self._connections, self._busy_s, self._waiting_s, self.busy, self.waiting, self.size)

    def _pass(self, now_s: float) -> None:
        """Count the time since the last change. With the lock held: two threads may have read the clock in turn."""
        passed_s = now_s - self._since_s
        if passed_s > 0.0:
            self._busy_s += self.busy * passed_s
            self._waiting_s += self.waiting * passed_s
            self._since_s = now_s

    def _got(self, hold: Hold) -> None:
        now_s = self._clock()
        with self._lock:
            if hold.has_ended or hold.is_held:
                return
            self._pass(now_s)
            self.waiting -= 1
            self.busy += 1
            self._connections += 1
            hold.is_held = True
            if hold.use is not None:
                hold.use.connections += 1
                hold.use.held += 1
                hold.use.waiting_s += now_s - hold.since_s
            hold.since_s = now_s

    def _end(self, hold: Hold) -> None:
        now_s = self._clock()
        with self._lock:
            if hold.has_ended:
                return
            self._pass(now_s)
            hold.has_ended = True
            took_s = now_s - hold.since_s
            if hold.is_held:
                self.busy -= 1
                if hold.use is not None:
                    hold.use.busy_s += took_s
                    hold.use.held -= 1
            else:
                self.waiting -= 1
                if hold.use is not None:
                    hold.use.waiting_s += took_s


@dataclass(slots=True, eq=False)
class Hold:
    """One connection, from when it is asked for until it is given back. What happens twice counts once."""

    meter: Meter
    use: Use | None
    since_s: float
    is_held: bool = field(default=False, init=False)
    has_ended: bool = field(default=False, init=False)

    def got(self) -> None:
        """The connection is there."""
        self.meter._got(self)

    def end(self) -> None:
        """The connection was given back, or whoever waited for it has given up."""
        self.meter._end(self)
