"""Concurrency limits that are commonly used to protect an application: a semaphore, and Netflix's adaptive limit.

ASGI middleware; a rejected request gets a 503. Independent of costs and databases.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

WARM_UP_SAMPLES = 10
WINDOW_S = 1.0
WINDOW_SAMPLES = 10


class SemaphoreLimit:
    """Limits the number of concurrent requests; the others wait in a queue without a timeout."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._semaphore = asyncio.Semaphore(limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        async with self._semaphore:
            await self._app(scope, receive, send)


class Gradient2:
    """Netflix's Gradient2Limit, with its defaults.

    For each window, with its mean response time `short` and the long-term average `long`:

        gradient = max(1/2, min(1, 1.5 * long / short))
        limit    = 0.8 * limit + 0.2 * (gradient * limit + 4)

    between 20 and 200. So the limit grows by a fifth of its queue size per window while response times are within one
    and a half times their average, and shrinks when they rise faster than the average follows. It is constant while
    less than half of it is used. An average above twice the present time is left from a past overload: it falls by
    5 % per window.
    """

    def __init__(self, first: int = 20, least: int = 20, most: int = 200, long_window: int = 600) -> None:
        self._limit = float(first)
        self._least = min(first, least)
        self._most = max(first, most)
        self._long_window = long_window
        self._long_s = 0.0
        self._count = 0

    @property
    def limit(self) -> int:
        """Maximum number of requests in flight."""
        return int(self._limit)

    def update(self, short_s: float, in_flight: int) -> None:
        """Update the limit from a window's mean response time and maximum number of requests in flight."""
        long_s = self._averaged(short_s)
        if long_s > 2 * short_s:
            self._long_s *= 0.95
        if in_flight < self._limit / 2:
            return
        gradient = max(0.5, min(1.0, 1.5 * long_s / short_s))
        wanted = self._limit * gradient + 4
        self._limit = max(self._least, min(self._most, 0.8 * self._limit + 0.2 * wanted))

    def _averaged(self, short_s: float) -> float:
        self._count += 1
        share = 1 / self._count if self._count <= WARM_UP_SAMPLES else 2 / (self._long_window + 1)
        self._long_s += share * (short_s - self._long_s)
        return self._long_s


class GradientLimit:
    """Admits as many concurrent requests as Gradient2 allows, and rejects the others."""

    def __init__(self, app: ASGIApp, limit: Gradient2, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._limit = limit
        self._clock = clock
        self._in_flight = 0
        self._most_in_flight = 0
        self._taken_s = 0.0
        self._count = 0
        self._window_ends_s = -math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._in_flight >= self._limit.limit:
            refusal = PlainTextResponse("too many requests at once", 503, {"Retry-After": "1"})
            await refusal(scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        began_s = self._clock()
        self._in_flight += 1
        self._most_in_flight = max(self._most_in_flight, self._in_flight)
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight -= 1
            self._note(began_s, self._clock())

    def _note(self, began_s: float, now_s: float) -> None:
        self._taken_s += now_s - began_s
        self._count += 1
        if now_s >= self._window_ends_s and self._count >= WINDOW_SAMPLES:
            self._limit.update(self._taken_s / self._count, self._most_in_flight)
            self._taken_s, self._count, self._most_in_flight = 0.0, 0, self._in_flight
            self._window_ends_s = now_s + WINDOW_S
