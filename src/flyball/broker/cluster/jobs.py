"""What takes long and runs apart from the rest, each thing once at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from flyball.backoff import Backoff, Retries
from flyball.errors import Fenced, FlyballError
from flyball.faults import Faults

log = logging.getLogger(__name__)

# What has failed is not tried again before this delay.
BACKOFF = Backoff(first_s=1.0, max_s=60.0, jitter_ratio=0.0)


@dataclass(slots=True)
class _Failure:
    problem: str
    retries: Retries
    until_s: float


class Jobs:
    """Runs jobs by what they are about. One that fails is logged: whoever wanted it will want it again."""

    def __init__(self, tasks: asyncio.TaskGroup, faults: Faults) -> None:
        self._tasks = tasks
        self._faults = faults
        self._under_way: dict[object, asyncio.Task[None]] = {}
        self._failures: dict[object, _Failure] = {}

    def spawn(self, about: object, work: Callable[[], Awaitable[object]]) -> None:
        """Begin something, unless the same is under way."""
        if about not in self._under_way:
            job = self._guarded(about, work)
            try:
                task = self._tasks.create_task(job)
            except RuntimeError:
                # The group of tasks is about to end, because one has failed, and takes no more.
                job.close()
                return
            self._under_way[about] = task
            # One that is cancelled before it has begun could not do this by itself.
            task.add_done_callback(lambda ended: self._under_way.pop(about))

    def keep_trying(self, about: object, work: Callable[[], Awaitable[object]]) -> None:
        """Begin something that is wanted until it is done, unless it is under way, or has just failed."""
        failure = self._failures.get(about)
        if failure is None or asyncio.get_running_loop().time() >= failure.until_s:
            self.spawn(about, work)

    def cancel(self) -> None:
        """Give up everything that is under way."""
        self._failures.clear()
        for task in list(self._under_way.values()):
            task.cancel()

    async def _guarded(self, about: object, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except Fenced:
            # The node finds out by itself, and joins again.
            log.info("%s: given up", about)
        except FlyballError as error:
            self._note_failure(about, str(error))
        except Exception as error:
            # A defect that one job has met stays with it.
            self._faults.note("errand of the leader", error)
            self._note_failure(about, f"{type(error).__name__}: {error}")
        else:
            self._failures.pop(about, None)

    def _note_failure(self, about: object, problem: str) -> None:
        before = self._failures.get(about)
        retries = Retries(BACKOFF) if before is None else before.retries
        until_s = asyncio.get_running_loop().time() + retries.next_delay_s()
        self._failures[about] = _Failure(problem, retries, until_s)
        if before is None or before.problem != problem:
            log.warning("%s: %s", about, problem)
