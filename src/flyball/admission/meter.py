"""Measures the use of a database's connections.

Sensors report events of a pool to a `Meter`. The request is the one in whose context the connection was requested.
Independent of drivers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from flyball.admission.use import Usage, Use

# The current request. Tasks and threads started with a copy of its context count for it.
current_use: ContextVar[Use | None] = ContextVar("flyball_current_use", default=None)


class Meter:
    """Sums the use of one or more pools. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._connections = 0
        self._busy_s = 0.0
        self._waiting_s = 0.0
        # Connections in use.
        self.busy = 0
        # Pending requests for connections.
        self.waiting = 0
        # Maximum connections, None if unknown.
        self.size: int | None = None
        self._since_s = clock()
        self._sizes: dict[int, int | None] = {}

    def size_of(self, pool: object, size: int | None) -> None:
        """Set the maximum connections of a pool; None for unbounded."""
        with self._lock:
            self._sizes[id(pool)] = size
            sizes = [each for each in self._sizes.values() if each is not None]
            self.size = sum(sizes) if len(sizes) == len(self._sizes) else None

    def ask(self) -> Hold:
        """Record that the current context requests a connection. Report its progress to the returned `Hold`."""
        hold = Hold(self, current_use.get(), self._clock())
        with self._lock:
            self._pass(hold.since_s)
            self.waiting += 1
        return hold

    @property
    def usage(self) -> Usage:
        """Return the use so far."""
        with self._lock:
            self._pass(self._clock())
            return Usage(self._connections, self._busy_s, self._waiting_s, self.busy, self.waiting, self.size)

    def _pass(self, now_s: float) -> None:
        """Account for the time since the last change. Call with the lock held.

        Two threads may have read the clock in either order.
        """
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
    """A connection from its request to its return. Methods are idempotent."""

    meter: Meter
    use: Use | None
    since_s: float
    is_held: bool = field(default=False, init=False)
    has_ended: bool = field(default=False, init=False)

    def got(self) -> None:
        """Report that the connection was acquired."""
        self.meter._got(self)

    def end(self) -> None:
        """Report that the connection was returned, or the request for it cancelled."""
        self.meter._end(self)
