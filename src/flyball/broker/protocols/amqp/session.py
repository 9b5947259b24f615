"""One AMQP connection: its channels, heartbeats and its end.

How it begins is in `handshake`; what a command on a channel does is the channel's business.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from flyball.broker.core.memory import CHANNEL_BYTES, UNCONFIRMED_BYTES
from flyball.broker.engine.access import Action
from flyball.broker.protocols.amqp.channel import HANDLERS, Channel
from flyball.broker.protocols.amqp.context import AmqpContext
from flyball.broker.protocols.amqp.handshake import IN_HANDSHAKE, NOBODY, State
from flyball.broker.protocols.amqp.publishing import Publisher, Route
from flyball.broker.protocols.amqp.replies import refusal, reply_of
from flyball.broker.protocols.amqp.tracing import TracedCommand
from flyball.broker.transport.connection import TURN_NS, WRITE_BUFFER_BYTES, Connection, Hub
from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import (
    CHANNEL_ERRORS,
    AmqpError,
    Command,
    Decoder,
    Essentials,
    Method,
    Publish,
    ReplyCode,
    reply_text,
)
from flyball.errors import FlyballError, NotPermitted
from flyball.model import size_of
from flyball.trace.recorder import Recorder
from flyball.trace.schema import Protocol

log = logging.getLogger("flyball.server")

HANDSHAKE_S = 10.0
"""A peer that is not through with the handshake by then is disconnected."""

SILENT_CLOSE_S = 3.0
"""A peer that fails before it is let in hears nothing for so long: guessing passwords shall be slow."""

CREDIT_BYTES = 64 * 1024
"""So much a peer may publish in a turn of the loop, before others have theirs and the flow is looked at."""

MESSAGE_COST_BYTES = 200
"""What a message counts beside its body."""

LONG_READ_BYTES = 128 * 1024
"""Who sends so much at a time is read once in a turn of the loop: libuv would read up to 32 times, and meanwhile
nobody else would be served."""

# What a peer may send while its password is checked: more than the two methods that can follow.
READ_IN_LOGIN_BYTES = 4096

MAX_UNREAD_BYTES = 16 * 1024 * 1024
"""A peer that leaves so much unread is not listened to either."""


class AmqpSession(Connection):
    """A peer that speaks AMQP 0-9-1."""

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
        self.routes: dict[bytes, Route] = {}
        """Where messages go, by their origin."""
        self.routes_bytes = 0
        self.essentials: dict[bytes, Essentials] = {}
        """What properties say, by their bytes."""
        self.essentials_bytes = 0
        self.homes: dict[tuple[str, str], int] = {}
        """By virtual host and name of clustered queues, the members that this connection has been sent to."""
        self.is_choked = False
        """Whether the peer has so much to read that its consumers get nothing."""
        self.is_blocked = False
        """Whether the peer has been told that it cannot publish at present."""
        self.credit = 0
        """So many bytes the peer may publish before the flow is asked again; below 0 it has published too much."""
        self._has_published = False
        """Whether it has used its turn of the loop for that."""
        self._turn_ends_ns = 0
        """When the turn is over in which commands are carried out."""
        self._parked: Publish | None = None
        """The message that waits for credit, and with it all that came after it."""
        self._channels: dict[int, Channel] = {}
        self._decoder = Decoder(amqp.HANDSHAKE_FRAME_MAX, context.settings.max_message_bytes)
        self._decoder.is_connection_only = True
        self._decoder.open_channels = self._channels
        self.capabilities: Mapping[str, Any] = {}
        """What the peer says that it can do."""
        self.client_properties: Mapping[str, Any] = {}
        """What it says that it is."""
        self._properties_bytes = 0
        self.mechanism = ""
        """How it has logged in."""
        self.login: asyncio.Task[None] | None = None
        """The check of its password, if one was begun."""
        self._is_counted = False
        """Whether it counts as a connection of its user and virtual host."""
        self.login_began_at = 0
        """How many bytes had been read then."""
        self.has_lost_replies = False
        """Whether direct replies to it were dropped, since it does not read."""
        self.transaction_bytes = 0
        """What the channels' transactions hold that are not committed."""
        self.forwarding_bytes = 0
        """What was published for other nodes and had to wait, until they have answered."""
        self.channels_bytes = 0
        """What the channels take with their consumers and unconfirmed numbers, as of about a second ago."""
        self._due: list[Publisher] = []
        self._timer: asyncio.TimerHandle | None = None
        self._heartbeat_s = 0.0
        self._has_sent = False
        self._has_heard = False
        self._missed = 0
        self.is_answering = False
        """Whether an answer is due, and things wait for it to go first."""
        self._after_answer: list[bytes] = []
        self._next_check_s = 0.0
        self._is_lost = False
        """Whether the bytes made no sense: what comes after them cannot be read."""

    # Life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self in self.hub.connections:
            self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.hang_up)

    @property
    def is_gone(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def is_busy(self) -> bool:
        return super().is_busy or any(channel.publisher.is_busy for channel in self._channels.values())

    @property
    def is_logging_in(self) -> bool:
        """Whether the peer waits for its password to be checked."""
        return self.login is not None and not self.login.done()

    @property
    def waits_for_credit(self) -> bool:
        """Whether the peer could not publish all that it has sent."""
        return self._parked is not None

    @property
    def heartbeat_s(self) -> float:
        return self._heartbeat_s

    @property
    def certificate_name(self) -> str | None:
        """The common name of the peer's certificate, if it has shown one that we trust."""
        certificate = self._transport.get_extra_info("peercert") if self._transport is not None else None
        for part in (certificate or {}).get("subject", ()):
            for name, value in part:
                if name == "commonName":
                    return str(value)
        return None

    def understands(self, capability: str) -> bool:
        """Whether the peer has told that it can do that."""
        return self.capabilities.get(capability) is True

    def check(self, action: Action, name: str, what: str) -> None:
        """Raise NotPermitted unless the user may do that to the queue or exchange of that name."""
        if not self.hub.authority.access.may(self.user.name, self.vhost, action, name):
            raise NotPermitted(f"access to {what} in vhost '{self.vhost}' refused for user '{self.user.name}'")

    def disconnect(self) -> None:
        """Tell the peer that the node stops."""
        if self.state is State.RUNNING and not self.is_gone:
            text = reply_text(ReplyCode.CONNECTION_FORCED, "broker forced connection closure with reason 'shutdown'")
            self.send(amqp.ConnectionClose(0, ReplyCode.CONNECTION_FORCED, text, 0, 0).encode())
            self.flush()
        super().disconnect()

    def expel(self, reason: str) -> None:
        self._fail_all(AmqpError(ReplyCode.CONNECTION_FORCED, reason))

    def user_deleted(self, name: str) -> None:
        if self.user.name == name:
            self._fail_all(AmqpError(ReplyCode.CONNECTION_FORCED, f"user '{name}' is deleted"))

    def vhost_closed(self, vhost: str) -> None:
        if self.vhost == vhost:
            self._fail_all(AmqpError(ReplyCode.CONNECTION_FORCED, f"vhost '{vhost}' is deleted"))

    def ended(self) -> None:
        self._set_timer(None, 0)
        if self._is_counted:
            self._is_counted = False
            self.hub.occupancy.leave(self.vhost, self.user.name)
        if self.login is not None:
            # The password of a peer that has gone is not checked: others wait for theirs.
            self.login.cancel()
        self.context.flow.forget(self)
        self._let_go()

    def _let_go(self) -> None:
        """Give back what the channels hold, and what was this connection's own."""
        self._decoder.is_discarding = True
        channels = list(self._channels.values())
        self._channels.clear()
        self.meters.channels_closed += len(channels)
        self.hub.occupancy.close_channels(self.user.name, len(channels))
        for channel in channels:
            channel.is_closing = True
            try:
                channel.end()
            except Exception as error:
                # The other channels hold messages, too.
                self.faults.note("end of a channel", error, quiet=True)
        if self.vhost:
            self.context.topology.delete_owned(self)

    def release_buffers(self) -> None:
        self._decoder.clear()
        self._parked = None
        self._after_answer.clear()
        self._due.clear()
        self.forget_routes()
        self.forget_essentials()
        self.client_properties = self.capabilities = {}
        self._properties_bytes = 0

    # Memory

    def input_bytes(self) -> int:
        parked = 0 if self._parked is None else len(self._parked.body)
        return self._decoder.buffered_bytes + self.transaction_bytes + self.forwarding_bytes + parked

    def held_bytes(self) -> int:
        caches_bytes = self.routes_bytes + self.essentials_bytes
        return super().held_bytes() + self._properties_bytes + caches_bytes + self.channels_bytes

    def _measure_channels(self) -> None:
        size = 0
        for channel in self._channels.values():
            size += CHANNEL_BYTES + sum([consumer.size_bytes for consumer in channel.deliveries.consumers.values()])
            size += UNCONFIRMED_BYTES * channel.publisher.unconfirmed
            if channel.settling is not None:
                size += UNCONFIRMED_BYTES * len(channel.settling)
        self.channels_bytes = size

    @property
    def unacked_bytes(self) -> int:
        return sum([channel.deliveries.unacked_bytes for channel in self._channels.values()])

    def page_out(self, wanted_bytes: int) -> int:
        freed = 0
        for channel in self._channels.values():
            if freed >= wanted_bytes:
                break
            freed += channel.deliveries.page_out(wanted_bytes - freed)
        return freed

    def hold_back(self) -> None:
        super().hold_back()
        unacked_bytes = self.unacked_bytes
        log.info("consumers of %s get nothing until it acks: %d bytes are unacked", self.peer, unacked_bytes)
        for channel in self._channels.values():
            channel.deliveries.choke()

    def check_held_back(self) -> None:
        """Raise AmqpError for a get while the connection holds too many unacked messages."""
        if self.is_held_back:
            raise refusal(
                ReplyCode.PRECONDITION_FAILED,
                f"the connection holds {self.unacked_bytes} bytes of unacked messages: acknowledge some first",
            )

    def let_go_on(self) -> None:
        super().let_go_on()
        if not self.is_choked:
            self._breathe()

    def exhaust(self, reason: str) -> None:
        """Tell the peer why, unless it does not read."""
        if self.state is not State.RUNNING or self.is_gone or self._is_write_paused:
            super().exhaust(reason)
            return
        self._is_lost = True
        self._fail_all(AmqpError(ReplyCode.RESOURCE_ERROR, reason))
        self.release_buffers()
        # It may wait for credit: what it still sends is read, and dropped, so that it gets to read why.
        self.context.flow.forget(self)
        self._set_reading(True)

    # Reading

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if len(data) >= LONG_READ_BYTES and self._is_reading and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._is_reading and not self.is_gone and self._transport is not None:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        if self.state not in (State.RUNNING, State.CLOSING):
            # A peer that has gone looks like one that only says no more, and nobody does that before it is let in.
            self.hang_up()
            return False
        return super().eof_received()

    def feed(self, data: bytes) -> None:
        self._has_heard = True
        if not self._is_lost:
            self._decoder.feed(data)
        elif _CLOSE_OK in data:
            self.hang_up()

    def pump(self, mark_ns: int) -> None:
        """Decode, sample and carry out the commands that are complete, as far as there is room and credit."""
        if self._is_lost:
            return
        next_command = self._decoder.next_command
        channels = self._channels
        recorder = self.hub.recorder
        self._turn_ends_ns = turn_ends_ns = mark_ns + TURN_NS
        while not (self._is_held or self.hub.is_stopping or self._is_deaf()):
            if recorder is not None and not recorder.skip:
                mark_ns = time.perf_counter_ns()
            command: Command | None = self._parked
            if command is None:
                try:
                    command = next_command()
                except AmqpError as error:
                    self._is_lost = True
                    self._fail_all(error)
                    return
                if command is None:
                    self._has_read_all()
                    return
            else:
                self._parked = None
            traced: TracedCommand | None = None
            # Counted here: a call for each message that is not in the sample costs more than all of its trace.
            if recorder is not None:
                if recorder.skip:
                    recorder.skip -= 1
                else:
                    traced = self._sample(recorder, command, mark_ns)
            is_over = False
            if type(command) is Publish:
                channel = channels.get(command.channel)
                if channel is None or channel.is_closing or self.state is not State.RUNNING:
                    self._take(command)
                    continue
                if self.credit <= 0 and not self._may_publish(command):
                    return
                self._has_published = True
                self.credit -= len(command.body) + MESSAGE_COST_BYTES
                try:
                    channel.publisher.publish(command)
                except FlyballError as error:
                    self.fail(
                        command.channel, reply_of(error, amqp.BasicPublish.CLASS_ID, amqp.BasicPublish.METHOD_ID)
                    )
            else:
                self._take(command)
                channels = self._channels
                # Answers to basic.get may be large: what there is goes out before more is asked for.
                is_over = self._out_bytes > WRITE_BUFFER_BYTES or time.perf_counter_ns() > turn_ends_ns
            if traced is not None:
                traced.handled(self.broker.journal, self._queue_id_of(command))
            if is_over:
                self.hub.next_turn(self)
                break
        # Whoever does not read does not notice that the peer has gone, and its password need not be checked then.
        self._set_reading(self.is_logging_in and self.read_bytes - self.login_began_at < READ_IN_LOGIN_BYTES)

    def _has_read_all(self) -> None:
        """No complete command is left: read on."""
        self._set_reading(True)
        if self._has_heard_all:
            self._close_if_done()

    def _sample(self, recorder: Recorder, command: Command, mark_ns: int) -> TracedCommand | None:
        """Begin the trace of a command, if it is in the sample."""
        weight = recorder.weigh(mark_ns)
        return TracedCommand(recorder, weight, command, self._received_ns, mark_ns) if weight else None

    def _may_publish(self, command: Publish) -> bool:
        """Ask for credit for a message. Without credit the message is parked, and nothing is read."""
        if self._has_published:
            # Its share of this turn is used up.
            self._has_published = False
            self._parked = command
            self.hub.next_turn(self, is_over=time.perf_counter_ns() > self._turn_ends_ns)
            self._set_reading(False)
            return False
        if self.context.flow.grant(self, CREDIT_BYTES):
            return True
        self._parked = command
        self.stop_reading()
        return False

    def _queue_id_of(self, command: Command) -> int:
        """Return the first queue that a message went to, for the trace; 0 if there is none."""
        route = self.routes.get(command.origin) if isinstance(command, Publish) else None
        return route.targets[0].queue.id if route is not None and route.targets else 0

    def _is_deaf(self) -> bool:
        if self.state is State.FAILED:
            return True
        if not self._is_write_paused or self._transport is None:
            return False
        return self._transport.get_write_buffer_size() > MAX_UNREAD_BYTES

    def end_turn(self) -> None:
        """Let others have their turn before the next message is taken."""
        self.credit = min(self.credit, 0)

    def end_turn_if_over(self) -> None:
        """The same if this turn has taken long enough: a message was routed by many bindings, perhaps."""
        if time.perf_counter_ns() > self._turn_ends_ns:
            self.end_turn()

    def _take(self, command: Command) -> None:
        """Carry out a command that is not a message on an open channel."""
        try:
            # Nearly all are methods on open channels, acks above all: the other questions are asked of the rest only.
            if isinstance(command, Method) and type(command) in HANDLERS and self.state is State.RUNNING:
                channel = self._channels.get(command.channel)
                if channel is not None and not channel.is_closing:
                    channel.handle(command)
                    return
            if isinstance(command, amqp.Heartbeat):
                return
            if self.state is not State.RUNNING:
                self._take_in_handshake(command)
            elif isinstance(command, amqp.Oversized):
                self._refuse_oversized(command)
            elif isinstance(command, Method) and command.channel == 0:
                handler = _ON_CONNECTION.get(type(command))
                if handler is None:
                    raise refusal(ReplyCode.CHANNEL_ERROR, "unexpected method in connection state running")
                handler(self, command)
            elif isinstance(command, Method | Publish):
                self._take_on_channel(command)
        except FlyballError as error:
            class_id, method_id = _ids_of(command)
            self.fail(getattr(command, "channel", 0), reply_of(error, class_id, method_id))

    def _take_on_channel(self, command: Method | Publish) -> None:
        number = command.channel
        channel = self._channels.get(number)
        if isinstance(command, amqp.ChannelOpen):
            self._open_channel(command)
        elif channel is None:
            raise refusal(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")
        elif isinstance(command, amqp.ChannelClose):
            if not channel.is_closing:
                self._forget_channel(number)
                channel.is_closing = True
                channel.end()
            # If we have closed it too, it is over with the answer to that.
            self.send(amqp.ChannelCloseOk(number).encode())
        elif isinstance(command, amqp.ChannelCloseOk) and channel.is_closing:
            self._forget_channel(number)
        elif not channel.is_closing and isinstance(command, Method):
            channel.handle(command)

    def _open_channel(self, method: amqp.ChannelOpen) -> None:
        if method.channel in self._channels:
            raise refusal(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")
        if len(self._channels) >= self.channel_max:
            limit = self.channel_max
            raise AmqpError(
                ReplyCode.NOT_ALLOWED,
                f"number of channels opened ({limit}) has reached the negotiated channel_max ({limit})",
            )
        self._check_channel_limits()
        self._channels[method.channel] = Channel(self, method.channel)
        # At once: thousands may come before the channels are measured.
        self.channels_bytes += CHANNEL_BYTES
        self.meters.channels_opened += 1
        self.hub.occupancy.open_channel(self.user.name)
        self.send(amqp.ChannelOpenOk(method.channel).encode())

    def _check_channel_limits(self) -> None:
        """Raise AmqpError if the user or the node has as many channels as it may have."""
        occupancy = self.hub.occupancy
        limit = occupancy.channel_limit(self.user.name)
        if limit is not None:
            raise AmqpError(
                ReplyCode.NOT_ALLOWED,
                f"number of channels opened for user '{self.user.name}' has reached the maximum allowed user limit"
                f" of ({limit})",
            )
        limit = self.context.settings.max_channels
        if occupancy.channels >= limit:
            # As later versions of RabbitMQ say it.
            raise AmqpError(
                ReplyCode.NOT_ALLOWED,
                f"number of channels opened on node '{self.hub.peering.name}' has reached the maximum allowed limit"
                f" of ({limit})",
            )

    def _forget_channel(self, number: int) -> None:
        del self._channels[number]
        self.channels_bytes -= CHANNEL_BYTES
        self.meters.channels_closed += 1
        self.hub.occupancy.close_channels(self.user.name, 1)

    def _refuse_oversized(self, content: amqp.Oversized) -> None:
        most = self.context.settings.max_message_bytes
        raise AmqpError(
            ReplyCode.PRECONDITION_FAILED,
            f"message size {content.size} is larger than configured max size {most}",
            amqp.BasicPublish.CLASS_ID,
            amqp.BasicPublish.METHOD_ID,
        )

    # Other nodes

    @property
    def channels(self) -> list[Channel]:
        """The channels that are open."""
        return list(self._channels.values())

    def set_home(self, vhost: str, name: str, queue_id: int | None) -> None:
        """Let the name of a clustered queue mean one of its members, by its id; None lets the node choose."""
        if queue_id is None:
            self.homes.pop((vhost, name), None)
        else:
            self.homes[vhost, name] = queue_id
        self.forget_routes()

    def forget_routes(self) -> None:
        self.routes.clear()
        self.routes_bytes = 0

    def forget_essentials(self) -> None:
        self.essentials.clear()
        self.essentials_bytes = 0

    def wait_for(self, number: int, ids: tuple[int, int], work: Awaitable[Callable[[], None]]) -> None:
        """Carry out no further command until the work is done, and then what it returns.

        `ids` are those of the method that it belongs to. What it raises ends the channel, or the connection.
        """
        self.hold()
        self.in_flight += 1
        self.is_answering = True
        self.hub.spawn(self._wait(number, ids, work), self)

    async def _wait(self, number: int, ids: tuple[int, int], work: Awaitable[Callable[[], None]]) -> None:
        act: Callable[[], None] | None = None
        failure: FlyballError | None = None
        try:
            act = await work
        except FlyballError as error:
            failure = error
        self.in_flight -= 1
        self._is_held = False
        self.is_answering = False
        if act is not None:
            try:
                act()
            except FlyballError as error:
                failure = error
        if failure is not None and not self.is_gone and number in self._channels:
            self.fail(number, reply_of(failure, *ids))
        if not self._is_held:
            self.answered()
            self.release()

    # Failing

    def fail(self, number: int, error: AmqpError) -> None:
        """End the channel or the connection, whichever the error says."""
        channel = self._channels.get(number)
        if error.code not in CHANNEL_ERRORS or channel is None or self.state is not State.RUNNING:
            self._fail_all(error)
            return
        if channel.is_closing:
            return
        text = reply_text(error.code, error.text)
        log.info("channel %d of %s closed: %s", number, self.peer, text)
        channel.is_closing = True
        self.send(amqp.ChannelClose(number, error.code, text, error.class_id, error.method_id).encode())
        channel.end()

    def _fail_all(self, error: AmqpError) -> None:
        """End the connection: with a word if the peer has been let in, else silently and late."""
        text = reply_text(error.code, error.text)
        log.warning("closed amqp connection of %s: %s", self.peer, text)
        if self.state in (State.RUNNING, State.OPENING):
            self.state = State.CLOSING
            self.send(amqp.ConnectionClose(0, error.code, text, error.class_id, error.method_id).encode())
            self._let_go()
            self._set_timer(self.hang_up, SILENT_CLOSE_S if self._is_lost else HANDSHAKE_S)
        elif self.state is not State.CLOSING:
            self.close_silently()

    def tell_internal_error(self) -> None:
        self._fail_all(AmqpError(ReplyCode.INTERNAL_ERROR, "the node has met a defect; its log tells which"))

    def close_silently(self) -> None:
        """End the connection after a while and without a word."""
        self.state = State.FAILED
        self._set_timer(self.hang_up, SILENT_CLOSE_S)

    def hang_up(self) -> None:
        """End the connection when what is to be sent is sent."""
        if self._transport is not None:
            self.flush()
            self._transport.close()
            self._limit_stall()

    # The handshake

    def _take_in_handshake(self, command: Command) -> None:
        if self.state is State.CLOSING:
            if isinstance(command, amqp.ConnectionCloseOk):
                self.hang_up()
            elif isinstance(command, amqp.ConnectionClose):
                self.send(amqp.ConnectionCloseOk(0).encode())
            return
        if self.state is State.FAILED:
            return
        handler = IN_HANDSHAKE.get((self.state, type(command)))
        if handler is not None and getattr(command, "channel", 0) == 0:
            handler(self, command)
        elif isinstance(command, Method) and command.channel == 0:
            raise refusal(ReplyCode.CHANNEL_ERROR, f"unexpected method in connection state {self.state.value}")
        else:
            raise AmqpError(ReplyCode.UNEXPECTED_FRAME, f"unexpected frame in connection state {self.state.value}")

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
        self._heartbeat_s = float(heartbeat_s)

    def opened(self, vhost: str) -> None:
        """The peer has been let in."""
        self.vhost = vhost
        self.state = State.RUNNING
        self.hub.logged_in(self)
        self.hub.occupancy.enter(vhost, self.user.name)
        self._is_counted = True
        self._decoder.is_connection_only = False
        self.send(amqp.ConnectionOpenOk(0).encode())
        self._set_timer(self._beat if self._heartbeat_s else None, self._heartbeat_s / 2)

    # While it runs

    def _on_close(self, method: amqp.ConnectionClose) -> None:
        self._let_go()
        self.state = State.CLOSING
        self.send(amqp.ConnectionCloseOk(0).encode())
        self._set_timer(self.hang_up, HANDSHAKE_S)

    def _on_update_secret(self, method: amqp.ConnectionUpdateSecret) -> None:
        """A password does not expire, so that a new one is only noted. It is not checked, as with RabbitMQ."""
        self.send(amqp.ConnectionUpdateSecretOk(0).encode())

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

    # Heartbeats

    def _set_timer(self, action: Callable[[], None] | None, delay_s: float) -> None:
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
        self._missed = 0 if self._has_heard or not self._is_reading else self._missed + 1
        self._has_heard = False
        if self._missed >= 4:
            log.warning("dropped %s: no heartbeat for %.0f s", self.peer, 2 * self._heartbeat_s)
            if self._transport is not None:
                self._transport.abort()
            return
        self._set_timer(self._beat, self._heartbeat_s / 2)

    # Writing

    def send_delivery(self, data: bytes) -> None:
        """Send a message; if much is to be sent already, no more are taken out of queues for now."""
        self.send(data)
        if self._out_bytes > WRITE_BUFFER_BYTES and not self.is_choked:
            self._choke()

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

    def tick(self, now_s: float) -> None:
        """Close channels whose consumers keep messages for too long, and the connection if its peer has gone."""
        self._measure_channels()
        if self.is_blocked and self.peer_has_gone:
            # Nothing is read from it, perhaps until what it has not acked is given to others.
            self.abort()
            return
        limit_s = self.context.settings.consumer_timeout_s
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + limit_s / 10
        for number, channel in list(self._channels.items()):
            if not channel.is_closing and channel.deliveries.is_overdue(now_s, limit_s):
                text = (
                    f"delivery acknowledgement on channel {number} timed out. Timeout value used:"
                    f" {limit_s * 1000:.0f} ms. This timeout value can be configured, see consumers doc guide to"
                    " learn more"
                )
                self.fail(number, AmqpError(ReplyCode.PRECONDITION_FAILED, text))

    def confirm_soon(self, publisher: Publisher) -> None:
        """Send the publisher's confirms with the next write."""
        if not self._due and not self._out:
            self.hub.mark_dirty(self)
        self._due.append(publisher)

    def flush(self) -> None:
        if self._due:
            due, self._due = self._due, []
            for publisher in due:
                publisher.send_confirms()
        if self._out:
            self._has_sent = True
        super().flush()
        if self.is_choked and not self._is_write_paused:
            self._breathe()

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._limit_stall()
        self._choke()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.is_choked:
            self._breathe()

    def _choke(self) -> None:
        self.is_choked = True
        for channel in self._channels.values():
            channel.deliveries.choke()

    def _breathe(self) -> None:
        self.is_choked = False
        if self.is_held_back:
            return
        for channel in list(self._channels.values()):
            channel.deliveries.breathe()


_CLOSE_OK = amqp.ConnectionCloseOk(0).encode()

_ON_CONNECTION: Mapping[type[Method], Callable[[AmqpSession, Any], None]] = {
    amqp.ConnectionClose: AmqpSession._on_close,
    amqp.ConnectionUpdateSecret: AmqpSession._on_update_secret,
}


def _ids_of(command: Command) -> tuple[int, int]:
    if isinstance(command, Method):
        return command.CLASS_ID, command.METHOD_ID
    if isinstance(command, Publish | amqp.Oversized):
        return amqp.BasicPublish.CLASS_ID, amqp.BasicPublish.METHOD_ID
    return 0, 0
