"""The base of all protocols' connections: backpressure, one write per turn of the event loop, and limits.

A connection reads only while requests in progress, unsent output and uncommitted operations are within their limits.
Further input stays in the kernel's buffers, which makes the peer wait.
"""

from __future__ import annotations

import abc
import asyncio
import ipaddress
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from flyball.broker.core.authority import Authority
from flyball.broker.core.broker import Broker
from flyball.broker.core.connection_limits import ConnectionLimits
from flyball.broker.core.loops import Loops
from flyball.broker.core.memory import CHARGE_READ_BYTES, CHARGE_STEP_BYTES, CONNECTION_BYTES
from flyball.broker.core.peering import Peering
from flyball.broker.core.placement import HerePlacement, Placement
from flyball.broker.core.supervisor import Supervisor
from flyball.broker.core.topics import Topics
from flyball.broker.transport.flusher import Flusher
from flyball.broker.transport.handshakes import Entrance
from flyball.broker.transport.mixups import OPENING_BYTES, spoken
from flyball.errors import ProtocolError
from flyball.trace.recorder import Recorder
from flyball.trace.schema import Protocol
from flyball.trace.span import Span

log = logging.getLogger("flyball.server")

# Unsent output above which no further requests of the peer are executed.
WRITE_BUFFER_BYTES = 256 * 1024

# Maximum duration of a peer's commands in a turn of the event loop, before others get a turn. Most need microseconds,
# but the cost of some depends on the number of consumers, deliveries, bindings or target queues.
TURN_NS = 5_000_000

# States of a TCP connection, as numbered by Linux.
_TCP_CLOSE, _TCP_CLOSE_WAIT = 7, 8

# Timeout of a peer that does not read.
WRITE_STALL_S = 30.0

# A peer that disappeared silently is detected after two minutes.
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 120_000}


@dataclass(frozen=True, slots=True)
class Services:
    """The services and limits of a node's connections."""

    broker: Broker
    authority: Authority
    topics: Topics
    recorder: Recorder | None = None
    max_connections: int = 1000
    max_unauthenticated: int = 4000
    # Called before responses are written: a throttle may delay them.
    before_flush: Callable[[], None] | None = None


class Hub(Flusher["Connection"]):
    """The state shared by the connections of a node: services, control loops, and the set of connections."""

    def __init__(self, services: Services, tasks: asyncio.TaskGroup) -> None:
        broker = services.broker
        super().__init__(broker, services.before_flush)
        self.authority = services.authority
        self.topics = services.topics
        self.queues = services.topics.queues
        # The remote queues.
        self.directory = self.queues.topology.directory
        self.recorder = services.recorder
        # Decides where clients of clustered queues are served.
        self.placement: Placement = HerePlacement(broker.engine)
        self.connections: set[Connection] = set()
        self.entrance: Entrance[Connection] = Entrance(services.max_connections, services.max_unauthenticated)
        self.connection_limits = ConnectionLimits(services.authority)
        # The number of the last accepted connection.
        self.last_number = 0
        # Reports of other parts of the node, by their name in its status.
        self.reports: dict[str, Callable[[], Any]] = {}
        # Commands of other parts of the node for administrators, by name; see `management`.
        self.commands: dict[str, Callable[..., Awaitable[Any]]] = {}
        # The registered control loops.
        self.loops = Loops()
        self.faults = broker.faults
        self._supervisor = Supervisor(tasks, broker.faults)
        self._idle: asyncio.Event = asyncio.Event()
        broker.faults.noted.subscribe(_end_connection_of)
        self.authority.user_deleted.subscribe(self._user_deleted)
        self.authority.vhost_closed.subscribe(self._vhost_closed)

    @property
    def peering(self) -> Peering:
        return self.queues.peering

    def spawn(
        self, work: Coroutine[Any, Any, None], connection: Connection | None = None
    ) -> asyncio.Task[None] | None:
        """Start a task of a session. Returns None without starting it if the node is stopping.

        If it fails unexpectedly, the waiting connection is closed.
        """
        return self._supervisor.spawn(work, None if connection is None else connection.fail_internally)

    @property
    def tasks_under_way(self) -> int:
        """Number of running tasks started by `spawn`."""
        return self._supervisor.under_way

    def stop(self) -> None:
        """Cancel running tasks."""
        self._supervisor.cancel()

    def is_member(self, queue_id: int) -> bool:
        """Whether a local or remote queue is a member of a clustered queue."""
        state = self.broker.engine.find_queue_by_id(queue_id)
        if state is not None:
            return state.queue.member
        remote = self.directory.get(queue_id)
        return remote is not None and remote.queue.member

    def _each(self, act: Callable[[Connection], None]) -> None:
        """Call `act` with every connection; if it fails for one, close that one, without effect on the others."""
        for connection in list(self.connections):
            try:
                act(connection)
            except Exception as error:
                connection.crash(error)

    async def drain(self) -> None:
        """Stop reading requests, and wait for the responses to those in progress."""
        self.is_stopping = True
        self._each(lambda connection: connection.stop_reading())
        self.check_idle()
        await self._idle.wait()

    def abandon(self) -> None:
        """Abort all connections of a fenced node: other nodes serve its queues."""
        for connection in list(self.connections):
            connection.abort()

    def logged_in(self, connection: Connection) -> None:
        """Count an authenticated peer."""
        self.entrance.logged_in(connection, is_open=connection in self.connections)

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.broker.ledger.holders.discard(connection)
        self.entrance.forget(connection)
        self.broker.ledger.forget(connection)
        self.peering.forget(connection)
        self.stalled.discard(connection)
        if self.is_stopping:
            self.check_idle()

    def _user_deleted(self, name: str) -> None:
        # Pause all first: otherwise messages requeued by one connection would be delivered to the next.
        self._each(lambda connection: connection.pause_for_end(name))
        self._each(lambda connection: connection.user_deleted(name))

    def _vhost_closed(self, vhost: str) -> None:
        self._each(lambda connection: connection.vhost_closed(vhost))

    def tick(self, now_s: float) -> None:
        """Check the limits of each connection; called about once a second."""
        self._each(lambda connection: connection.tick(now_s))

    def check_idle(self) -> None:
        if not any(connection.is_busy for connection in self.connections):
            self._idle.set()


class Connection(asyncio.Protocol, abc.ABC):
    """A connection to a peer. The session of a protocol derives from it and interprets the bytes."""

    PROTOCOL: ClassVar[Protocol]

    # Whether the session replies to a peer with another protocol; otherwise the peer is disconnected.
    ANSWERS_OTHERS: ClassVar[bool] = False

    # Whether peers must authenticate.
    LOGS_IN: ClassVar[bool] = False

    # Whether this node opened the connection.
    IS_OUTGOING: ClassVar[bool] = False

    # Whether it stops reading while the commit queue is congested; otherwise it has a finer control.
    HEEDS_CONGESTION: ClassVar[bool] = True

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.faults = hub.faults
        self.broker = hub.broker
        self.meters = hub.broker.meters
        self.client_id = 0
        # Number of requests in progress.
        self.in_flight = 0
        # Sequence number of the connection on the node.
        self.number = 0
        # In seconds since 1970.
        self.connected_at_s = 0.0
        # The last charge by the memory ledger.
        self.charged_bytes = 0
        # Whether it counts as a client.
        self.is_client = False
        # Whether its consumers are paused because it has too many unacked messages.
        self.is_held_back = False
        # The TLS handshake, before the connection is made.
        self.securing: asyncio.Task[None] | None = None
        # Whether it continues in the next turn of the event loop.
        self.is_scheduled = False
        # Whether it must not continue before then, because its commands have used up their time.
        self.waits_for_turn = False
        self.read_bytes = 0
        # Value of `read_bytes` at which its memory is checked next.
        self._charged_next = 0
        self.written_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._answered: list[Span] = []
        self.is_held = False
        self._is_reading = True
        self._is_write_paused = False
        self._is_at_eof = False
        self._has_crashed = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self._received_ns = 0
        # The first bytes received from the peer.
        self._opening = b""
        # The description of the peer in the log, set when it is served.
        self._logged_as = ""

    # Implemented by protocols

    @abc.abstractmethod
    def feed(self, data: bytes) -> None:
        """Buffer received bytes. Raises ProtocolError if they exceed a limit."""

    @abc.abstractmethod
    def pump(self, mark_ns: int) -> None:
        """Execute complete requests of the buffered bytes while there is room. `mark_ns` is the current time."""

    def tick(self, now_s: float) -> None:
        """Check limits; called about once a second."""

    def pause_for_end(self, user_name: str) -> None:
        """Stop deliveries if the peer is this user: the connection will be closed."""

    def user_deleted(self, name: str) -> None:
        """Close the connection if the peer is the deleted user."""

    def vhost_closed(self, vhost: str) -> None:
        """Close the connection if the peer uses the deleted virtual host."""

    def ended(self) -> None:
        """Release the resources of a closed connection."""

    def release_buffers(self) -> None:
        """Drop unprocessed input and all other large buffers.

        Sessions are part of reference cycles, and garbage collections are rare: otherwise input would stay in memory
        long after the connection was closed.
        """

    # Memory; see `core.memory`

    def input_bytes(self) -> int:
        """Size of the input that is not executed yet."""
        return 0

    def held_bytes(self) -> int:
        """Memory of the connection without messages."""
        return CONNECTION_BYTES + self.input_bytes() + self.unread_bytes

    def charge_if_changed(self) -> None:
        """Charge its memory if it has changed by `CHARGE_STEP_BYTES`. This may close a connection."""
        held_bytes = self.held_bytes()
        if not -CHARGE_STEP_BYTES < held_bytes - self.charged_bytes < CHARGE_STEP_BYTES:
            self._charge(held_bytes)

    def _charge(self, held_bytes: int) -> None:
        # Connections inside the node, and closed ones, are not charged.
        if self in self.hub.connections:
            self.broker.ledger.charge(self, held_bytes)

    @property
    def unacked_bytes(self) -> int:
        """Memory of its unacked messages that are not paged out."""
        return 0

    def page_out(self, wanted_bytes: int) -> int:
        """Page out bodies of its unacked messages; return the number of bytes freed."""
        return 0

    def hold_back(self) -> None:
        """Pause its consumers until `let_go_on`."""
        self.is_held_back = True

    def let_go_on(self) -> None:
        self.is_held_back = False

    def exhaust(self, reason: str) -> None:
        """Close the connection because of its memory, which is freed at once."""
        log.warning("closed %s connection of %s: %s", self.PROTOCOL.name.lower(), self.peer, reason)
        self._out.clear()
        self._out_bytes = 0
        self.release_buffers()
        self.abort()

    # Lifecycle

    @property
    def peer(self) -> str:
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"{name[0]}:{name[1]}" if name else "unknown peer"

    @property
    def name(self) -> str:
        """The addresses of both ends, in RabbitMQ's notation."""
        here = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return f"{self.peer} -> {here[0]}:{here[1]}" if here else self.peer

    @property
    def is_link(self) -> bool:
        """Whether the peer is another node."""
        return self.PROTOCOL is Protocol.LINK

    def extra(self, name: str) -> Any:
        """Return extra information of the transport, or None if unknown or closed."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    @property
    def peer_host(self) -> str:
        """The address of the peer without its port, empty if unknown."""
        name = self.extra("peername")
        return str(name[0]) if name else ""

    @property
    def peer_is_loopback(self) -> bool:
        """Whether the peer is on the node's own machine."""
        return is_loopback(self.peer_host)

    @property
    def is_gone(self) -> bool:
        """Whether the connection is closed or closing."""
        return self._transport is None or self._transport.is_closing()

    @property
    def is_busy(self) -> bool:
        """Whether requests are in progress or responses unwritten."""
        return self.in_flight > 0 or bool(self._out)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        if self.hub.is_stopping or not self.hub.entrance.admit(self):
            self._transport.abort()
            return
        self.hub.connections.add(self)
        self.hub.broker.ledger.holders.add(self)
        self.hub.last_number += 1
        self.number = self.hub.last_number
        self.connected_at_s = time.time()
        if not self.is_link:
            self.meters.connections_opened += 1
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        _keep_alive(self._transport.get_extra_info("socket"))
        if not self.LOGS_IN:
            self.note_opened()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._out.clear()
        self._out_bytes = 0
        self._answered.clear()
        self._transport = None
        if self._logged_as:
            log.info(
                "connection closed %s duration_s=%.1f read_bytes=%d written_bytes=%d%s",
                self._logged_as,
                time.time() - self.connected_at_s,
                self.read_bytes,
                self.written_bytes,
                "" if exc is None else f" error={exc}",
            )
        if self in self.hub.connections and not self.is_link:
            self.meters.connections_closed += 1
        self.hub.forget(self)
        try:
            self.ended()
        except Exception as error:
            self.faults.note(f"{self.PROTOCOL.name.lower()} connection", error, quiet=True)
        self.release_buffers()

    def note_opened(self, facts: str = "") -> None:
        """Log that the peer is served; if the protocol has a login, after it."""
        self._logged_as = f"protocol={self.PROTOCOL.name.lower()} peer={self.peer}{facts}"
        log.info("connection opened %s", self._logged_as)

    # Faults

    def crash(self, error: BaseException) -> None:
        """Log an unexpected error and close this connection; others are not affected."""
        self.faults.note(f"{self.PROTOCOL.name.lower()} connection", error, quiet=True)
        self.fail_internally(error)

    def fail_internally(self, error: BaseException) -> None:
        """Close the connection because of an internal error; its unacked messages are requeued."""
        if self._has_crashed:
            # Even the error message failed.
            self.abort()
            return
        self._has_crashed = True
        # The failed request has no response: do not wait for it.
        self.in_flight = 0
        self.is_held = False
        try:
            self.report_internal_error()
        except Exception as further:
            self.faults.note(f"{self.PROTOCOL.name.lower()} connection", further, quiet=True)
            self.abort()

    def report_internal_error(self) -> None:
        """Close the connection with the protocol's internal error, if it has one."""
        self.close("internal error")

    def close(self, reason: str) -> None:
        """Close the connection because of an error of the peer; pending responses are still sent."""
        if self._transport is not None and not self._transport.is_closing():
            log.warning("closed %s connection of %s: %s", self.PROTOCOL.name.lower(), self.peer, reason)
            self.flush()
            self._transport.close()
            self._limit_stall()

    def expel(self, reason: str) -> None:
        """Close the connection at an administrator's request."""
        self.close(reason)

    def disconnect(self) -> None:
        """Close the connection because the node is stopping."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Abort the connection without sending anything."""
        if self._transport is not None:
            self._transport.abort()
        elif self.securing is not None:
            self.securing.cancel()

    # Reading

    def data_received(self, data: bytes) -> None:
        self._received_ns = time.perf_counter_ns()
        if self.read_bytes < OPENING_BYTES and (other := self._other_protocol(data)) is not None:
            log.warning("dropped %s: %s on the %s port", self.peer, other, self.PROTOCOL.name.lower())
            self.abort()
            return
        self.read_bytes += len(data)
        self.meters.read_bytes += len(data)
        try:
            self.feed(data)
            self.pump(self._received_ns)
        except ProtocolError as error:
            self.close(str(error))
        except Exception as error:
            self.crash(error)
        if self.read_bytes >= self._charged_next:
            self._charged_next = self.read_bytes + CHARGE_READ_BYTES
            self.charge_if_changed()

    def _other_protocol(self, data: bytes) -> str | None:
        """Return the protocol of a client on the wrong port if its first bytes identify it, else None."""
        if self.ANSWERS_OTHERS:
            return None
        self._opening = (self._opening + data[:OPENING_BYTES])[:OPENING_BYTES]
        return spoken(self._opening)

    def eof_received(self) -> bool:
        """Respond to requests in progress, then close, since the peer has closed its side."""
        self._is_at_eof = True
        try:
            self.ended()
            self._close_if_done()
        except Exception as error:
            self.crash(error)
        # TLS has no half-closed connections.
        return self._transport is not None and self._transport.get_extra_info("sslcontext") is None

    def _close_if_done(self) -> None:
        is_done = not self.is_busy and self not in self.hub.stalled
        if is_done and self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._limit_stall()

    def hold(self) -> None:
        """Start no further request until `release`: later ones depend on the one in progress."""
        self.is_held = True

    def release(self) -> None:
        self.is_held = False
        self.hub.stalled.add(self)
        self.hub.mark_dirty(self)

    def take_turn(self) -> None:
        """Continue after other connections have had their turn of the event loop."""
        self.is_scheduled = self.waits_for_turn = False
        self.go_on()

    def go_on(self) -> None:
        """Execute waiting requests: limits may no longer be exceeded."""
        self.hub.stalled.discard(self)
        if not self.is_gone:
            try:
                self.pump(time.perf_counter_ns())
            except Exception as error:
                self.crash(error)
            # Waiting requests may have large responses.
            self.charge_if_changed()

    def _must_wait(self) -> bool:
        return (
            self.is_held
            or self._is_write_paused
            or self._out_bytes > WRITE_BUFFER_BYTES
            or self.hub.is_stopping
            or self.broker.is_congested
        )

    def stop_reading(self) -> None:
        if self._is_reading:
            self._turn_reading(False)

    def _set_reading(self, reading: bool) -> None:
        """Resume reading, or pause it until the next flush at the earliest."""
        if not reading:
            self.hub.stalled.add(self)
        if reading != self._is_reading:
            self._turn_reading(reading)

    def _has_read_all(self) -> None:
        """Resume reading after all complete requests were executed."""
        self._set_reading(True)
        if self._is_at_eof:
            self._close_if_done()

    def _turn_reading(self, reading: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._is_reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    @property
    def peer_has_gone(self) -> bool:
        """Whether the peer has closed its side, which asyncio does not report while reading is paused. Linux only."""
        if self._transport is None or not hasattr(socket, "TCP_INFO"):
            return False
        try:
            found = self._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        except OSError:
            return True
        return found[0] in (_TCP_CLOSE, _TCP_CLOSE_WAIT)

    # Writing

    @property
    def unread_bytes(self) -> int:
        """Size of the unsent output."""
        unwritten = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._out_bytes + unwritten

    def send(self, data: bytes) -> None:
        """Send bytes with the next write."""
        if self._transport is None:
            return
        if not self._out:
            self.hub.mark_dirty(self)
        self._out.append(data)
        self._out_bytes += len(data)

    def flush(self) -> None:
        out = self._out
        if not out or not self.hub.holds_lease:
            return
        out_bytes = self._out_bytes
        self._out = []
        self._out_bytes = 0
        if self._transport is None or self._transport.is_closing():
            return
        self.written_bytes += out_bytes
        self.meters.written_bytes += out_bytes
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self._answered:
            answered, self._answered = self._answered, []
            recorder = self.hub.recorder
            if recorder is not None:
                emitted_ns = time.perf_counter_ns()
                for span in answered:
                    recorder.record(span, emitted_ns)
        if self._is_at_eof:
            self._close_if_done()

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._limit_stall()
        self._set_reading(False)

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if self._stall_timer is not None and self._transport is not None and not self._transport.is_closing():
            self._stall_timer.cancel()
            self._stall_timer = None
        self.go_on()

    def _limit_stall(self) -> None:
        if self._stall_timer is None:
            self._stall_timer = asyncio.get_running_loop().call_later(WRITE_STALL_S, self._give_up)

    def _give_up(self) -> None:
        if self._transport is not None:
            log.warning("dropped %s: it did not read for %.0f s", self.peer, WRITE_STALL_S)
            self._transport.abort()


def _end_connection_of(error: BaseException) -> None:
    """Close the connection in which a fault occurred, if one can be found.

    Callbacks of the journal or of timers are methods or closures of their session: the innermost session in the
    traceback is the failed one, and its peer would wait forever. Links to other nodes are shared by many clients and
    stay open.
    """
    found: Connection | None = None
    trace = error.__traceback__
    while trace is not None:
        for name in ("self", "session", "connection"):
            local = trace.tb_frame.f_locals.get(name)
            if isinstance(local, Connection) and not local.IS_OUTGOING:
                found = local
        trace = trace.tb_next
    if found is not None:
        found.fail_internally(error)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is a loopback one."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _keep_alive(peer_socket: socket.socket | None) -> None:
    if peer_socket is None or peer_socket.family not in (socket.AF_INET, socket.AF_INET6):
        return
    peer_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            peer_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
