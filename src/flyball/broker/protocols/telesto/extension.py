"""What the packets of Flyball's extension do: batches, peeking, waiting, consumers with leases, administration."""

from __future__ import annotations

import json
import secrets
from functools import partial

import flyball
from flyball.broker.engine.consumer import Consumer
from flyball.broker.management import commands as management
from flyball.broker.management.status import status_of
from flyball.broker.protocols.telesto import plain
from flyball.broker.protocols.telesto.putting import put_drafts
from flyball.broker.protocols.telesto.session import (
    RECORD_BYTES,
    Refusal,
    TelestoRequest,
    TelestoSession,
    not_owner,
    record_of,
)
from flyball.broker.wire import telesto as wire
from flyball.errors import (
    ClusterError,
    ConsumerNotFound,
    FlyballError,
    InvalidBody,
    NotPermitted,
    QueueNotFound,
    RequestError,
)
from flyball.model import DEFAULT_VHOST, ClientMode, Message, Order, Selector
from flyball.trace.schema import Kind, Result

VERSION = 1

MOST_AT_ONCE = 10_000
"""So many messages may be asked for in one request."""

MOST_IDS = 100_000
"""So many message ids may be asked for in one request."""

MOST_LEASED = 65_535
"""So many messages may be with one consumer."""

# Queues of which it is kept that a put there was refused, of one connection from another node.
MAX_REFUSED = 100_000

MOST_CONSUMERS = 1000
"""So many consumers may one connection have."""


def identify_client(session: TelestoSession, packet: wire.IdentifyClient, request: TelestoRequest) -> None:
    """Identify, or ask for the extension with the id that no client has."""
    if packet.client_id != wire.EXTENSION_CLIENT_ID:
        plain.identify_client(session, packet, request)
        return
    request.kind = Kind.IDENTIFY
    server = f"flyball {flyball.__version__}"
    session.reply(request, wire.Welcome(packet.packet_id, VERSION, session.frame_max, server))
    session.widen()


def join(session: TelestoSession, packet: wire.Join, request: TelestoRequest) -> None:
    """Be the client of that name, whether it exists already or not."""
    request.kind = Kind.REGISTER
    session.check_entry()
    plain.check_no_zero(packet.client_name)
    session.hold()
    if session.asks_others and session.broker.engine.find_client(packet.client_name) is None:
        # Another node may have registered it just now.
        session.relay.look_again(lambda: _join(session, packet, request))
    else:
        _join(session, packet, request)


def _join(session: TelestoSession, packet: wire.Join, request: TelestoRequest) -> None:
    known = session.broker.engine.find_client(packet.client_name)

    def joined(error: FlyballError | None) -> None:
        session.release()
        if error is None:
            session.identify(client)
            session.reply(request, wire.Joined(packet.packet_id, client.id, client.mode))
        else:
            session.refuse(request, error)

    if known is not None:
        client = known
        # Somebody else may have registered it just now.
        session.broker.when_durable(joined)
        return
    try:
        client = session.broker.create_client(packet.client_name, plain.mode_of(packet.mode), joined)
    except RequestError as error:
        joined(error)


# Messages


def put(session: TelestoSession, packet: wire.Put, request: TelestoRequest) -> None:
    """Store all drafts in all queues, or nothing if a queue does not exist."""
    request.kind = Kind.PUT
    if session.mode != ClientMode.FULL:
        raise NotPermitted("a client needs mode FULL to put messages")
    engine = session.broker.engine
    absent = next((queue_id for queue_id in packet.queue_ids if not engine.has_queue(queue_id)), None)
    if session.is_forwarded:
        _keep_order(session, packet, absent)
    if absent is not None and not session.asks_others:
        raise QueueNotFound(absent)
    for draft in packet.drafts:
        session.check_draft(draft)
        request.size_bytes += len(draft.body)
    copies = len(packet.queue_ids) * len(packet.drafts)
    session.check_copies(copies)
    request.queue_id = packet.queue_ids[0] if packet.queue_ids else 0
    request.message_count = copies

    def stored(message_ids: list[int], error: FlyballError | None) -> None:
        if error is not None:
            session.refuse(request, error)
        else:
            session.reply(request, wire.PutDone(request.packet_id, message_ids))

    if absent is None and not session.relay.lines.has_any(packet.queue_ids):
        put_drafts(session, packet.queue_ids, packet.drafts, stored)
    else:
        session.relay.put(request, packet.queue_ids, packet.drafts, stored)


def _keep_order(session: TelestoSession, packet: wire.Put, absent: int | None) -> None:
    """Refuse what comes behind something that was refused: that will come again, and has to be first.

    A put of nothing says that all which had been sent are answered. Raises QueueNotFound.
    """
    if not packet.drafts:
        session.refused.difference_update(packet.queue_ids)
    refused = next((queue_id for queue_id in packet.queue_ids if queue_id in session.refused), absent)
    if refused is not None:
        session.refused.update(packet.queue_ids)
        if len(session.refused) > MAX_REFUSED:
            # The other node begins anew with another connection.
            session.close(f"puts to more than {MAX_REFUSED} queues were refused")
        raise QueueNotFound(refused)


def take(session: TelestoSession, packet: wire.Take, request: TelestoRequest) -> None:
    """Remove up to so many messages; if there is none, wait for one as long as the client wishes."""
    request.kind = Kind.TAKE
    request.queue_id = packet.queue_id
    selector = selector_of(session, packet.selector)
    _check_most(packet.most)
    session.broker.engine.queue(packet.queue_id)
    taking = _Take(session, request, packet, selector)
    taking.next()


class _Take:
    """Collects the messages of one Take: as many as there are, and fit into the answer's frame."""

    def __init__(
        self, session: TelestoSession, request: TelestoRequest, packet: wire.Take, selector: Selector
    ) -> None:
        self._session = session
        self._request = request
        self._packet = packet
        self._selector = selector
        self._found: dict[int, Message] = {}
        """By the turn in which they were found: those that need no commit come back first."""
        self._error: FlyballError | None = None
        self._under_way = 0
        self._is_exhausted = False
        self._room_bytes = session.frame_max - RECORD_BYTES

    def next(self) -> None:
        """Start removing messages; they are committed together."""
        packet, broker = self._packet, self._session.broker
        if packet.most == 1 and packet.wait_ms > 0:
            self._under_way = 1
            self._wait()
            return
        self._under_way = 1
        for turn in range(packet.most):
            if self._is_exhausted:
                break
            self._under_way += 1
            broker.take(packet.queue_id, self._selector, partial(self._taken, turn), self._accepts)
        self._one_done()

    def _accepts(self, message: Message) -> bool:
        """Leave for the next answer what does not fit into this one's frame."""
        size = len(message.body) + len(message.properties) + RECORD_BYTES
        if size > self._room_bytes:
            self._is_exhausted = True
            return False
        self._room_bytes -= size
        self._session.reserve(self._request, size)
        return True

    def _taken(self, turn: int, message: Message | None, error: FlyballError | None) -> None:
        if message is not None:
            self._found[turn] = message
        else:
            self._is_exhausted = True
            self._error = self._error or error
        self._one_done()

    def _one_done(self) -> None:
        self._under_way -= 1
        if self._under_way:
            return
        if self._found or (self._error is None and self._packet.wait_ms <= 0):
            self._answer()
        elif self._error is not None:
            self._session.refuse(self._request, self._error)
        else:
            self._under_way = 1
            self._wait()

    def _wait(self) -> None:
        session, packet = self._session, self._packet
        wait = session.broker.wait(
            packet.queue_id, self._selector, packet.wait_ms / 1000, self._waited, self._accepts
        )
        if self._under_way:
            session.waits[self._request] = wait

    def _waited(self, message: Message | None, error: FlyballError | None) -> None:
        self._under_way = 0
        wait = self._session.waits.pop(self._request, None)
        if wait is not None:
            self._request.idle_ns = wait.idle_ns
        if error is not None:
            self._session.refuse(self._request, error)
            return
        if message is not None:
            self._found[0] = message
        self._answer()

    def _answer(self) -> None:
        request = self._request
        found = [self._found[turn] for turn in sorted(self._found)]
        request.message_count = len(found)
        request.size_bytes = sum(len(message.body) for message in found)
        if not found:
            request.result = Result.EMPTY
        self._session.reply(request, wire.Messages(request.packet_id, [record_of(message) for message in found]))


def peek(session: TelestoSession, packet: wire.Peek, request: TelestoRequest) -> None:
    request.kind = Kind.PEEK
    request.queue_id = packet.queue_id
    session.broker.engine.queue(packet.queue_id)

    def peeked(message: Message | None, error: FlyballError | None) -> None:
        if error is not None:
            session.refuse(request, error)
            return
        request.message_count = 0 if message is None else 1
        request.result = Result.EMPTY if message is None else Result.OK
        records = [] if message is None else [record_of(message)]
        session.reply(request, wire.Messages(packet.packet_id, records))

    session.broker.peek(packet.queue_id, selector_of(session, packet.selector), peeked)


def list_messages(session: TelestoSession, packet: wire.ListMessages, request: TelestoRequest) -> None:
    request.kind = Kind.LIST
    request.queue_id = packet.queue_id
    _check_most(packet.most)

    def listed(messages: list[Message], error: FlyballError | None) -> None:
        if error is not None:
            session.refuse(request, error)
            return
        records = []
        room_bytes = session.frame_max - RECORD_BYTES
        for message in messages:
            room_bytes -= len(message.body) + len(message.properties) + RECORD_BYTES
            if room_bytes < 0:
                break
            records.append(record_of(message))
        if messages and not records:
            session.refuse(request, InvalidBody(f"message {messages[0].id} does not fit into a frame"))
            return
        request.message_count = len(records)
        session.reply(request, wire.Messages(packet.packet_id, records))

    session.broker.browse(packet.queue_id, packet.after_id, packet.most, listed)


def list_ids(session: TelestoSession, packet: wire.ListIds, request: TelestoRequest) -> None:
    """Tell which messages there are, when they are committed: what was named once is there after a crash."""
    request.kind = Kind.LIST
    request.queue_id = packet.queue_id
    _check_most(packet.most, MOST_IDS)

    def listed(messages: list[Message], error: FlyballError | None) -> None:
        if error is not None:
            session.refuse(request, error)
            return
        message_ids = [message.id for message in messages[: (session.frame_max - RECORD_BYTES) // 8]]
        request.message_count = len(message_ids)
        session.reserve(request, 8 * len(message_ids))

        def committed(error: FlyballError | None) -> None:
            if error is not None:
                session.refuse(request, error)
            else:
                session.reply(request, wire.MessageIds(packet.packet_id, message_ids))

        session.broker.when_durable(committed)

    session.broker.browse(packet.queue_id, packet.after_id, packet.most, listed)


def remove(session: TelestoSession, packet: wire.Remove, request: TelestoRequest) -> None:
    """Remove the oldest messages up to an id; those that somebody has leased stay his."""
    request.kind = Kind.PURGE
    request.queue_id = packet.queue_id
    _check_most(packet.most)

    def removed(count: int, error: FlyballError | None) -> None:
        if error is None:
            request.message_count = count
            session.reply(request, wire.Count(packet.packet_id, count))
        else:
            session.refuse(request, error)

    session.broker.remove_oldest(packet.queue_id, packet.up_to_id, packet.most, removed)


# Consumers


def consume(session: TelestoSession, packet: wire.Consume, request: TelestoRequest) -> None:
    request.kind = Kind.CONSUME
    request.queue_id = packet.queue_id
    prefetch = _prefetch(packet.prefetch)
    if len(session.consumers) >= MOST_CONSUMERS:
        raise InvalidBody(f"a connection may have {MOST_CONSUMERS} consumers")

    def begun(consumer: Consumer) -> None:
        session.consumers[consumer.id] = consumer
        session.reply(request, wire.Consuming(packet.packet_id, consumer.id))

    session.broker.consume(packet.queue_id, selector_of(session, packet.selector), prefetch, session, begun)


def set_prefetch(session: TelestoSession, packet: wire.Prefetch, request: TelestoRequest) -> None:
    request.kind = Kind.CONSUME
    consumer = _consumer(session, packet.consumer_id)
    session.broker.set_prefetch(consumer, _prefetch(packet.prefetch))
    session.succeed(request)


def cancel(session: TelestoSession, packet: wire.Cancel, request: TelestoRequest) -> None:
    request.kind = Kind.CONSUME
    consumer = _consumer(session, packet.consumer_id)
    session.broker.cancel(consumer)
    session.forget_if_done(consumer)
    if consumer.queue_id in session.subscriptions:
        session.subscriptions.discard(consumer.queue_id)
        session.hub.topics.end_subscription(consumer.queue_id)
    session.succeed(request)


def settle(session: TelestoSession, packet: wire.Settle, request: TelestoRequest) -> None:
    request.kind = Kind.SETTLE
    request.message_count = len(packet.message_ids)
    consumer = _consumer(session, packet.consumer_id)
    request.queue_id = consumer.queue_id
    if packet.outcome == wire.Outcome.REQUEUE:
        session.broker.requeue(consumer, packet.message_ids)
        session.succeed(request)
    elif packet.outcome in (wire.Outcome.ACKNOWLEDGE, wire.Outcome.DROP):
        session.broker.acknowledge(consumer, packet.message_ids, lambda error: session.answer(request, error))
    else:
        raise RequestError(f"there is no outcome {packet.outcome}")
    session.forget_if_done(consumer)


# Administration


def ask_nonce(session: TelestoSession, packet: wire.AskNonce, request: TelestoRequest) -> None:
    request.kind = Kind.IDENTIFY
    session.nonce = secrets.token_bytes(wire.NONCE_BYTES)
    session.reply(request, wire.Nonce(packet.packet_id, session.nonce))


def prove(session: TelestoSession, packet: wire.Prove, request: TelestoRequest) -> None:
    """Let the client administer the node if it has its token. A nonce is good for one proof."""
    request.kind = Kind.IDENTIFY
    nonce, session.nonce = session.nonce, b""
    if not nonce or not any(wire.is_proof(packet.data, key, nonce) for key in session.hub.owner_keys):
        raise not_owner()
    session.is_owner = True
    session.succeed(request)


def purge(session: TelestoSession, packet: wire.Purge, request: TelestoRequest) -> None:
    request.kind = Kind.PURGE
    request.queue_id = packet.queue_id

    def purged(count: int, error: FlyballError | None) -> None:
        if error is None:
            request.message_count = count
            session.reply(request, wire.Count(packet.packet_id, count))
        else:
            session.refuse(request, error)

    session.broker.purge(packet.queue_id, purged)


def status(session: TelestoSession, packet: wire.Status, request: TelestoRequest) -> None:
    request.kind = Kind.STATUS
    report = json.dumps(status_of(session.hub, None if session.is_owner else DEFAULT_VHOST)).encode()
    session.reply(request, wire.StatusReport(packet.packet_id, report))


def list_clients(session: TelestoSession, packet: wire.ListClients, request: TelestoRequest) -> None:
    request.kind = Kind.LOOK_UP
    clients = [wire.WireClient(client.id, client.mode, client.name) for client in session.broker.engine.clients]
    session.reply(request, wire.Clients(packet.packet_id, clients))


def remove_client(session: TelestoSession, packet: wire.RemoveClient, request: TelestoRequest) -> None:
    session.broker.delete_client(packet.client_id, lambda error: session.answer(request, error))


def manage(session: TelestoSession, packet: wire.Manage, request: TelestoRequest) -> None:
    """Carry out a command; that of an administrator only for one whom the machine shows to be one."""
    session.hold()
    session.hub.spawn(_manage(session, packet, request), session)


async def _manage(session: TelestoSession, packet: wire.Manage, request: TelestoRequest) -> None:
    try:
        command, arguments = management.read_command(packet.command)
        if not session.peer_is_loopback and command not in management.FOR_EVERYBODY:
            raise Refusal(wire.ErrorCode.NOT_LOCAL, "a node is managed only from the machine on which it runs")
        if session.is_owner:
            result = await management.manage(session.hub, command, arguments)
        elif management.needs_owner(command, arguments):
            raise not_owner()
        else:
            result = await management.manage_for_all(session.hub, command, arguments)
    except Refusal as error:
        session.refuse(request, error)
    except (RequestError, ClusterError) as error:
        session.refuse(request, Refusal(wire.ErrorCode.COMMAND_REFUSED, str(error)))
    except FlyballError as error:
        session.refuse(request, error)
    else:
        session.reply(request, wire.Managed(packet.packet_id, json.dumps(result).encode()))
    session.release()


# Reading the fields


def selector_of(session: TelestoSession, selector: wire.WireSelector) -> Selector:
    if selector.order not in tuple(Order):
        raise RequestError(f"there is no order {selector.order}")
    return Selector(session.client_id, selector.unaddressed, selector.sender, selector.context, Order(selector.order))


def _prefetch(prefetch: float) -> float:
    if not 0 <= prefetch <= MOST_LEASED:
        raise InvalidBody(f"a prefetch must be between 0 and {MOST_LEASED}, not {prefetch}")
    return prefetch


def _check_most(most: int, limit: int = MOST_AT_ONCE) -> None:
    if not 1 <= most <= limit:
        raise InvalidBody(f"between 1 and {limit} messages may be asked for, not {most}")


def _consumer(session: TelestoSession, consumer_id: int) -> Consumer:
    consumer = session.consumers.get(consumer_id)
    if consumer is None:
        raise ConsumerNotFound(consumer_id)
    return consumer
