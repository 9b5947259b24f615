"""An event loop whose clock stands still while there is something to do, and leaps to the next timer otherwise."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")


class _Leaping(selectors.SelectSelector):
    """Waits for nothing: the time that it was asked to wait has passed at once."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout:
            self.now_s += timeout
        return ready


class _LeapingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaping = _Leaping()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now_s


def run_leaping(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that waits for timers only, in no time."""
    with asyncio.Runner(loop_factory=_LeapingLoop) as runner:
        return runner.run(coroutine)


def leaping(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a coroutine that waits for timers only."""

    @functools.wraps(test)
    def run(*args: P.args, **options: P.kwargs) -> None:
        run_leaping(test(*args, **options))

    return run
