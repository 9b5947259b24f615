"""Whose time is up: all with the same time limit stand in one line, so that one timer serves all of them.

Time is an argument: knows neither clock nor event loop, nor who waits for what.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Who = TypeVar("Who", bound=Hashable)


class Timeouts(Generic[Who]):
    """Remembers until when each may wait. In a line, whoever came first is the first whose time is up."""

    def __init__(self) -> None:
        self._lines: dict[float, OrderedDict[Who, float]] = {}

    def add(self, who: Who, limit_s: float, since_s: float) -> float:
        """Let somebody wait; return when its time is up. Nobody of that limit has waited for less time."""
        line = self._lines.get(limit_s)
        if line is None:
            line = self._lines[limit_s] = OrderedDict()
        until_s = line[who] = since_s + limit_s
        return until_s

    def remove(self, who: Who, limit_s: float) -> None:
        """Forget somebody, if it is there."""
        line = self._lines.get(limit_s)
        if line is not None:
            line.pop(who, None)

    def pop_due(self, now_s: float) -> list[Who]:
        """Remove all whose time is up, and return them."""
        due: list[Who] = []
        for limit_s, line in list(self._lines.items()):
            while line and next(iter(line.values())) <= now_s:
                due.append(line.popitem(last=False)[0])
            if not line:
                del self._lines[limit_s]
        return due

    def next_s(self) -> float:
        """Return when the next one's time is up; infinity if there is nobody."""
        return min((next(iter(line.values())) for line in self._lines.values() if line), default=math.inf)

    def clear(self) -> None:
        """Forget all."""
        self._lines.clear()
