"""Measures pools of psycopg_pool, threaded and asyncio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psycopg_pool import AsyncConnectionPool, ConnectionPool

from flyball.admission.meter import Hold, Meter
from flyball.admission.sensors.sensor import Sensor
from flyball.errors import AdmissionError


class PsycopgSensor(Sensor):
    """Measures `ConnectionPool`, `AsyncConnectionPool` and their null variants.

        sensor = PsycopgSensor()
        sensor.watch(pool)

    A connection is busy from when `getconn` (also called by `connection()`) returned it until `putconn` took it back.
    Background work of the pool, such as connecting, checking or resetting, is only measured while a request waits for
    it.
    """

    def watch(self, pool: ConnectionPool[Any] | AsyncConnectionPool[Any]) -> None:
        """Start measuring the pool, which need not be open yet. Idempotent.

        Connections already in use are not counted. Raises AdmissionError for other objects, and unsupported versions.
        """
        if not isinstance(pool, ConnectionPool | AsyncConnectionPool):
            raise AdmissionError(
                f"unsupported pool {type(pool)}: use a ConnectionPool or AsyncConnectionPool of psycopg_pool"
            )
        if self.is_watching(pool):
            return
        kind = ConnectionPool if isinstance(pool, ConnectionPool) else AsyncConnectionPool
        self._require("psycopg-pool", (kind.connection, "getconn"), (kind.connection, "putconn"))
        methods = _methods if isinstance(pool, ConnectionPool) else _async_methods
        self._interpose(pool, methods(type(pool), self.meter))
        _note_size(self.meter, pool)


def _note_size(meter: Meter, pool: ConnectionPool[Any] | AsyncConnectionPool[Any]) -> None:
    # An unbounded null pool has max_size 0.
    meter.size_of(pool, pool.max_size or None)


def _methods(plain: Any, meter: Meter) -> dict[str, Callable[..., Any]]:
    """Return the methods that replace those of a threaded pool's class."""
    holds: dict[int, Hold] = {}

    def getconn(self: Any, *args: Any, **options: Any) -> Any:
        hold = meter.ask()
        try:
            connection = plain.getconn(self, *args, **options)
        except BaseException:
            hold.end()
            raise
        hold.got()
        holds[id(connection)] = hold
        return connection

    def putconn(self: Any, conn: Any, *args: Any, **options: Any) -> None:
        # Before returning it: afterwards another thread may hold it.
        hold = holds.pop(id(conn), None)
        try:
            plain.putconn(self, conn, *args, **options)
        finally:
            if hold is not None:
                hold.end()

    def resize(self: Any, *args: Any, **options: Any) -> None:
        plain.resize(self, *args, **options)
        _note_size(meter, self)

    return {"getconn": getconn, "putconn": putconn, "resize": resize}


def _async_methods(plain: Any, meter: Meter) -> dict[str, Callable[..., Any]]:
    """Return the methods that replace those of an asyncio pool's class."""
    holds: dict[int, Hold] = {}

    async def getconn(self: Any, *args: Any, **options: Any) -> Any:
        hold = meter.ask()
        try:
            connection = await plain.getconn(self, *args, **options)
        except BaseException:
            hold.end()
            raise
        hold.got()
        holds[id(connection)] = hold
        return connection

    async def putconn(self: Any, conn: Any, *args: Any, **options: Any) -> None:
        # Before returning it: afterwards another task may hold it.
        hold = holds.pop(id(conn), None)
        try:
            await plain.putconn(self, conn, *args, **options)
        finally:
            if hold is not None:
                hold.end()

    async def resize(self: Any, *args: Any, **options: Any) -> None:
        await plain.resize(self, *args, **options)
        _note_size(meter, self)

    return {"getconn": getconn, "putconn": putconn, "resize": resize}
