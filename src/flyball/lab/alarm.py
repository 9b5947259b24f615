"""Waits for points in time to some microseconds, where an event loop's own timers have milliseconds.

One kernel timer serves all waiters. Times are those of `time.perf_counter_ns`. Only for Linux.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import itertools
import os
import struct
import time

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_SPECIFICATION = struct.Struct("qqqq")
_TIMER_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


class Alarm:
    """Wakes tasks of one event loop. Create and close it inside the loop."""

    def __init__(self) -> None:
        # The clock of `perf_counter_ns` on Linux.
        self._timer: int = _libc.timerfd_create(_CLOCK_MONOTONIC, _TIMER_FLAGS)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._turns = itertools.count()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._timer, self._ring)

    async def until(self, at_ns: int) -> None:
        """Return at that time, or when `wake_all` is called; at once if it has passed."""
        if at_ns <= time.perf_counter_ns():
            return
        waiter = self._loop.create_future()
        heapq.heappush(self._waiting, (at_ns, next(self._turns), waiter))
        if self._waiting[0][2] is waiter:
            self._set(at_ns)
        await waiter

    def wake_all(self) -> None:
        """Wake all waiters now, whatever their times."""
        for _, _, waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    def close(self) -> None:
        """Close the timer. There must be no waiters."""
        if self._timer >= 0:
            self._loop.remove_reader(self._timer)
            os.close(self._timer)
            self._timer = -1

    def _ring(self) -> None:
        try:
            os.read(self._timer, 8)
        except BlockingIOError:
            # The timer was set again after it expired.
            return
        waiting = self._waiting
        now_ns = time.perf_counter_ns()
        while waiting and waiting[0][0] <= now_ns:
            waiter = heapq.heappop(waiting)[2]
            if not waiter.done():
                waiter.set_result(None)
        if waiting:
            self._set(waiting[0][0])

    def _set(self, at_ns: int) -> None:
        seconds, rest_ns = divmod(at_ns, 1_000_000_000)
        if _libc.timerfd_settime(self._timer, _ABSOLUTE, _SPECIFICATION.pack(0, 0, seconds, rest_ns), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
