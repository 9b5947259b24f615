"""Limits that others put before an application: what they admit, and how the adaptive limit moves."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyball.lab.auction.limits import WINDOW_S, Gradient2, GradientLimit, SemaphoreLimit


class SlowSite:
    """Holds every request until it is let go."""

    def __init__(self) -> None:
        self.inside = 0
        self.go = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.inside += 1
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def status_of(app: ASGIApp) -> int:
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        messages.append(message)

    await app({"type": "http", "method": "GET", "path": "/"}, receive, send)
    return int(messages[0]["status"])


async def settled() -> None:
    """Let all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_semaphore_lets_so_many_in_and_the_others_wait() -> None:
    async def main() -> None:
        site = SlowSite()
        app = SemaphoreLimit(site, 2)
        visits = [asyncio.ensure_future(status_of(app)) for _ in range(5)]
        await settled()
        assert site.inside == 2
        site.go.set()
        assert await asyncio.gather(*visits) == [200] * 5

    asyncio.run(main())


def test_a_gradient_limit_turns_away_who_is_too_many() -> None:
    async def main() -> None:
        site = SlowSite()
        app = GradientLimit(site, Gradient2(first=2))
        visits = [asyncio.ensure_future(status_of(app)) for _ in range(5)]
        await settled()
        site.go.set()
        assert sorted(await asyncio.gather(*visits)) == [200, 200, 503, 503, 503]

    asyncio.run(main())


def test_a_gradient_limit_learns_once_a_window() -> None:
    async def main() -> None:
        class Noted(Gradient2):
            def update(self, short_s: float, in_flight: int) -> None:
                learned.append((short_s, in_flight))

        learned: list[tuple[float, int]] = []
        now_s = 0.0
        site = SlowSite()
        site.go.set()
        app = GradientLimit(site, Noted(), lambda: now_s)
        for _ in range(30):
            now_s += WINDOW_S / 20
            await status_of(app)
        assert learned == [(0.0, 1), (0.0, 1)]

    asyncio.run(main())


def updated(limit: Gradient2, short_s: float, times: int) -> int:
    for _ in range(times):
        limit.update(short_s, in_flight=limit.limit)
    return limit.limit


def test_the_limit_grows_by_a_fifth_of_its_queue_while_response_times_stay() -> None:
    assert updated(Gradient2(first=20), 0.1, 10) == pytest.approx(20 + 10 * 0.8, abs=1)


def test_the_limit_shrinks_when_response_times_rise() -> None:
    limit = Gradient2(first=100)
    updated(limit, 0.1, 10)
    assert updated(limit, 1.0, 10) < 60


def test_the_limit_stays_between_its_bounds() -> None:
    limit = Gradient2()
    assert updated(limit, 0.1, 1000) == 200
    assert updated(limit, 100.0, 100) == 20


def test_the_limit_stays_while_half_of_it_is_not_used() -> None:
    limit = Gradient2(first=50)
    for _ in range(20):
        limit.update(0.1, in_flight=24)
    assert limit.limit == 50


def test_an_average_from_an_overload_that_is_over_is_forgotten() -> None:
    limit = Gradient2(first=100)
    updated(limit, 10.0, 10)
    updated(limit, 0.1, 100)
    # With the old average, ten times as slow would still be within it.
    assert updated(limit, 1.0, 5) < 200
