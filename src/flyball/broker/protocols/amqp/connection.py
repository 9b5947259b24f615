"""An AMQP connection as its channels and its handshake know it: its user, limits and state, and how it sends.

Which commands come, and what they mean, is the business of `session`.
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
from flyball.broker.protocols.amqp.context import AmqpContext
from flyball.broker.protocols.amqp.remembered import Remembered, Route
from flyball.broker.protocols.amqp.replies import refusal
from flyball.broker.transport.connection import WRITE_BUFFER_BYTES, Connection, Hub
from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import AmqpError, Decoder, Essentials, ReplyCode
from flyball.errors import NotPermitted
from flyball.model import Message, User, size_of
from flyball.trace.schema import Kind, Protocol
from flyball.trace.span import Span

log = logging.getLogger("flyball.server")

# A peer that is not through with the handshake by then is disconnected.
HANDSHAKE_S = 10.0

# A peer that fails before it is let in hears nothing for so long: guessing passwords shall be slow.
SILENT_CLOSE_S = 3.0

# The user of a peer that has not logged in.
NOBODY = User("")


class State(enum.Enum):
    """How far a connection has come."""

    HEADER = "header"
    STARTING = "starting"
    TUNING = "tuning"
    OPENING = "opening"
    RUNNING = "running"
    # We have told the peer to close and wait for its answer.
    CLOSING = "closing"
    # It will be closed without a word.
    FAILED = "failed"


class AmqpConnection(Connection):
    """A peer that speaks AMQP 0-9-1, without its channels."""

    PROTOCOL = Protocol.AMQP
    LOGS_IN = True
    HEEDS_CONGESTION = False
    # The answer to what is not AMQP is the header of AMQP, as the specification says, and the end.
    ANSWERS_HTTP = True

    def __init__(self, hub: Hub, context: AmqpContext) -> None:
        super().__init__(hub)
        self.context = context
        self.state = State.HEADER
        self.user = NOBODY
        self.vhost = ""
        self.frame_max = context.settings.frame_max_bytes
        self.channel_max = context.settings.channel_max
        self.heartbeat_s = 0.0
        # What the peer says that it can do.
        self.capabilities: Mapping[str, Any] = {}
        # What it says that it is.
        self.client_properties: Mapping[str, Any] = {}
        self._properties_bytes = 0
        # How it has logged in.
        self.mechanism = ""
        # The check of its password, if one was begun.
        self.login: asyncio.Task[None] | None = None
        # How many bytes had been read then.
        self.login_began_at = 0
        # Whether it counts as a connection of its user and virtual host.
        self._is_counted = False
        # Where messages go, by their origin.
        self.routes: Remembered[Route] = Remembered()
        # What properties say, by their bytes.
        self.essentials: Remembered[Essentials] = Remembered()
        # By virtual host and name of clustered queues, the members that this connection has been sent to.
        self.homes: dict[tuple[str, str], int] = {}
        # How many sessions of clustered queues its channels serve.
        self.placed_sessions = 0
        # Whether the peer has so much to read that its consumers get nothing.
        self.are_deliveries_paused = False
        # Whether the peer has been told that it cannot publish at present.
        self.is_blocked = False
        # So many bytes the peer may publish before the flow is asked again; below 0 it has published too much.
        self.credit = 0
        # When the turn is over in which commands are carried out.
        self._turn_ends_ns = 0
        # What the channels' transactions hold that are not committed.
        self.transaction_bytes = 0
        # What was published for other nodes and had to wait, until they have answered.
        self.forwarding_bytes = 0
        # What the channels take with their consumers and unconfirmed numbers, as of about a second ago.
        self.channels_bytes = 0
        # Whether an answer is due, and things wait for it to go first.
        self.is_answering = False
        self._after_answer: list[bytes] = []
        self._decoder = Decoder(amqp.HANDSHAKE_FRAME_MAX, context.settings.max_message_bytes)
        self._decoder.is_connection_only = True
        self._timer: asyncio.TimerHandle | None = None
        self._has_sent = False
        self._has_received = False
        self._missed = 0

    # What the session fills in

    @property
    @abc.abstractmethod
    def requests(self) -> int:
        """How many messages its channels have published and were delivered."""

    @abc.abstractmethod
    def fail(self, number: int, error: AmqpError) -> None:
        """End the channel or the connection, whichever the error says."""

    @abc.abstractmethod
    def pause_deliveries(self) -> None:
        """Send its consumers nothing more until the peer has read."""

    # The handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self in self.hub.connections:
            self.hang_up_later()

    @property
    def is_logging_in(self) -> bool:
        """Whether the peer waits for its password to be checked."""
        return self.login is not None and not self.login.done()

    @property
    def certificate_name(self) -> str | None:
        """The common name of the peer's certificate, if it has shown one that we trust."""
        for part in (self.extra("peercert") or {}).get("subject", ()):
            for name, value in part:
                if name == "commonName":
                    return str(value)
        return None

    def introduced(self, client_properties: Mapping[str, Any]) -> None:
        """The peer has said what it is and can do, and is charged for it: it need not log in."""
        self.client_properties = client_properties
        self._properties_bytes = size_of(client_properties)
        capabilities = client_properties.get("capabilities")
        if isinstance(capabilities, dict):
            self.capabilities = capabilities
        # It is looked at what it holds when this read is carried out.
        self._charged_next = 0

    def tuned(self, channel_max: int, frame_max: int, heartbeat_s: int) -> None:
        """These limits have been agreed on."""
        self.channel_max = channel_max
        self.frame_max = self._decoder.frame_max = frame_max
        self.heartbeat_s = float(heartbeat_s)

    def opened(self, vhost: str) -> None:
        """The peer has been let in."""
        self.vhost = vhost
        self.state = State.RUNNING
        self.hub.logged_in(self)
        self.hub.occupancy.enter(vhost, self.user.name)
        self._is_counted = True
        self._decoder.is_connection_only = False
        self.send(amqp.ConnectionOpenOk(0).encode())
        self.set_timer(self._beat if self.heartbeat_s else None, self.heartbeat_s / 2)

    def close_silently(self) -> None:
        """End the connection after a while and without a word."""
        self.state = State.FAILED
        self.hang_up_later(is_silent=True)

    # Life

    def ended(self) -> None:
        self.set_timer(None, 0)
        if self._is_counted:
            self._is_counted = False
            self.hub.occupancy.leave(self.vhost, self.user.name)
        if self.login is not None:
            # The password of a peer that has gone is not checked: others wait for theirs.
            self.login.cancel()
        self.context.flow.forget(self)

    def hang_up(self) -> None:
        """End the connection when what is to be sent is sent."""
        if self._transport is not None:
            self.flush()
            self._transport.close()
            self._limit_stall()

    def hang_up_later(self, *, is_silent: bool = False) -> None:
        """End the connection if the peer has not done so by then, or has not gone on with the handshake."""
        self.set_timer(self.hang_up, SILENT_CLOSE_S if is_silent else HANDSHAKE_S)

    def set_timer(self, action: Callable[[], None] | None, delay_s: float) -> None:
        """Do something later, in place of what was to be done later before; nothing for None."""
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
        """Twice in an interval: show that we are here, and see that the peer is. It may be silent for two."""
        if not (self._has_sent or self._out):
            # Written at once and not counted: as traffic it would suppress the next one.
            self.send(amqp.HEARTBEAT)
            self.flush()
        self._has_sent = False
        # While we do not read we cannot hear.
        self._missed = 0 if self._has_received or not self._is_reading else self._missed + 1
        self._has_received = False
        if self._missed >= 4:
            log.warning("dropped %s: no heartbeat for %.0f s", self.peer, 2 * self.heartbeat_s)
            self.abort()
            return
        self.set_timer(self._beat, self.heartbeat_s / 2)

    # For channels

    def understands(self, capability: str) -> bool:
        """Whether the peer has told that it can do that."""
        return self.capabilities.get(capability) is True

    def check(self, action: Action, name: str, what: str) -> None:
        """Raise NotPermitted unless the user may do that to the queue or exchange of that name."""
        if not self.hub.authority.access.may(self.user.name, self.vhost, action, name):
            raise NotPermitted(f"access to {what} in vhost '{self.vhost}' refused for user '{self.user.name}'")

    def check_held_back(self) -> None:
        """Raise AmqpError for a get while the connection holds too many unacked messages."""
        if self.is_held_back:
            raise refusal(
                ReplyCode.PRECONDITION_FAILED,
                f"the connection holds {self.unacked_bytes} bytes of unacked messages: acknowledge some first",
            )

    def set_home(self, vhost: str, name: str, queue_id: int | None) -> None:
        """Let the name of a clustered queue mean one of its members, by its id; None lets the node choose."""
        if queue_id is None:
            self.homes.pop((vhost, name), None)
        else:
            self.homes[vhost, name] = queue_id
        self.routes.clear()

    def end_turn(self) -> None:
        """Let others have their turn before the next message is taken."""
        self.credit = min(self.credit, 0)

    def end_turn_if_over(self) -> None:
        """The same if this turn has taken long enough: a message was routed by many bindings, perhaps."""
        if time.perf_counter_ns() > self._turn_ends_ns:
            self.end_turn()

    # Sending

    def send_delivery(self, data: bytes) -> None:
        """Send a message; if much is to be sent already, no more are taken out of queues for now."""
        self.send(data)
        if self._out_bytes > WRITE_BUFFER_BYTES and not self.are_deliveries_paused:
            self.pause_deliveries()

    def note_delivery(self, message: Message) -> None:
        """Trace a message that goes to a consumer, as a request of its own."""
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
        """Send bytes; if an answer is due on which they are a consequence, after that."""
        if self.is_answering:
            self._after_answer.append(data)
        else:
            self.send(data)

    def answered(self) -> None:
        """The answer that was due is on its way."""
        self.is_answering = False
        if self._after_answer:
            later, self._after_answer = self._after_answer, []
            for data in later:
                self.send(data)

    def block(self, reason: str) -> None:
        """Tell the peer, if it understands, that it cannot publish at present."""
        if not self.is_blocked and self.state is State.RUNNING:
            self.is_blocked = True
            if self.understands("connection.blocked"):
                self.send(amqp.ConnectionBlocked(0, reason).encode())

    def unblock(self) -> None:
        if self.is_blocked:
            self.is_blocked = False
            if self.understands("connection.blocked"):
                self.send(amqp.ConnectionUnblocked(0).encode())
