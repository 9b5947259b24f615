from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from psycopg_pool import AsyncConnectionPool, AsyncNullConnectionPool, ConnectionPool, NullConnectionPool

from flyball.admission.meter import Meter
from flyball.admission.sensors import PsycopgSensor
from flyball.admission.use import Usage
from flyball.errors import AdmissionError
from tests.admission.conftest import Clock
from tests.admission.sensors.pools import PATIENCE_S


@pytest.fixture
def sensor(meter: Meter) -> PsycopgSensor:
    return PsycopgSensor(meter)


@pytest.fixture
def pool(dsn: str) -> Iterator[ConnectionPool]:
    """A pool that is open, and not watched yet."""
    with ConnectionPool(dsn, min_size=1, max_size=2, open=False) as pool:
        yield pool


def test_a_sensor_has_a_meter_of_its_own_unless_it_is_given_one(meter: Meter) -> None:
    assert PsycopgSensor(meter).meter is meter
    assert PsycopgSensor().meter is not PsycopgSensor().meter


def test_a_connection_may_be_taken_and_given_back_by_hand(
    sensor: PsycopgSensor, pool: ConnectionPool, clock: Clock
) -> None:
    sensor.watch(pool)
    connection = pool.getconn(timeout=PATIENCE_S)
    clock.now_s = 1.0
    assert sensor.meter.usage.busy == 1
    pool.putconn(connection)
    assert sensor.meter.usage == Usage(connections=1, busy_s=1.0, size=2)


def test_a_connection_that_goes_back_when_it_is_closed_is_counted(sensor: PsycopgSensor, dsn: str) -> None:
    with ConnectionPool(dsn, min_size=1, close_returns=True, open=False) as pool:
        sensor.watch(pool)
        pool.getconn().close()
        assert sensor.meter.usage == Usage(connections=1, size=1)


def test_a_connection_of_another_pool_is_not_taken_back(
    sensor: PsycopgSensor, pool: ConnectionPool, dsn: str
) -> None:
    sensor.watch(pool)
    with ConnectionPool(dsn, min_size=1, open=False) as other, other.connection() as connection, pool.connection():
        with pytest.raises(ValueError, match="can't return connection"):
            pool.putconn(connection)
        assert sensor.meter.usage == Usage(connections=1, busy=1, size=2)


def test_connections_that_are_out_already_are_not_counted(sensor: PsycopgSensor, pool: ConnectionPool) -> None:
    with pool.connection():
        sensor.watch(pool)
        with pool.connection():
            assert sensor.meter.usage.busy == 1
    assert sensor.meter.usage == Usage(connections=1, size=2)


def test_to_watch_twice_is_to_watch_once(sensor: PsycopgSensor, pool: ConnectionPool) -> None:
    sensor.watch(pool)
    sensor.watch(pool)
    with pool.connection():
        assert sensor.meter.usage == Usage(connections=1, busy=1, size=2)


def test_two_sensors_may_watch_a_pool(sensor: PsycopgSensor, pool: ConnectionPool) -> None:
    another = PsycopgSensor()
    sensor.watch(pool)
    another.watch(pool)
    with pool.connection():
        assert (sensor.meter.usage.busy, another.meter.usage.busy) == (1, 1)
    assert (sensor.meter.usage.busy, another.meter.usage.busy) == (0, 0)


def test_other_pools_and_their_class_stay_as_they_are(sensor: PsycopgSensor, pool: ConnectionPool, dsn: str) -> None:
    sensor.watch(pool)
    assert isinstance(pool, ConnectionPool)
    assert repr(pool).startswith("<psycopg_pool.pool.ConnectionPool")
    with ConnectionPool(dsn, min_size=1, open=False) as other, other.connection():
        assert type(other) is ConnectionPool
        assert sensor.meter.usage.connections == 0


def test_what_a_subclass_does_it_still_does(sensor: PsycopgSensor, dsn: str) -> None:
    class OwnPool(ConnectionPool[Any]):
        @contextmanager
        def connection(self, timeout: float | None = None) -> Iterator[Any]:
            with super().connection(timeout) as connection:
                connection.execute("SET application_name TO own")
                yield connection

    with OwnPool(dsn, min_size=1, open=False) as pool:
        sensor.watch(pool)
        with pool.connection() as connection:
            assert connection.execute("SHOW application_name").fetchone() == ("own",)
            assert sensor.meter.usage.busy == 1


def test_a_pool_that_is_closed_gives_nothing(sensor: PsycopgSensor, dsn: str) -> None:
    pool = ConnectionPool(dsn, min_size=1, open=False)
    sensor.watch(pool)
    with pytest.raises(Exception, match="not open yet"):
        pool.getconn()
    assert sensor.meter.usage == Usage(size=1)


def test_the_size_follows_the_pool(sensor: PsycopgSensor, pool: ConnectionPool) -> None:
    sensor.watch(pool)
    pool.resize(1, 7)
    assert sensor.meter.usage.size == 7


async def test_the_size_follows_a_pool_with_asyncio(sensor: PsycopgSensor, dsn: str) -> None:
    async with AsyncConnectionPool(dsn, min_size=1, open=False) as pool:
        sensor.watch(pool)
        await pool.resize(1, 7)
    assert sensor.meter.usage.size == 7


def test_a_null_pool_is_counted_and_has_the_bound_it_was_given(sensor: PsycopgSensor, dsn: str) -> None:
    with NullConnectionPool(dsn, max_size=3, open=False) as pool:
        sensor.watch(pool)
        with pool.connection():
            assert sensor.meter.usage == Usage(connections=1, busy=1, size=3)


async def test_a_null_pool_without_bound_has_no_size(sensor: PsycopgSensor, dsn: str) -> None:
    async with AsyncNullConnectionPool(dsn, open=False) as pool:
        sensor.watch(pool)
        async with pool.connection():
            assert sensor.meter.usage == Usage(connections=1, busy=1, size=None)


def test_what_is_no_pool_is_refused(sensor: PsycopgSensor) -> None:
    with pytest.raises(AdmissionError, match="use a ConnectionPool or AsyncConnectionPool"):
        sensor.watch("postgresql://")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [ConnectionPool, AsyncConnectionPool])
def test_a_version_that_works_in_another_way_is_refused(
    sensor: PsycopgSensor, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "connection", lambda self: self._lease())
    with pytest.raises(AdmissionError, match=r"does not support psycopg-pool [\d.]+"):
        sensor.watch(kind("", open=False))


def test_a_pool_whose_methods_were_replaced_is_refused(sensor: PsycopgSensor, pool: ConnectionPool) -> None:
    pool.getconn = pool.getconn  # type: ignore[method-assign]
    with pytest.raises(AdmissionError, match=r"this ConnectionPool already overrides getconn"):
        sensor.watch(pool)
