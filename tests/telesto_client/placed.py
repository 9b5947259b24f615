"""A session at a queue that is served at one node at a time: it asks where to go, goes there, and moves.

Where a client goes the nodes decide. What a session does at its place is its role's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from flyball.backoff import Backoff
from flyball.broker.wire import telesto as wire
from flyball.errors import FlyballError, StoreUnavailable
from tests.telesto_client.connection import ServerAddress
from tests.telesto_client.consumer import Consumer
from tests.telesto_client.errors import ClientClosed, ConnectionFailed, ConnectionLost, NotSupported, RequestTimeout
from tests.telesto_client.link import Identity, Link, TimeLimit, expect
from tests.telesto_client.messages import check_name

log = logging.getLogger(__name__)

_ROLES = {"producer": 1, "consumer": 2}
_LEAVE_TIME_S = 1.0
"""So long telling the manager of the end may take; it finds out anyway."""


@dataclass(frozen=True, slots=True)
class Options:
    """What all connections of a factory have in common."""

    addresses: tuple[ServerAddress, ...]
    name: str
    vhost: str
    clustered: bool
    resend: bool
    time_limit_s: float
    silence_limit_s: float
    max_pending: int
    backoff: Backoff


class _NotYet(FlyballError):
    """The manager has no place at present."""

    def __init__(self, retry_s: float, reason: str) -> None:
        super().__init__(reason)
        self.retry_s = retry_s


GONE = (ConnectionFailed, ConnectionLost, RequestTimeout, StoreUnavailable, NotSupported)
"""What is wrong with one node, and need not be with another."""


class Seat:
    """One connection to one node, where a session is served."""

    def __init__(
        self,
        options: Options,
        address: ServerAddress,
        node: str,
        queue_id: int,
        on_move: Callable[[Seat, wire.MoveRequested], None],
    ) -> None:
        self.address = address
        self.node = node
        self.queue_id = queue_id
        self.consumer: Consumer | None = None
        self.link = Link(
            address,
            Identity(options.name),
            extension=True,
            time_limit_s=options.time_limit_s,
            max_pending=options.max_pending,
            backoff=options.backoff,
            reconnects=False,
            on_move=lambda request: on_move(self, request),
        )
        self._silence_limit_s = options.silence_limit_s
        self._watch: asyncio.Task[None] | None = None
        self._under_way = 0
        self._calm = asyncio.Event()

    async def open(self) -> None:
        async with TimeLimit("connect", self._silence_limit_s):
            await self.link.open()
        if not self.link.is_wide:
            raise NotSupported("a connection factory")
        # Stored and awaited in `close`.
        self._watch = asyncio.get_running_loop().create_task(self._look_out())

    async def arrive(self, session_id: str) -> None:
        """Tell the node that the session is here."""
        async with TimeLimit("arrive", self._silence_limit_s):
            expect(await self.link.exchange(wire.Arrive(0, session_id), "arrive"), wire.Success)

    async def leave(self, session_id: str) -> None:
        """Tell the node that the session is over, if it still hears us."""
        with contextlib.suppress(FlyballError):
            async with TimeLimit("leave", _LEAVE_TIME_S):
                expect(await self.link.exchange(wire.Leave(0, session_id), "leave"), wire.Success)

    async def put(self, drafts: list[wire.WireDraft], queue_name: str) -> list[int]:
        self._under_way += 1
        try:
            answer = await self.link.exchange(wire.Put(0, [self.queue_id], drafts), "send")
            return expect(answer, wire.PutDone, queue_name).message_ids
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
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
            if not self._watch.cancelled():
                self._watch.result()
        if self.consumer is not None:
            await self.consumer.close()
        await self.link.close()

    async def _look_out(self) -> None:
        """Give the connection up when the node has said nothing for too long."""
        interval_s = self._silence_limit_s / 3
        with contextlib.suppress(ConnectionFailed, ConnectionLost, ClientClosed):
            while True:
                await asyncio.sleep(interval_s)
                connection = await self.link.connected()
                pong = connection.start_now(wire.Ping(0), "ping")
                try:
                    # What has come while this program was busy counts: so not by a timeout that cancels.
                    await asyncio.wait([pong], timeout=self._silence_limit_s - interval_s)
                finally:
                    # Nobody would ask what became of it.
                    is_late = pong.cancel()
                if is_late:
                    log.warning("%s has said nothing for %.1f s: it is given up", self.address, self._silence_limit_s)
                    connection.abort()
                    return
                pong.result()


class Placed:
    """What producers and consumers have in common: a session that is served at one node at a time."""

    ROLE: str

    def __init__(self, options: Options, queue_name: str) -> None:
        self._options = options
        self._queue_name = check_name(queue_name)
        self._session_id = ""
        self._seat: Seat | None = None
        self._left: list[Seat] = []
        """Those that are of no use any more, to be closed."""
        self._avoid = ""
        self._asked = 0
        """The number of the address that has answered last."""
        self._failures = 0
        """How often in a row a place was no good."""
        self._changing = asyncio.Lock()
        """Held while the session has no place, or is between two."""
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
                    await seat.leave(self._session_id)
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
    def queue_id(self) -> int | None:
        """The queue where it is served: of a clustered queue, a member. None while it looks for a place."""
        return None if self._seat is None else self._seat.queue_id

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
            self._failures += 1
            self._seat = None
            self._avoid = seat.node
            self._left.append(seat)

    async def _find_seat(self, is_first: bool = False) -> None:
        """Go to a place, as soon as there is one. The lock is held."""
        await self._clear_left()
        if self._failures:
            await self._pause(self._delay_s())
        while not self._closing.is_set():
            try:
                address, node, queue_id = await self._ask()
            except _NotYet as error:
                await self._pause(error.retry_s)
                continue
            except ConnectionFailed:
                if is_first:
                    raise
                self._failures += 1
                await self._pause(self._delay_s())
                continue
            try:
                self._seat = await self._settle_in(address, node, queue_id)
                return
            except GONE as error:
                log.info("%s at %s: %s", self.ROLE, address, error)
                self._avoid = node
                self._failures += 1
                await self._pause(self._delay_s())

    async def _settle_in(self, address: ServerAddress, node: str, queue_id: int, *, arrive: bool = True) -> Seat:
        seat = Seat(self._options, address, node, queue_id, self._asked_to_move)
        try:
            await seat.open()
            if arrive and self._session_id:
                await seat.arrive(self._session_id)
        except BaseException:
            await seat.close()
            raise
        return seat

    async def _ask(self) -> tuple[ServerAddress, str, int]:
        """Ask one address after the other for a place: return address, node and queue id.

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

    async def _ask_at(self, address: ServerAddress) -> tuple[ServerAddress, str, int]:
        options = self._options
        link = Link(
            address,
            Identity(),
            extension=True,
            time_limit_s=options.silence_limit_s,
            max_pending=2,
            backoff=options.backoff,
            reconnects=False,
        )
        try:
            async with TimeLimit("place", options.silence_limit_s):
                await link.open()
                link.require_extension("a connection factory")
                if not options.clustered:
                    answer = await link.exchange(wire.GetQueueId(0, self._queue_name), "place")
                    return address, "", expect(answer, wire.GetQueueIdResponse, self._queue_name).queue_id
                return await self._ask_over(link, address)
        finally:
            await link.close()

    async def _ask_over(self, link: Link, address: ServerAddress) -> tuple[ServerAddress, str, int]:
        options = self._options
        wish = wire.Place(
            0,
            _ROLES[self.ROLE],
            options.vhost,
            self._queue_name,
            options.name,
            self._session_id,
            self._avoid,
        )
        answer = await link.exchange(wish, "place")
        if isinstance(answer, wire.PlaceLater):
            raise _NotYet(max(answer.retry_ms, 1) / 1000, answer.reason)
        placed = expect(answer, wire.Placed, self._queue_name)
        self._session_id = placed.session_id
        return ServerAddress.parse(placed.address) if placed.address else address, placed.node, placed.queue_id

    async def _clear_left(self) -> None:
        for seat in list(self._left):
            await seat.close()
            if seat in self._left:
                self._left.remove(seat)

    def _delay_s(self) -> float:
        return self._options.backoff.delay_s(max(self._failures - 1, 0), random.random())

    async def _pause(self, delay_s: float) -> None:
        """Wait, but not longer than until the end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._closing.wait()

    # Moving

    def _asked_to_move(self, seat: Seat, request: wire.MoveRequested) -> None:
        if seat is self._seat and request.session_id == self._session_id and not self._is_moving:
            self._is_moving = True
            # Stored, awaited in `close`.
            mover = asyncio.get_running_loop().create_task(self._move(seat, request))
            self._movers.add(mover)
            mover.add_done_callback(self._movers.discard)

    async def _move(self, seat: Seat, request: wire.MoveRequested) -> None:
        """Go on at another node; stay if that is not possible."""
        deadline_at = asyncio.get_running_loop().time() + request.deadline_ms / 1000
        try:
            address = ServerAddress.parse(request.address)
            next_seat = await self._settle_in(address, request.node, request.queue_id, arrive=False)
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
