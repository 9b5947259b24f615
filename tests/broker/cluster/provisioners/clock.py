"""An event loop with real processes and files, whose clock can be put forward: limits run out when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _LeapingLoop(asyncio.SelectorEventLoop):
    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


def leap(passed_s: float) -> None:
    """Advance the time by `passed_s` at once."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _LeapingLoop)
    loop.ahead_s += passed_s


def run_with_leaps(coroutine: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=_LeapingLoop) as runner:
        return runner.run(coroutine)
