"""Schedules the slices of long responses: one slice per turn of the event loop, for all responses together.

If each response only yielded between its slices, three hundred of them would run three hundred slices per turn, and
delay every message.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque

_lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = weakref.WeakKeyDictionary()


async def next_slice() -> None:
    """Wait for a turn of the loop in which no other caller returns."""
    loop = asyncio.get_running_loop()
    line = _lines.get(loop)
    if line is None:
        line = _lines[loop] = _Line()
    await line.turn(loop)


class _Line:
    """The waiters of one loop, first come first served."""

    __slots__ = ("__weakref__", "_is_moving", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_moving = False

    def turn(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        waiting: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiting)
        if not self._is_moving:
            self._is_moving = True
            loop.call_soon(self._move, loop)
        return waiting

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the first waiter continue, and the next one in the next turn."""
        self._is_moving = False
        while self._waiting:
            first = self._waiting.popleft()
            # It may have been cancelled.
            if not first.done():
                first.set_result(None)
                self._is_moving = True
                loop.call_soon(self._move, loop)
                return
