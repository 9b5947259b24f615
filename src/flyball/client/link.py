"""A reconnecting connection to a node.

It knows which requests can be repeated, not what they do.
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
    """Turns a timeout into RequestTimeout."""

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
    """The connection of one client to one node.

    `open` fails at once if the node is unreachable; later, a lost connection is reopened with backoff, until `close`.
    Only an access refusal ends that: every call then raises it. Without reconnecting, calls raise ConnectionFailed
    after a loss.
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
        # Set while connected, and after the final close.
        self._changed = asyncio.Event()
        self._lost = asyncio.Event()
        self._failure: FlyballError | None = None
        self._is_closed = False
        self._supervisor: asyncio.Task[None] | None = None

    # Lifecycle

    async def open(self) -> None:
        """Connect. Raises ConnectionFailed, and NotPermitted or CommandRefused if access is refused."""
        if self._is_closed:
            raise ClientClosed("the client is closed")
        if self._supervisor is not None:
            return
        self._install(await self._establish())
        # Kept here, awaited in `close`; callers get its failure: see `_supervise`.
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())

    async def close(self) -> None:
        """Close the connection. Pending requests fail. May be called twice."""
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
            # A bug: this task is only awaited at the end, so report it to callers now.
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
            self._failure = ConnectionFailed(str(self.address), "connection lost")
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
                log.info("reconnect attempt %d failed: %s", retries.attempts, error)

    async def _establish(self) -> Connection:
        async with TimeLimit("connect", self._time_limit_s):
            return await Connection.open(self.address, silence_limit_s=self._silence_limit_s, on_lost=self._dropped)

    # Requests

    def time_limit(self, operation: str, limit_s: float | None, more_s: float = 0.0) -> TimeLimit:
        """Return a context with this time limit (None: the client's) plus `more_s`."""
        return TimeLimit(operation, self.limit_s(limit_s) + more_s)

    def limit_s(self, limit_s: float | None) -> float:
        """Return a call's time limit; None stands for the client's."""
        return self._time_limit_s if limit_s is None else check_seconds("time_limit_s", limit_s, math.inf, above=0)

    def require_open(self) -> None:
        """Raise ClientClosed unless it is open."""
        if self._supervisor is None or self._is_closed:
            raise ClientClosed("the client is not open: use it in an `async with` block")

    async def connected(self) -> Connection:
        """Return the connection, once there is one."""
        while True:
            self.require_open()
            if self._connection is not None:
                return self._connection
            if self._failure is not None:
                raise self._failure
            await self._changed.wait()

    async def run(self, send: Callable[[Connection], Awaitable[T]], *, repeatable: bool = False) -> T:
        """Call `send` with the connection.

        A request that was certainly not sent is repeated on the next connection; one that may have been executed only
        if it is `repeatable`. There is no time limit here: use `time_limit` around it.
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
