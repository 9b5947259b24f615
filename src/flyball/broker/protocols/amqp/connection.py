"""An AMQP connection without its channels: user, limits, state, flow control and output.

`session` decodes and dispatches methods.
"""

from __future__ import annotations

import abc
import asyncio
import enum
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from flyball.broker.engine.access import Action
from flyball.broker.protocols.amqp.caches import BytesCache, Route
from flyball.broker.protocols.amqp.context import AmqpContext
from flyball.broker.protocols.amqp.replies import refusal
from flyball.broker.transport.connection import WRITE_BUFFER_BYTES, Connection, Hub
from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import AmqpError, Decoder, Essentials, ReplyCode
from flyball.errors import NotPermitted
from flyball.model import Message, User, size_of
from flyball.trace.schema import Kind, Protocol
from flyball.trace.span import Span

log = logging.getLogger("flyball.server")

# Time limit of the handshake.
HANDSHAKE_S = 10.0

# Delay before a connection with a failed login is closed, which slows down password guessing.
SILENT_CLOSE_S = 3.0

# The user of a peer that has not logged in.
ANONYMOUS = User("")


class State(enum.Enum):
    """The state of a connection."""

    HEADER = "header"
    STARTING = "starting"
    TUNING = "tuning"
    OPENING = "opening"
    RUNNING = "running"
    # Close was sent; waiting for close-ok.
    CLOSING = "closing"
    # To be closed without a reply.
    FAILED = "failed"


class AmqpConnection(Connection):
    """A connection of an AMQP 0-9-1 client, without its channels."""

    PROTOCOL = Protocol.AMQP
    LOGS_IN = True
    HEEDS_CONGESTION = False
    # The reply to a wrong protocol header is the AMQP header and a close, as the specification requires.
    ANSWERS_OTHERS = True

    def __init__(self, hub: Hub, context: AmqpContext) -> None:
        super().__init__(hub)
        self.context = context
        self.state = State.HEADER
        self.user = ANONYMOUS
        self.vhost = ""
        self.frame_max = context.settings.frame_max_bytes
        self.channel_max = context.settings.channel_max
        self.heartbeat_s = 0.0
        # Capabilities from the client properties.
        self.capabilities: Mapping[str, Any] = {}
        # Client properties from start-ok.
        self.client_properties: Mapping[str, Any] = {}
        self._properties_bytes = 0
        # SASL mechanism of the login.
        self.mechanism = ""
        # The password check, if one was started.
        self.login: asyncio.Task[None] | None = None
        # Bytes read when the check started.
        self.login_began_at = 0
        # Whether it counts against the connection limits of its user and vhost.
        self._is_counted = False
        # Cache of routes, by exchange and routing key.
        self.routes: BytesCache[Route] = BytesCache()
        # Cache of parsed properties, by their bytes.
        self.essentials: BytesCache[Essentials] = BytesCache()
        # The member of each clustered queue that this connection uses, by vhost and name.
        self.homes: dict[tuple[str, str], int] = {}
        # Number of sessions of clustered queues served by its channels.
        self.placed_sessions = 0
        # Whether deliveries are paused because the peer does not read fast enough.
        self.are_deliveries_paused = False
        # Whether connection.blocked was sent.
        self.is_blocked = False
        # Bytes that the peer may publish before it needs new credit; negative after an overrun.
        self.credit = 0
        # End of the current turn of the event loop.
        self._turn_ends_ns = 0
        # Bytes in open transactions of the channels.
        self.transaction_bytes = 0
        # Bytes of publishes to other nodes that had to wait, until they are confirmed.
        self.forwarding_bytes = 0
        # Memory of the channels with their consumers and unconfirmed numbers, measured about once a second.
        self.channels_bytes = 0
        # Whether a pending reply must be sent first.
        self.is_answering = False
        self._after_answer: list[bytes] = []
        self._decoder = Decoder(amqp.HANDSHAKE_FRAME_MAX, context.settings.max_message_bytes)
        self._decoder.is_connection_only = True
        self._timer: asyncio.TimerHandle | None = None
        self._has_sent = False
        self._has_received = False
        self._missed = 0

    # Implemented by the session

    @property
    @abc.abstractmethod
    def requests(self) -> int:
        """Messages published and delivered on its channels."""

    @abc.abstractmethod
    def fail(self, number: int, error: AmqpError) -> None:
        """Close the channel or the connection, depending on the error."""

    @abc.abstractmethod
    def pause_deliveries(self) -> None:
        """Stop deliveries until the peer has read."""

    # The handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self in self.hub.connections:
            self.hang_up_later()

    @property
    def is_logging_in(self) -> bool:
        """Whether the peer's password is being checked."""
        return self.login is not None and not self.login.done()

    @property
    def certificate_name(self) -> str | None:
        """The common name of the peer's certificate, if it presented a trusted one."""
        for part in (self.extra("peercert") or {}).get("subject", ()):
            for name, value in part:
                if name == "commonName":
                    return str(value)
        return None

    def introduced(self, client_properties: Mapping[str, Any]) -> None:
        """Record the client properties; their memory is charged even before login."""
        self.client_properties = client_properties
        self._properties_bytes = size_of(client_properties)
        capabilities = client_properties.get("capabilities")
        if isinstance(capabilities, dict):
            self.capabilities = capabilities
        # Measure and charge at the end of this read.
        self._charged_next = 0

    def tuned(self, channel_max: int, frame_max: int, heartbeat_s: int) -> None:
        """Apply the negotiated limits."""
        self.channel_max = channel_max
        self.frame_max = self._decoder.frame_max = frame_max
        self.heartbeat_s = float(heartbeat_s)

    def opened(self, vhost: str) -> None:
        """Complete the handshake after the peer has opened a vhost."""
        self.vhost = vhost
        self.state = State.RUNNING
        self.hub.logged_in(self)
        self.hub.connection_limits.enter(vhost, self.user.name)
        self._is_counted = True
        self.note_opened(f" user={self.user.name!r} vhost={vhost!r}")
        self._decoder.is_connection_only = False
        self.send(amqp.ConnectionOpenOk(0).encode())
        self.set_timer(self._beat if self.heartbeat_s else None, self.heartbeat_s / 2)

    def close_silently(self) -> None:
        """Close the connection after a delay, without a reply."""
        self.state = State.FAILED
        self.hang_up_later(is_silent=True)

    # Life

    def ended(self) -> None:
        self.set_timer(None, 0)
        if self._is_counted:
            self._is_counted = False
            self.hub.connection_limits.leave(self.vhost, self.user.name)
        if self.login is not None:
            # Cancel the password check of a disconnected peer: other checks are waiting.
            self.login.cancel()
        self.context.flow.forget(self)

    def hang_up(self) -> None:
        """Close the connection when the output buffer is flushed."""
        if self._transport is not None:
            self.flush()
            self._transport.close()
            self._limit_stall()

    def hang_up_later(self, *, is_silent: bool = False) -> None:
        """Close the connection after a timeout, unless the peer closes it or continues the handshake before."""
        self.set_timer(self.hang_up, SILENT_CLOSE_S if is_silent else HANDSHAKE_S)

    def set_timer(self, action: Callable[[], None] | None, delay_s: float) -> None:
        """Replace the timer: call `action` after `delay_s`; None only cancels it."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if action is None else loop.call_later(delay_s, self._on_timer, action)

    def _on_timer(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self.crash(error)

    def _beat(self) -> None:
        """Send a heartbeat and check for received input, twice per heartbeat interval.

        The peer may be silent for two intervals.
        """
        if not (self._has_sent or self._out):
            # Written directly and not counted, since traffic would suppress the next heartbeat.
            self.send(amqp.HEARTBEAT)
            self.flush()
        self._has_sent = False
        # While reading is paused, heartbeats of the peer are not read.
        self._missed = 0 if self._has_received or not self._is_reading else self._missed + 1
        self._has_received = False
        if self._missed >= 4:
            log.warning("dropped %s: no heartbeat for %.0f s", self.peer, 2 * self.heartbeat_s)
            self.abort()
            return
        self.set_timer(self._beat, self.heartbeat_s / 2)

    # Used by channels

    def understands(self, capability: str) -> bool:
        """Whether the peer announced the capability."""
        return self.capabilities.get(capability) is True

    def check(self, action: Action, name: str, what: str) -> None:
        """Raise NotPermitted unless the user has the permission for the queue or exchange."""
        if not self.hub.authority.access.may(self.user.name, self.vhost, action, name):
            raise NotPermitted(f"access to {what} in vhost '{self.vhost}' refused for user '{self.user.name}'")

    def check_held_back(self) -> None:
        """Raise AmqpError for a basic.get while the connection holds too many unacked bytes."""
        if self.is_held_back:
            raise refusal(
                ReplyCode.PRECONDITION_FAILED,
                f"the connection holds {self.unacked_bytes} bytes of unacked messages: acknowledge some first",
            )

    def set_home(self, vhost: str, name: str, queue_id: int | None) -> None:
        """Bind the name of a clustered queue to one of its members for this connection; None unbinds it."""
        if queue_id is None:
            self.homes.pop((vhost, name), None)
        else:
            self.homes[vhost, name] = queue_id
        self.routes.clear()

    def end_turn(self) -> None:
        """Yield to other connections before the next message."""
        self.credit = min(self.credit, 0)

    def end_turn_if_over(self) -> None:
        """Yield if this turn has used up its time: a message may have been routed through many bindings."""
        if time.perf_counter_ns() > self._turn_ends_ns:
            self.end_turn()

    # Output

    def send_delivery(self, data: bytes) -> None:
        """Send a delivery; pause deliveries if the output buffer is full."""
        self.send(data)
        if self._out_bytes > WRITE_BUFFER_BYTES and not self.are_deliveries_paused:
            self.pause_deliveries()

    def note_delivery(self, message: Message) -> None:
        """Trace a delivery as a separate request."""
        recorder = self.hub.recorder
        if recorder is None or self._transport is None:
            return
        if recorder.skip:
            recorder.skip -= 1
            return
        now_ns = time.perf_counter_ns()
        weight = recorder.weigh(now_ns)
        if not weight:
            return
        delivery = Span()
        delivery.weight = weight
        delivery.kind = Kind.DELIVER
        delivery.protocol = self.PROTOCOL
        delivery.client_id = self.client_id
        delivery.queue_id = message.queue_id
        delivery.size_bytes = len(message.body)
        delivery.message_count = 1
        delivery.received_ns = delivery.started_ns = delivery.parsed_ns = delivery.answered_ns = now_ns
        self._answered.append(delivery)

    def send_after_answer(self, data: bytes) -> None:
        """Send bytes; if a reply is pending, after it."""
        if self.is_answering:
            self._after_answer.append(data)
        else:
            self.send(data)

    def answered(self) -> None:
        """Send the data that waited for the pending reply."""
        self.is_answering = False
        if self._after_answer:
            later, self._after_answer = self._after_answer, []
            for data in later:
                self.send(data)

    def block(self, reason: str) -> None:
        """Send connection.blocked, if the peer supports it."""
        if not self.is_blocked and self.state is State.RUNNING:
            self.is_blocked = True
            if self.understands("connection.blocked"):
                self.send(amqp.ConnectionBlocked(0, reason).encode())

    def unblock(self) -> None:
        if self.is_blocked:
            self.is_blocked = False
            if self.understands("connection.blocked"):
                self.send(amqp.ConnectionUnblocked(0).encode())
