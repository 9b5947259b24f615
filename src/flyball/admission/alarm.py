"""A timer of an event loop that is planned again and again, and rings at the earliest of the times."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Alarm:
    """Calls back once, at the earliest of the times for which it was set. Then it may be set again."""

    __slots__ = ("_at_s", "_call", "_timer")

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._at_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, loop: asyncio.AbstractEventLoop, at_s: float) -> None:
        """Call back at this time of the loop's clock, or before."""
        if at_s < self._at_s:
            if self._timer is not None:
                self._timer.cancel()
            self._at_s = at_s
            self._timer = loop.call_at(at_s, self._ring)

    def cancel(self) -> None:
        """Do not call back."""
        if self._timer is not None:
            self._timer.cancel()
        self.forget()

    def forget(self) -> None:
        """Be as new: the loop that would have called back is over, and its timers must not be touched."""
        self._timer = None
        self._at_s = math.inf

    def _ring(self) -> None:
        self.forget()
        self._call()
