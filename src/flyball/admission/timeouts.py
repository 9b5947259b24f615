"""Deadlines of waiters: those with the same limit are in one queue, so that one timer serves all of them.

Time is an argument: no clock, no event loop.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Waiter = TypeVar("Waiter", bound=Hashable)


class Timeouts(Generic[Waiter]):
    """Deadlines by limit. Within a limit the first waiter is the first to expire."""

    def __init__(self) -> None:
        self._lines: dict[float, OrderedDict[Waiter, float]] = {}

    def add(self, waiter: Waiter, limit_s: float, since_s: float) -> float:
        """Add a waiter; return its deadline. It must have waited less than all others of that limit."""
        line = self._lines.get(limit_s)
        if line is None:
            line = self._lines[limit_s] = OrderedDict()
        until_s = line[waiter] = since_s + limit_s
        return until_s

    def remove(self, waiter: Waiter, limit_s: float) -> None:
        """Remove a waiter, if present."""
        line = self._lines.get(limit_s)
        if line is not None:
            line.pop(waiter, None)

    def pop_due(self, now_s: float) -> list[Waiter]:
        """Remove and return all expired waiters."""
        due: list[Waiter] = []
        for limit_s, line in list(self._lines.items()):
            while line and next(iter(line.values())) <= now_s:
                due.append(line.popitem(last=False)[0])
            if not line:
                del self._lines[limit_s]
        return due

    def next_s(self) -> float:
        """Return the next deadline; infinity without waiters."""
        return min((next(iter(line.values())) for line in self._lines.values() if line), default=math.inf)

    def clear(self) -> None:
        """Remove all waiters."""
        self._lines.clear()
