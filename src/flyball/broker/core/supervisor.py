"""Supervision of a node's tasks: a failed task is restarted and does not affect others.

Only an error of `FATAL` ends the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from flyball.backoff import Backoff, Retries
from flyball.errors import Fenced, StoreMismatch
from flyball.faults import Faults

log = logging.getLogger(__name__)

# Errors that a retry cannot fix: the node has to rejoin, or an operator has to start another version. They are raised
# to the owner of the node, which stops it.
FATAL: tuple[type[Exception], ...] = (Fenced, StoreMismatch)

RESTARTS = Backoff(first_s=0.1, max_s=5.0, jitter_ratio=0.0)

# A task that ran for longer than this before it failed is restarted with the initial backoff.
HEALTHY_S = 60.0


@dataclass(slots=True)
class Supervised:
    """The state of a long-lived task."""

    restarts: int = 0
    # Whether it failed and waits for its restart.
    is_waiting: bool = False
    # The last failure.
    problem: str = ""


class Supervisor:
    """Starts tasks in a group. Unexpected failures are logged and counted; long-lived tasks are restarted."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        faults: Faults,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.faults = faults
        self.supervised: dict[str, Supervised] = {}
        self._tasks = tasks
        self._sleep = sleep
        self._clock = clock
        self._under_way: set[asyncio.Task[None]] = set()

    def within(self, tasks: asyncio.TaskGroup) -> Supervisor:
        """Return a supervisor of tasks in another group, which share the report of this one."""
        other = Supervisor(tasks, self.faults, sleep=self._sleep, clock=self._clock)
        other.supervised = self.supervised
        return other

    def keep(self, name: str, run: Callable[[], Awaitable[object]]) -> asyncio.Task[None]:
        """Run a long-lived task until it returns or is cancelled; restart it with backoff when it fails."""
        supervised = self.supervised.setdefault(name, Supervised())
        return self._tasks.create_task(self._keep(name, run, supervised), name=name)

    def spawn(
        self, work: Coroutine[Any, Any, None], on_fault: Callable[[BaseException], None] | None = None
    ) -> asyncio.Task[None] | None:
        """Start a short-lived task. `on_fault` is called if it fails unexpectedly.

        Returns None without starting it if the group has ended or is ending.
        """
        contained = self._contain(work, on_fault)
        try:
            task = self._tasks.create_task(contained)
        except RuntimeError:
            # The group accepts no more tasks.
            contained.close()
            work.close()
            return None
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        # A task that is cancelled before its first step never awaits the work.
        task.add_done_callback(lambda ended: work.close())
        return task

    @property
    def under_way(self) -> int:
        """Number of running tasks started by `spawn`."""
        return len(self._under_way)

    def cancel(self) -> None:
        """Cancel the running tasks started by `spawn`."""
        for task in self._under_way:
            task.cancel()

    @property
    def restarts(self) -> int:
        """Number of restarts of long-lived tasks."""
        return sum(task.restarts for task in self.supervised.values())

    def report(self) -> dict[str, Any]:
        """Return the state of the long-lived tasks, and the faults so far."""
        return {
            "faults": self.faults.count,
            "faults_by_place": self.faults.report(),
            "restarts": self.restarts,
            "failed_tasks": {name: task.problem for name, task in self.supervised.items() if task.is_waiting},
        }

    async def _keep(self, name: str, run: Callable[[], Awaitable[object]], supervised: Supervised) -> None:
        retries = Retries(RESTARTS)
        while True:
            began_s = self._clock()
            try:
                await run()
                return
            except Exception as error:
                if is_fatal(error):
                    raise
                supervised.problem = _text(error)
                self.faults.note(name, error)
            if self._clock() - began_s >= HEALTHY_S:
                retries.reset()
            supervised.restarts += 1
            supervised.is_waiting = True
            delay_s = retries.next_delay_s()
            log.warning("task failed; restarting task=%s in_s=%g", name, delay_s)
            await self._sleep(delay_s)
            supervised.is_waiting = False

    async def _contain(
        self, work: Coroutine[Any, Any, None], on_fault: Callable[[BaseException], None] | None
    ) -> None:
        try:
            await work
        except Fenced as error:
            # The membership detects fencing as well, and stops the node gracefully.
            log.info("task ended, node fenced: %s", error)
        except Exception as error:
            if is_fatal(error):
                raise
            self.faults.note(getattr(work, "__qualname__", "task"), error)
            if on_fault is not None:
                with contextlib.suppress(Exception):
                    on_fault(error)


def is_fatal(error: BaseException) -> bool:
    """Whether an exception, or one of a group, must end the node."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(FATAL) is not None
    return isinstance(error, FATAL)


def _text(error: BaseException) -> str:
    """Return the text of an exception, or of all exceptions in a group."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_text(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"
