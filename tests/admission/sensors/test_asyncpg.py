from __future__ import annotations

import asyncpg
import pytest

from flyball.admission.meter import Meter
from flyball.admission.sensors import AsyncpgSensor
from flyball.admission.use import Usage
from flyball.errors import AdmissionError
from tests.admission.conftest import Clock
from tests.admission.sensors.pools import PATIENCE_S, until


@pytest.fixture
def sensor(meter: Meter) -> AsyncpgSensor:
    return AsyncpgSensor(meter)


async def test_each_statement_that_the_pool_runs_itself_takes_a_connection(sensor: AsyncpgSensor, dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
        sensor.watch(pool)
        await pool.execute("SELECT 1")
        await pool.executemany("SELECT $1::int", [(1,), (2,)])
        assert len(await pool.fetch("SELECT 1")) == 1
        assert await pool.fetchrow("SELECT 1") is not None
        assert await pool.fetchval("SELECT 1") == 1
        assert sensor.meter.usage == Usage(connections=5, size=2)


async def test_a_connection_may_be_taken_and_given_back_by_hand(
    sensor: AsyncpgSensor, dsn: str, clock: Clock
) -> None:
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=2)
    async with pool:
        sensor.watch(pool)
        connection = await pool.acquire(timeout=PATIENCE_S)
        clock.now_s = 1.0
        await pool.release(connection)
        await pool.release(connection)
        assert sensor.meter.usage == Usage(connections=1, busy_s=1.0, size=2)


async def test_a_connection_that_is_closed_need_not_be_released(
    sensor: AsyncpgSensor, meter: Meter, dsn: str
) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        sensor.watch(pool)
        for _ in range(2):
            connection = await pool.acquire()
            await connection.close()
            await until(meter, lambda usage: usage.busy == 0)
            await pool.release(connection)
        async with pool.acquire():
            assert meter.usage == Usage(connections=3, busy=1, size=1)


async def test_a_pool_that_is_terminated_holds_nothing(sensor: AsyncpgSensor, meter: Meter, dsn: str) -> None:
    pool = asyncpg.create_pool(dsn, min_size=1, max_size=2)
    sensor.watch(pool)
    await pool
    await pool.acquire()
    pool.terminate()
    await until(meter, lambda usage: usage.busy == 0)
    with pytest.raises(asyncpg.InterfaceError, match="pool is closed"):
        await pool.acquire()
    assert meter.usage == Usage(connections=1, size=2)


async def test_connections_that_are_out_already_are_not_counted(sensor: AsyncpgSensor, dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
        async with pool.acquire():
            sensor.watch(pool)
            async with pool.acquire():
                assert sensor.meter.usage.busy == 1
        assert sensor.meter.usage == Usage(connections=1, size=2)


async def test_to_watch_twice_is_to_watch_once(sensor: AsyncpgSensor, dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
        sensor.watch(pool)
        sensor.watch(pool)
        async with pool.acquire():
            assert sensor.meter.usage == Usage(connections=1, busy=1, size=2)


async def test_other_pools_and_their_class_stay_as_they_are(sensor: AsyncpgSensor, dsn: str) -> None:
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool,
        asyncpg.create_pool(dsn, min_size=1, max_size=1) as other,
    ):
        sensor.watch(pool)
        await other.execute("SELECT 1")
        assert isinstance(pool, asyncpg.Pool)
        assert type(other) is asyncpg.Pool
        assert sensor.meter.usage.connections == 0


async def test_what_is_no_pool_is_refused(sensor: AsyncpgSensor, dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    with pytest.raises(AdmissionError, match=r"pools made by asyncpg\.create_pool"):
        sensor.watch(connection)  # type: ignore[arg-type]
    await connection.close()


@pytest.mark.parametrize("place", ["Pool.fetch", "pool.PoolAcquireContext.__aexit__"])
async def test_a_version_that_works_in_another_way_is_refused(
    sensor: AsyncpgSensor, dsn: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"asyncpg.{place}", lambda self: self._lease())
    pool = asyncpg.create_pool(dsn)
    with pytest.raises(AdmissionError, match=r"does not support asyncpg [\d.]+"):
        sensor.watch(pool)
