"""A reusable timer that fires at the earliest of the times it was set to."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Alarm:
    """Calls back once, at the earliest of the set times. It can then be set again."""

    __slots__ = ("_at_s", "_call", "_timer")

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._at_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, loop: asyncio.AbstractEventLoop, at_s: float) -> None:
        """Call back at this time of the loop's clock, or earlier."""
        if at_s < self._at_s:
            if self._timer is not None:
                self._timer.cancel()
            self._at_s = at_s
            self._timer = loop.call_at(at_s, self._ring)

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self.forget()

    def forget(self) -> None:
        """Reset: the loop is closed, and its timers must not be touched."""
        self._timer = None
        self._at_s = math.inf

    def _ring(self) -> None:
        self.forget()
        self._call()
