"""A connection to PostgreSQL that is discarded unless its state is known, and the record of outages."""

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

# Age above which a failure is dropped: sessions in use retry every second, or wait for their timeout.
STALE_S = 30.0


class Outages:
    """The current failures of a store's sessions. Each reason of an outage is logged once, not per retry."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # False during startup: then the node reports the error and exits.
        self.is_serving = False
        self._failures: dict[object, tuple[str, float]] = {}
        self._logged: set[str] = set()
        self._since = 0.0

    @property
    def reason(self) -> str | None:
        """The last failure, with the next step for an operator; None while no session is known to fail."""
        if not self._failures:
            return None
        reason, _ = max(self._failures.values(), key=itemgetter(1))
        return reason

    def failed(self, session: object, error: StoreUnavailable) -> None:
        """Record the failure of a session."""
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
        """Record the success of a session."""
        if not self._failures:
            return
        self._failures.pop(session, None)
        now = self._clock()
        # A failed session that is no longer needed does not retry: the success of others shows that the server is up.
        for other, (_, at) in list(self._failures.items()):
            if now - at > STALE_S:
                del self._failures[other]
        if not self._failures:
            self._logged.clear()
            log.warning("PostgreSQL is available again after_s=%.1f", now - self._since)


class PostgresSession:
    """Runs one operation at a time on one connection, which is opened on demand.

    Any failure, including a cancellation or timeout, closes the connection; the next use opens a new one, without
    retries.
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
        """Use the connection. Raises StoreUnavailable if a retry may succeed, StoreError if not."""
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
        """Whether a connection exists that is not known to be closed."""
        return self._connection is not None and not self._connection.is_closed()

    async def close(self) -> None:
        """Close the connection after the operation in progress."""
        async with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                try:
                    await connection.close(timeout=1.0)
                except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                    connection.terminate()

    def abandon(self) -> None:
        """Terminate the connection, even in the middle of an operation."""
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
