"""Makes a node slow on purpose: it uses at most a part of a processor, as if it ran on a slower machine.

The time of its own thread is what counts; the store's processes and other threads are not slowed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PERIOD_S = 0.05
"""How often the use is looked at while nothing is answered. To look is work, too: every few milliseconds it would
cost more than an idle node does."""

LEAST_PAUSE_S = 0.0002
"""Shorter ones are put off: a thread cannot sleep for just any time."""


class CpuShare:
    """Pauses its thread after it has worked, so that the part it works is at most the share."""

    def __init__(
        self,
        share_ratio: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._share_ratio = share_ratio
        self._clock = clock
        self._used = used
        self._pause = pause
        self._settled_s = clock()
        self._settled_used_s = used()

    async def run(self) -> None:
        """Keep to the share for ever, in the loop's thread."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.settle()

    def settle(self) -> None:
        """Pause for as long as the slower machine would still work on what was done since the last time."""
        used_s = self._used()
        now_s = self._clock()
        # When the slower machine is done; not before now, since it cannot work ahead of time.
        done_s = self._settled_s + (used_s - self._settled_used_s) / self._share_ratio
        self._settled_used_s = used_s
        if done_s - now_s >= LEAST_PAUSE_S:
            self._pause(done_s - now_s)
            # Not the clock: what a pause was too long is made up for by the next one.
            self._settled_s = done_s
        else:
            self._settled_s = max(done_s, now_s)
