"""Runs the handler on deliveries: with bounded concurrency, at the set rate, each message once.

Independent of brokers and windows: a delivery knows the session on which it is acked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from aio_pika import IncomingMessage

from flyball.client.adaptive.meter import Meter
from flyball.client.adaptive.session import Delivery
from flyball.client.adaptive.token_bucket import TokenBucket

log = logging.getLogger(__name__)

Handler = Callable[[IncomingMessage], Awaitable[Any]]


class HandlerPool:
    """Worker tasks that run the handler. They are created on demand and kept."""

    def __init__(self, handler: Handler, meter: Meter, concurrency: int | None, *, requeues: bool) -> None:
        self.pace: TokenBucket | None = None
        self.concurrency = concurrency
        self._handler = handler
        self._meter = meter
        self._requeues = requeues
        self._waiting: deque[Delivery] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._size = 0
        # Workers that are running a handler or acking a message.
        self._busy = 0
        # A worker was woken and has not run yet.
        self._is_called = False
        self._tasks: asyncio.TaskGroup | None = None
        self._workers: list[asyncio.Task[None]] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop
        self._is_finishing = False
        self._is_quiet = asyncio.Event()
        self._known_failures: set[type[BaseException]] = set()

    # Lifecycle

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start handling, with workers in this task group."""
        self._loop = asyncio.get_running_loop()
        self._tasks = tasks
        if self._waiting:
            self._call()

    def wind_up(self) -> None:
        """Start no more handlers: waiting and new deliveries are requeued when the channel closes."""
        self._is_finishing = True
        self._meter.forget(len(self._waiting), monotonic())
        self._waiting.clear()
        self._quiet_down()

    async def finish(self, limit_s: float) -> None:
        """Wait until running handlers have finished and acked, up to this time limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._is_quiet.wait()

    def dismiss(self) -> None:
        """Cancel the workers, with the handlers they run."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for worker in self._workers:
            worker.cancel()
        self._idle.clear()
        self._tasks = None

    def is_worker(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether the task is a worker."""
        return task in self._workers

    # Deliveries

    def take(self, delivery: Delivery) -> None:
        """Accept a delivery. During shutdown it is ignored: it is requeued when the channel closes."""
        if self._is_finishing:
            return
        self._meter.arrive(delivery.arrived_s)
        self._waiting.append(delivery)
        if self._tasks is not None and self._alarm is None:
            self._call()

    def set_pace(self, per_s: float) -> None:
        """Set the rate at which handlers start."""
        now_s = monotonic()
        if self.pace is None:
            self.pace = TokenBucket(per_s, now_s)
        else:
            self.pace.change(per_s, now_s)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._set_alarm()

    def forget(self, session: object) -> None:
        """Drop waiting deliveries of a lost session: they are delivered again."""
        kept = [delivery for delivery in self._waiting if delivery.session is not session]
        self._meter.forget(len(self._waiting) - len(kept), monotonic())
        self._waiting = deque(kept)

    # Internals

    def _call(self) -> None:
        """Wake an idle worker, or create one. It wakes the next one if there is more work.

        So handlers that never wait all run in one task, in sequence and without task switches.
        """
        if self._is_called:
            return
        if self._idle:
            self._is_called = True
            idle = self._idle.pop()
            # During cancellation it may be done already.
            if not idle.done():
                idle.set_result(None)
        elif self._tasks is not None and (self.concurrency is None or self._size < self.concurrency):
            self._is_called = True
            self._size += 1
            self._workers.append(self._tasks.create_task(self._work()))

    def _set_alarm(self) -> None:
        if self.pace is not None and self._alarm is None and self._waiting and self._tasks is not None:
            self._alarm = self._loop.call_later(self.pace.wait_s(), self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        # The worker checks the time, and sets the timer again if it is too early; so does every worker that becomes
        # idle.
        self._call()

    def _next(self) -> Delivery | None:
        """Return the next delivery to handle now."""
        if not self._waiting or self._is_finishing:
            return None
        if self.pace is not None and not self.pace.take(monotonic()):
            self._set_alarm()
            return None
        return self._waiting.popleft()

    async def _work(self) -> None:
        self._is_called = False
        task = asyncio.current_task()
        assert task is not None
        # A handler may have swallowed the cancellation.
        while not task.cancelling():
            delivery = self._next()
            if delivery is None:
                idle: asyncio.Future[None] = self._loop.create_future()
                self._idle.append(idle)
                await idle
                self._is_called = False
            else:
                if self._waiting and self._alarm is None:
                    self._call()
                await self._handle(delivery)

    async def _handle(self, delivery: Delivery) -> None:
        self._busy += 1
        try:
            await self._handle_and_settle(delivery)
        finally:
            self._busy -= 1
            if self._is_finishing:
                self._quiet_down()

    async def _handle_and_settle(self, delivery: Delivery) -> None:
        meter = self._meter
        meter.begin(monotonic())
        error: BaseException | None = None
        try:
            await self._handler(delivery.message)
        except Exception as raised:
            error = raised
        except asyncio.CancelledError as raised:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something that the handler awaited was cancelled: an ordinary failure.
            error = raised
        finally:
            meter.end(monotonic())
        if error is None:
            meter.handled += 1
            await delivery.session.acknowledge(delivery)
        else:
            self._note_failure(error)
            await delivery.session.reject(delivery, requeue=self._requeues)

    def _note_failure(self, error: BaseException) -> None:
        self._meter.failed += 1
        if type(error) not in self._known_failures:
            self._known_failures.add(type(error))
            fate = "requeued" if self._requeues else "rejected"
            log.warning(
                "handler failed, message %s; further failures with %s are counted but not logged",
                fate,
                type(error).__name__,
                exc_info=error,
            )

    def _quiet_down(self) -> None:
        if not self._busy:
            self._is_quiet.set()
