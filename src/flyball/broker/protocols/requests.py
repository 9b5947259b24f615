"""What the protocols have in common that have one answer for each request: ThorBangMQ's and Telesto's."""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from flyball.broker.core.body_format import BodyFormat
from flyball.broker.core.handles import QueueHandle
from flyball.broker.core.member_routes import MemberRoutes
from flyball.broker.core.pending import TakeDone
from flyball.broker.core.placement import Role
from flyball.broker.transport.connection import TURN_NS, WRITE_BUFFER_BYTES, Connection, Hub
from flyball.errors import FlyballError, ProtocolError, QueueNotFound, RequestError, StoreError
from flyball.model import DEFAULT_VHOST, Message, Selector
from flyball.trace.schema import Result
from flyball.trace.span import Span

# Requests of one connection that are carried out at once; the next ones wait.
MAX_IN_FLIGHT = 256

# A request that has begun has to be complete by then, and a second later for each so many bytes that have come: a
# slow peer may send a long one, and a peer that only trickles cannot keep what it has begun.
REQUEST_S = 30.0
REQUEST_BYTES_PER_S = 16 * 1024


class Decoder(Protocol):
    """Turns bytes into requests; each protocol's has a method of its own that returns the next one."""

    @property
    def buffered_bytes(self) -> int: ...

    def feed(self, data: bytes) -> None: ...

    def clear(self) -> None: ...


class RequestSession(Connection):
    """A peer whose protocol has one answer for each request. A session says how to decode, handle and refuse."""

    def __init__(self, hub: Hub, decoder: Decoder) -> None:
        super().__init__(hub)
        self._incoming = decoder
        # Whether it counts as a connection to its virtual host.
        self._is_counted = False
        self._is_over = False
        # The members of clustered queues that the peer uses, if nobody has placed it.
        self.member_routes = MemberRoutes(hub.is_member)
        # What requests hold that are under way: messages that were taken and wait for the store, and puts that wait
        # for another node.
        self._reserved: dict[Span, int] = {}
        self._reserved_bytes = 0
        # A request whose answer may be long and takes time: until it is answered no other is begun.
        self._alone: Span | None = None
        # How many the peer has made.
        self.requests = 0
        # How many requests came before one that is not complete, and when that was first seen.
        self._begun: tuple[int, float] | None = None

    # What a protocol fills in

    @abc.abstractmethod
    def decode(self) -> object | None:
        """Return the next request that is complete, None if there is none. Raises ProtocolError."""

    @abc.abstractmethod
    def handle(self, parsed: Any, request: Span) -> None:
        """Carry out what `decode` has returned. A RequestError is told to the peer with `refuse`."""

    @abc.abstractmethod
    def refuse(self, request: Span, error: FlyballError) -> None:
        """Answer a request with an error."""

    def goes_alone(self, parsed: Any, request: Span) -> bool:
        """Whether the next request has to wait until this one is answered, which takes time.

        So it is with listings, and with reads of messages that are not in memory: hundreds of them at once would
        wait for the same read from the store, and then all their answers would be in memory together.
        """
        return False

    def new_request(self) -> Span:
        """Return what notes the next request; a protocol may have one of its own."""
        return Span()

    def tick(self, now_s: float) -> None:
        """Close the connection if a request that has begun is not complete after long. One without any may stay."""
        unfinished_bytes = self._incoming.buffered_bytes
        # While nothing is read, that is not the peer's doing.
        if not unfinished_bytes or not self._is_reading:
            self._begun = None
        elif self._begun is None or self._begun[0] != self.requests:
            self._begun = (self.requests, now_s)
        elif now_s - self._begun[1] > REQUEST_S + unfinished_bytes / REQUEST_BYTES_PER_S:
            self.close(f"a request of which {unfinished_bytes} bytes have come is not complete")

    def feed(self, data: bytes) -> None:
        self._incoming.feed(data)

    def release_buffers(self) -> None:
        self._incoming.clear()

    def input_bytes(self) -> int:
        return self._incoming.buffered_bytes + self._reserved_bytes

    # The virtual host

    def check_entry(self) -> None:
        """Raise ConnectionLimitReached if the virtual host takes no more clients."""
        self.hub.occupancy.check_connection(DEFAULT_VHOST)

    def enter(self) -> None:
        """Count as a connection to the virtual host, until it ends."""
        if not self._is_counted and not self._is_over:
            self._is_counted = True
            self.hub.occupancy.enter(DEFAULT_VHOST)

    def ended(self) -> None:
        self._is_over = True
        if self._is_counted:
            self._is_counted = False
            self.hub.occupancy.leave(DEFAULT_VHOST)

    # Queues

    def queue(self, queue_id: int) -> QueueHandle | None:
        """Return a queue, on whichever node. Without passwords, the protocols reach the default virtual host only."""
        found = self.hub.queues.get(queue_id)
        return None if found is None or queue_id <= 0 or found.queue.vhost != DEFAULT_VHOST else found

    def use(self, queue_id: int, role: Role) -> int:
        """Return the member of a clustered queue that serves the client instead of the one it names, and count it."""
        home = self.member_routes.home(queue_id, role)
        self.member_routes.note(home, role)
        return home

    def perform(self, work: Coroutine[Any, Any, None], request: Span) -> None:
        """Carry out a request that may ask other nodes first; further requests wait meanwhile."""
        self.hold()
        self.hub.spawn(self._perform(work, request), self)

    async def _perform(self, work: Coroutine[Any, Any, None], request: Span) -> None:
        try:
            await work
        except FlyballError as error:
            self.refuse(request, error)
        self.release()

    def look_again(self, go_on: Callable[[], None], request: Span) -> None:
        """Carry out a request when this node knows what others have made just now."""
        if self.hub.peering.is_clustered:
            self.perform(self._look_again(go_on), request)
        else:
            go_on()

    async def _look_again(self, go_on: Callable[[], None]) -> None:
        with contextlib.suppress(StoreError):
            await self.hub.peering.catch_up()
        go_on()

    def read(
        self,
        queue_id: int,
        selector: Selector,
        fit: BodyFormat,
        request: Span,
        done: TakeDone,
        *,
        removes: bool = True,
    ) -> None:
        """Remove the first message that fits, or only show it. There is none in a queue that does not exist."""

        def found(message: Message | None, error: FlyballError | None) -> None:
            done(message, None if isinstance(error, QueueNotFound) else error)

        queue = self.queue(queue_id)
        if queue is None:
            done(None, None)
        elif removes:
            queue.take(selector, found, fit, lambda message: self.reserve(request, len(message.body)))
        else:
            queue.peek(selector, found, fit)

    # Requests and answers

    def pump(self, mark_ns: int) -> None:
        """Carry out the requests that are complete, as far as there is room. It is `mark_ns` now.

        For the trace, a request's parsing begins there or where the request before it was handed on.
        """
        recorder = self.hub.recorder
        turn_ends_ns = mark_ns + TURN_NS
        while not self._must_wait():
            if recorder is not None and not recorder.skip:
                mark_ns = time.perf_counter_ns()
            try:
                parsed = self.decode()
            except ProtocolError as error:
                self.close(str(error))
                return
            if parsed is None:
                self._has_read_all()
                return
            request = self.new_request()
            self.in_flight += 1
            if recorder is not None and (weight := recorder.sample(mark_ns)):
                request.weight = weight
                request.protocol = self.PROTOCOL
                request.received_ns = self._received_ns
                request.started_ns = mark_ns
                request.parsed_ns = time.perf_counter_ns()
            self._alone = request
            try:
                self.handle(parsed, request)
            except RequestError as error:
                self.refuse(request, error)
            if self._alone is request and not self.goes_alone(parsed, request):
                self._alone = None
            if request.started_ns and request.answered_ns == 0:
                request.submitted_ns = time.perf_counter_ns()
            if time.perf_counter_ns() > turn_ends_ns:
                self.hub.next_turn(self)
                break
        self._set_reading(False)

    def finish(self, request: Span, data: bytes) -> None:
        """Answer a request."""
        self.in_flight -= 1
        if self._reserved:
            self._reserved_bytes -= self._reserved.pop(request, 0)
        if self._alone is request:
            self._alone = None
        if self._transport is None:
            return
        if request.started_ns:
            request.client_id = self.client_id
            request.answered_ns = request.answered_ns or time.perf_counter_ns()
            self._answered.append(request)
        self.send(data)

    def reserve(self, request: Span, size_bytes: int) -> None:
        """Note that a request holds so much until it is answered: they add up, and the next ones may have to wait."""
        self._reserved[request] = self._reserved.get(request, 0) + size_bytes
        self._reserved_bytes += size_bytes

    def has_reserved(self, request: Span) -> bool:
        return request in self._reserved

    def _must_wait(self) -> bool:
        return (
            self._alone is not None
            or self.in_flight >= MAX_IN_FLIGHT
            or self._reserved_bytes > WRITE_BUFFER_BYTES
            or super()._must_wait()
        )


def result_of(error: FlyballError) -> Result:
    return Result.FAILED if isinstance(error, StoreError) else Result.REFUSED
