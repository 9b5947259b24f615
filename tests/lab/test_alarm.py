"""The alarm: no waiter is woken too early, each in time and in order."""

from __future__ import annotations

import asyncio
import time

import uvloop

from flyball.lab.alarm import Alarm

# Long enough for all to wait before the first is woken, also when the process is held up.
LEAD_NS = 200_000_000


def test_tasks_wake_in_the_order_of_their_times_and_never_too_early() -> None:
    async def main() -> list[int]:
        alarm = Alarm()
        woken: list[int] = []

        async def wait(place: int, at_ns: int) -> None:
            await alarm.until(at_ns)
            assert time.perf_counter_ns() >= at_ns
            woken.append(place)

        now_ns = time.perf_counter_ns()
        async with asyncio.TaskGroup() as tasks:
            for place in (3, 1, 4, 2, 0):
                tasks.create_task(wait(place, now_ns + LEAD_NS + place * 300_000))
        alarm.close()
        return woken

    assert uvloop.run(main()) == [0, 1, 2, 3, 4]


def test_a_time_that_has_passed_is_not_waited_for() -> None:
    async def main() -> None:
        alarm = Alarm()
        await alarm.until(time.perf_counter_ns() - 1)
        alarm.close()
        alarm.close()

    uvloop.run(main())


def test_all_can_be_woken_at_once_and_wait_again() -> None:
    async def main() -> None:
        alarm = Alarm()
        far_ns = time.perf_counter_ns() + 10**15
        waiting = [asyncio.ensure_future(alarm.until(far_ns + place)) for place in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        alarm.wake_all()
        await asyncio.gather(*waiting[1:])
        soon_ns = time.perf_counter_ns() + 1_000_000
        await alarm.until(soon_ns)
        assert time.perf_counter_ns() >= soon_ns
        alarm.close()

    uvloop.run(main())
