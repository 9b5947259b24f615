"""Measures pools of asyncpg."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import asyncpg
import asyncpg.pool

from flyball.admission.meter import Hold, Meter
from flyball.admission.sensors.sensor import Sensor
from flyball.errors import AdmissionError

# Methods of a pool that acquire a connection for one statement.
_ACQUIRING = ("execute", "executemany", "fetch", "fetchrow", "fetchval")


class AsyncpgSensor(Sensor):
    """Measures pools made by `asyncpg.create_pool`.

        sensor = AsyncpgSensor()
        sensor.watch(pool)

    A connection is busy from when `acquire` (also called by `fetch` and similar) returned it until `release` took it
    back, or it was closed. Internal work of the pool, such as opening its first connections, is not measured.
    """

    def watch(self, pool: asyncpg.Pool[Any]) -> None:
        """Start measuring the pool, which need not be initialized yet. Idempotent.

        Connections already in use are not counted. Raises AdmissionError for other objects, and unsupported versions.
        """
        if not isinstance(pool, asyncpg.Pool):
            raise AdmissionError(
                f"unsupported pool {type(pool)}: AsyncpgSensor watches pools made by asyncpg.create_pool"
            )
        if self.is_watching(pool):
            return
        context = getattr(asyncpg.pool, "PoolAcquireContext", None)
        self._require(
            "asyncpg",
            *((getattr(asyncpg.Pool, name, None), "acquire") for name in _ACQUIRING),
            (getattr(context, "__aexit__", None), "release"),
        )
        self._interpose(pool, _methods(type(pool), self.meter))
        self.meter.size_of(pool, pool.get_max_size())


class _Acquiring:
    """Wraps the awaitable and context manager that `acquire` returns."""

    __slots__ = ("_ask", "_given", "_inner")

    def __init__(self, inner: Any, ask: Callable[[], Hold], given: Callable[[Any, Hold], None]) -> None:
        self._inner = inner
        self._ask = ask
        self._given = given

    async def _acquire(self, inner: Callable[[], Any]) -> Any:
        hold = self._ask()
        try:
            connection = await inner()
        except BaseException:
            hold.end()
            raise
        hold.got()
        self._given(connection, hold)
        return connection

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._acquire(lambda: self._inner).__await__()

    async def __aenter__(self) -> Any:
        return await self._acquire(self._inner.__aenter__)

    async def __aexit__(self, *error: Any) -> None:
        await self._inner.__aexit__(*error)


def _methods(plain: Any, meter: Meter) -> dict[str, Callable[..., Any]]:
    """Return the methods that replace those of the pool's class."""
    holds: dict[int, Hold] = {}

    def terminated(connection: Any) -> None:
        if (hold := holds.pop(id(connection), None)) is not None:
            hold.end()

    def given(connection: Any, hold: Hold) -> None:
        holds[id(connection)] = hold
        # A closed connection need not be released. Adding the listener again is a no-op.
        connection.add_termination_listener(terminated)

    def acquire(self: Any, *args: Any, **options: Any) -> Any:
        return _Acquiring(plain.acquire(self, *args, **options), meter.ask, given)

    async def release(self: Any, connection: Any, *args: Any, **options: Any) -> None:
        hold = holds.pop(id(connection), None)
        try:
            await plain.release(self, connection, *args, **options)
        finally:
            if hold is not None:
                hold.end()

    return {"acquire": acquire, "release": release}
