from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool, QueuePool, StaticPool

from flyball.admission.meter import Meter
from flyball.admission.sensors import SqlalchemySensor
from flyball.admission.use import Usage, Use
from flyball.errors import AdmissionError
from tests.admission.conftest import Clock
from tests.admission.sensors.pools import engine_url, request

LOST = "SELECT pg_terminate_backend(pg_backend_pid())"

MakeEngine = Callable[..., Engine]


@pytest.fixture
def sensor(meter: Meter) -> SqlalchemySensor:
    return SqlalchemySensor(meter)


@pytest.fixture
def make_engine(sensor: SqlalchemySensor, dsn: str) -> Iterator[MakeEngine]:
    """Make an engine that is watched."""
    engines = []

    def make(**options: Any) -> Engine:
        engine = create_engine(engine_url(dsn, "psycopg"), **options)
        engines.append(engine)
        sensor.watch(engine)
        return engine

    yield make
    for engine in engines:
        engine.dispose()


def test_a_session_holds_a_connection_from_its_first_statement_until_it_commits(
    sensor: SqlalchemySensor, make_engine: MakeEngine, clock: Clock
) -> None:
    with Session(make_engine()) as session:
        assert sensor.meter.usage.busy == 0
        session.execute(text("SELECT 1"))
        clock.now_s = 1.0
        session.commit()
        clock.now_s = 2.0
    assert sensor.meter.usage == Usage(connections=1, busy_s=1.0, size=15)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("options", [{"pool_size": 1}, {"poolclass": NullPool}], ids=["queue", "null"])
async def test_a_request_pays_for_its_session_with_asyncio(
    sensor: SqlalchemySensor, dsn: str, clock: Clock, driver: str, options: dict[str, Any]
) -> None:
    engine = create_async_engine(engine_url(dsn, driver), **options)
    sensor.watch(engine)
    use, context = request()

    async def serve() -> None:
        async with AsyncSession(engine) as session:
            await session.execute(text("SELECT 1"))
            clock.now_s += 1.0

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(), context=context)
    assert use == Use(connections=1, busy_s=1.0)
    await engine.dispose()


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, 15),
        ({"pool_size": 3, "max_overflow": 2}, 5),
        ({"pool_size": 3, "max_overflow": 0}, 3),
        ({"pool_size": 3, "max_overflow": -1}, None),
        ({"pool_size": 0}, None),
        ({"poolclass": NullPool}, None),
    ],
)
def test_the_size_is_that_of_the_pool_with_its_overflow(
    sensor: SqlalchemySensor, make_engine: MakeEngine, options: dict[str, Any], size: int | None
) -> None:
    make_engine(**options)
    assert sensor.meter.usage.size == size


def test_the_size_of_a_pool_that_does_not_know_it_can_be_said(sensor: SqlalchemySensor, dsn: str) -> None:
    sensor.watch(create_engine(engine_url(dsn, "psycopg"), poolclass=NullPool), size=20)
    assert sensor.meter.usage.size == 20


def test_connections_without_a_pool_are_counted(sensor: SqlalchemySensor, make_engine: MakeEngine) -> None:
    engine = make_engine(poolclass=NullPool)
    with engine.connect(), engine.connect():
        assert sensor.meter.usage.busy == 2
    assert sensor.meter.usage == Usage(connections=2)


def test_an_engine_that_is_disposed_of_is_still_watched(sensor: SqlalchemySensor, make_engine: MakeEngine) -> None:
    engine = make_engine()
    first_pool = engine.pool
    with engine.connect():
        engine.dispose()
        with engine.connect():
            assert sensor.meter.usage == Usage(connections=2, busy=2, size=15)
    # Its connection came back after it had been disposed of.
    first_pool.dispose()
    engine.dispose()
    sensor.watch(engine)
    with engine.connect():
        assert sensor.meter.usage == Usage(connections=3, busy=1, size=15)
    assert sensor.meter.usage.busy == 0


def test_engines_that_share_a_pool_are_watched_together(sensor: SqlalchemySensor, make_engine: MakeEngine) -> None:
    engine = make_engine().execution_options(isolation_level="AUTOCOMMIT")
    sensor.watch(engine)
    with engine.connect():
        assert sensor.meter.usage.busy == 1


def test_listeners_of_others_are_still_told(sensor: SqlalchemySensor, dsn: str) -> None:
    engine = create_engine(engine_url(dsn, "psycopg"))
    told = []
    event.listen(engine, "checkout", lambda *_: told.append("before"))
    sensor.watch(engine)
    event.listen(engine, "checkin", lambda *_: told.append("after"))
    with engine.connect():
        assert sensor.meter.usage.busy == 1
    assert told == ["before", "after"]
    engine.dispose()


def test_a_connection_that_is_detached_is_the_pools_no_more(
    sensor: SqlalchemySensor, make_engine: MakeEngine
) -> None:
    with make_engine().connect() as connection:
        connection.detach()
        assert sensor.meter.usage == Usage(connections=1, size=15)


def test_a_connection_that_is_invalidated_has_been_given_back(
    sensor: SqlalchemySensor, make_engine: MakeEngine
) -> None:
    with make_engine().connect() as connection:
        connection.invalidate()
        assert sensor.meter.usage == Usage(connections=1, size=15)
        connection.execute(text("SELECT 1"))
        assert sensor.meter.usage == Usage(connections=2, busy=1, size=15)
    assert sensor.meter.usage.busy == 0


def test_soft_invalidated_connection_is_busy_until_it_is_returned(
    sensor: SqlalchemySensor, make_engine: MakeEngine
) -> None:
    engine = make_engine()
    with engine.raw_connection() as connection:
        connection.invalidate(soft=True)
        assert sensor.meter.usage.busy == 1
    with engine.raw_connection():
        assert sensor.meter.usage == Usage(connections=2, busy=1, size=15)
    assert sensor.meter.usage.busy == 0


def test_a_connection_that_is_forgotten_is_given_back_when_it_is_collected(
    sensor: SqlalchemySensor, make_engine: MakeEngine
) -> None:
    connection = make_engine().raw_connection()
    assert sensor.meter.usage.busy == 1
    del connection
    gc.collect()
    assert sensor.meter.usage == Usage(connections=1, size=15)


def test_a_connection_that_is_found_broken_and_replaced_counts_once(
    sensor: SqlalchemySensor, make_engine: MakeEngine
) -> None:
    engine = make_engine(pool_pre_ping=True)
    with engine.connect() as one, engine.connect() as other:
        pid = one.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        one.commit()
        one.close()
        # Waits until it has ended.
        other.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 10000)")
    for _ in range(2):
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
            assert sensor.meter.usage.busy == 1
    assert sensor.meter.usage == Usage(connections=4, size=15)


def test_a_connection_that_breaks_is_given_back(sensor: SqlalchemySensor, make_engine: MakeEngine) -> None:
    engine = make_engine(pool_size=1, max_overflow=0)
    for _ in range(3):
        with suppress(OperationalError), engine.connect() as connection:
            connection.exec_driver_sql(LOST)
    assert sensor.meter.usage == Usage(connections=3, size=1)


def test_without_a_server_nothing_is_taken(sensor: SqlalchemySensor, tmp_path: Any) -> None:
    engine = create_engine(f"postgresql+psycopg://nobody@/nothing?host={tmp_path}")
    sensor.watch(engine)
    with pytest.raises(OperationalError), engine.connect():
        pass
    assert sensor.meter.usage == Usage(size=15)


@pytest.mark.parametrize("thing", ["postgresql://", QueuePool(lambda: None)])  # type: ignore[arg-type]
def test_what_is_no_engine_is_refused(sensor: SqlalchemySensor, thing: Any) -> None:
    with pytest.raises(AdmissionError, match="unsupported engine"):
        sensor.watch(thing)


def test_a_pool_that_gives_all_the_same_connection_is_refused(sensor: SqlalchemySensor) -> None:
    with pytest.raises(AdmissionError, match=r"a StaticPool .* poolclass="):
        sensor.watch(create_engine("sqlite://", poolclass=StaticPool))


def test_a_version_that_works_in_another_way_is_refused(
    sensor: SqlalchemySensor, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = create_engine(engine_url(dsn, "psycopg"))
    monkeypatch.setattr(Engine, "raw_connection", lambda self: self.pool._lease())
    with pytest.raises(AdmissionError, match=r"does not support sqlalchemy [\d.]+"):
        sensor.watch(engine)


def test_a_version_that_hides_the_size_wants_to_be_told(sensor: SqlalchemySensor, dsn: str) -> None:
    engine = create_engine(engine_url(dsn, "psycopg"))
    del engine.pool._max_overflow  # type: ignore[attr-defined]
    with pytest.raises(AdmissionError, match="size="):
        sensor.watch(engine)
    assert not sensor.is_watching(engine.pool)
    sensor.watch(engine, size=5)
    assert sensor.meter.usage.size == 5
