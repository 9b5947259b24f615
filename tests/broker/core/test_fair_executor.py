"""Expensive jobs run a few at once; places take turns, and cancelled callers do not delay others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from flyball.broker.core.fair_executor import FairExecutor
from flyball.errors import NotAdmitted
from tests.nodes import ANSWER_LIMIT_S


class Work:
    """Jobs in threads that the test ends one after the other."""

    def __init__(self, turns: FairExecutor) -> None:
        self.turns = turns
        self.begun: list[str] = []
        self._may_end = threading.Semaphore(0)

    async def do(self, place: str) -> None:
        async with self.turns.turn(place) as turn:
            self.begun.append(place)
            await turn.run(self._may_end.acquire, True, ANSWER_LIMIT_S)

    def end(self, count: int) -> None:
        self._may_end.release(count)


def run(use: Callable[[Work], Coroutine[Any, Any, None]], at_once: int = 1, max_waiting: int = 1000) -> None:
    async def main() -> None:
        await use(Work(FairExecutor(at_once, max_waiting)))

    asyncio.run(main())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_place_waits_behind_itself_and_not_in_front_of_others() -> None:
    async def use(work: Work) -> None:
        crowd = [asyncio.ensure_future(work.do("many")) for _ in range(400)]
        await settle()
        honest = asyncio.ensure_future(work.do("one"))
        await settle()
        work.end(401)
        await asyncio.gather(*crowd, honest)
        # One of the crowd was in progress when it came, and one was next in turn.
        assert work.begun.index("one") <= 2

    run(use)


def test_whoever_is_cancelled_leaves_the_line_at_once() -> None:
    async def use(work: Work) -> None:
        crowd = [asyncio.ensure_future(work.do("many")) for _ in range(100)]
        await settle()
        for each in crowd[1:]:
            each.cancel()
        await settle()
        assert work.turns.waiting == 0
        work.end(1)
        await crowd[0]
        assert work.begun == ["many"]

    run(use)


def test_work_that_is_abandoned_keeps_its_turn_until_its_thread_ends() -> None:
    async def use(work: Work) -> None:
        abandoned = asyncio.ensure_future(work.do("one"))
        await settle()
        abandoned.cancel()
        other = asyncio.ensure_future(work.do("two"))
        await settle()
        assert work.begun == ["one"], "a second thread would run beside the first"
        work.end(2)
        await other
        assert work.begun == ["one", "two"]

    run(use)


def test_turn_given_to_one_that_is_cancelled_goes_to_the_next() -> None:
    async def use(work: Work) -> None:
        first, second, third = [asyncio.ensure_future(work.do(place)) for place in ("one", "two", "three")]
        await settle()
        # Between the turn that it gets and its next step.
        work.turns._next()
        second.cancel()
        work.end(2)
        await asyncio.gather(first, third)
        assert work.begun == ["one", "three"]

    run(use)


def test_beyond_the_limit_the_longest_line_is_cut() -> None:
    async def use(work: Work) -> None:
        crowd = [asyncio.ensure_future(work.do("many")) for _ in range(11)]
        await settle()
        with pytest.raises(NotAdmitted):
            await work.do("many")
        honest = asyncio.ensure_future(work.do("one"))
        await settle()
        assert work.turns.waiting == 10
        with pytest.raises(NotAdmitted):
            await crowd[-1]
        work.end(11)
        await asyncio.gather(honest, *crowd[:-1])

    run(use, max_waiting=10)
