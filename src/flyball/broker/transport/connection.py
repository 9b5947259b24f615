"""What all protocols' connections have in common: reading in measure, answering once a turn, and limits.

A connection reads only while it has room: for requests under way, for answers that the peer has not read, and for
changes that the store has not committed. What does not fit waits in the kernel's buffers, and so with the peer.
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
from flyball.broker.core.loops import Loops
from flyball.broker.core.memory import CHARGE_READ_BYTES, CHARGE_STEP_BYTES, CONNECTION_BYTES
from flyball.broker.core.occupancy import Occupancy
from flyball.broker.core.peering import Peering
from flyball.broker.core.placement import HerePlacement, Placement
from flyball.broker.core.supervisor import Supervisor
from flyball.broker.core.topics import Topics
from flyball.broker.transport.flushing import Flushing
from flyball.broker.transport.handshakes import Entrance
from flyball.errors import ProtocolError
from flyball.trace.recorder import Recorder
from flyball.trace.schema import Protocol
from flyball.trace.span import Span

log = logging.getLogger("flyball.server")

# A peer that leaves more than this unread gets no further answers computed.
WRITE_BUFFER_BYTES = 256 * 1024

# So long a peer's commands may take in a turn of the loop, before others have theirs. Most take microseconds, but
# some the longer the more consumers or deliveries a channel has, bindings an exchange, or queues a message.
TURN_NS = 5_000_000

# States of a TCP connection, as Linux numbers them.
_TCP_CLOSE, _TCP_CLOSE_WAIT = 7, 8

# Bytes that tell another protocol from the one that is served.
OPENING_BYTES = 8

# What a browser begins with. A page can make it send to any port of the user's machine, with a body of its choice:
# nothing that follows may be taken for requests.
HTTP_OPENINGS = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"TRACE ")

# A peer that reads nothing for so long is disconnected.
WRITE_STALL_S = 30.0

# A peer that has silently gone is noticed after two minutes.
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 120_000}


@dataclass(frozen=True, slots=True)
class Services:
    """What the connections of a node are served with, and how many may come."""

    broker: Broker
    authority: Authority
    topics: Topics
    recorder: Recorder | None = None
    max_connections: int = 1000
    max_unauthenticated: int = 4000
    # Called before answers go out: they may have to wait for what they have cost.
    before_flush: Callable[[], None] | None = None


class Hub(Flushing["Connection"]):
    """What the connections of a node share: services, the control loops, who is there and who has answers to send."""

    def __init__(self, services: Services, tasks: asyncio.TaskGroup) -> None:
        broker = services.broker
        super().__init__(broker, services.before_flush)
        self.authority = services.authority
        self.topics = services.topics
        self.queues = services.topics.queues
        # The queues that other nodes serve.
        self.directory = self.queues.topology.directory
        self.recorder = services.recorder
        # Who knows where the clients of clustered queues should go.
        self.placement: Placement = HerePlacement(broker.engine)
        self.connections: set[Connection] = set()
        self.entrance: Entrance[Connection] = Entrance(services.max_connections, services.max_unauthenticated)
        self.occupancy = Occupancy(services.authority)
        # The number of the last connection that came.
        self.last_number = 0
        # What further parts of the node tell of themselves, by the name that it has in the node's status.
        self.reports: dict[str, Callable[[], Any]] = {}
        # What further parts of the node can be told to do by its administrators, by name; see `management`.
        self.commands: dict[str, Callable[..., Awaitable[Any]]] = {}
        # The control loops that the node knows.
        self.loops = Loops()
        self.faults = broker.faults
        self._supervisor = Supervisor(tasks, broker.faults)
        self._idle: asyncio.Event = asyncio.Event()
        broker.faults.noted.subscribe(_end_connection_of)
        self.authority.user_deleted.subscribe(self._user_deleted)
        self.authority.vhost_closed.subscribe(self._vhost_closed)

    @property
    def peering(self) -> Peering:
        """The other nodes."""
        return self.queues.peering

    def spawn(
        self, work: Coroutine[Any, Any, None], connection: Connection | None = None
    ) -> asyncio.Task[None] | None:
        """Start what a session cannot do at once. It ends with the node at the latest: then None is returned.

        If it fails unexpectedly, the connection that waits for it ends.
        """
        return self._supervisor.spawn(work, None if connection is None else connection.fail_internally)

    @property
    def tasks_under_way(self) -> int:
        """How many tasks that `spawn` has started have not ended."""
        return self._supervisor.under_way

    def stop(self) -> None:
        """End what is still under way."""
        self._supervisor.cancel()

    def is_member(self, queue_id: int) -> bool:
        """Tell whether a queue, of this node or another, is a member of a clustered queue."""
        state = self.broker.engine.find_queue_by_id(queue_id)
        if state is not None:
            return state.queue.member
        remote = self.directory.get(queue_id)
        return remote is not None and remote.queue.member

    def _each(self, act: Callable[[Connection], None]) -> None:
        """Let every connection do something; one that fails ends, and no other one."""
        for connection in list(self.connections):
            try:
                act(connection)
            except Exception as error:
                connection.crash(error)

    async def drain(self) -> None:
        """Read no new requests, and wait until those under way are answered."""
        self.is_stopping = True
        self._each(lambda connection: connection.stop_reading())
        self.check_idle()
        await self._idle.wait()

    def abandon(self) -> None:
        """Drop all connections, whatever they wait for: others serve what this node served."""
        for connection in list(self.connections):
            connection.abort()

    def logged_in(self, connection: Connection) -> None:
        """The peer has shown who it is."""
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
        self._each(lambda connection: connection.user_deleted(name))

    def _vhost_closed(self, vhost: str) -> None:
        self._each(lambda connection: connection.vhost_closed(vhost))

    def tick(self, now_s: float) -> None:
        """Let each connection look at its limits; called about once a second."""
        self._each(lambda connection: connection.tick(now_s))

    def check_idle(self) -> None:
        if not any(connection.is_busy for connection in self.connections):
            self._idle.set()


class Connection(asyncio.Protocol, abc.ABC):
    """One peer. A protocol's session derives from it and says what to do with the bytes."""

    PROTOCOL: ClassVar[Protocol]

    # Whether a peer that speaks HTTP is told that it is wrong here; else it is cut off without a word.
    ANSWERS_HTTP: ClassVar[bool] = False

    # Whether peers have to log in, soon after they have connected.
    LOGS_IN: ClassVar[bool] = False

    # Whether this node has opened it.
    IS_OUTGOING: ClassVar[bool] = False

    # Whether it waits while too much waits for the store; else it has a finer measure.
    HEEDS_CONGESTION: ClassVar[bool] = True

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.faults = hub.faults
        self.broker = hub.broker
        self.meters = hub.broker.meters
        self.client_id = 0
        # How many requests are under way.
        self.in_flight = 0
        # Counts the connections of the node, in the order in which they came.
        self.number = 0
        # When, in seconds since 1970.
        self.connected_at_s = 0.0
        # What the ledger has charged it.
        self.charged_bytes = 0
        # Whether it counts among the node's clients.
        self.is_client = False
        # Whether its consumers get nothing, since it holds too many unacked messages.
        self.is_held_back = False
        # Agrees on TLS with the peer, before the connection is made.
        self.securing: asyncio.Task[None] | None = None
        # Whether it goes on in the next turn of the loop.
        self.is_scheduled = False
        # Whether it must not go on before that: its commands have taken long enough.
        self.waits_for_turn = False
        self.read_bytes = 0
        # When so many bytes have been read it is looked at what the connection holds.
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
        # The first bytes of the peer.
        self._opening = b""

    # What a protocol fills in

    @abc.abstractmethod
    def feed(self, data: bytes) -> None:
        """Take in bytes. Raises ProtocolError if they exceed a limit."""

    @abc.abstractmethod
    def pump(self, mark_ns: int) -> None:
        """Carry out what is complete of the bytes fed, as far as there is room. It is `mark_ns` now."""

    def tick(self, now_s: float) -> None:
        """Called about once a second."""

    def user_deleted(self, name: str) -> None:
        """A user is gone: if it is the peer's, the connection has to end."""

    def vhost_closed(self, vhost: str) -> None:
        """A virtual host is gone: if the peer is in it, the connection has to end."""

    def ended(self) -> None:
        """The connection is gone: let go of what it held."""

    def release_buffers(self) -> None:
        """Let go of the bytes that came and were not read, and of all that may be large.

        Sessions are parts of reference cycles, and garbage collections are rare: without this what a peer has sent
        would stay for long after it is gone.
        """

    # Memory; see `core.memory`

    def input_bytes(self) -> int:
        """What of the bytes that came is not carried out yet."""
        return 0

    def held_bytes(self) -> int:
        """What the connection makes the node hold, beside messages."""
        return CONNECTION_BYTES + self.input_bytes() + self.unread_bytes

    def charge_if_changed(self) -> None:
        """Charge what it holds, if that has changed by much. It may be closed if that is too much."""
        held_bytes = self.held_bytes()
        if not -CHARGE_STEP_BYTES < held_bytes - self.charged_bytes < CHARGE_STEP_BYTES:
            self._charge(held_bytes)

    def _charge(self, held_bytes: int) -> None:
        # A connection inside the node, or one that is gone, is nobody's.
        if self in self.hub.connections:
            self.broker.ledger.charge(self, held_bytes)

    @property
    def unacked_bytes(self) -> int:
        """What the messages take that it has not acked, as far as they are in memory."""
        return 0

    def page_out(self, wanted_bytes: int) -> int:
        """Leave bodies of unacked messages to the store; return how much that freed."""
        return 0

    def hold_back(self) -> None:
        """Send its consumers nothing more until `let_go_on`."""
        self.is_held_back = True

    def let_go_on(self) -> None:
        self.is_held_back = False

    def exhaust(self, reason: str) -> None:
        """End the connection since it holds too much, and let go of that at once."""
        log.warning("closed %s connection of %s: %s", self.PROTOCOL.name.lower(), self.peer, reason)
        self._out.clear()
        self._out_bytes = 0
        self.release_buffers()
        self.abort()

    # Life

    @property
    def peer(self) -> str:
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"{name[0]}:{name[1]}" if name else "unknown peer"

    @property
    def name(self) -> str:
        """Both ends of it, as RabbitMQ writes them."""
        here = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return f"{self.peer} -> {here[0]}:{here[1]}" if here else self.peer

    @property
    def is_link(self) -> bool:
        """Whether the peer is another node."""
        return self.PROTOCOL is Protocol.LINK

    def extra(self, name: str) -> Any:
        """Return what the transport knows under a name, None if nothing or if it is gone."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    @property
    def peer_host(self) -> str:
        """The address of the peer without its port, empty if that cannot be told."""
        name = self.extra("peername")
        return str(name[0]) if name else ""

    @property
    def peer_is_loopback(self) -> bool:
        """Whether the peer is on the node's own machine."""
        return is_loopback(self.peer_host)

    @property
    def is_gone(self) -> bool:
        """Whether the peer hears nothing more."""
        return self._transport is None or self._transport.is_closing()

    @property
    def is_busy(self) -> bool:
        """Whether requests are under way or answers not written."""
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

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._out.clear()
        self._out_bytes = 0
        self._answered.clear()
        self._transport = None
        if self in self.hub.connections and not self.is_link:
            self.meters.connections_closed += 1
        self.hub.forget(self)
        try:
            self.ended()
        except Exception as error:
            self.faults.note(f"{self.PROTOCOL.name.lower()} connection", error, quiet=True)
        self.release_buffers()

    # Faults

    def crash(self, error: BaseException) -> None:
        """Serving the peer has failed unexpectedly: log it, end this connection and nothing else."""
        self.faults.note(f"{self.PROTOCOL.name.lower()} connection", error, quiet=True)
        self.fail_internally(error)

    def fail_internally(self, error: BaseException) -> None:
        """End the connection because of a defect of the node; what it held goes back."""
        if self._has_crashed:
            # Not even the farewell works.
            self.abort()
            return
        self._has_crashed = True
        # The request that has failed will not be answered: nobody is to wait for it.
        self.in_flight = 0
        self.is_held = False
        try:
            self.tell_internal_error()
        except Exception as further:
            self.faults.note(f"{self.PROTOCOL.name.lower()} connection", further, quiet=True)
            self.abort()

    def tell_internal_error(self) -> None:
        """End the connection with a word about a defect of the node, where the protocol has one."""
        self.close("internal error")

    def close(self, reason: str) -> None:
        """End the connection because of what the peer did; answers that are ready still go out."""
        if self._transport is not None and not self._transport.is_closing():
            log.warning("closed %s connection of %s: %s", self.PROTOCOL.name.lower(), self.peer, reason)
            self.flush()
            self._transport.close()
            self._limit_stall()

    def expel(self, reason: str) -> None:
        """End the connection because somebody who may wants it so."""
        self.close(reason)

    def disconnect(self) -> None:
        """End the connection because the node stops."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once, without another word."""
        if self._transport is not None:
            self._transport.abort()
        elif self.securing is not None:
            self.securing.cancel()

    # Reading

    def data_received(self, data: bytes) -> None:
        self._received_ns = time.perf_counter_ns()
        if self.read_bytes < OPENING_BYTES and self._is_http(data):
            log.warning("dropped %s: it speaks HTTP on the %s port", self.peer, self.PROTOCOL.name.lower())
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

    def _is_http(self, data: bytes) -> bool:
        if self.ANSWERS_HTTP:
            return False
        self._opening = (self._opening + data[:OPENING_BYTES])[:OPENING_BYTES]
        return self._opening.startswith(HTTP_OPENINGS)

    def eof_received(self) -> bool:
        """The peer will send nothing more: answer what is under way, then close."""
        self._is_at_eof = True
        try:
            self.ended()
            self._close_if_done()
        except Exception as error:
            self.crash(error)
        # TLS knows no connection that is closed on one side only.
        return self._transport is not None and self._transport.get_extra_info("sslcontext") is None

    def _close_if_done(self) -> None:
        is_done = not self.is_busy and self not in self.hub.stalled
        if is_done and self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._limit_stall()

    def hold(self) -> None:
        """Start no further request until `release`: what follows depends on the one under way."""
        self.is_held = True

    def release(self) -> None:
        self.is_held = False
        self.hub.stalled.add(self)
        self.hub.mark_dirty(self)

    def take_turn(self) -> None:
        """Go on: others have had their turn of the loop."""
        self.is_scheduled = self.waits_for_turn = False
        self.go_on()

    def go_on(self) -> None:
        """There may be room again: carry out what waited."""
        self.hub.stalled.discard(self)
        if not self.is_gone:
            try:
                self.pump(time.perf_counter_ns())
            except Exception as error:
                self.crash(error)
            # What waited may have large answers.
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
        """Read on, or wait until the next flush at the earliest."""
        if not reading:
            self.hub.stalled.add(self)
        if reading != self._is_reading:
            self._turn_reading(reading)

    def _has_read_all(self) -> None:
        """All that has come whole is carried out: read on."""
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
        """Whether the peer has closed its side, or all: whoever does not read is not told. Only Linux knows."""
        if self._transport is None or not hasattr(socket, "TCP_INFO"):
            return False
        try:
            found = self._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        except OSError:
            return True
        return found[0] in (_TCP_CLOSE, _TCP_CLOSE_WAIT)

    # Answering

    @property
    def unread_bytes(self) -> int:
        """What is to be sent and the peer has not taken."""
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
            log.warning("dropped %s: it has read nothing for %.0f s", self.peer, WRITE_STALL_S)
            self._transport.abort()


def _end_connection_of(error: BaseException) -> None:
    """End the connection that a fault belongs to, if one can be found.

    An answer that the journal or a timer calls back is a method or a closure of its session: the innermost session in
    the traceback is the one that has failed, and whose peer would wait for ever. Many share a link to another node:
    it goes on.
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
    """Whether a name or address of a host is that of this machine for itself."""
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
