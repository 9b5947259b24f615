"""A session of a queue that is served by one node at a time: it asks for a place, connects, and moves on request.

The nodes choose the place. What the session does there depends on its role.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from flyball.backoff import Backoff, Retries
from flyball.broker.wire import amqp
from flyball.client.address import NodeAddress
from flyball.client.amqp import Channel
from flyball.client.consumer import Consumer
from flyball.client.errors import (
    ClientClosed,
    ConnectionFailed,
    ConnectionLost,
    RequestTimeout,
    ServerError,
    error_of_api,
)
from flyball.client.http import AWAY, Line, Refused, path_of, reason_of
from flyball.client.link import Link, TimeLimit
from flyball.client.messages import Content
from flyball.client.values import check_name
from flyball.errors import FlyballError, StoreUnavailable

log = logging.getLogger(__name__)

# Consuming this pseudo-queue registers the session; move requests are delivered to it.
PLACEMENT = "amq.flyball.placement"

_TAG = "placement"

# Retry delay for a queue without a place.
_RETRY_S = 0.5
_BUSY = 503

# Time limit for reporting the end of a session to the leader, which detects it in any case.
_LEAVE_TIME_S = 1.0


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """Options shared by all connections of a factory."""

    addresses: tuple[NodeAddress, ...]
    clustered: bool
    resend: bool
    time_limit_s: float
    silence_limit_s: float
    backoff: Backoff


class _NotYet(FlyballError):
    """The leader has no place at present."""

    def __init__(self, retry_s: float, reason: str) -> None:
        super().__init__(reason)
        self.retry_s = retry_s


# Errors of one node; another one may work.
GONE = (ConnectionFailed, ConnectionLost, RequestTimeout, StoreUnavailable, ServerError)


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """A node's request that a session moves."""

    session_id: str
    node: str
    address: str
    deadline_s: float


class PlacedConnection:
    """A session's connection to one node. The sink of move requests."""

    def __init__(
        self,
        options: PlacementOptions,
        address: NodeAddress,
        node: str,
        on_move: Callable[[PlacedConnection, MoveRequest], None],
    ) -> None:
        self.address = address
        self.node = node
        self.consumer: Consumer | None = None
        self.link = Link(
            address,
            time_limit_s=options.time_limit_s,
            silence_limit_s=options.silence_limit_s,
            backoff=options.backoff,
            reconnects=False,
        )
        self._on_move = on_move
        self._placement: Channel | None = None
        self._silence_limit_s = options.silence_limit_s
        self._under_way = 0
        self._calm = asyncio.Event()

    async def open(self) -> None:
        async with TimeLimit("connect", self._silence_limit_s):
            await self.link.open()

    async def arrive(self, session_id: str) -> None:
        """Register the session with the node."""
        async with TimeLimit("arrive", self._silence_limit_s):
            channel = self._placement = await (await self.link.connected()).channel()
            channel.sinks[_TAG] = self
            await channel.call(
                amqp.BasicConsume(
                    channel.number, PLACEMENT, _TAG, False, True, False, False, {"x-session": session_id}
                ),
                amqp.BasicConsumeOk,
            )

    async def leave(self) -> None:
        """Unregister the session, if the node is still connected."""
        if self._placement is not None:
            with contextlib.suppress(FlyballError):
                async with TimeLimit("leave", _LEAVE_TIME_S):
                    cancel = amqp.BasicCancel(self._placement.number, _TAG, False)
                    await self._placement.call(cancel, amqp.BasicCancelOk)

    def delivered(self, delivery: amqp.BasicDeliver) -> None:
        request = json.loads(delivery.body)
        self._on_move(
            self,
            MoveRequest(request["session"], request["node"], request["address"], request["deadline_s"]),
        )

    def lost(self) -> None:
        """The link reports it as well."""

    async def put(self, queue: str, contents: list[Content]) -> None:
        self._under_way += 1
        try:
            await self.link.run(lambda connection: connection.publish(("put", queue), queue, contents))
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._calm.set()

    async def answered(self) -> None:
        """Wait until no put is pending."""
        while self._under_way:
            self._calm.clear()
            await self._calm.wait()

    async def close(self) -> None:
        if self.consumer is not None:
            await self.consumer.close()
        await self.link.close()


class PlacedClient:
    """Base of producers and consumers: a session that is served by one node at a time."""

    ROLE: str

    def __init__(self, options: PlacementOptions, queue_name: str) -> None:
        self._options = options
        self._queue_name = check_name(queue_name)
        self._session_id = ""
        self._placed: PlacedConnection | None = None
        # Former connections, to be closed.
        self._left: list[PlacedConnection] = []
        self._avoid = ""
        # Index of the address that answered last.
        self._asked = 0
        self._retries = Retries(options.backoff)
        # Backoff before the next place is requested.
        self._delay_s = 0.0
        # Held while the session has no place, or moves.
        self._changing = asyncio.Lock()
        self._closing = asyncio.Event()
        self._is_moving = False
        self._movers: set[asyncio.Task[None]] = set()
        self._moves = 0

    # Lifecycle

    async def open(self) -> None:
        """Connect to the first place. Raises ConnectionFailed if no node answers."""
        async with self._changing, TimeLimit("connect", self._options.time_limit_s):
            await self._find_seat(is_first=True)

    async def close(self) -> None:
        """Close the session and report it to the leader. Unacked messages are requeued. May be called twice."""
        self._closing.set()
        movers = list(self._movers)
        for mover in movers:
            mover.cancel()
        await asyncio.gather(*movers, return_exceptions=True)
        async with self._changing:
            placed, self._placed = self._placed, None
            if placed is not None:
                if placed.consumer is not None:
                    await placed.consumer.close()
                if self._session_id:
                    await placed.leave()
                await placed.close()
            await self._clear_left()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def queue_name(self) -> str:
        return self._queue_name

    @property
    def node(self) -> str:
        """The name of the node that serves it, if known; empty while it has no place."""
        return "" if self._placed is None else self._placed.node

    @property
    def address(self) -> str:
        """The address of the node that serves it; empty while it has no place."""
        return "" if self._placed is None else str(self._placed.address)

    @property
    def session_id(self) -> str:
        """Its id at the leader; empty without one."""
        return self._session_id

    @property
    def moves(self) -> int:
        """How often it has moved on request."""
        return self._moves

    # Places

    async def _connected(self) -> PlacedConnection:
        """Return the current connection; get a new place if the last one is lost."""
        while True:
            if self._closing.is_set():
                raise ClientClosed(f"the {self.ROLE} was closed")
            if self._placed is not None and not self._changing.locked():
                return self._placed
            async with self._changing:
                if self._placed is None and not self._closing.is_set():
                    await self._find_seat()

    def _release(self, placed: PlacedConnection) -> None:
        """Give up a place."""
        if self._placed is placed:
            self._delay_s = self._retries.next_delay_s()
            self._placed = None
            self._avoid = placed.node
            self._left.append(placed)

    async def _find_seat(self, is_first: bool = False) -> None:
        """Connect to a place, once there is one. The lock is held."""
        await self._clear_left()
        await self._pause(self._delay_s)
        while not self._closing.is_set():
            try:
                address, node = await self._ask()
            except _NotYet as error:
                await self._pause(error.retry_s)
                continue
            except ConnectionFailed:
                if is_first:
                    raise
                await self._pause(self._retries.next_delay_s())
                continue
            try:
                self._placed = await self._connect_to(address, node)
                return
            except GONE as error:
                log.info("%s at %s: %s", self.ROLE, address, error)
                self._avoid = node
                await self._pause(self._retries.next_delay_s())

    async def _connect_to(self, address: NodeAddress, node: str, *, arrive: bool = True) -> PlacedConnection:
        placed = PlacedConnection(self._options, address, node, self._asked_to_move)
        try:
            await placed.open()
            if arrive and self._session_id:
                await placed.arrive(self._session_id)
        except BaseException:
            await placed.close()
            raise
        return placed

    async def _ask(self) -> tuple[NodeAddress, str]:
        """Ask the addresses in turn for a place: return address and node.

        Raises ConnectionFailed if none answers.
        """
        addresses = self._options.addresses
        problems: list[str] = []
        for turn in range(len(addresses)):
            number = (self._asked + turn) % len(addresses)
            try:
                found = await self._ask_at(addresses[number])
            except GONE as error:
                problems.append(f"{addresses[number]}: {error}")
            else:
                self._asked = number
                return found
        self._asked = (self._asked + 1) % len(addresses)
        raise ConnectionFailed(", ".join(str(address) for address in addresses), "; ".join(problems))

    async def _ask_at(self, address: NodeAddress) -> tuple[NodeAddress, str]:
        options = self._options
        link = Link(
            address,
            time_limit_s=options.silence_limit_s,
            silence_limit_s=options.silence_limit_s,
            backoff=options.backoff,
            reconnects=False,
        )
        try:
            async with TimeLimit("place", options.silence_limit_s):
                await link.open()
                if not options.clustered:
                    return address, ""
                port = (await link.connected()).server_properties.get("flyball_http_port")
                return await self._ask_over(address, port if isinstance(port, int) else None)
        finally:
            await link.close()

    async def _ask_over(self, address: NodeAddress, http_port: int | None) -> tuple[NodeAddress, str]:
        """Ask a node's HTTP API for a place."""
        place = address.http_place(http_port)
        line = Line(place)
        query = {
            "vhost": address.vhost,
            "queue": self._queue_name,
            "role": self.ROLE,
            "session": self._session_id,
            "avoid": self._avoid,
            "arrives": "true",
        }
        try:
            found = await line.get(path_of("place", **query))
        except Refused as error:
            if error.status == _BUSY:
                raise _NotYet(_RETRY_S, error.reason) from error
            raise error_of_api(error, self._queue_name) from error
        except AWAY as error:
            raise ConnectionFailed(place.shown, reason_of(error)) from error
        finally:
            line.close()
        self._session_id = found["session"]
        return (address.at(found["amqp"]) if found["amqp"] else address), found["node"]

    async def _clear_left(self) -> None:
        for placed in list(self._left):
            await placed.close()
            if placed in self._left:
                self._left.remove(placed)

    async def _pause(self, delay_s: float) -> None:
        """Sleep, but not beyond close."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._closing.wait()

    # Moving

    def _asked_to_move(self, placed: PlacedConnection, request: MoveRequest) -> None:
        if placed is self._placed and request.session_id == self._session_id and not self._is_moving:
            self._is_moving = True
            # Kept here, awaited in `close`.
            mover = asyncio.get_running_loop().create_task(self._move(placed, request))
            self._movers.add(mover)
            mover.add_done_callback(self._movers.discard)

    async def _move(self, placed: PlacedConnection, request: MoveRequest) -> None:
        """Move to another node; stay if that fails."""
        deadline_at = asyncio.get_running_loop().time() + request.deadline_s
        try:
            address = placed.address.at(request.address)
            next_placed = await self._connect_to(address, request.node, arrive=False)
            await self._switch(placed, next_placed, deadline_at)
        except FlyballError as error:
            log.info("the %s does not move: %s", self.ROLE, error)
        finally:
            self._is_moving = False
        await self._clear_left()

    async def _switch(self, placed: PlacedConnection, next_placed: PlacedConnection, deadline_at: float) -> None:
        self._left.append(next_placed)
        async with self._changing:
            if self._placed is placed and await self._make_safe(placed, deadline_at):
                await next_placed.arrive(self._session_id)
                self._placed = next_placed
                self._moves += 1
                self._left.remove(next_placed)
                self._left.append(placed)

    async def _make_safe(self, placed: PlacedConnection, deadline_at: float) -> bool:
        """Bring the session to a safe point for moving, where nothing is lost or duplicated, before the deadline if
        possible.
        """
        raise NotImplementedError
