"""A connection that comes back: opened once, identified, and opened again whenever it breaks.

It knows who the client is and which requests may be sent twice, but not what they are about.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from flyball.backoff import Backoff
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode
from flyball.client.owner import find_token
from flyball.errors import FlyballError, ProtocolError, RequestError
from flyball.model import Client, ClientMode
from tests.telesto_client.connection import Connection, ServerAddress
from tests.telesto_client.errors import (
    ClientClosed,
    ConnectionFailed,
    ConnectionLost,
    NotSent,
    NotSupported,
    RequestTimeout,
    error_of,
)
from tests.telesto_client.messages import check_seconds

log = logging.getLogger(__name__)

T = TypeVar("T")
P = TypeVar("P", bound=wire.Packet)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who to connect as: the client of a name, or of an id, or nobody."""

    name: str | None = None
    client_id: int | None = None
    mode: ClientMode = ClientMode.FULL
    existing_ok: bool = True
    """Whether the name may belong to a client that exists already."""


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


def expect(answer: wire.Packet, kind: type[P], subject: int | str = "") -> P:
    """Return the answer if it is of that kind; raise the error that it reports."""
    if isinstance(answer, kind):
        return answer
    if isinstance(answer, wire.Error):
        raise error_of(answer.code, answer.details, subject)
    raise ProtocolError(f"the server answered with {type(answer).__name__} instead of {kind.__name__}")


class Link:
    """The way to one server, for one client.

    `open` fails at once if the server is not there; afterwards a lost connection is opened again, with growing
    delays, until `close`. Only a refusal of the identity ends that: every call then raises it. One that does not
    reconnect raises ConnectionFailed instead from then on.
    """

    def __init__(
        self,
        address: ServerAddress,
        identity: Identity,
        *,
        extension: bool,
        time_limit_s: float,
        max_pending: int,
        backoff: Backoff,
        reconnects: bool = True,
        on_move: Callable[[wire.MoveRequested], None] = lambda request: None,
        token_file: str | Path | None = None,
    ) -> None:
        self.address = address
        self.client: Client | None = None
        """Who the server takes this client for."""
        self.is_wide = False
        """Whether the server speaks the extension: known once it is open, and never changing."""
        self.frame_max = wire.PLAIN_FRAME_MAX
        """The longest frame that the server takes, in bytes."""
        self.connections = 0
        """How often a connection was made."""
        self._identity = identity
        self._extension = extension
        self._time_limit_s = time_limit_s
        self._max_pending = max_pending
        self._backoff = backoff
        self._reconnects = reconnects
        self._on_move = on_move
        self._token_file = token_file
        self._proving = asyncio.Lock()
        self._proved: Connection | None = None
        """The connection on which the token was proved, if there is one, before something was asked."""
        self._connection: Connection | None = None
        self._changed = asyncio.Event()
        """Set while there is a connection, or will never be one again."""
        self._lost = asyncio.Event()
        self._failure: FlyballError | None = None
        self._is_closed = False
        self._supervisor: asyncio.Task[None] | None = None

    # Life

    async def open(self) -> None:
        """Connect and identify. Raises ConnectionFailed, or what the server says against the identity."""
        if self._is_closed:
            raise ClientClosed("the client was closed")
        if self._supervisor is not None:
            return
        connection = await self._establish()
        self.is_wide = connection.is_wide
        self._install(connection)
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
        self.connections += 1
        self.frame_max = connection.frame_max
        if connection.is_lost:
            self._look_after_loss()
            return
        connection.on_move = self._on_move
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
        attempt = 0
        while True:
            await asyncio.sleep(self._backoff.delay_s(attempt, random.random()))
            attempt += 1
            try:
                return await self._establish()
            except RequestError:
                raise
            except FlyballError as error:
                log.info("attempt %d to reconnect: %s", attempt, error)

    # Connecting

    async def _establish(self) -> Connection:
        async with TimeLimit("connect", self._time_limit_s):
            connection = await Connection.open(
                self.address, extension=self._extension, max_pending=self._max_pending, on_lost=self._dropped
            )
            try:
                if self.connections and connection.is_wide != self.is_wide:
                    raise ConnectionFailed(str(self.address), "another kind of server is there now")
                self.client = await self._identify(connection)
            except ConnectionLost as error:
                raise ConnectionFailed(str(self.address), error.reason) from error
            except BaseException:
                connection.abort()
                raise
        return connection

    async def _identify(self, connection: Connection) -> Client | None:
        identity, known = self._identity, self.client
        if identity.name is not None:
            if connection.is_wide and (identity.existing_ok or known is not None):
                return await _join(connection, identity.name, identity.mode)
            if known is None:
                return await _register(connection, identity.name, identity.mode)
            return await _identify_by_id(connection, known.id)
        if identity.client_id is not None:
            return await _identify_by_id(connection, identity.client_id)
        return None

    # Requests

    def time_limit(self, operation: str, limit_s: float | None, more_s: float = 0.0) -> TimeLimit:
        """Return a context that ends what takes longer than the limit (this client's if None) and `more_s`."""
        return TimeLimit(operation, self.limit_s(limit_s) + more_s)

    def limit_s(self, limit_s: float | None) -> float:
        """Return the limit of a call that was given this one; None stands for this client's."""
        return self._time_limit_s if limit_s is None else check_seconds("time_limit_s", limit_s, math.inf, above=0)

    def require_extension(self, feature: str) -> None:
        """Raise NotSupported unless the server speaks the extension."""
        if not self.is_wide:
            self.require_open()
            raise NotSupported(feature)

    def require_open(self) -> None:
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

    async def exchange(
        self,
        packet: wire.Packet,
        operation: str,
        *,
        repeatable: bool = False,
        waits: bool = False,
        as_owner: bool = False,
    ) -> wire.Packet:
        """Send a request and return its answer, which may be an Error.

        A request that was surely not sent is sent again on the next connection; one whose fate is unknown only
        if it is `repeatable`. With `as_owner` the node's token is proved first, if there is one: without it
        the node answers for the default virtual host only. There is no time limit here: use `time_limit` around it.
        """

        async def send(connection: Connection) -> wire.Packet:
            if as_owner:
                async with self._proving:
                    if self._proved is not connection:
                        await self._prove(connection)
                        self._proved = connection
            answer = await connection.request(packet, operation, waits=waits)
            if type(answer) is wire.Error and answer.code == ErrorCode.NOT_OWNER and await self._prove(connection):
                answer = await connection.request(packet, operation, waits=waits)
            return answer

        return await self.run(send, repeatable)

    async def _prove(self, connection: Connection) -> bool:
        """Show that this client has the token of the node. False if it has none, or another."""
        token = find_token(self._token_file)
        if token is None:
            return False
        nonce = expect(await connection.request(wire.AskNonce(0), "prove"), wire.Nonce)
        answer = await connection.request(wire.Prove(0, wire.proof_of(token, nonce.data)), "prove")
        return isinstance(answer, wire.Success)

    async def run(self, send: Callable[[Connection], Awaitable[T]], repeatable: bool) -> T:
        """Call `send` with the connection, and again with the next one as `exchange` says."""
        while True:
            connection = self._connection or await self.connected()
            try:
                return await send(connection)
            except NotSent:
                continue
            except ConnectionLost:
                if not repeatable:
                    raise


async def _join(connection: Connection, name: str, mode: ClientMode) -> Client:
    joined = expect(await connection.request(wire.Join(0, name, mode), "connect"), wire.Joined, name)
    return Client(joined.client_id, name, _mode_of(joined.mode))


async def _register(connection: Connection, name: str, mode: ClientMode) -> Client:
    answer = await connection.request(wire.RegisterClient(0, name, mode), "connect")
    return Client(expect(answer, wire.RegisterClientResponse, name).client_id, name, mode)


async def _identify_by_id(connection: Connection, client_id: int) -> Client:
    answer = await connection.request(wire.IdentifyClient(0, client_id), "connect")
    identified = expect(answer, wire.IdentifyClientResponse, client_id)
    return Client(client_id, identified.client_name, _mode_of(identified.mode))


def _mode_of(number: int) -> ClientMode:
    """What is not FULL may do everything but put."""
    return ClientMode.FULL if number == ClientMode.FULL else ClientMode.READ_ONLY
