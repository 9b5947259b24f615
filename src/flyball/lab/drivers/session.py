"""The interface of protocols to workloads: one connection of one client, in terms that fit all protocols.

Lean on purpose: a client must use less CPU than the broker it measures. Independent of workloads; times calls only.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

from pydantic import BaseModel, ConfigDict

from flyball.errors import LabError
from flyball.trace.schema import Protocol

CONNECT_LIMIT_S = 30.0

# A server's reference to a queue: an id that it assigned, or a name.
QueueRef: TypeAlias = "int | str"

# Addresses a message to the first client that asks. No client has the address 0.
ANY_RECEIVER = 0

# Bytes of a wrong answer in an error message.
SHOWN_BYTES = 100


class Target(BaseModel):
    """Where a server listens for one protocol."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    host: str
    port: int
    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"
    # Settings that the experiment gives the server.
    settings: dict[str, Any] = {}
    # Its port for each protocol, as far as known.
    ports: dict[str, int] = {}
    # Options of the clustered queue that it shares with others; None without one.
    cluster: dict[str, Any] | None = None


class Received(NamedTuple):
    """A message that was taken: the sender's address, the context and the body."""

    sender: int
    context: int
    body: bytes


class Session(ABC):
    """One connection, with at most one request in flight unless a method says otherwise.

    An answer that does not report success raises LabError, with the answer. `sent_ns` and `answered_ns` are when the
    last request was sent and when its answer was read, by `time.perf_counter_ns`.
    """

    protocol: ClassVar[Protocol]

    def __init__(self) -> None:
        self.address = ANY_RECEIVER
        self.sent_ns = 0
        self.answered_ns = 0

    @abstractmethod
    async def create_queue(self, name: str) -> QueueRef:
        """Create a queue."""

    @abstractmethod
    async def create_client(self, name: str, number: int) -> int:
        """Create a client that messages can be addressed to, and return its address.

        `number` distinguishes it from others, for protocols whose servers do not assign addresses.
        """

    @abstractmethod
    async def identify(self, address: int) -> None:
        """Act as the client with that address from now on."""

    async def open_box(self, queue: QueueRef, address: int) -> None:
        """Make the queue accept messages for that address. Most protocols need nothing for it."""
        return

    @abstractmethod
    async def put(self, queue: QueueRef, receiver: int, body: bytes, context: int = 0) -> None:
        """Put a message for a receiver or for ANY_RECEIVER; return when the server has confirmed it."""

    @abstractmethod
    async def take(
        self, queue: QueueRef, context: int = 0, *, by_time: bool = True, unaddressed: bool = False
    ) -> Received | None:
        """Take a message for this client, None if there is none.

        With a context, take only messages with it, where the protocol can filter. A message to ANY_RECEIVER is sure
        to be found only if `unaddressed`. Without `by_time` the order is by priority, where the protocol supports
        that.
        """

    async def peek(self, queue: QueueRef, *, by_time: bool = True) -> Received | None:
        """Read a message without removing it."""
        raise LabError(f"{self.protocol.name.lower()} cannot peek: use thorbang")

    @abstractmethod
    async def close(self) -> None:
        """End the connection."""


class Exchange(asyncio.Protocol, ABC):
    """A connection on which one request is answered before the next is sent.

    `is_complete` finds the end of an answer. `sent_ns` and `answered_ns` are those of the last request.
    """

    def __init__(self) -> None:
        self.sent_ns = 0
        self.answered_ns = 0
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[bytes] | None = None
        self._loop = asyncio.get_running_loop()
        self._partial = b""
        self._end: str | None = None
        self._closed = self._loop.create_future()

    @abstractmethod
    def is_complete(self, data: bytes) -> bool:
        """Whether the bytes are one complete answer."""

    async def ask(self, request: bytes) -> bytes:
        """Send a request and return its answer. Raises LabError if the connection ends first."""
        transport = self._transport
        if transport is None or self._end is not None:
            raise LabError(self._end or "there is no connection")
        waiter: asyncio.Future[bytes] = self._loop.create_future()
        self._waiter = waiter
        self.sent_ns = time.perf_counter_ns()
        transport.write(request)
        return await waiter

    async def close(self) -> None:
        if self._transport is not None:
            self._end = self._end or "the connection was closed"
            self._transport.close()
            await self._closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        now_ns = time.perf_counter_ns()
        if self._partial:
            data = self._partial + data
        if not self.is_complete(data):
            self._partial = data
            return
        self._partial = b""
        self.answered_ns = now_ns
        waiter = self._waiter
        if waiter is None:
            self._fail(f"the server spoke unasked: {data[:SHOWN_BYTES]!r}")
        elif not waiter.done():
            self._waiter = None
            waiter.set_result(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail("the server closed the connection" + (f": {error}" if error else ""))
        if not self._closed.done():
            self._closed.set_result(None)

    def _fail(self, reason: str) -> None:
        self._end = self._end or reason
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(LabError(self._end))


def wrong(answer: object, request: str) -> LabError:
    """Return the error for an unexpected answer to a request."""
    text = repr(answer[:SHOWN_BYTES]) if isinstance(answer, bytes) else str(answer)
    return LabError(f"{request} was answered with {text}")
