"""The interface of a protocol to workloads: one connection of one client, in words that fit all protocols.

Lean on purpose: a client must cost less than the broker it measures. Independent of workloads; times only calls.
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

# How a server knows a queue: by an id that it gave, or by a name.
QueueRef: TypeAlias = "int | str"

# The receiver of a message for the first client that asks. No address is 0.
ANY_RECEIVER = 0

# Bytes of a wrong answer that are shown.
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
    # What an experiment has it started with.
    settings: dict[str, Any] = {}
    # Where it listens for each protocol, as far as that is known.
    ports: dict[str, int] = {}
    # Options of the clustered queue that it shares with others; None if it shares none.
    cluster: dict[str, Any] | None = None


class Received(NamedTuple):
    """A message as it was taken: from which address, in which context, and what it says."""

    sender: int
    context: int
    body: bytes


class Session(ABC):
    """One connection, with one request in flight at most unless a method says otherwise.

    Whatever is not the answer of a request that went well is a LabError that shows it. `sent_ns` and `answered_ns`
    are when the last request left and when its answer was read, by `time.perf_counter_ns`.
    """

    protocol: ClassVar[Protocol]

    def __init__(self) -> None:
        self.address = ANY_RECEIVER
        self.sent_ns = 0
        self.answered_ns = 0

    @abstractmethod
    async def create_queue(self, name: str) -> QueueRef:
        """Make a queue."""

    @abstractmethod
    async def create_client(self, name: str, number: int) -> int:
        """Make a client that messages can be addressed to, and return its address.

        `number` distinguishes it from others, for protocols whose servers give no addresses.
        """

    @abstractmethod
    async def identify(self, address: int) -> None:
        """Be the client of that address from now on."""

    async def open_box(self, queue: QueueRef, address: int) -> None:
        """See to it that the queue takes messages for that address. Most protocols need nothing for it."""
        return

    @abstractmethod
    async def put(self, queue: QueueRef, receiver: int, body: bytes, context: int = 0) -> None:
        """Put a message for a receiver or for ANY_RECEIVER; return when the server has said that it has it."""

    @abstractmethod
    async def take(
        self, queue: QueueRef, context: int = 0, *, by_time: bool = True, unaddressed: bool = False
    ) -> Received | None:
        """Take a message for this client, None if there is none.

        With a context only such a one, where the protocol can. A message to ANY_RECEIVER is sure to be found
        only if `unaddressed`. Without `by_time` it is by priority, where the protocol has that.
        """

    async def peek(self, queue: QueueRef, *, by_time: bool = True) -> Received | None:
        """Look at a message and leave it there."""
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
        """Whether the bytes are one whole answer."""

    async def ask(self, request: bytes) -> bytes:
        """Send a request and return its answer. Raises LabError when the connection ends instead."""
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
    """Return the error for an answer that the request should not have got."""
    text = repr(answer[:SHOWN_BYTES]) if isinstance(answer, bytes) else str(answer)
    return LabError(f"{request} was answered with {text}")
