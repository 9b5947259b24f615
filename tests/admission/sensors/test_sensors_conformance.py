"""Conformance of every sensor, whatever the driver."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import anyio.to_thread
import pytest

from flyball.admission.meter import Meter
from flyball.admission.use import Usage, Use
from tests.admission.conftest import Clock
from tests.admission.sensors.pools import (
    SIZE,
    TIME_OUTS,
    Open,
    OpenAsync,
    TakeAsync,
    asyncpg_tasks,
    psycopg_tasks,
    psycopg_threads,
    request,
    sqlalchemy_tasks,
    sqlalchemy_threads,
    until,
    wait_until,
)

LOST = "SELECT pg_terminate_backend(pg_backend_pid())"

with_tasks = pytest.mark.parametrize("opened", [asyncpg_tasks, psycopg_tasks, sqlalchemy_tasks])
with_threads = pytest.mark.parametrize("opened", [psycopg_threads, sqlalchemy_threads])


async def hold(take: TakeAsync, is_held: asyncio.Event, may_end: asyncio.Event) -> None:
    async with take():
        is_held.set()
        await may_end.wait()


@with_tasks
async def test_a_connection_is_busy_while_it_is_held(opened: OpenAsync, dsn: str, meter: Meter, clock: Clock) -> None:
    async with opened(dsn, meter) as (_, take):
        async with take() as run:
            await run("SELECT 1")
            clock.now_s = 2.0
            assert meter.usage == Usage(connections=1, busy_s=2.0, busy=1, size=SIZE)
        clock.now_s = 9.0
        assert meter.usage == Usage(connections=1, busy_s=2.0, size=SIZE)


@with_tasks
async def test_who_finds_the_pool_empty_waits_at_the_cost_of_their_request(
    opened: OpenAsync, dsn: str, meter: Meter, clock: Clock
) -> None:
    is_held, may_end = asyncio.Event(), asyncio.Event()
    use, context = request()
    async with opened(dsn, meter) as (_, take), asyncio.TaskGroup() as tasks:
        async with take(), take():
            tasks.create_task(hold(take, is_held, may_end), context=context)
            await until(meter, lambda usage: usage.waiting == 1)
            clock.now_s = 3.0
            assert meter.usage == Usage(connections=2, busy_s=6.0, waiting_s=3.0, busy=2, waiting=1, size=SIZE)
        await is_held.wait()
        clock.now_s = 4.0
        may_end.set()
        await until(meter, lambda usage: usage.busy == 0)
    assert use == Use(connections=1, busy_s=1.0, waiting_s=3.0)


@with_tasks
async def test_who_has_waited_too_long_has_taken_nothing(
    opened: OpenAsync, dsn: str, meter: Meter, clock: Clock
) -> None:
    async with opened(dsn, meter, wait_s=0.2, ready=SIZE) as (_, take):
        async with take(), take():
            with pytest.raises(TIME_OUTS):
                async with take():
                    pass
            assert meter.usage == Usage(connections=2, busy=2, size=SIZE)
        assert meter.usage == Usage(connections=2, size=SIZE)


@with_tasks
async def test_a_task_that_is_cancelled_neither_waits_nor_holds_any_longer(
    opened: OpenAsync, dsn: str, meter: Meter
) -> None:
    is_held, never = asyncio.Event(), asyncio.Event()
    async with opened(dsn, meter) as (_, take), asyncio.TaskGroup() as tasks:
        async with take():
            holding = tasks.create_task(hold(take, is_held, never))
            await is_held.wait()
            waiting = tasks.create_task(hold(take, is_held, never))
            await until(meter, lambda usage: usage.waiting == 1)
            waiting.cancel()
            await until(meter, lambda usage: usage.waiting == 0)
            holding.cancel()
            await until(meter, lambda usage: usage.busy == 1)
        assert meter.usage.connections == 2


@with_tasks
async def test_a_connection_is_given_back_whatever_goes_wrong(opened: OpenAsync, dsn: str, meter: Meter) -> None:
    async with opened(dsn, meter) as (_, take):
        with pytest.raises(Exception, match="nonsense"):
            async with take() as run:
                await run("nonsense")
        with pytest.raises(ZeroDivisionError):
            async with take():
                raise ZeroDivisionError
        assert meter.usage == Usage(connections=2, size=SIZE)


@with_tasks
async def test_a_connection_that_breaks_is_not_held_for_ever(opened: OpenAsync, dsn: str, meter: Meter) -> None:
    async with opened(dsn, meter) as (_, take):
        for _ in range(2 * SIZE):
            with suppress(Exception):
                async with take() as run:
                    await run(LOST)
        async with take() as run:
            await run("SELECT 1")
            assert meter.usage.busy == 1
        assert (meter.usage.busy, meter.usage.waiting) == (0, 0)


@with_tasks
async def test_a_request_pays_for_the_tasks_it_starts_and_nobody_else_does(
    opened: OpenAsync, dsn: str, meter: Meter, clock: Clock
) -> None:
    async def nested() -> None:
        async with take():
            await asyncio.gather(inner())

    async def inner() -> None:
        async with take() as run:
            await run("SELECT 1")
            clock.now_s += 1.0

    (one, its_context), (other, other_context) = request(), request()
    async with opened(dsn, meter) as (_, take), asyncio.TaskGroup() as tasks:
        await tasks.create_task(nested(), context=its_context)
        await tasks.create_task(inner(), context=other_context)
        await inner()
    assert one == Use(connections=2, busy_s=2.0)
    assert other == Use(connections=1, busy_s=1.0)
    assert meter.usage.connections == 4


@with_tasks
async def test_several_pools_may_be_measured_together(opened: OpenAsync, dsn: str, meter: Meter) -> None:
    async with opened(dsn, meter) as (_, take), opened(dsn, meter) as (_, take_elsewhere), take(), take_elsewhere():
        assert meter.usage == Usage(connections=2, busy=2, size=2 * SIZE)


@with_threads
def test_a_connection_is_busy_while_it_is_held_by_a_thread(
    opened: Open, dsn: str, meter: Meter, clock: Clock
) -> None:
    with opened(dsn, meter) as (_, take):
        with take() as run:
            run("SELECT 1")
            clock.now_s = 2.0
            assert meter.usage == Usage(connections=1, busy_s=2.0, busy=1, size=SIZE)
        clock.now_s = 9.0
        assert meter.usage == Usage(connections=1, busy_s=2.0, size=SIZE)


@with_threads
def test_a_thread_that_finds_the_pool_empty_waits_at_the_cost_of_its_request(
    opened: Open, dsn: str, meter: Meter, clock: Clock
) -> None:
    is_held, may_end = threading.Event(), threading.Event()
    use, context = request()

    def work() -> None:
        with take():
            is_held.set()
            may_end.wait()

    with opened(dsn, meter) as (_, take), ThreadPoolExecutor() as threads:
        with take(), take():
            ended = threads.submit(context.run, work)
            wait_until(meter, lambda usage: usage.waiting == 1)
            clock.now_s = 3.0
        is_held.wait()
        clock.now_s = 4.0
        may_end.set()
        ended.result()
    assert use == Use(connections=1, busy_s=1.0, waiting_s=3.0)


@with_threads
async def test_a_request_pays_for_what_it_does_in_a_pool_of_threads(
    opened: Open, dsn: str, meter: Meter, clock: Clock
) -> None:
    def work() -> None:
        with take() as run:
            run("SELECT 1")
            clock.now_s += 1.0

    use, context = request()
    with opened(dsn, meter) as (_, take):
        async with asyncio.TaskGroup() as tasks:
            await tasks.create_task(anyio.to_thread.run_sync(work), context=context)
    assert use == Use(connections=1, busy_s=1.0)


@with_threads
def test_a_thread_that_has_waited_too_long_has_taken_nothing(opened: Open, dsn: str, meter: Meter) -> None:
    with opened(dsn, meter, wait_s=0.2, ready=SIZE) as (_, take):
        with take(), take():
            with pytest.raises(TIME_OUTS), take():
                pass
            assert meter.usage == Usage(connections=2, busy=2, size=SIZE)
        assert meter.usage == Usage(connections=2, size=SIZE)


@with_threads
def test_a_connection_is_given_back_whatever_goes_wrong_in_a_thread(opened: Open, dsn: str, meter: Meter) -> None:
    with opened(dsn, meter) as (_, take):
        with pytest.raises(Exception, match="nonsense"), take() as run:
            run("nonsense")
        with pytest.raises(ZeroDivisionError), take():
            raise ZeroDivisionError
        for _ in range(2 * SIZE):
            with suppress(Exception), take() as run:
                run(LOST)
        assert meter.usage == Usage(connections=2 + 2 * SIZE, size=SIZE)


@with_threads
def test_many_threads_are_counted_rightly(opened: Open, dsn: str, meter: Meter) -> None:
    def work(_: int) -> None:
        with take() as run:
            run("SELECT 1")

    with opened(dsn, meter) as (_, take), ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(200)))
    assert meter.usage == Usage(connections=200, size=SIZE)
