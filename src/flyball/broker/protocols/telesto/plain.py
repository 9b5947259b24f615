"""What the packets of Telesto's own protocol do, as the original does it.

Names and texts are fitted as a PostgreSQL column of that width would: surplus blanks are cut, other surplus refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from flyball.broker.core.fit import Fit, as_text
from flyball.broker.protocols.telesto.session import Refusal, TelestoRequest, TelestoSession, wire_id
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode
from flyball.errors import (
    FlyballError,
    InvalidBody,
    InvalidName,
    NotPermitted,
    QueueNameTaken,
    QueueNotFound,
    RequestError,
)
from flyball.model import DEFAULT_VHOST, MAX_NAME_LENGTH, ClientMode, Draft, Message, Order, Queue, Selector
from flyball.trace.schema import Kind

MAX_TEXT_LENGTH = 2000
"""Longest text of a message, in characters."""

ACTIVE_LIMIT_S = 2.0
"""For so long other nodes are asked which of their queues have messages for a client."""

_HIGHEST_MODE = 126
"""Modes up to here are accepted: what is not FULL may do everything but put."""

_LISTED_AT_ONCE = 1200
"""More messages than fit into a frame: the smallest takes 31 bytes."""


def ping(session: TelestoSession, packet: wire.Ping, request: TelestoRequest) -> None:
    request.kind = Kind.PING
    session.reply(request, wire.Pong(packet.packet_id))


# Clients


def register_client(session: TelestoSession, packet: wire.RegisterClient, request: TelestoRequest) -> None:
    request.kind = Kind.REGISTER
    session.check_entry()
    if not 0 <= packet.mode <= _HIGHEST_MODE:
        raise RequestError(f"there is no client mode {packet.mode}")
    name = fit_name(packet.client_name)

    def registered(error: FlyballError | None) -> None:
        session.release()
        if error is None:
            session.identify(client)
            session.reply(request, wire.RegisterClientResponse(packet.packet_id, client.id))
        else:
            session.refuse(request, error)

    client = session.broker.create_client(name, mode_of(packet.mode), registered)
    session.hold()


def identify_client(session: TelestoSession, packet: wire.IdentifyClient, request: TelestoRequest) -> None:
    request.kind = Kind.IDENTIFY
    session.check_entry()
    client = session.broker.engine.client(packet.client_id)
    session.identify(client)
    session.reply(request, wire.IdentifyClientResponse(packet.packet_id, client.mode, client.name))


def delete_client(session: TelestoSession, packet: wire.DeleteClient, request: TelestoRequest) -> None:
    session.broker.delete_client(session.client_id, lambda error: session.answer(request, error))


# Queues


def create_queue(session: TelestoSession, packet: wire.CreateQueue, request: TelestoRequest) -> None:
    request.kind = Kind.CREATE_QUEUE
    name = fit_name(packet.queue_name)

    if session.asks_others:
        session.hold()
        session.hub.spawn(_create_claimed(session, name, request), session)
    else:
        _create(session, name, request)


def _create(session: TelestoSession, name: str, request: TelestoRequest) -> None:
    def created(error: FlyballError | None) -> None:
        if error is None:
            session.reply(request, wire.CreateQueueResponse(request.packet_id, queue.id))
        else:
            session.refuse(request, error)

    queue = session.broker.create_queue(name, created)
    request.queue_id = queue.id


async def _create_claimed(session: TelestoSession, name: str, request: TelestoRequest) -> None:
    """Create a queue whose name no other node has, nor is about to have."""
    try:
        if session.broker.engine.find_queue(name) is not None or not await session.hub.peering.may_create(
            DEFAULT_VHOST, name
        ):
            raise QueueNameTaken(name)
        _create(session, name, request)
    except FlyballError as error:
        session.refuse(request, error)
    session.release()


def delete_queue(session: TelestoSession, packet: wire.DeleteQueue, request: TelestoRequest) -> None:
    request.kind = Kind.DELETE_QUEUE
    request.queue_id = packet.queue_id
    session.existing_queue(packet.queue_id).delete(lambda count, error: session.answer(request, error))


def get_queue_id(session: TelestoSession, packet: wire.GetQueueId, request: TelestoRequest) -> None:
    request.kind = Kind.LOOK_UP
    check_no_zero(packet.queue_name)
    if session.asks_others and _find_queue(session, packet.queue_name) is None:
        # Another node may have made it just now.
        session.look_again(lambda: _reply_with_id(session, packet.queue_name, request))
    else:
        _reply_with_id(session, packet.queue_name, request)


def _reply_with_id(session: TelestoSession, name: str, request: TelestoRequest) -> None:
    found = _find_queue(session, name)
    if found is None:
        session.refuse(request, QueueNotFound(name))
    else:
        session.reply(request, wire.GetQueueIdResponse(request.packet_id, found.id))


def _find_queue(session: TelestoSession, name: str) -> Queue | None:
    found = session.hub.queues.locate(DEFAULT_VHOST, name)
    return None if found is None else found.queue


def get_queue_name(session: TelestoSession, packet: wire.GetQueueName, request: TelestoRequest) -> None:
    request.kind = Kind.LOOK_UP
    name = session.existing_queue(packet.queue_id).queue.name
    session.reply(request, wire.GetQueueNameResponse(packet.packet_id, name))


def get_queues(session: TelestoSession, packet: wire.GetQueues, request: TelestoRequest) -> None:
    """List all queues; a clustered one once, as the member that its name means here."""
    request.kind = Kind.LOOK_UP
    here = [working.queue for working in session.broker.engine.queues]
    named = {queue.name: queue for queue in [*session.hub.directory.queues, *here] if queue.vhost == DEFAULT_VHOST}
    if not named:
        raise Refusal(ErrorCode.NO_QUEUES_EXISTING, "there are no queues")
    queues = sorted(named.values(), key=lambda queue: queue.id)
    session.reply(request, wire.GetQueuesResponse(packet.packet_id, queues))


def get_active_queues(session: TelestoSession, packet: wire.GetActiveQueues, request: TelestoRequest) -> None:
    """List a queue once for each message in it that the client may see, in wide frames just once."""
    request.kind = Kind.LOOK_UP
    if session.asks_others and len(session.hub.directory):
        session.hub.spawn(_get_active_queues_of_all(session, request), session)
    else:
        _reply_with_active(session, request, session.broker.engine.active_queues(session.client_id))


async def _get_active_queues_of_all(session: TelestoSession, request: TelestoRequest) -> None:
    """Ask the other nodes too; one that does not answer in time is left out."""
    reader = session.client_id
    answers, _ = await session.hub.peering.ask_owners("queue.active", {"reader": reader}, ACTIVE_LIMIT_S)
    found = {queue.id: (queue, count) for queue, count in session.broker.engine.active_queues(reader)}
    for answer in answers.values():
        for queue_id, count in answer:
            remote = session.hub.directory.get(queue_id)
            if remote is not None:
                found[queue_id] = (remote.queue, count)
    try:
        _reply_with_active(session, request, [found[queue_id] for queue_id in sorted(found)])
    except RequestError as error:
        session.refuse(request, error)


def _reply_with_active(session: TelestoSession, request: TelestoRequest, found: Sequence[tuple[Queue, int]]) -> None:
    active = [(queue, count) for queue, count in found if queue.vhost == DEFAULT_VHOST]
    if not active:
        raise Refusal(ErrorCode.NO_ACTIVE_QUEUES_EXISTING, "there are no messages for this client")
    if session.is_wide:
        active = [(queue, 1) for queue, _ in active]
    if sum(count for _, count in active) > session.answer_max:
        raise InvalidBody("there are more messages for this client than an answer can list")
    entries: list[Queue] = [queue for queue, count in active for _ in range(count)]
    session.reply(request, wire.GetActiveQueuesResponse(request.packet_id, entries))


def get_messages(session: TelestoSession, packet: wire.GetMessages, request: TelestoRequest) -> None:
    request.kind = Kind.LIST
    request.queue_id = packet.queue_id

    def listed(messages: list[Message], error: FlyballError | None) -> None:
        if error is not None:
            session.refuse(request, error)
        elif not messages:
            session.refuse(request, Refusal(ErrorCode.NO_MESSAGES_IN_QUEUE, "there are no messages in the queue"))
        elif sum(len(message.body) for message in messages) > session.answer_max:
            session.refuse(request, InvalidBody("the messages of the queue do not fit into an answer"))
        else:
            request.message_count = len(messages)
            texts = [wire_message(message) for message in messages]
            session.reply(request, wire.GetMessagesResponse(packet.packet_id, texts))

    queue = session.queue(packet.queue_id)
    if queue is None:
        listed([], None)
    else:
        queue.browse(0, _LISTED_AT_ONCE, listed)


# Messages


def put_message(session: TelestoSession, packet: wire.PutMessage, request: TelestoRequest) -> None:
    request.kind = Kind.PUT
    message = packet.message
    request.queue_id = message.queue_id
    if session.mode != ClientMode.FULL:
        raise NotPermitted("a client needs mode FULL to put messages")
    queue_ids = [message.queue_id, *packet.additional_queue_ids]
    text = message.text
    # In the order of the original: its database cannot be told of a zero byte, then looks for the queue, then draws
    # the id, and only then finds the text too long.
    if "\0" in text:
        raise InvalidBody("a text must not contain a zero byte")
    if len(text) > MAX_TEXT_LENGTH:
        text = _fit_text(session, text, queue_ids)
    body = text.encode()
    request.size_bytes = len(body)
    missing = [queue_id for queue_id in queue_ids if session.queue(queue_id) is None]
    request.message_count = len(queue_ids) - len(missing)

    def stored(error: FlyballError | None) -> None:
        if error is None and missing:
            error = QueueNotFound(missing[0])
        session.answer(request, error)

    draft = Draft(body, session.client_id, message.receiver_id or None, message.context or None, message.priority)
    known = [queue_id for queue_id in queue_ids if queue_id not in missing]
    # Other nodes may let it wait: it is charged to the connection until it is answered.
    session.hub.queues.put_draft(draft, known, stored, session, partial(session.reserve, request, len(body)))


def read_message(session: TelestoSession, packet: wire.ReadMessage, request: TelestoRequest) -> None:
    request.kind = Kind.TAKE
    request.queue_id = packet.queue_id
    if packet.read_mode == wire.ReadMode.PRIORITY:
        order = Order.PRIORITY
    elif packet.read_mode == wire.ReadMode.TIME:
        order = session.time_order
    else:
        raise RequestError(f"there is no read mode {packet.read_mode}")
    selector = Selector(session.client_id, True, packet.sender_id or None, None, order)
    _read(session, packet.queue_id, selector, request)


def read_response(session: TelestoSession, packet: wire.ReadResponse, request: TelestoRequest) -> None:
    request.kind = Kind.TAKE
    request.queue_id = packet.queue_id
    if not packet.queue_id or not packet.context:
        raise Refusal(ErrorCode.REQUIRED_PARAMETER_MISSING, "reading a response needs a queue id and a context")
    selector = Selector(session.client_id, False, None, packet.context)
    _read(session, packet.queue_id, selector, request)


def _read(session: TelestoSession, queue_id: int, selector: Selector, request: TelestoRequest) -> None:
    def taken(message: Message | None, error: FlyballError | None) -> None:
        if error is not None and not isinstance(error, QueueNotFound):
            session.refuse(request, error)
        elif message is None:
            # There is nothing in a queue that does not exist.
            session.refuse(request, Refusal(ErrorCode.NO_MESSAGES_RETRIEVED, "no message was found"))
        else:
            request.message_count = 1
            request.size_bytes = len(message.body)
            _reply_with(session, request, message)

    queue = session.queue(queue_id)
    if queue is None:
        taken(None, None)
    else:
        queue.take(selector, taken, Fit.TELESTO_TEXT, lambda message: session.reserve(request, len(message.body)))


def _reply_with(session: TelestoSession, request: TelestoRequest, message: Message) -> None:
    if session.is_wide:
        session.reply(request, wire.ReadMessageResponse(request.packet_id, wire_message(message)))
        return
    data = wire.encode_read_message_response(
        request.packet_id,
        wire_id(message.id),
        message.queue_id,
        wire_id(message.sender),
        wire_id(message.receiver),
        wire_id(message.context),
        max(-128, min(message.priority, 127)),
        message.arrived_us // 1000,
        as_text(message.body),
    )
    session.finish(request, data)


# Fitting


def wire_message(message: Message) -> wire.WireMessage:
    return wire.WireMessage(
        wire_id(message.id),
        message.queue_id,
        wire_id(message.sender),
        wire_id(message.receiver),
        wire_id(message.context),
        max(-128, min(message.priority, 127)),
        message.arrived_us // 1000,
        message.body.decode("utf-8", "replace"),
    )


def mode_of(number: int) -> ClientMode:
    return ClientMode.FULL if number == ClientMode.FULL else ClientMode.READ_ONLY


def check_no_zero(name: str) -> None:
    if "\0" in name:
        raise InvalidName("a name must not contain a zero byte")


def fit_name(name: str) -> str:
    check_no_zero(name)
    return name[:MAX_NAME_LENGTH] if not name[MAX_NAME_LENGTH:].strip(" ") else name


def _fit_text(session: TelestoSession, text: str, queue_ids: list[int]) -> str:
    if not text[MAX_TEXT_LENGTH:].strip(" "):
        return text[:MAX_TEXT_LENGTH]
    if not any(session.queue(queue_id) is not None for queue_id in queue_ids):
        raise QueueNotFound(queue_ids[0])
    if session.broker.has_ids_for(1):
        # The original has drawn the id before its database refuses the text.
        session.broker.engine.use_message_id()
    raise InvalidBody(f"a text of {len(text)} characters is longer than {MAX_TEXT_LENGTH}")
