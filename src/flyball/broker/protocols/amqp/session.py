"""An AMQP connection: its channels, the dispatch of methods, and its end.

`handshake` implements the handshake, `methods` the methods of a channel.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from flyball.broker.core.memory import CHANNEL_BYTES
from flyball.broker.protocols.amqp.channel import Channel
from flyball.broker.protocols.amqp.connection import AmqpConnection, State
from flyball.broker.protocols.amqp.context import AmqpContext
from flyball.broker.protocols.amqp.handshake import IN_HANDSHAKE
from flyball.broker.protocols.amqp.methods import ON_CHANNEL
from flyball.broker.protocols.amqp.replies import refusal, reply_of
from flyball.broker.protocols.amqp.tracing import TracedCommand
from flyball.broker.transport.connection import TURN_NS, WRITE_BUFFER_BYTES, Hub
from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import CHANNEL_ERRORS, AmqpError, Command, Method, Publish, ReplyCode, reply_text
from flyball.errors import FlyballError
from flyball.trace.recorder import Recorder

log = logging.getLogger("flyball.server")

# Bytes that a peer may publish per turn of the event loop, before others are served and new credit is needed.
CREDIT_BYTES = 64 * 1024

# Cost of a message in addition to its body.
MESSAGE_COST_BYTES = 200

# A peer with more pending input is read once per turn: libuv would read up to 32 times, and starve other peers.
LONG_READ_BYTES = 128 * 1024

# Input limit while the password is checked: enough for the two methods that can follow.
READ_IN_LOGIN_BYTES = 4096

# Unread output above which input of the peer is not executed.
MAX_UNREAD_BYTES = 16 * 1024 * 1024


class AmqpSession(AmqpConnection):
    """A connection with its channels."""

    def __init__(self, hub: Hub, context: AmqpContext) -> None:
        super().__init__(hub, context)
        self._channels: dict[int, Channel] = {}
        self._decoder.open_channels = self._channels
        # Whether the peer has used its publishing turn.
        self._has_published = False
        # A message that waits for credit, with all later input behind it.
        self._parked: Publish | None = None
        self._next_check_s = 0.0
        # Whether decoding has failed: later input cannot be parsed.
        self._is_lost = False

    # Life

    @property
    def is_busy(self) -> bool:
        return super().is_busy or any(channel.publisher.is_busy for channel in self._channels.values())

    @property
    def waits_for_credit(self) -> bool:
        """Whether input of the peer waits for credit."""
        return self._parked is not None

    @property
    def channels(self) -> list[Channel]:
        """The open channels."""
        return list(self._channels.values())

    @property
    def requests(self) -> int:
        """Messages published and delivered on its channels."""
        return sum(channel.publisher.taken + channel.deliveries.last_tag for channel in self._channels.values())

    def disconnect(self) -> None:
        """Close the connection because the node is stopping."""
        if self.state is State.RUNNING and not self.is_gone:
            text = reply_text(ReplyCode.CONNECTION_FORCED, "broker forced connection closure with reason 'shutdown'")
            self.send(amqp.ConnectionClose(0, ReplyCode.CONNECTION_FORCED, text, 0, 0).encode())
            self.flush()
        super().disconnect()

    def expel(self, reason: str) -> None:
        self._fail_all(AmqpError(ReplyCode.CONNECTION_FORCED, reason))

    def pause_for_end(self, user_name: str) -> None:
        if self.user.name == user_name:
            self.pause_deliveries()

    def user_deleted(self, name: str) -> None:
        if self.user.name == name:
            self._fail_all(AmqpError(ReplyCode.CONNECTION_FORCED, f"user '{name}' is deleted"))

    def vhost_closed(self, vhost: str) -> None:
        if self.vhost == vhost:
            self._fail_all(AmqpError(ReplyCode.CONNECTION_FORCED, f"vhost '{vhost}' is deleted"))

    def ended(self) -> None:
        super().ended()
        self._let_go()

    def _let_go(self) -> None:
        """Requeue the deliveries of all channels, and delete the connection's exclusive queues."""
        self._decoder.is_discarding = True
        # Otherwise messages requeued by one channel would be delivered to consumers of the next: a message would pass
        # through many, and count as delivered each time, until its delivery limit is reached.
        self.faults.guard("end of a channel", self.pause_deliveries)
        channels = list(self._channels.values())
        self._channels.clear()
        self.meters.channels_closed += len(channels)
        self.hub.connection_limits.close_channels(self.user.name, len(channels))
        for channel in channels:
            channel.is_closing = True
            try:
                channel.end()
            except Exception as error:
                # The other channels have unacked messages as well.
                self.faults.note("end of a channel", error, quiet=True)
        if self.vhost:
            self.context.topology.delete_owned(self)

    def release_buffers(self) -> None:
        self._decoder.clear()
        self._parked = None
        self._after_answer.clear()
        self.routes.clear()
        self.essentials.clear()
        self.client_properties = self.capabilities = {}
        self._properties_bytes = 0

    # Memory

    def input_bytes(self) -> int:
        parked = 0 if self._parked is None else len(self._parked.body)
        return self._decoder.buffered_bytes + self.transaction_bytes + self.forwarding_bytes + parked

    def held_bytes(self) -> int:
        caches_bytes = self.routes.size_bytes + self.essentials.size_bytes
        return super().held_bytes() + self._properties_bytes + caches_bytes + self.channels_bytes

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
        log.info("deliveries to %s paused until it acks: %d bytes unacked", self.peer, unacked_bytes)
        for channel in self._channels.values():
            channel.deliveries.pause()

    def let_go_on(self) -> None:
        super().let_go_on()
        if not self.are_deliveries_paused:
            self._resume_deliveries()

    def exhaust(self, reason: str) -> None:
        """Close the connection with a reason, unless the peer does not read."""
        if self.state is not State.RUNNING or self.is_gone or self._is_write_paused:
            super().exhaust(reason)
            return
        self._is_lost = True
        self._fail_all(AmqpError(ReplyCode.RESOURCE_ERROR, reason))
        self.release_buffers()
        # The peer may wait for credit: discard its further input, so that it reads the reason.
        self.context.flow.forget(self)
        self._set_reading(True)

    def tick(self, now_s: float) -> None:
        """Close channels with overdue acks, and the connection if its peer has disconnected."""
        self.channels_bytes = sum([channel.held_bytes for channel in self._channels.values()])
        if self.is_blocked and self.peer_has_gone:
            # Reading is paused, perhaps until its unacked messages are requeued.
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

    # Input

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
            # No client half-closes during the handshake: the connection was dropped.
            self.hang_up()
            return False
        return super().eof_received()

    def feed(self, data: bytes) -> None:
        self._has_received = True
        if not self._is_lost:
            self._decoder.feed(data)
        elif _CLOSE_OK in data:
            self.hang_up()

    def pump(self, mark_ns: int) -> None:
        """Decode, sample and execute complete commands while buffer space and credit allow it."""
        if self._is_lost:
            return
        next_command = self._decoder.next_command
        channels = self._channels
        recorder = self.hub.recorder
        self._turn_ends_ns = turn_ends_ns = mark_ns + TURN_NS
        while not (
            self.is_held
            or self.hub.is_stopping
            or self.state is State.FAILED
            or (self._is_write_paused and self._leaves_too_much_unread())
        ):
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
            # `Recorder.sample`, inlined.
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
                    self.fail(command.channel, reply_of(error, command.CLASS_ID, command.METHOD_ID))
            else:
                self._take(command)
                # Replies to basic.get may be large: flush before executing more.
                is_over = self._out_bytes > WRITE_BUFFER_BYTES or time.perf_counter_ns() > turn_ends_ns
            if traced is not None:
                traced.handled(self.broker.journal, self._queue_id_of(command))
            if is_over:
                self.hub.next_turn(self)
                break
        # A disconnect is not detected while reading is paused, so keep reading while the password is checked.
        self._set_reading(self.is_logging_in and self.read_bytes - self.login_began_at < READ_IN_LOGIN_BYTES)

    def _sample(self, recorder: Recorder, command: Command, mark_ns: int) -> TracedCommand | None:
        """Start the trace of a sampled command."""
        weight = recorder.weigh(mark_ns)
        return TracedCommand(recorder, weight, command, self._received_ns, mark_ns) if weight else None

    def _may_publish(self, command: Publish) -> bool:
        """Request credit for a message. Without credit it is parked, and reading is paused."""
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
        """Return the first queue that a message was put into, for the trace; 0 if none."""
        route = self.routes.entries.get(command.origin) if isinstance(command, Publish) else None
        return route.targets[0].queue.id if route is not None and route.targets else 0

    def _leaves_too_much_unread(self) -> bool:
        return self._transport is not None and self._transport.get_write_buffer_size() > MAX_UNREAD_BYTES

    # Commands

    def _take(self, command: Command) -> None:
        """Execute a command other than a publish on an open channel."""
        try:
            # Nearly all commands are methods on open channels, mostly acks: checked first.
            handler = ON_CHANNEL.get(type(command))
            if handler is not None and self.state is State.RUNNING:
                channel = self._channels.get(command.channel)
                if channel is not None and not channel.is_closing:
                    handler(channel, command)
                    return
            if isinstance(command, amqp.Heartbeat):
                return
            if self.state is not State.RUNNING:
                self._take_in_handshake(command)
            elif isinstance(command, amqp.Oversized):
                self._refuse_oversized(command)
            elif isinstance(command, Method) and command.channel == 0:
                act = _ON_CONNECTION.get(type(command))
                if act is None:
                    raise refusal(ReplyCode.CHANNEL_ERROR, "unexpected method in connection state running")
                act(self, command)
            elif isinstance(command, Method | Publish):
                self._take_on_channel(command)
        except FlyballError as error:
            self.fail(command.channel, reply_of(error, command.CLASS_ID, command.METHOD_ID))

    def _take_in_handshake(self, command: Command) -> None:
        if self.state is State.CLOSING:
            if isinstance(command, amqp.ConnectionCloseOk):
                self.hang_up()
            elif isinstance(command, amqp.ConnectionClose):
                self.send(amqp.ConnectionCloseOk(0).encode())
            return
        handler = IN_HANDSHAKE.get((self.state, type(command)))
        if handler is not None and command.channel == 0:
            handler(self, command)
        elif isinstance(command, Method) and command.channel == 0:
            raise refusal(ReplyCode.CHANNEL_ERROR, f"unexpected method in connection state {self.state.value}")
        else:
            raise AmqpError(ReplyCode.UNEXPECTED_FRAME, f"unexpected frame in connection state {self.state.value}")

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
            # If both sides have sent close, this close-ok completes the channel's close.
            self.send(amqp.ChannelCloseOk(number).encode())
        elif isinstance(command, amqp.ChannelCloseOk) and channel.is_closing:
            self._forget_channel(number)
        elif not channel.is_closing:
            raise refusal(ReplyCode.COMMAND_INVALID, "unimplemented method")

    def _open_channel(self, method: amqp.ChannelOpen) -> None:
        if method.channel in self._channels:
            raise refusal(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")
        self._check_channel_limits()
        self._channels[method.channel] = Channel(self, method.channel)
        # Charge at once: thousands may be opened before the channels are measured.
        self.channels_bytes += CHANNEL_BYTES
        self.meters.channels_opened += 1
        self.hub.connection_limits.open_channel(self.user.name)
        self.send(amqp.ChannelOpenOk(method.channel).encode())

    def _check_channel_limits(self) -> None:
        """Raise AmqpError if the connection, its user or the node has reached its channel limit."""
        limits = self.hub.connection_limits
        limit = self.channel_max
        user_limit = limits.channel_limit(self.user.name)
        node_limit = self.context.settings.max_channels
        if len(self._channels) >= limit:
            problem = f"({limit}) has reached the negotiated channel_max ({limit})"
        elif user_limit is not None:
            problem = f"for user '{self.user.name}' has reached the maximum allowed user limit of ({user_limit})"
        elif limits.channels >= node_limit:
            # Text of later RabbitMQ versions.
            node = self.hub.peering.name
            problem = f"on node '{node}' has reached the maximum allowed limit of ({node_limit})"
        else:
            return
        raise AmqpError(ReplyCode.NOT_ALLOWED, f"number of channels opened {problem}")

    def _forget_channel(self, number: int) -> None:
        del self._channels[number]
        self.channels_bytes -= CHANNEL_BYTES
        self.meters.channels_closed += 1
        self.hub.connection_limits.close_channels(self.user.name, 1)

    def _refuse_oversized(self, content: amqp.Oversized) -> None:
        maximum = self.context.settings.max_message_bytes
        raise refusal(
            ReplyCode.PRECONDITION_FAILED, f"message size {content.size} is larger than configured max size {maximum}"
        )

    def _on_close(self, method: amqp.ConnectionClose) -> None:
        self._let_go()
        self.state = State.CLOSING
        self.send(amqp.ConnectionCloseOk(0).encode())
        self.hang_up_later()

    def _on_update_secret(self, method: amqp.ConnectionUpdateSecret) -> None:
        """Reply only: passwords do not expire. As in RabbitMQ, the new secret is not checked."""
        self.send(amqp.ConnectionUpdateSecretOk(0).encode())

    # Errors

    def fail(self, number: int, error: AmqpError) -> None:
        """Close the channel or the connection, depending on the error."""
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
        """Close the connection: with connection.close after the login, otherwise silently after a delay."""
        text = reply_text(error.code, error.text)
        log.warning("closed amqp connection of %s: %s", self.peer, text)
        if self.state in (State.RUNNING, State.OPENING):
            self.state = State.CLOSING
            self.send(amqp.ConnectionClose(0, error.code, text, error.class_id, error.method_id).encode())
            self._let_go()
            self.hang_up_later(is_silent=self._is_lost)
        elif self.state is not State.CLOSING:
            self.close_silently()

    def report_internal_error(self) -> None:
        self._fail_all(AmqpError(ReplyCode.INTERNAL_ERROR, "internal error: see the log of the node"))

    # Output

    def flush(self) -> None:
        if self._out:
            self._has_sent = True
        super().flush()
        if self.are_deliveries_paused and not self._is_write_paused:
            self._resume_deliveries()

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._limit_stall()
        self.pause_deliveries()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.are_deliveries_paused:
            self._resume_deliveries()

    def pause_deliveries(self) -> None:
        self.are_deliveries_paused = True
        for channel in self._channels.values():
            channel.deliveries.pause()

    def _resume_deliveries(self) -> None:
        self.are_deliveries_paused = False
        if self.is_held_back:
            return
        for channel in list(self._channels.values()):
            channel.deliveries.resume()


_CLOSE_OK = amqp.ConnectionCloseOk(0).encode()

_ON_CONNECTION: Mapping[type[Method], Callable[[AmqpSession, Any], None]] = {
    amqp.ConnectionClose: AmqpSession._on_close,
    amqp.ConnectionUpdateSecret: AmqpSession._on_update_secret,
}
