"""Measures the pools of asyncpg. Knows nothing of requests and budgets."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import asyncpg
import asyncpg.pool

from flyball.admission.meter import Hold, Meter
from flyball.admission.sensors.sensor import Sensor
from flyball.errors import AdmissionError

# Methods of a pool that take a connection for one statement.
_ACQUIRING = ("execute", "executemany", "fetch", "fetchrow", "fetchval")


class AsyncpgSensor(Sensor):
    """Measures pools made by `asyncpg.create_pool`.

        sensor = AsyncpgSensor()
        sensor.watch(pool)

    A connection counts as busy from when `acquire` (which `fetch` and its like call) has given it until `release`
    has taken it back, or it was closed. What the pool does on its own, such as to connect its first connections,
    is not seen.
    """

    def watch(self, pool: asyncpg.Pool[Any]) -> None:
        """Measure the pool from now on, whether it has been awaited yet or not. Twice is once.

        Connections that are out already are not counted. Raises AdmissionError if it is no such pool, or of a
        version that works in an unknown way.
        """
        if not isinstance(pool, asyncpg.Pool):
            raise AdmissionError(f"AsyncpgSensor watches pools made by asyncpg.create_pool, not {type(pool)}")
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
    """What `acquire` returns: to be awaited, or to be entered, as the pool's own, which it wraps."""

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
    """Return what a pool does instead of what its class does."""
    holds: dict[int, Hold] = {}

    def terminated(connection: Any) -> None:
        if (hold := holds.pop(id(connection), None)) is not None:
            hold.end()

    def given(connection: Any, hold: Hold) -> None:
        holds[id(connection)] = hold
        # Whoever closes a connection need not release it. The listener stays: to add it again changes nothing.
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
