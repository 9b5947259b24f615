"""For how many more requests there are connections: whoever waits inside for one holds what others need.

Time is an argument: knows neither clock nor event loop, nor who waits outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from flyball.admission.meter import Meter
from flyball.admission.use import Use

# A request that has not asked for a connection so long after its admission will not do so soon.
FRESH_S = 0.05
# From so many on, beyond twice those that were left last time, they are looked at one by one.
FRESH_AT_MOST = 32


class Begun(Protocol):
    """A request that was admitted."""

    @property
    def use(self) -> Use: ...

    @property
    def admitted_s(self) -> float: ...

    @property
    def has_ended(self) -> bool: ...


class Room:
    """Counts busy connections, and requests that will soon take one, against the most that may be busy.

    That is a share of the pools, and `most_busy` if it is less. Others than requests may keep connections for ever,
    as a WebSocket does that listens: one request at a time has room as long as the pools have a connection for it.
    """

    def __init__(self, meter: Meter, full_ratio: float, most_busy: float) -> None:
        self.most_busy = most_busy
        # How many were admitted while they waited, and do not know it yet.
        self.woken = 0
        self._meter = meter
        self._full_ratio = full_ratio
        self._fresh: list[Begun] = []
        self._look_at_fresh = FRESH_AT_MOST

    def begin(self, request: Begun) -> None:
        """Count a request that may take a connection soon."""
        self._fresh.append(request)

    def clear(self) -> None:
        """Forget all requests."""
        self._fresh.clear()
        self.woken = 0

    def find(self, now_s: float, running: Iterable[Begun], is_pressing: bool) -> int | None:
        """Return how many more may begin, None if that is not bounded. `is_pressing` if somebody waits for it."""
        meter = self._meter
        limit = self.most_busy
        size = meter.size
        if size is not None and self._full_ratio * size < limit:
            limit = self._full_ratio * size
        if limit == math.inf:
            return None
        free = limit - meter.busy
        # Not all of these are fresh still. To look at each for every request would be dear, and as long as there is
        # room for all of them it makes no difference.
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
        """Return how many were admitted that will take a connection soon, or wait for their first one."""
        if self._fresh:
            since_s = now_s - FRESH_S
            self._fresh = [
                each
                for each in self._fresh
                if each.use.connections == 0 and not each.has_ended and each.admitted_s > since_s
            ]
            self._look_at_fresh = 2 * len(self._fresh) + FRESH_AT_MOST
        return len(self._fresh) + self.woken
