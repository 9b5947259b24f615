"""Fair execution of expensive work in threads: bounded concurrency, a bounded queue, round robin over places.

A place with many requests delays only its own requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from flyball.errors import NotAdmitted

# Delay after which a refused client may retry.
RETRY_S = 5.0

P = ParamSpec("P")
T = TypeVar("T")


class FairExecutor:
    """Runs up to `at_once` jobs; up to `max_waiting` wait, in one queue per place."""

    def __init__(self, at_once: int, max_waiting: int) -> None:
        self._free = at_once
        self._max_waiting = max_waiting
        # In the order of their turns.
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        self.waiting = 0

    @contextlib.asynccontextmanager
    async def turn(self, place: str) -> AsyncIterator[Slot]:
        """Wait for a turn. Raises NotAdmitted if too many wait."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(place)
        turn = Slot()
        try:
            yield turn
        finally:
            turn.end(self._next)

    async def _wait(self, place: str) -> None:
        if self.waiting >= self._max_waiting:
            self._turn_away(place)
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(place, deque()).append(mine)
        self.waiting += 1
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                # It was granted a slot in the meantime: pass it on.
                self._next()
            else:
                self._remove(place, mine)
            raise

    def _turn_away(self, place: str) -> None:
        """Refuse the last request of the longest queue; raise NotAdmitted if that is the new request."""
        longest = max(self._lines, key=lambda each: len(self._lines[each]))
        refusal = NotAdmitted("too many logins are waiting", RETRY_S)
        if len(self._lines.get(place, ())) + 1 >= len(self._lines[longest]):
            raise refusal
        last = self._lines[longest][-1]
        self._remove(longest, last)
        if not last.done():
            last.set_exception(refusal)

    def _remove(self, place: str, waiting: asyncio.Future[None]) -> None:
        line = self._lines.get(place)
        if line is not None and waiting in line:
            line.remove(waiting)
            self.waiting -= 1
            if not line:
                del self._lines[place]

    def _next(self) -> None:
        """Hand a free slot to the first request of the next place."""
        while self._lines:
            place = next(iter(self._lines))
            line = self._lines.pop(place)
            first = line.popleft()
            self.waiting -= 1
            if line:
                # To the end of the round.
                self._lines[place] = line
            if not first.done():
                first.set_result(None)
                return
        self._free += 1


class Slot:
    """Permission to run one expensive job."""

    def __init__(self) -> None:
        self._work: asyncio.Future[Any] | None = None

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in a thread and return what it returns."""
        work = asyncio.get_running_loop().run_in_executor(None, partial(function, *args, **kwargs))
        self._work = work
        return await asyncio.shield(work)

    def end(self, then: Callable[[], None]) -> None:
        """Call `then` when the work is done: a thread keeps running after its caller was cancelled."""
        if self._work is None or self._work.done():
            then()
        else:
            self._work.add_done_callback(lambda work: _after(work, then))


def _after(work: asyncio.Future[Any], then: Callable[[], None]) -> None:
    if not work.cancelled():
        # Retrieve the exception, which asyncio would otherwise log as never retrieved.
        work.exception()
    then()
