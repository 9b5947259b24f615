"""Measures pools of SQLAlchemy engines, with and without asyncio."""

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

    A connection is busy from its checkout (connecting, testing and recycling count as waiting) until it is checked
    in, invalidated or detached; a transaction is rolled back before. A detached connection belongs to the application
    and is not measured. An open session holds its connection until it commits, rolls back or closes.
    """

    def watch(self, engine: Engine | AsyncEngine, *, size: int | None = None) -> None:
        """Start measuring the engine's pool, and its successors when the engine is disposed of. Idempotent.

        `size` is the maximum number of connections, for a pool that does not know it (`NullPool`, or unbounded
        overflow); for others it is pool size plus overflow. Connections already in use are not counted. Raises
        AdmissionError for other objects, pools that share one connection, and unsupported versions.
        """
        if not isinstance(engine, Engine | AsyncEngine):
            raise AdmissionError(f"unsupported engine {type(engine)}: SqlalchemySensor watches SQLAlchemy engines")
        pool = engine.pool
        if not isinstance(pool, QueuePool | NullPool):
            raise AdmissionError(
                f"a {type(pool).__name__} shares connections, so they cannot be counted:"
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
        """Return the function that replaces the pool class's connect."""
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
    """Return the maximum number of connections, None if unbounded."""
    if not isinstance(pool, QueuePool):
        return None
    # Not public: connections beyond the pool's size, -1 for unbounded.
    overflow = getattr(pool, "_max_overflow", None)
    if not isinstance(overflow, int):
        raise AdmissionError(
            "cannot read the pool's maximum size in this version of SQLAlchemy: use watch(engine, size=...)"
        )
    return pool.size() + overflow if overflow >= 0 else None
