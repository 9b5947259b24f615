"""Monitors a site without admission control: its requests' use of the database, and the database's load.

Records the same data as admission control, for comparison, without affecting the site.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyball.admission.counts import Outcome, Served
from flyball.admission.meter import Meter, current_use
from flyball.admission.use import Unit, Usage, Use
from flyball.control.loop import Sample

LOOP = "admission"


class Watch:
    """Records every request: its key, its outcome, and its use of the database."""

    def __init__(self, app: ASGIApp, key: Callable[[Scope], str], note: Callable[[Served], None]) -> None:
        self._app = app
        self._key = key
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        use, arrived_s = Use(), time.monotonic()
        outcome: Outcome = "failed"

        async def send_and_look(message: Message) -> None:
            nonlocal outcome
            if message["type"] == "http.response.start" and message["status"] < 500:
                outcome = "served"
            await send(message)

        token = current_use.set(use)
        try:
            await self._app(scope, receive, send_and_look)
        except BaseException:
            outcome = "failed"
            raise
        finally:
            current_use.reset(token)
            served_s = time.monotonic() - arrived_s
            taken = use.connections, use.busy_s, use.waiting_s
            self._note(Served(self._key(scope), 0, outcome, arrived_s, 0.0, served_s, *taken))


class LoadSampler:
    """Records the load of the database in every period, as a loop without a goal whose action is its measurement."""

    def __init__(self, meter: Meter, unit: Unit, period_s: float, record: Callable[[Sample], None]) -> None:
        self._meter = meter
        self._unit = unit
        self._period_s = period_s
        self._record = record
        self._before = Usage()
        self._at_s = 0.0
        self._sequence = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start on the running event loop. May be called twice."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._at_s, self._before = loop.time(), self._meter.usage
            self._timer = loop.call_later(self._period_s, self._tick)

    def stop(self) -> None:
        """Stop. May be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now_s, usage = loop.time(), self._meter.usage
        passed_s = now_s - self._at_s
        if passed_s > 0:
            load = (self._unit.cost_of(usage) - self._unit.cost_of(self._before)) / passed_s
            self._record(Sample(LOOP, now_s, self._period_s, 0.0, load, load, self._sequence))
        self._sequence += 1
        self._at_s, self._before = now_s, usage
        # From now on, not from the due time: after a stall of the event loop it must not catch up with empty periods.
        self._timer = loop.call_later(self._period_s, self._tick)
