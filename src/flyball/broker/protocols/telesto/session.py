"""One Telesto connection: its state, its identity, and how answers and errors are told.

What each packet does stands in `plain` and `extension`; which of them are allowed when, in the package's table.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flyball.broker.core.broker import Wait
from flyball.broker.core.handles import QueueHandle
from flyball.broker.core.memory import CONSUMER_BYTES, page_out
from flyball.broker.core.placement import Role
from flyball.broker.engine.consumer import Consumer
from flyball.broker.protocols.telesto.relay import Relay
from flyball.broker.transport.connection import Hub, RequestConnection, result_of
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode
from flyball.errors import (
    ClientNameTaken,
    ClientNotFound,
    ConnectionLimitReached,
    ConsumerNotFound,
    FlyballError,
    InvalidBody,
    LeaseNotFound,
    NotIdentified,
    NotPermitted,
    QueueFull,
    QueueLimitReached,
    QueueNameTaken,
    QueueNotFound,
    RequestError,
    StoreError,
    StoreUnavailable,
    TopicNotFound,
)
from flyball.model import DEFAULT_VHOST, MESSAGE_OVERHEAD_BYTES, Client, ClientMode, Message, Order
from flyball.trace.schema import Protocol, Result
from flyball.trace.span import Span

RECORD_BYTES = 64
"""A little more than a record takes beside its body and properties."""

MOST_COPIES = 100_000
"""Drafts times queues of one request."""

# What an id takes in a set.
REFUSED_BYTES = 100

_LOW_31_BITS = 2**31 - 1

_MAX_DETAILS_LENGTH = 1000
"""An error may quote what the peer sent, which can be longer than a frame."""

_CODES: dict[type[FlyballError], ErrorCode] = {
    QueueNotFound: ErrorCode.QUEUE_NOT_EXISTING,
    QueueNameTaken: ErrorCode.QUEUE_NAME_NOT_UNIQUE,
    ClientNotFound: ErrorCode.CLIENT_NOT_EXISTING,
    ClientNameTaken: ErrorCode.CLIENT_NAME_NOT_UNIQUE,
    NotPermitted: ErrorCode.CLIENT_MODE_PERMISSION_VIOLATION,
    NotIdentified: ErrorCode.UNEXPECTED_PACKET,
}

_WIDE_CODES: dict[type[FlyballError], ErrorCode] = _CODES | {
    StoreUnavailable: ErrorCode.STORE_UNAVAILABLE,
    InvalidBody: ErrorCode.LIMIT_EXCEEDED,
    QueueLimitReached: ErrorCode.LIMIT_EXCEEDED,
    ConnectionLimitReached: ErrorCode.LIMIT_EXCEEDED,
    QueueFull: ErrorCode.LIMIT_EXCEEDED,
    ConsumerNotFound: ErrorCode.CONSUMER_NOT_EXISTING,
    LeaseNotFound: ErrorCode.LEASE_NOT_EXISTING,
    TopicNotFound: ErrorCode.TOPIC_NOT_EXISTING,
}


class Refusal(RequestError):
    """An answer that has an error code of its own, such as that nothing was found."""

    def __init__(self, code: int, details: str) -> None:
        super().__init__(details)
        self.code = code


def not_owner() -> Refusal:
    """Return the answer to what only the node's owner may do."""
    return Refusal(
        ErrorCode.NOT_OWNER,
        "only the owner of the node may do this: name its token file, admin.token in its data folder, with"
        " FLYBALL_TOKEN_FILE or flyball --token-file",
    )


class TelestoRequest(Span):
    """A request and the packet id that its answer carries."""

    packet_id: int = 0


_ROLES: Mapping[type[wire.Packet], Role] = {
    wire.Put: Role.PRODUCER,
    wire.PutMessage: Role.PRODUCER,
    wire.Take: Role.CONSUMER,
    wire.ReadMessage: Role.CONSUMER,
    wire.Peek: Role.CONSUMER,
    wire.Consume: Role.CONSUMER,
}
"""What a client of a clustered queue is that sends these, and that another member can serve as well."""

OWNERS_PACKETS: frozenset[type[wire.Packet]] = frozenset({wire.DeleteQueue, wire.Purge, wire.RemoveClient})
"""What only the node's owner may do in wide frames. In plain ones queues are deleted as the original does it."""

_LISTINGS = (wire.Peek, wire.ListMessages, wire.ListIds, wire.GetMessages)
"""What goes alone: the answers may be as long as a frame."""

Handler = Callable[["TelestoSession", Any, TelestoRequest], None]
Table = Mapping[type[wire.Packet], Handler]
States = Mapping[tuple[bool, bool], Table]
"""For each state (is it wide, is it identified) the packets that are allowed, and what they do."""


class TelestoSession(RequestConnection):
    """One connection: unidentified at first, then one client's; plain at first, and wide if it asks for it."""

    PROTOCOL = Protocol.TELESTO
    protocol = "telesto"

    def __init__(self, hub: Hub, states: States, time_order: Order, frame_max: int) -> None:
        super().__init__(hub)
        self.time_order = time_order
        self.frame_max = frame_max
        self.is_wide = False
        self.is_over = False
        self.is_forwarded = False
        """Whether another node passes on here what its client wants."""
        self.refused: set[int] = set()
        """Queues that were not here when something was put there that another node passed on: what came behind that
        is refused, too, until that node begins anew."""
        self._is_counted = False
        """Whether it counts as a connection to its virtual host."""
        self.is_owner = False
        """Whether the client has proved that it has the node's token, or is another node."""
        self.nonce = b""
        """What the next proof is made of; empty if there is none."""
        self.relay = Relay(self)
        self.mode = ClientMode.READ_ONLY
        self.consumers: dict[int, Consumer] = {}
        self.waits: dict[TelestoRequest, Wait] = {}
        """Reads that wait for a message."""
        self.subscriptions: set[int] = set()
        """The queues of subscriptions that end with the connection, or with their consumer."""
        self.sessions: set[str] = set()
        """Those of clients of clustered queues that are served through this connection."""
        self._leaving: dict[int, asyncio.Event] = {}
        """Consumers that are to go on elsewhere: set when they hold nothing more, or nobody is there any more."""
        self._states = states
        self._table = states[False, False]
        self._decoder = wire.PacketDecoder()

    def new_request(self) -> TelestoRequest:
        self.requests += 1
        return TelestoRequest()

    def goes_alone(self, parsed: wire.Packet, request: Span) -> bool:
        if isinstance(parsed, wire.Take):
            # What was taken waits for the store only, with others; who waits for a message holds nothing.
            is_here = self.broker.engine.has_queue(parsed.queue_id)
            return is_here and request not in self.waits and not self.has_reserved(request)
        if isinstance(parsed, wire.ReadMessage | wire.ReadResponse):
            return not (self.is_wide or self.has_reserved(request))
        return isinstance(parsed, _LISTINGS) and not self.has_reserved(request)

    def feed(self, data: bytes) -> None:
        self._decoder.feed(data)

    @property
    def unfinished_bytes(self) -> int:
        return self._decoder.buffered_bytes

    def decode(self) -> wire.Packet | None:
        return self._decoder.next_packet()

    def handle(self, parsed: wire.Packet, request: Span) -> None:
        assert isinstance(request, TelestoRequest)
        request.packet_id = parsed.packet_id
        handler = self._table.get(type(parsed))
        if handler is None:
            raise NotIdentified(f"packet {type(parsed).__name__} is not allowed now")
        if self.is_wide and not self.is_owner and type(parsed) in OWNERS_PACKETS:
            raise not_owner()
        self._check_queues(parsed)
        if self.asks_others:
            self._use(parsed)
            if self.is_wide:
                if self.relay.takes(parsed, request):
                    return
            elif not all(self.queue(queue_id) is not None for queue_id in _queue_ids(parsed)):
                # Another node may have made it just now.
                self.look_again(lambda: self.handle_here(parsed, request))
                return
        handler(self, parsed, request)

    def queue(self, queue_id: int) -> QueueHandle | None:
        """Return a queue that the client may use, on whichever node."""
        if self.is_forwarded and not self.broker.engine.has_queue(queue_id):
            return None
        found = self.hub.queues.get(queue_id)
        return found if found is not None and self.may_reach(queue_id) else None

    def existing_queue(self, queue_id: int) -> QueueHandle:
        """Return a queue that the client may use. Raises QueueNotFound."""
        found = self.queue(queue_id)
        if found is None:
            raise QueueNotFound(queue_id)
        return found

    def look_again(self, go_on: Callable[[], None]) -> None:
        """Follow the other nodes, and go on; further requests wait."""
        self.hold()
        self.hub.spawn(self._look_again(go_on), self)

    async def _look_again(self, go_on: Callable[[], None]) -> None:
        with contextlib.suppress(StoreError):
            await self.hub.peering.catch_up()
        go_on()
        self.release()

    def _use(self, packet: wire.Packet) -> None:
        """Let what the client does with members of clustered queues go to those that serve it, and count it."""
        role = _ROLES.get(type(packet))
        if role is None:
            return
        if isinstance(packet, wire.Put):
            packet.queue_ids = [self._use_queue(queue_id, role) for queue_id in packet.queue_ids]
        elif isinstance(packet, wire.PutMessage):
            packet.message.queue_id = self._use_queue(packet.message.queue_id, role)
            packet.additional_queue_ids = [self._use_queue(each, role) for each in packet.additional_queue_ids]
        elif isinstance(packet, wire.Consume):
            # Its consumers are counted, each for itself.
            packet.queue_id = self.uses.home(packet.queue_id, role)
        else:
            assert isinstance(packet, wire.Take | wire.ReadMessage | wire.Peek), "no others have a role"
            packet.queue_id = self._use_queue(packet.queue_id, role)

    def _use_queue(self, queue_id: int, role: Role) -> int:
        home = self.uses.home(queue_id, role)
        if not self.sessions:
            self.uses.note(home, role)
        return home

    def _check_queues(self, packet: wire.Packet) -> None:
        """Raise QueueNotFound for a queue that the client must not reach, and InvalidBody for too many of them.

        The protocol has no passwords, so it leads to the default virtual host only, unless the client is the node's
        owner. The engine's shadows, which have ids below zero, are for nobody.
        """
        queue_ids = _queue_ids(packet)
        # Before each of them is looked at.
        self.broker.check_copies(len(queue_ids))
        for queue_id in queue_ids:
            if not self.may_reach(queue_id):
                raise QueueNotFound(queue_id)

    def may_reach(self, queue_id: int) -> bool:
        """Whether the client may use a queue, as far as this node knows it; asked again when it has heard of it."""
        working = self.broker.engine.find_working(queue_id)
        found = self.hub.directory.get(queue_id) if working is None else working
        return found is None or (queue_id >= 0 and (found.queue.vhost == DEFAULT_VHOST or self.is_owner))

    def handle_here(self, packet: wire.Packet, request: TelestoRequest) -> None:
        """Carry out a request that was to be passed on, and is this node's now."""
        try:
            handler = self._table.get(type(packet))
            if handler is None:
                raise NotIdentified(f"packet {type(packet).__name__} is not allowed now")
            # This node may not have known the queue before.
            self._check_queues(packet)
            handler(self, packet, request)
        except RequestError as error:
            self.refuse(request, error)

    # State

    @property
    def asks_others(self) -> bool:
        """Whether requests about queues of other nodes are passed on to them."""
        return self.broker.is_clustered and not self.is_forwarded

    @property
    def answer_max(self) -> int:
        """The longest answer, in bytes."""
        return self.frame_max if self.is_wide else wire.PLAIN_FRAME_MAX

    @property
    def message_max_bytes(self) -> int:
        """How long body and properties of a message may be to fit into a frame."""
        return self.frame_max - 2 * RECORD_BYTES

    def check_draft(self, draft: wire.WireDraft) -> None:
        """Raise InvalidBody for a message that is too large for the node, or for an answer."""
        size_bytes = len(draft.body) + len(draft.properties)
        self.broker.check_size(size_bytes)
        if size_bytes > self.message_max_bytes:
            raise InvalidBody(f"a message of {size_bytes} bytes exceeds {self.message_max_bytes}")

    def check_copies(self, copies: int) -> None:
        """Raise InvalidBody for more messages than one request may store."""
        if copies > MOST_COPIES:
            raise InvalidBody(f"a request may store {MOST_COPIES} messages, not {copies}")

    def check_entry(self) -> None:
        """Raise ConnectionLimitReached if the virtual host takes no more clients."""
        if not self.is_forwarded:
            self.hub.occupancy.check_connection(DEFAULT_VHOST)

    def identify(self, client: Client) -> None:
        """From now on the connection is this client's."""
        if not self.is_forwarded and not self._is_counted and not self.is_over:
            self._is_counted = True
            self.hub.occupancy.enter(DEFAULT_VHOST)
        self.client_id = client.id
        self.mode = client.mode
        self._table = self._states[self.is_wide, True]

    def widen(self) -> None:
        """From the next byte on, both sides use wide frames."""
        self.is_wide = True
        self._decoder.widen(self.frame_max)
        self._table = self._states[True, self.client_id != 0]

    # Answers

    def reply(self, request: TelestoRequest, packet: wire.Packet) -> None:
        """Answer with a packet, or with an error if it does not fit into a frame."""
        try:
            data = wire.encode_wide(packet) if self.is_wide else wire.encode(packet)
            if self.is_wide and len(data) > self.frame_max:
                raise wire.FrameTooLarge(f"an answer of {len(data)} bytes exceeds {self.frame_max}")
        except wire.FrameTooLarge as error:
            self.refuse(request, InvalidBody(str(error)))
        else:
            self.finish(request, data)

    def succeed(self, request: TelestoRequest) -> None:
        if self.is_wide:
            self.finish(request, wire.encode_wide(wire.Success(request.packet_id)))
        else:
            self.finish(request, wire.encode_success(request.packet_id))

    def answer(self, request: TelestoRequest, error: FlyballError | None) -> None:
        """Answer with Success, or with the error."""
        if error is None:
            self.succeed(request)
        else:
            self.refuse(request, error)

    def refusal(self, code: int, details: str) -> RequestError:
        """Return the error of another node, so that it can be told to the peer."""
        return Refusal(
            code if self.is_wide or code < ErrorCode.STORE_UNAVAILABLE else ErrorCode.INTERNAL_ERROR, details
        )

    def refuse(self, request: Span, error: FlyballError) -> None:
        assert isinstance(request, TelestoRequest)
        if isinstance(error, Refusal):
            code = error.code
            request.result = Result.EMPTY if code == ErrorCode.NO_MESSAGES_RETRIEVED else Result.REFUSED
        else:
            codes = _WIDE_CODES if self.is_wide else _CODES
            code = next((codes[kind] for kind in type(error).__mro__ if kind in codes), ErrorCode.INTERNAL_ERROR)
            request.result = result_of(error)
        details = str(error)[:_MAX_DETAILS_LENGTH]
        if self.is_wide:
            self.finish(request, wire.encode_wide(wire.Error(request.packet_id, code, details)))
        else:
            self.finish(request, wire.encode_error(request.packet_id, code, details))

    # Consumers

    def deliver(self, consumer: Consumer, message: Message) -> None:
        """Send a message that is leased to one of the connection's consumers.

        A message of another protocol may not fit into a frame: it goes back, and the consumer ends.
        """
        if consumer.is_cancelled and consumer.id not in self.consumers:
            return
        if len(message.body) + len(message.properties) > self.message_max_bytes:
            self.broker.end(consumer)
            self.queue_deleted(consumer)
            return
        self.note_delivery(message)
        self.send(wire.encode_deliver(consumer.id, record_of(message)))

    def queue_deleted(self, consumer: Consumer) -> None:
        """Tell the peer that it has one consumer less."""
        self.consumers.pop(consumer.id, None)
        self.send(wire.encode_wide(wire.ConsumerEnded(0, consumer.id)))

    def queue_moved(self, consumer: Consumer) -> None:
        # Asked for again, the consumer finds the new place.
        self.queue_deleted(consumer)

    def pause_writing(self) -> None:
        super().pause_writing()
        for consumer in self.consumers.values():
            self.broker.pause(consumer)
        self.relay.pause()

    def _resume_consumers(self) -> None:
        for consumer in list(self.consumers.values()):
            self.broker.resume(consumer)

    def resume_writing(self) -> None:
        if not self.is_held_back:
            self._resume_consumers()
        self.relay.resume()
        super().resume_writing()

    def forget_if_done(self, consumer: Consumer) -> None:
        """Let go of a consumer that was cancelled and holds nothing any more."""
        if consumer.is_cancelled and not consumer.leases:
            self.consumers.pop(consumer.id, None)
            leaving = self._leaving.get(consumer.id)
            if leaving is not None:
                leaving.set()

    # Clustered queues

    def ask_to_move(self, session_id: str, node: str, address: str, queue_id: int, deadline_s: float) -> None:
        """Ask the client of a session to go to the queue at that address within so long."""
        packet = wire.MoveRequested(0, session_id, node, address, queue_id, round(deadline_s * 1000))
        self.send(wire.encode_wide(packet))

    def consuming(self) -> Iterator[tuple[int, int]]:
        """Yield the ids of the client's consumers, here and at other nodes, each with that of its queue."""
        for consumer in self.consumers.values():
            if not consumer.is_cancelled or consumer.id in self._leaving:
                yield consumer.id, consumer.queue_id
        yield from self.relay.consuming()

    async def send_away(self, consumer_id: int, limit_s: float) -> bool:
        """End a consumer as if its queue had moved: the client asks for it again. False if there is none.

        It gets nothing more. What it has not settled within the time goes back.
        """
        consumer = self.consumers.get(consumer_id)
        if consumer is None:
            return await self.relay.send_away(consumer_id, limit_s)
        if consumer_id in self._leaving:
            return False
        self.broker.cancel(consumer)
        leaving = self._leaving[consumer_id] = asyncio.Event()
        try:
            if consumer.leases:
                async with asyncio.timeout(limit_s):
                    await leaving.wait()
        except TimeoutError:
            self.broker.end(consumer)
        finally:
            del self._leaving[consumer_id]
        if self.is_over:
            return False
        self.queue_moved(consumer)
        return True

    # The end

    def stop_waiting(self) -> None:
        self._give_up_waits()
        self.relay.end()

    def _give_up_waits(self) -> None:
        for wait in list(self.waits.values()):
            wait.give_up()

    def _close_if_done(self) -> None:
        if self not in self.hub.stalled:
            # All that the peer has ever asked for is on its way. Its consumers can settle nothing any more, and the
            # answers to other requests may take minutes.
            self._end_consumers()
            self.relay.end()
        super()._close_if_done()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.relay.close()

    def node_lost(self, node_id: int) -> None:
        self.relay.node_lost(node_id)

    def release_buffers(self) -> None:
        self._decoder.clear()

    # Memory

    def input_bytes(self) -> int:
        return self._decoder.buffered_bytes + self._reserved_bytes + self.relay.unsent_bytes

    def held_bytes(self) -> int:
        return (
            super().held_bytes()
            + CONSUMER_BYTES * (len(self.consumers) + len(self.waits))
            + REFUSED_BYTES * len(self.refused)
        )

    @property
    def unacked_bytes(self) -> int:
        size = 0
        for consumer in self.consumers.values():
            size += consumer.leased_bytes + MESSAGE_OVERHEAD_BYTES * len(consumer.leases)
        return size

    def page_out(self, wanted_bytes: int) -> int:
        freed = 0
        for consumer in self.consumers.values():
            if freed >= wanted_bytes:
                break
            leased = ((consumer, message) for message in reversed(consumer.leases.values()))
            freed += page_out(self.broker.engine, leased, wanted_bytes - freed)
        return freed

    def hold_back(self) -> None:
        super().hold_back()
        for consumer in self.consumers.values():
            self.broker.pause(consumer)

    def let_go_on(self) -> None:
        super().let_go_on()
        if not self._is_write_paused:
            self._resume_consumers()

    def _end_consumers(self) -> None:
        consumers, self.consumers = self.consumers, {}
        for consumer in consumers.values():
            try:
                self.broker.end(consumer)
            except Exception as error:
                # The other consumers hold messages, too.
                self.faults.note("end of a consumer", error, quiet=True)

    def ended(self) -> None:
        self._give_up_waits()
        self._end_consumers()
        self.is_over = True
        if self._is_counted:
            self._is_counted = False
            self.hub.occupancy.leave(DEFAULT_VHOST)
        for leaving in self._leaving.values():
            leaving.set()
        if self.subscriptions:
            self.subscriptions.clear()
            self.hub.topics.owner_gone(self)
        for session_id in self.sessions:
            self.hub.placement.left(session_id, self, orderly=False)
        self.sessions.clear()


def record_of(message: Message) -> wire.Record:
    return wire.Record(
        message.id,
        message.queue_id,
        wire_id(message.sender),
        wire_id(message.receiver),
        message.context or 0,
        message.priority,
        message.arrived_us,
        message.persistent,
        message.redelivered,
        message.delivery_count,
        message.properties,
        message.body,
    )


def wire_id(number: int | None) -> int:
    """Fit an id into 32 bits: 0 for none, the low bits of a larger one."""
    return 0 if number is None else number if -_LOW_31_BITS <= number <= _LOW_31_BITS else number & _LOW_31_BITS


def _queue_ids(packet: wire.Packet) -> Sequence[int]:
    """Return the ids of the queues that a packet names."""
    if isinstance(packet, wire.PutMessage):
        return (packet.message.queue_id, *packet.additional_queue_ids)
    if isinstance(packet, wire.Put):
        return packet.queue_ids
    queue_id: int | None = getattr(packet, "queue_id", None)
    return () if queue_id is None else (queue_id,)
