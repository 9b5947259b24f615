"""One connection to PostgreSQL that is in a known state or is thrown away, and what its errors mean to us."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import asyncpg

from flyball.errors import StoreError, StoreUnavailable

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

CONNECT_LIMIT_S = 5.0

PASSING_CLASSES = frozenset({"08", "25", "40", "53", "55", "57", "58", "XX"})
"""Classes of SQLSTATE that say "not now": connection, read only, rollback, resources, operator, system."""


class Session:
    """Runs one piece of work at a time on one connection, which it opens when needed.

    Any failure, also a cancellation or a time-out, ends the connection: the next use opens a new one, once.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        *,
        prepare: Callable[[Connection], Awaitable[None]] | None = None,
        time_limit_s: float | None = None,
    ) -> None:
        self._connect = connect
        self._prepare = prepare
        self._time_limit_s = time_limit_s
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend the connection. Raises StoreUnavailable where trying again may help, StoreError where not."""
        async with self._lock:
            try:
                async with asyncio.timeout(self._time_limit_s):
                    yield await self._ready()
            except BaseException as error:
                self.abandon()
                meant = translated(error)
                if meant is None:
                    raise
                raise meant from error

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._connection is not None and not self._connection.is_closed()

    async def close(self) -> None:
        """Close the connection after the work under way."""
        async with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                try:
                    await connection.close(timeout=1.0)
                except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                    connection.terminate()

    def abandon(self) -> None:
        """Drop the connection, whatever it is doing."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _ready(self) -> Connection:
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        self._connection = None
        async with asyncio.timeout(CONNECT_LIMIT_S):
            self._connection = await self._connect()
            if self._prepare is not None:
                await self._prepare(self._connection)
            return self._connection


def translated(error: BaseException) -> StoreError | None:
    """Say in our words what asyncpg reported. None for what is not the database's doing."""
    if isinstance(error, TimeoutError):
        return StoreUnavailable("PostgreSQL does not answer")
    if isinstance(error, asyncpg.PostgresError):
        if (error.sqlstate or "08")[:2] in PASSING_CLASSES:
            return StoreUnavailable(f"PostgreSQL is not available: {error}")
        return StoreError(f"PostgreSQL refuses: {error}")
    if isinstance(error, asyncpg.InterfaceError | asyncpg.InternalClientError | OSError):
        return StoreUnavailable(f"PostgreSQL is not available: {error}")
    return None
