"""A connection that comes back: opened once, and opened again whenever it breaks.

It knows which requests may be sent twice, but not what they are about.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeVar

from flyball.backoff import Backoff, Retries
from flyball.client.address import NodeAddress
from flyball.client.amqp import Connection
from flyball.client.errors import ClientClosed, ConnectionFailed, ConnectionLost, NotSent, RequestTimeout
from flyball.client.values import check_seconds
from flyball.errors import FlyballError, RequestError

log = logging.getLogger(__name__)

T = TypeVar("T")


class TimeLimit:
    """Turns what takes too long into a RequestTimeout."""

    __slots__ = ("_limit_s", "_operation", "_timer")

    def __init__(self, operation: str, limit_s: float) -> None:
        self._operation = operation
        self._limit_s = limit_s
        self._timer = asyncio.timeout(None if math.isinf(limit_s) else limit_s)

    async def __aenter__(self) -> None:
        await self._timer.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._timer.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise RequestTimeout(self._operation, self._limit_s) from None


class Link:
    """The way to one node, for one client.

    `open` fails at once if the node is not there; afterwards a lost connection is opened again, with growing delays,
    until `close`. Only a refusal to let us in ends that: every call then raises it. One that does not reconnect
    raises ConnectionFailed instead from then on.
    """

    def __init__(
        self,
        address: NodeAddress,
        *,
        time_limit_s: float,
        silence_limit_s: float,
        backoff: Backoff,
        reconnects: bool = True,
    ) -> None:
        self.address = address
        self._time_limit_s = time_limit_s
        self._silence_limit_s = silence_limit_s
        self._backoff = backoff
        self._reconnects = reconnects
        self._connection: Connection | None = None
        # Set while there is a connection, or will never be one again.
        self._changed = asyncio.Event()
        self._lost = asyncio.Event()
        self._failure: FlyballError | None = None
        self._is_closed = False
        self._supervisor: asyncio.Task[None] | None = None

    # Life

    async def open(self) -> None:
        """Connect. Raises ConnectionFailed, and NotPermitted or CommandRefused if the node does not let us in."""
        if self._is_closed:
            raise ClientClosed("the client was closed")
        if self._supervisor is not None:
            return
        self._install(await self._establish())
        # Stored, awaited in `close`, and its failure is told to every caller: see `_supervise`.
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())

    async def close(self) -> None:
        """End the connection. Requests under way fail. May be called twice."""
        self._is_closed = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        connection = self._connection
        self._connection = None
        self._changed.set()
        if connection is not None:
            await connection.close()
        if self._supervisor is not None and not self._supervisor.cancelled():
            self._supervisor.result()

    async def _supervise(self) -> None:
        try:
            while True:
                await self._lost.wait()
                self._lost.clear()
                if self._connection is None:
                    self._install(await self._reconnect())
        except RequestError as error:
            log.error("%s refuses this client: %s", self.address, error)
            self._failure = error
            self._changed.set()
        except Exception as error:
            # A bug: nobody awaits this task before the end, so callers must hear of it now.
            self._failure = ClientClosed(f"reconnecting failed unexpectedly: {error!r}")
            self._changed.set()
            raise

    def _install(self, connection: Connection) -> None:
        if connection.is_lost:
            self._look_after_loss()
            return
        self._connection = connection
        self._changed.set()

    def _dropped(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection = None
            if not self._is_closed:
                self._look_after_loss()

    def _look_after_loss(self) -> None:
        if self._reconnects:
            self._changed.clear()
            self._lost.set()
        else:
            self._failure = ConnectionFailed(str(self.address), "it was lost")
            self._changed.set()

    async def _reconnect(self) -> Connection:
        retries = Retries(self._backoff)
        while True:
            await asyncio.sleep(retries.next_delay_s())
            try:
                return await self._establish()
            except RequestError:
                raise
            except FlyballError as error:
                log.info("attempt %d to reconnect: %s", retries.attempts, error)

    async def _establish(self) -> Connection:
        async with TimeLimit("connect", self._time_limit_s):
            return await Connection.open(self.address, silence_limit_s=self._silence_limit_s, on_lost=self._dropped)

    # Requests

    def time_limit(self, operation: str, limit_s: float | None, more_s: float = 0.0) -> TimeLimit:
        """Return a context that ends what takes longer than the limit (this client's if None) and `more_s`."""
        return TimeLimit(operation, self.limit_s(limit_s) + more_s)

    def limit_s(self, limit_s: float | None) -> float:
        """Return the limit of a call that was given this one; None stands for this client's."""
        return self._time_limit_s if limit_s is None else check_seconds("time_limit_s", limit_s, math.inf, above=0)

    def require_open(self) -> None:
        """Raise ClientClosed unless it is open."""
        if self._supervisor is None or self._is_closed:
            raise ClientClosed("the client is not open: use it in an `async with` block")

    async def connected(self) -> Connection:
        """Return the connection, as soon as there is one."""
        while True:
            self.require_open()
            if self._connection is not None:
                return self._connection
            if self._failure is not None:
                raise self._failure
            await self._changed.wait()

    async def run(self, send: Callable[[Connection], Awaitable[T]], *, repeatable: bool = False) -> T:
        """Call `send` with the connection.

        What was surely not sent is sent again on the next connection; what may have been carried out only if it is
        `repeatable`. There is no time limit here: use `time_limit` around it.
        """
        while True:
            connection = self._connection or await self.connected()
            try:
                return await send(connection)
            except NotSent:
                continue
            except ConnectionLost:
                if not repeatable:
                    raise
