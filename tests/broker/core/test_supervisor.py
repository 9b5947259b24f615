"""The supervisor: what fails is logged, counted and started again, and takes nothing else with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from flyball.broker.core.supervisor import HEALTHY_S, RESTARTS, Supervisor
from flyball.errors import Fenced
from flyball.faults import LOG_EVERY_S, Faults


class FakeTime:
    """A clock that advances with each sleep."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)


def run(test: Callable[[asyncio.TaskGroup, FakeTime, Faults, Supervisor], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        time, faults = FakeTime(), Faults()
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            await test(tasks, time, faults, Supervisor(tasks, faults, sleep=time.sleep, clock=time.clock))

    asyncio.run(main())


def test_a_failing_task_is_restarted_with_backoff() -> None:
    attempts: list[int] = []

    async def work() -> None:
        attempts.append(len(attempts))
        if len(attempts) < 10:
            raise ValueError(f"attempt {len(attempts)}")

    async def test(tasks: asyncio.TaskGroup, time: FakeTime, faults: Faults, supervisor: Supervisor) -> None:
        await supervisor.keep("work", work)
        assert time.slept[:4] == [RESTARTS.first_s * 2**power for power in range(4)]
        assert time.slept[-1] == RESTARTS.max_s
        assert supervisor.report()["restarts"] == faults.by_place["work"] == 9

    run(test)


def test_backoff_begins_anew_after_a_task_ran_for_long() -> None:
    attempts: list[int] = []

    async def test(tasks: asyncio.TaskGroup, time: FakeTime, faults: Faults, supervisor: Supervisor) -> None:
        async def work() -> None:
            attempts.append(len(attempts))
            if len(attempts) == 3:
                time.now_s += HEALTHY_S
            if len(attempts) < 4:
                raise ValueError

        await supervisor.keep("work", work)
        assert time.slept == [RESTARTS.first_s, 2 * RESTARTS.first_s, RESTARTS.first_s]

    run(test)


def test_a_failed_task_is_reported_until_it_runs_again() -> None:
    async def test(tasks: asyncio.TaskGroup, time: FakeTime, faults: Faults, supervisor: Supervisor) -> None:
        waits, may_run = asyncio.Event(), asyncio.Event()

        async def sleep(seconds: float) -> None:
            waits.set()
            await may_run.wait()

        async def work() -> None:
            if not waits.is_set():
                raise ValueError("no way")

        slow = Supervisor(tasks, faults, sleep=sleep)
        task = slow.keep("work", work)
        await waits.wait()
        assert slow.report()["failed_tasks"] == {"work": "ValueError: no way"}
        may_run.set()
        await task
        assert slow.report()["failed_tasks"] == {}

    run(test)


def test_other_tasks_of_the_group_go_on_when_one_fails() -> None:
    async def test(tasks: asyncio.TaskGroup, time: FakeTime, faults: Faults, supervisor: Supervisor) -> None:
        served = asyncio.Event()
        failures: list[BaseException] = []
        has_failed = asyncio.Event()

        def on_fault(error: BaseException) -> None:
            failures.append(error)
            has_failed.set()

        async def fail() -> None:
            raise ValueError("one client")

        supervisor.spawn(fail(), on_fault)
        other = supervisor.keep("other", served.wait)
        await has_failed.wait()
        assert not other.done()
        served.set()
        await other
        assert [str(error) for error in failures] == ["one client"]
        assert faults.count == 1

    run(test)


def test_a_fenced_task_ends_the_group() -> None:
    async def fenced() -> None:
        raise ExceptionGroup("two tasks", [Fenced("the epoch is over")])

    async def main() -> None:
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            supervisor = Supervisor(tasks, Faults())
            supervisor.keep("membership", fenced)
            supervisor.keep("other", asyncio.Event().wait)

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(main())
    assert caught.value.subgroup(Fenced) is not None


def test_a_cancelled_task_is_not_restarted() -> None:
    async def test(tasks: asyncio.TaskGroup, time: FakeTime, faults: Faults, supervisor: Supervisor) -> None:
        task = supervisor.keep("work", asyncio.Event().wait)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert faults.count == 0

    run(test)


def test_a_repeated_fault_is_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    time = FakeTime()
    faults = Faults(time.clock)
    with caplog.at_level(logging.ERROR, "flyball.faults"):
        for _ in range(100):
            faults.note("expiry", ValueError("too large"))
        assert len(caplog.records) == 1
        assert "ValueError: too large" in caplog.text
        time.now_s += LOG_EVERY_S
        faults.note("expiry", ValueError("too large"))
    assert len(caplog.records) == 2
    assert faults.report() == {"expiry": 101}


def test_a_guarded_callback_that_fails_is_counted() -> None:
    faults = Faults()
    called: list[int] = []

    def call(number: int) -> None:
        called.append(number)
        if number == 1:
            raise ValueError

    for number in range(3):
        faults.guard("callbacks", call, number)
    assert called == [0, 1, 2]
    assert faults.count == 1
