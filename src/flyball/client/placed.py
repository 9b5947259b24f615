"""A session at a queue that is served at one node at a time: it asks where to go, goes there, and moves.

Where a client goes the nodes decide. What a session does at its place is its role's business.
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

# A session that consumes this pseudo queue says which one it is, and is sent where it should go.
PLACEMENT = "amq.flyball.placement"

_TAG = "placement"

# A queue without a place at present is asked for again after this time.
_RETRY_S = 0.5
_BUSY = 503

# Time limit for reporting the end to the manager, which finds out anyway.
_LEAVE_TIME_S = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """What all connections of a factory have in common."""

    addresses: tuple[NodeAddress, ...]
    clustered: bool
    resend: bool
    time_limit_s: float
    silence_limit_s: float
    backoff: Backoff


class _NotYet(FlyballError):
    """The manager has no place at present."""

    def __init__(self, retry_s: float, reason: str) -> None:
        super().__init__(reason)
        self.retry_s = retry_s


# What is wrong with one node, and need not be with another.
GONE = (ConnectionFailed, ConnectionLost, RequestTimeout, StoreUnavailable, ServerError)


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """A node asks a session to go on elsewhere."""

    session_id: str
    node: str
    address: str
    deadline_s: float


class Seat:
    """One connection to one node, where a session is served. The sink of what the node asks of it."""

    def __init__(
        self,
        options: Options,
        address: NodeAddress,
        node: str,
        on_move: Callable[[Seat, MoveRequest], None],
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
        """Tell the node that the session is here."""
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
        """Tell the node that the session is over, if it still hears us."""
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
        """The link tells it as well."""

    async def put(self, queue: str, contents: list[Content]) -> None:
        self._under_way += 1
        try:
            await self.link.run(lambda connection: connection.publish(("put", queue), queue, contents))
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._calm.set()

    async def answered(self) -> None:
        """Wait until no put is under way."""
        while self._under_way:
            self._calm.clear()
            await self._calm.wait()

    async def close(self) -> None:
        if self.consumer is not None:
            await self.consumer.close()
        await self.link.close()


class Placed:
    """What producers and consumers have in common: a session that is served at one node at a time."""

    ROLE: str

    def __init__(self, options: Options, queue_name: str) -> None:
        self._options = options
        self._queue_name = check_name(queue_name)
        self._session_id = ""
        self._seat: Seat | None = None
        # Seats that are no longer used, to be closed.
        self._left: list[Seat] = []
        self._avoid = ""
        # The number of the address that has answered last.
        self._asked = 0
        self._retries = Retries(options.backoff)
        # The wait before the next place is looked for.
        self._delay_s = 0.0
        # Held while the session has no place, or is between two.
        self._changing = asyncio.Lock()
        self._closing = asyncio.Event()
        self._is_moving = False
        self._movers: set[asyncio.Task[None]] = set()
        self._moves = 0

    # Life

    async def open(self) -> None:
        """Go to the first place. Raises ConnectionFailed if no node answers."""
        async with self._changing, TimeLimit("connect", self._options.time_limit_s):
            await self._find_seat(is_first=True)

    async def close(self) -> None:
        """Leave. What a consumer holds goes back to its place, and the manager hears of it. May be called twice."""
        self._closing.set()
        movers = list(self._movers)
        for mover in movers:
            mover.cancel()
        await asyncio.gather(*movers, return_exceptions=True)
        async with self._changing:
            seat, self._seat = self._seat, None
            if seat is not None:
                if seat.consumer is not None:
                    await seat.consumer.close()
                if self._session_id:
                    await seat.leave()
                await seat.close()
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
        """The name of the node where it is served, as far as it was told; empty while it looks for a place."""
        return "" if self._seat is None else self._seat.node

    @property
    def address(self) -> str:
        """The address where it is served; empty while it looks for a place."""
        return "" if self._seat is None else str(self._seat.address)

    @property
    def session_id(self) -> str:
        """Under which the manager knows it; empty without one."""
        return self._session_id

    @property
    def moves(self) -> int:
        """How often it has moved to another node because it was asked to."""
        return self._moves

    # Places

    async def _sit(self) -> Seat:
        """Return where the session is served; find a new place if the last one is lost."""
        while True:
            if self._closing.is_set():
                raise ClientClosed(f"the {self.ROLE} was closed")
            if self._seat is not None and not self._changing.locked():
                return self._seat
            async with self._changing:
                if self._seat is None and not self._closing.is_set():
                    await self._find_seat()

    def _vacate(self, seat: Seat) -> None:
        """The place is no good any more."""
        if self._seat is seat:
            self._delay_s = self._retries.next_delay_s()
            self._seat = None
            self._avoid = seat.node
            self._left.append(seat)

    async def _find_seat(self, is_first: bool = False) -> None:
        """Go to a place, as soon as there is one. The lock is held."""
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
                self._seat = await self._settle_in(address, node)
                return
            except GONE as error:
                log.info("%s at %s: %s", self.ROLE, address, error)
                self._avoid = node
                await self._pause(self._retries.next_delay_s())

    async def _settle_in(self, address: NodeAddress, node: str, *, arrive: bool = True) -> Seat:
        seat = Seat(self._options, address, node, self._asked_to_move)
        try:
            await seat.open()
            if arrive and self._session_id:
                await seat.arrive(self._session_id)
        except BaseException:
            await seat.close()
            raise
        return seat

    async def _ask(self) -> tuple[NodeAddress, str]:
        """Ask one address after the other for a place: return address and node.

        Raises ConnectionFailed if nobody answers.
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
        """Ask a node's HTTP API where the session belongs."""
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
        for seat in list(self._left):
            await seat.close()
            if seat in self._left:
                self._left.remove(seat)

    async def _pause(self, delay_s: float) -> None:
        """Wait, but not longer than until the end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._closing.wait()

    # Moving

    def _asked_to_move(self, seat: Seat, request: MoveRequest) -> None:
        if seat is self._seat and request.session_id == self._session_id and not self._is_moving:
            self._is_moving = True
            # Stored, awaited in `close`.
            mover = asyncio.get_running_loop().create_task(self._move(seat, request))
            self._movers.add(mover)
            mover.add_done_callback(self._movers.discard)

    async def _move(self, seat: Seat, request: MoveRequest) -> None:
        """Go on at another node; stay if that is not possible."""
        deadline_at = asyncio.get_running_loop().time() + request.deadline_s
        try:
            address = seat.address.at(request.address)
            next_seat = await self._settle_in(address, request.node, arrive=False)
            await self._change_seats(seat, next_seat, deadline_at)
        except FlyballError as error:
            log.info("the %s stays: %s", self.ROLE, error)
        finally:
            self._is_moving = False
        await self._clear_left()

    async def _change_seats(self, seat: Seat, next_seat: Seat, deadline_at: float) -> None:
        self._left.append(next_seat)
        async with self._changing:
            if self._seat is seat and await self._make_safe(seat, deadline_at):
                await next_seat.arrive(self._session_id)
                self._seat = next_seat
                self._moves += 1
                self._left.remove(next_seat)
                self._left.append(seat)

    async def _make_safe(self, seat: Seat, deadline_at: float) -> bool:
        """Bring the session to a point where nothing is lost or doubled if it moves, before that time if possible."""
        raise NotImplementedError
