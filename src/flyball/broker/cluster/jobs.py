"""Background jobs, at most one per subject."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from flyball.backoff import Backoff, Retries
from flyball.errors import Fenced, FlyballError
from flyball.faults import Faults

log = logging.getLogger(__name__)

# Backoff before a failed job is retried.
BACKOFF = Backoff(first_s=1.0, max_s=60.0, jitter_ratio=0.0)


@dataclass(slots=True)
class _Failure:
    problem: str
    retries: Retries
    until_s: float


class Jobs:
    """Runs jobs by subject. A failed job is logged; its requester has to request it again."""

    def __init__(self, tasks: asyncio.TaskGroup, faults: Faults) -> None:
        self._tasks = tasks
        self._faults = faults
        self._under_way: dict[object, asyncio.Task[None]] = {}
        self._failures: dict[object, _Failure] = {}

    def spawn(self, about: object, work: Callable[[], Awaitable[object]]) -> None:
        """Start a job unless one with the same subject is running."""
        if about not in self._under_way:
            job = self._guarded(about, work)
            try:
                task = self._tasks.create_task(job)
            except RuntimeError:
                # The task group is shutting down after a failure and accepts no more tasks.
                job.close()
                return
            self._under_way[about] = task
            # A callback, not a `finally`: a task cancelled before its first step never runs its body.
            task.add_done_callback(lambda ended: self._under_way.pop(about))

    def keep_trying(self, about: object, work: Callable[[], Awaitable[object]]) -> None:
        """Start a job that is wanted until it succeeds, unless it is running or in its backoff."""
        failure = self._failures.get(about)
        if failure is None or asyncio.get_running_loop().time() >= failure.until_s:
            self.spawn(about, work)

    def cancel(self) -> None:
        """Cancel all running jobs."""
        self._failures.clear()
        for task in list(self._under_way.values()):
            task.cancel()

    async def _guarded(self, about: object, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except Fenced:
            # The node detects separately that it is fenced, and rejoins.
            log.info("%s: abandoned, node fenced", about)
        except FlyballError as error:
            self._note_failure(about, str(error))
        except Exception as error:
            # A bug in one job must not end the others.
            self._faults.note("job of the leader", error)
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
