"""Base of the request/response protocols, ThorBangMQ and Telesto."""

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

# Maximum number of concurrent requests per connection; further ones wait.
MAX_IN_FLIGHT = 256

# Timeout for receiving a request, plus a second per chunk of this size: a slow peer may send a long request, but one
# that only trickles cannot hold its buffer forever.
REQUEST_S = 30.0
REQUEST_BYTES_PER_S = 16 * 1024


class Decoder(Protocol):
    """Decodes requests; each protocol's decoder has its own method for the next one."""

    @property
    def buffered_bytes(self) -> int: ...

    def feed(self, data: bytes) -> None: ...

    def clear(self) -> None: ...


class RequestSession(Connection):
    """A peer of a request/response protocol. Subclasses decode, handle and refuse requests."""

    def __init__(self, hub: Hub, decoder: Decoder) -> None:
        super().__init__(hub)
        self._incoming = decoder
        # Whether it counts against the connection limit of its vhost.
        self._is_counted = False
        self._is_over = False
        # Members of clustered queues that a peer without a placement uses.
        self.member_routes = MemberRoutes(hub.is_member)
        # Bytes held by requests in progress: taken messages that wait for the store, and puts that wait for another
        # node.
        self._reserved: dict[Span, int] = {}
        self._reserved_bytes = 0
        # A request that runs alone, since its response may be long and slow.
        self._alone: Span | None = None
        # Requests so far.
        self.requests = 0
        # Number of requests before the incomplete one, and when that was first seen.
        self._begun: tuple[int, float] | None = None

    # Implemented by the protocol

    @abc.abstractmethod
    def decode(self) -> object | None:
        """Return the next complete request, or None. Raises ProtocolError."""

    @abc.abstractmethod
    def handle(self, parsed: Any, request: Span) -> None:
        """Execute a decoded request. A RequestError is passed to `refuse`."""

    @abc.abstractmethod
    def refuse(self, request: Span, error: FlyballError) -> None:
        """Respond to a request with an error."""

    def goes_alone(self, parsed: Any, request: Span) -> bool:
        """Whether the next request has to wait for the response to this one.

        True for listings, and for reads of messages that are not in memory: hundreds of them would wait for the same
        read from the store, and then hold all their responses in memory.
        """
        return False

    def new_request(self) -> Span:
        """Return the trace span of the next request; protocols may override it."""
        return Span()

    def tick(self, now_s: float) -> None:
        """Close the connection if a request has been incomplete for too long.

        A connection without an incomplete request stays open.
        """
        unfinished_bytes = self._incoming.buffered_bytes
        # While reading is paused, the rest of a request may be unread.
        if not unfinished_bytes or not self._is_reading:
            self._begun = None
        elif self._begun is None or self._begun[0] != self.requests:
            self._begun = (self.requests, now_s)
        elif now_s - self._begun[1] > REQUEST_S + unfinished_bytes / REQUEST_BYTES_PER_S:
            self.close(f"a request timed out after {unfinished_bytes} bytes")

    def feed(self, data: bytes) -> None:
        self._incoming.feed(data)

    def release_buffers(self) -> None:
        self._incoming.clear()

    def input_bytes(self) -> int:
        return self._incoming.buffered_bytes + self._reserved_bytes

    # Vhost

    def check_entry(self) -> None:
        """Raise ConnectionLimitReached if the vhost is full."""
        self.hub.connection_limits.check_connection(DEFAULT_VHOST)

    def enter(self) -> None:
        """Count as a connection of the vhost, until it ends."""
        if not self._is_counted and not self._is_over:
            self._is_counted = True
            self.hub.connection_limits.enter(DEFAULT_VHOST)

    def ended(self) -> None:
        self._is_over = True
        if self._is_counted:
            self._is_counted = False
            self.hub.connection_limits.leave(DEFAULT_VHOST)

    # Queues

    def queue(self, queue_id: int) -> QueueHandle | None:
        """Return a queue on any node. These protocols have no login and only access the default vhost."""
        found = self.hub.queues.get(queue_id)
        return None if found is None or queue_id <= 0 or found.queue.vhost != DEFAULT_VHOST else found

    def use(self, queue_id: int, role: Role) -> int:
        """Return the member of a clustered queue that serves the client for the named one, and count the request."""
        home = self.member_routes.home(queue_id, role)
        self.member_routes.note(home, role)
        return home

    def perform(self, work: Coroutine[Any, Any, None], request: Span) -> None:
        """Execute a request that may first send requests to other nodes; further requests wait."""
        self.hold()
        self.hub.spawn(self._perform(work, request), self)

    async def _perform(self, work: Coroutine[Any, Any, None], request: Span) -> None:
        try:
            await work
        except FlyballError as error:
            self.refuse(request, error)
        self.release()

    def look_again(self, go_on: Callable[[], None], request: Span) -> None:
        """Execute a request after applying changes of peers, which may just have created its objects."""
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
        """Take the first matching message, or peek at it. A missing queue counts as empty."""

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
        """Execute complete requests while buffer space allows it. `mark_ns` is the current time.

        In the trace, parsing of a request starts at `mark_ns`, or after the previous request was submitted.
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
        """Respond to a request."""
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
        """Charge bytes to a request until its response; the sum may delay further requests."""
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
