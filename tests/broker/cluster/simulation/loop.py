"""An event loop with a time of its own, which leaps, and processes in it that can be frozen and killed.

Knows neither nodes nor sockets. Whatever runs belongs to the process in whose context it was started.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
import secrets
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from unittest import mock

from flyball.broker.cluster import sessions
from flyball.broker.core import clock
from flyball.broker.core.passwords import Passwords
from flyball.broker.transport.connection import Connection

Result = TypeVar("Result")

# When every simulation begins, by its clocks.
BEGAN_S = 1_700_000_000.0

MANY_CANCELLED = 100


class Process:
    """A part of the simulation that can be frozen and killed as a whole."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.is_frozen = False
        self.is_dead = False
        self.context = contextvars.Context()
        self.context.run(_PROCESS.set, self)
        self._loop = loop
        self._held: list[asyncio.Handle] = []

    def start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        return self._loop.create_task(work, context=self.context)

    @property
    def is_running(self) -> bool:
        return not self.is_frozen and not self.is_dead

    def freeze(self) -> None:
        """From now on nothing of it runs, while its timers run out and what it is sent waits."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Let everything go on that would have run meanwhile."""
        self.is_frozen = False
        self._loop.run_again(self._held)
        self._held = []

    def hold(self, handle: asyncio.Handle) -> None:
        self._held.append(handle)


_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current_process() -> Process | None:
    """Return the process whose code runs; None outside of all."""
    return _PROCESS.get()


class _NumberedTask(asyncio.Task[Any]):
    """Sets of tasks are walked through in an order that is the same in every run."""

    numbers: Iterator[int] = itertools.count()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._number = next(self.numbers)
        super().__init__(*arguments, **named)

    def __hash__(self) -> int:
        return self._number


def _new_task(loop: asyncio.AbstractEventLoop, work: Any, context: contextvars.Context | None = None) -> Any:
    return _NumberedTask(work, loop=loop, context=context)


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop whose clock stands still while there is something to do, and leaps to the next timer otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = BEGAN_S
        self._cancelled_count = 0
        # For what belongs to no process: the network, the database.
        self.outside = contextvars.Context()
        self.connect: Callable[..., Any] | None = None
        self.listen: Callable[..., Any] | None = None
        # Errors that no caller could receive.
        self.failures: list[str] = []
        self.set_task_factory(_new_task)
        self.set_exception_handler(lambda loop, context: self.failures.append(_described(context)))

    def time(self) -> float:
        return self._now_s

    def run_again(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def _run_once(self) -> None:
        """Run what is due. In place of asyncio's own, which would ask the system for the time and for sockets."""
        self._forget_cancelled_timers()
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            self._cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        if not ready:
            if not scheduled:
                raise RuntimeError("nothing will ever happen again")
            self._now_s = max(self._now_s, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now_s:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            self._cancelled_count -= timer._cancelled
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_PROCESS)
            if process is not None and not process.is_running:
                process.hold(handle)
            else:
                handle._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is ignored when its time has come, or forgotten when there are many."""
        self._cancelled_count += handle._scheduled  # type: ignore[attr-defined]

    def _forget_cancelled_timers(self) -> None:
        """Keep the heap small: most timers are limits of what ends long before."""
        scheduled = self._scheduled  # type: ignore[attr-defined]
        if self._cancelled_count > MANY_CANCELLED and 2 * self._cancelled_count > len(scheduled):
            for handle in scheduled:
                handle._scheduled = not handle._cancelled
            scheduled[:] = [handle for handle in scheduled if not handle._cancelled]
            heapq.heapify(scheduled)
            self._cancelled_count = 0

    def _process_events(self, event_list: object) -> None:
        raise AssertionError("there are no sockets here")

    def _write_to_self(self) -> None:
        """Nothing else can be waiting in another thread."""

    def run_in_executor(  # type: ignore[override]
        self, executor: object, work: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Do at once what would be done in a thread."""
        done = self.create_future()
        done.set_result(work(*arguments))
        return done

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **options: Any
    ) -> Any:
        assert self.connect is not None, "there is no network"
        return await self.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **options: Any
    ) -> Any:
        assert self.listen is not None, "there is no network"
        return self.listen(protocol_factory, host, port)


def _described(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context['message']}: {error!r}" if error is not None else str(context["message"])


@contextmanager
def _determined(loop: VirtualLoop, seed: int) -> Iterator[None]:
    """Let everything that is different from run to run be the same: clocks, chance, and where objects are."""
    chance = random.Random(seed)
    numbers = itertools.count(1)

    def number_of(thing: object) -> int:
        number: int = thing.__dict__.setdefault("_number_in_simulation", next(numbers))
        return number

    async def verify(passwords: object, password_hash: str | None, password: str | bytes, place: str = "") -> bool:
        return True

    async def hash_password(passwords: object, password: str | bytes) -> str:
        return "hash"

    def new_uuid() -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128), version=4)

    def now_ns() -> int:
        return int(loop.time() * 1e9)

    with ExitStack() as stack:
        for name in ("monotonic", "time", "perf_counter"):
            stack.enter_context(mock.patch.object(time, name, loop.time))
        for name in ("monotonic_ns", "time_ns", "perf_counter_ns"):
            stack.enter_context(mock.patch.object(time, name, now_ns))
        stack.enter_context(mock.patch.object(clock, "lease_time_s", loop.time))
        stack.enter_context(mock.patch.object(secrets, "token_bytes", chance.randbytes))
        stack.enter_context(mock.patch.object(uuid, "uuid4", new_uuid))
        stack.callback(random.setstate, random.getstate())
        random.seed(seed)
        # Sets of connections are walked through, and sessions are called after them.
        stack.enter_context(mock.patch.object(Connection, "__hash__", number_of))
        stack.enter_context(mock.patch.object(sessions, "id", number_of, create=True))
        # Checking a password costs time on purpose, and is tested elsewhere.
        stack.enter_context(mock.patch.object(Passwords, "verify", verify))
        stack.enter_context(mock.patch.object(Passwords, "hash_password", hash_password))
        stack.enter_context(mock.patch.object(_NumberedTask, "numbers", itertools.count()))
        yield


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, Result]], seed: int) -> Result:
    """Run a simulation to its end. Nothing outside of it has any influence, but for the hashes of texts."""
    loop = VirtualLoop()
    with _determined(loop, seed):
        try:
            return loop.run_until_complete(main(loop))
        finally:
            loop.close()
