"""Measures the pools of SQLAlchemy's engines, with and without asyncio. Knows nothing of requests and budgets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import NullPool, Pool, QueuePool

from flyball.admission.meter import Meter
from flyball.admission.sensors.sensor import Sensor
from flyball.errors import AdmissionError


class SqlalchemySensor(Sensor):
    """Measures engines made by `create_engine` and `create_async_engine`.

        sensor = SqlalchemySensor()
        sensor.watch(engine)

    A connection counts as busy from when the pool has given it (connected, tested and recycled as need be, all of
    which is waiting) until it is checked in, invalidated or detached; a transaction is rolled back before that. A
    detached connection is the application's own and is not seen. A session that has begun holds its connection
    until it commits, rolls back or closes, and so it counts.
    """

    def watch(self, engine: Engine | AsyncEngine, *, size: int | None = None) -> None:
        """Measure the engine's pool from now on, and those that follow when the engine is disposed of.

        `size` is how many connections there can be at most, of a pool that does not know it (`NullPool`, or an
        overflow without bound); of others it is their size with overflow. Connections that are out already are
        not counted. To watch twice is to watch once. Raises AdmissionError if it is no engine, has a pool that
        shares one connection among all, or is of a version that works in an unknown way.
        """
        if not isinstance(engine, Engine | AsyncEngine):
            raise AdmissionError(f"SqlalchemySensor watches engines of SQLAlchemy, not {type(engine)}")
        pool = engine.pool
        if not isinstance(pool, QueuePool | NullPool):
            raise AdmissionError(
                f"a {type(pool).__name__} does not give each a connection of their own, so none can be counted:"
                " make the engine with poolclass=QueuePool, AsyncAdaptedQueuePool or NullPool"
            )
        if self.is_watching(pool):
            return
        self._require("sqlalchemy", (Engine.raw_connection, "connect"))
        greatest_size = size if size is not None else _size(pool)
        self._interpose(pool, {"connect": self._connect(type(pool))})
        event.listen(pool, "checkin", self._given_back)
        event.listen(pool, "detach", self._given_back)
        self.meter.size_of(pool, greatest_size)

    def _connect(self, plain: Any) -> Callable[[Any], Any]:
        """Return what a pool does instead of what its class does when it is asked for a connection."""
        meter: Meter = self.meter

        def connect(pool: Any) -> Any:
            hold = meter.ask()
            try:
                connection = plain.connect(pool)
            except BaseException:
                hold.end()
                raise
            hold.got()
            connection.record_info[self] = hold
            return connection

        return connect

    def _given_back(self, _connection: Any, record: Any) -> None:
        if (hold := record.record_info.pop(self, None)) is not None:
            hold.end()


def _size(pool: Pool) -> int | None:
    """Return how many connections there can be at once, None without bound."""
    if not isinstance(pool, QueuePool):
        return None
    # Nothing public says it: the number of those beyond the pool's size, -1 for no bound.
    overflow = getattr(pool, "_max_overflow", None)
    if not isinstance(overflow, int):
        raise AdmissionError("this version of SQLAlchemy hides how far a pool may grow: say watch(engine, size=...)")
    return pool.size() + overflow if overflow >= 0 else None
