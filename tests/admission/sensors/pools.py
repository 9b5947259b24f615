"""Every kind of pool in the same few words, so that the same tests say what all sensors promise.

A request for a connection waits at most `wait_s`, also while one is made for it: where that matters, as many as are
asked for are `ready` before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from contextvars import Context, copy_context
from typing import Any

import asyncpg
import psycopg_pool
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from flyball.admission.meter import Meter, current_use
from flyball.admission.sensors import AsyncpgSensor, PsycopgSensor, Sensor, SqlalchemySensor
from flyball.admission.use import Usage, Use

SIZE = 2
PATIENCE_S = 30.0
# Raised when a request has waited too long for a connection.
TIME_OUTS = (TimeoutError, psycopg_pool.PoolTimeout, sqlalchemy.exc.TimeoutError)

# Take a connection; what is entered runs a statement on it.
Take = Callable[[], AbstractContextManager[Callable[[str], object]]]
Open = Callable[..., AbstractContextManager[tuple[Sensor, Take]]]
TakeAsync = Callable[[], AbstractAsyncContextManager[Callable[[str], Any]]]
OpenAsync = Callable[..., AbstractAsyncContextManager[tuple[Sensor, TakeAsync]]]


def engine_url(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://")


@contextmanager
def psycopg_threads(
    dsn: str, meter: Meter, wait_s: float = PATIENCE_S, ready: int = 1
) -> Iterator[tuple[Sensor, Take]]:
    sensor = PsycopgSensor(meter)

    @contextmanager
    def take() -> Iterator[Callable[[str], object]]:
        with pool.connection() as connection:
            yield connection.execute

    with psycopg_pool.ConnectionPool(dsn, min_size=ready, max_size=SIZE, timeout=wait_s, open=False) as pool:
        sensor.watch(pool)
        pool.wait(PATIENCE_S)
        yield sensor, take


@contextmanager
def sqlalchemy_threads(
    dsn: str, meter: Meter, wait_s: float = PATIENCE_S, ready: int = 1
) -> Iterator[tuple[Sensor, Take]]:
    sensor = SqlalchemySensor(meter)
    engine = sqlalchemy.create_engine(
        engine_url(dsn, "psycopg"), pool_size=1, max_overflow=SIZE - 1, pool_timeout=wait_s
    )
    sensor.watch(engine)

    @contextmanager
    def take() -> Iterator[Callable[[str], object]]:
        with engine.connect() as connection:
            yield connection.exec_driver_sql

    yield sensor, take
    engine.dispose()


@asynccontextmanager
async def asyncpg_tasks(
    dsn: str, meter: Meter, wait_s: float = PATIENCE_S, ready: int = 1
) -> AsyncIterator[tuple[Sensor, TakeAsync]]:
    sensor = AsyncpgSensor(meter)
    pool = asyncpg.create_pool(dsn, min_size=ready, max_size=SIZE)
    sensor.watch(pool)

    @asynccontextmanager
    async def take() -> AsyncIterator[Callable[[str], Any]]:
        async with pool.acquire(timeout=wait_s) as connection:
            yield connection.execute

    async with pool:
        yield sensor, take


@asynccontextmanager
async def psycopg_tasks(
    dsn: str, meter: Meter, wait_s: float = PATIENCE_S, ready: int = 1
) -> AsyncIterator[tuple[Sensor, TakeAsync]]:
    sensor = PsycopgSensor(meter)

    @asynccontextmanager
    async def take() -> AsyncIterator[Callable[[str], Any]]:
        async with pool.connection() as connection:
            yield connection.execute

    async with psycopg_pool.AsyncConnectionPool(
        dsn, min_size=ready, max_size=SIZE, timeout=wait_s, open=False
    ) as pool:
        sensor.watch(pool)
        await pool.wait(PATIENCE_S)
        yield sensor, take


@asynccontextmanager
async def sqlalchemy_tasks(
    dsn: str, meter: Meter, wait_s: float = PATIENCE_S, ready: int = 1
) -> AsyncIterator[tuple[Sensor, TakeAsync]]:
    sensor = SqlalchemySensor(meter)
    engine = create_async_engine(engine_url(dsn, "asyncpg"), pool_size=1, max_overflow=SIZE - 1, pool_timeout=wait_s)
    sensor.watch(engine)

    @asynccontextmanager
    async def take() -> AsyncIterator[Callable[[str], Any]]:
        async with engine.connect() as connection:
            yield connection.exec_driver_sql

    yield sensor, take
    await engine.dispose()


def request() -> tuple[Use, Context]:
    """Return what a request has taken, and the context that its code runs in."""
    use, context = Use(), copy_context()
    context.run(current_use.set, use)
    return use, context


async def until(meter: Meter, is_so: Callable[[Usage], bool]) -> None:
    """Let others go on until the meter says so."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so(meter.usage):  # noqa: ASYNC110
            await asyncio.sleep(0)


def wait_until(meter: Meter, is_so: Callable[[Usage], bool]) -> None:
    """Let other threads go on until the meter says so."""
    end_s = time.monotonic() + PATIENCE_S
    while not is_so(meter.usage):
        assert time.monotonic() < end_s
        time.sleep(0)
