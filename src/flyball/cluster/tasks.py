"""What takes long and is done beside the rest, each thing once at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from flyball.errors import Fenced, FlyballError

log = logging.getLogger(__name__)


class Errands:
    """Runs errands by what they are about. One that fails is logged: whoever wanted it will want it again."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._under_way: dict[object, asyncio.Task[None]] = {}

    def spawn(self, about: object, work: Callable[[], Awaitable[object]]) -> None:
        """Begin something, unless the same is under way."""
        if about not in self._under_way:
            self._under_way[about] = self._tasks.create_task(self._guarded(about, work))

    def cancel(self) -> None:
        """Give up everything that is under way."""
        for task in list(self._under_way.values()):
            task.cancel()

    async def _guarded(self, about: object, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except Fenced:
            # The node finds out by itself, and joins again.
            log.info("%s: given up", about)
        except FlyballError as error:
            log.warning("%s: %s", about, error)
        finally:
            del self._under_way[about]
