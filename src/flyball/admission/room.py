"""Limits admissions by free connections: an admitted request that waits for a connection blocks others.

Time is an argument: no clock, no event loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from flyball.admission.meter import Meter
from flyball.admission.use import Use

# A request that has not requested a connection this long after admission will not do so soon.
FRESH_S = 0.05
# Above this number, and twice the last count, recent requests are checked one by one.
FRESH_AT_MOST = 32


class Begun(Protocol):
    """An admitted request."""

    @property
    def use(self) -> Use: ...

    @property
    def admitted_s(self) -> float: ...

    @property
    def has_ended(self) -> bool: ...


class Room:
    """Counts busy connections, and admitted requests that will soon take one, against a limit.

    The limit is a share of the pools, and `most_busy` if that is lower. Other code may keep connections forever,
    such as a listening WebSocket: one request may always start while the pools have a connection for it.
    """

    def __init__(self, meter: Meter, full_ratio: float, most_busy: float) -> None:
        self.most_busy = most_busy
        # Requests admitted while waiting whose waiters have not run yet.
        self.woken = 0
        self._meter = meter
        self._full_ratio = full_ratio
        self._fresh: list[Begun] = []
        self._look_at_fresh = FRESH_AT_MOST

    def begin(self, request: Begun) -> None:
        """Count a request that may soon take a connection."""
        self._fresh.append(request)

    def clear(self) -> None:
        """Forget all requests."""
        self._fresh.clear()
        self.woken = 0

    def find(self, now_s: float, running: Iterable[Begun], is_pressing: bool) -> int | None:
        """Return how many more requests may start (None: unbounded). `is_pressing` if requests are waiting."""
        meter = self._meter
        limit = self.most_busy
        size = meter.size
        if size is not None and self._full_ratio * size < limit:
            limit = self._full_ratio * size
        if limit == math.inf:
            return None
        free = limit - meter.busy
        # Upper bound: not all of them are still recent. Checking each for every request is expensive, and unnecessary
        # while there is room for all.
        fresh = len(self._fresh) + self.woken
        if is_pressing or fresh >= free or len(self._fresh) >= self._look_at_fresh:
            fresh = self._count_fresh(now_s)
        awaited = fresh if fresh > meter.waiting else meter.waiting
        room = math.ceil(free - awaited)
        if room > 0:
            return room
        has_connection = size is None or meter.busy < size
        return 1 if has_connection and not awaited and not any(each.use.held for each in running) else 0

    def _count_fresh(self, now_s: float) -> int:
        """Return the number of admitted requests that will soon take a connection, or wait for their first one."""
        if self._fresh:
            since_s = now_s - FRESH_S
            self._fresh = [
                each
                for each in self._fresh
                if each.use.connections == 0 and not each.has_ended and each.admitted_s > since_s
            ]
            self._look_at_fresh = 2 * len(self._fresh) + FRESH_AT_MOST
        return len(self._fresh) + self.woken
