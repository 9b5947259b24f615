"""Measures the pools of psycopg_pool, with threads and with asyncio. Knows nothing of requests and budgets."""

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

    A connection counts as busy from when `getconn` (which `connection()` calls) has returned it until `putconn`
    has taken it back. What the pool does on its own, such as to connect, to check or to reset in the background,
    is not seen unless somebody waits for it.
    """

    def watch(self, pool: ConnectionPool[Any] | AsyncConnectionPool[Any]) -> None:
        """Measure the pool from now on, whether it is open yet or not. Twice is once.

        Connections that are out already are not counted. Raises AdmissionError if it is no such pool, or of a
        version that works in an unknown way.
        """
        if not isinstance(pool, ConnectionPool | AsyncConnectionPool):
            raise AdmissionError(
                f"PsycopgSensor watches the ConnectionPool and AsyncConnectionPool of psycopg_pool, not {type(pool)}"
            )
        if self.is_watching(pool):
            return
        kind = ConnectionPool if isinstance(pool, ConnectionPool) else AsyncConnectionPool
        self._require("psycopg-pool", (kind.connection, "getconn"), (kind.connection, "putconn"))
        methods = _methods if isinstance(pool, ConnectionPool) else _async_methods
        self._interpose(pool, methods(type(pool), self.meter))
        _note_size(self.meter, pool)


def _note_size(meter: Meter, pool: ConnectionPool[Any] | AsyncConnectionPool[Any]) -> None:
    # A null pool without bound has a greatest size of 0.
    meter.size_of(pool, pool.max_size or None)


def _methods(plain: Any, meter: Meter) -> dict[str, Callable[..., Any]]:
    """Return what a pool with threads does instead of what its class does."""
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
        # Before it is given back: then somebody else may have it, with a hold of their own.
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
    """Return what a pool with asyncio does instead of what its class does."""
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
        # Before it is given back: then somebody else may have it, with a hold of their own.
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
