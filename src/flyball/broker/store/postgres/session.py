"""One connection to PostgreSQL that is in a known state or is thrown away, and what is wrong with it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from operator import itemgetter
from typing import TypeAlias

import asyncpg

from flyball.broker.store.postgres.failures import translated
from flyball.errors import StoreError, StoreUnavailable

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

log = logging.getLogger(__name__)

CONNECT_LIMIT_S = 5.0

# Sessions that are in use retry every second, or hang for as long as their time limit: what failed longer ago is not
# in use any more.
STALE_S = 30.0


class Outages:
    """Why sessions of a store fail at present, by session. Each reason of an outage is logged once, not per retry."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # A node that starts reports the error itself, and ends.
        self.is_serving = False
        self._failures: dict[object, tuple[str, float]] = {}
        self._logged: set[str] = set()
        self._since = 0.0

    @property
    def reason(self) -> str | None:
        """What failed last and what to do about it; None while every session works, as far as is known."""
        if not self._failures:
            return None
        reason, _ = max(self._failures.values(), key=itemgetter(1))
        return reason

    def failed(self, session: object, error: StoreUnavailable) -> None:
        """Note that a session could not be used."""
        if not self.is_serving:
            return
        now = self._clock()
        if not self._failures:
            self._since = now
        reason = str(error)
        self._failures[session] = reason, now
        if reason not in self._logged:
            self._logged.add(reason)
            log.error("%s; retrying", reason)

    def worked(self, session: object) -> None:
        """Note that a session was used with success."""
        if not self._failures:
            return
        self._failures.pop(session, None)
        now = self._clock()
        # A session that failed and is not needed any more does not retry: others tell that the server is back.
        for other, (_, at) in list(self._failures.items()):
            if now - at > STALE_S:
                del self._failures[other]
        if not self._failures:
            self._logged.clear()
            log.warning("PostgreSQL is available again after %.1f s", now - self._since)


class PostgresSession:
    """Runs one piece of work at a time on one connection, which it opens when needed.

    Any failure, also a cancellation or a time-out, ends the connection: the next use opens a new one, once.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        *,
        prepare: Callable[[Connection], Awaitable[None]] | None = None,
        time_limit_s: float | None = None,
        outages: Outages | None = None,
    ) -> None:
        self._connect = connect
        self._prepare = prepare
        self._time_limit_s = time_limit_s
        self._outages = Outages() if outages is None else outages
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend the connection. Raises StoreUnavailable where trying again may help, StoreError where not."""
        async with self._lock:
            is_connecting = True
            try:
                async with asyncio.timeout(self._time_limit_s):
                    connection = await self._ready()
                    is_connecting = False
                    yield connection
            except BaseException as error:
                self.abandon()
                meant = error if isinstance(error, StoreError) else translated(error, is_connecting=is_connecting)
                if isinstance(meant, StoreUnavailable):
                    self._outages.failed(self, meant)
                if meant is None or meant is error:
                    raise
                raise meant from error
            self._outages.worked(self)

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
