"""The Telesto protocol: the effect of each packet, as in the original, and the packets allowed in each state.

Names and texts have the semantics of a PostgreSQL column of limited width: excess blanks are truncated, other excess
is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from flyball.broker.core.body_format import BodyFormat, as_text
from flyball.broker.core.handles import QueueHandle
from flyball.broker.core.placement import Role
from flyball.broker.protocols.requests import RequestSession, result_of
from flyball.broker.transport.connection import Hub
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode
from flyball.errors import (
    ClientNameTaken,
    ClientNotFound,
    FlyballError,
    InvalidBody,
    InvalidName,
    NotIdentified,
    NotPermitted,
    QueueNameTaken,
    QueueNotFound,
    RequestError,
)
from flyball.model import DEFAULT_VHOST, MAX_NAME_LENGTH, Client, ClientMode, Draft, Message, Order, Queue, Selector
from flyball.trace.schema import Kind, Protocol, Result
from flyball.trace.span import Span

# Maximum length of a message's text, in characters.
MAX_TEXT_LENGTH = 2000

# Timeout of requests to other nodes for queues with messages for a client.
ACTIVE_LIMIT_S = 2.0

# Modes up to this one are accepted: modes other than FULL allow everything except put.
_HIGHEST_MODE = 126

# More messages than fit into a frame: the smallest has 31 bytes.
_LISTED_AT_ONCE = 1200

_LOW_31_BITS = 2**31 - 1

# Errors may quote input of the peer, which can exceed a frame.
_MAX_DETAILS_LENGTH = 1000

_CODES: dict[type[FlyballError], ErrorCode] = {
    QueueNotFound: ErrorCode.QUEUE_NOT_EXISTING,
    QueueNameTaken: ErrorCode.QUEUE_NAME_NOT_UNIQUE,
    ClientNotFound: ErrorCode.CLIENT_NOT_EXISTING,
    ClientNameTaken: ErrorCode.CLIENT_NAME_NOT_UNIQUE,
    NotPermitted: ErrorCode.CLIENT_MODE_PERMISSION_VIOLATION,
    NotIdentified: ErrorCode.UNEXPECTED_PACKET,
}


class Refusal(RequestError):
    """An error with a specific Telesto code, such as an empty result."""

    def __init__(self, code: ErrorCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class TelestoRequest(Span):
    """A request with the packet id for its response."""

    packet_id: int = 0


class TelestoSession(RequestSession):
    """A connection: unidentified at first, later identified as a client's."""

    PROTOCOL = Protocol.TELESTO

    def __init__(self, hub: Hub, time_order: Order) -> None:
        self._decoder = wire.PacketDecoder()
        super().__init__(hub, self._decoder)
        self.time_order = time_order
        self.mode = ClientMode.READ_ONLY
        self._handlers: Mapping[type[wire.Packet], Handler] = UNIDENTIFIED

    def new_request(self) -> TelestoRequest:
        self.requests += 1
        return TelestoRequest()

    def goes_alone(self, parsed: wire.Packet, request: Span) -> bool:
        # A taken message only waits for its commit, which others can share.
        return isinstance(parsed, _READS) and not self.has_reserved(request)

    def decode(self) -> wire.Packet | None:
        return self._decoder.next_packet()

    def handle(self, parsed: wire.Packet, request: Span) -> None:
        assert isinstance(request, TelestoRequest)
        request.packet_id = parsed.packet_id
        handler = self._handlers.get(type(parsed))
        if handler is None:
            raise NotIdentified(f"packet {type(parsed).__name__} is not allowed now")
        # Checked before the queues are looked up.
        self.broker.check_copies(len(_queue_ids(parsed)))
        # On the path of every request: without peers there are no clustered queues.
        if self.hub.peering.is_clustered:
            self._use(parsed)
        if all(self.queue(queue_id) is not None for queue_id in _queue_ids(parsed)):
            handler(self, parsed, request)
        else:
            self.look_again(partial(handler, self, parsed, request), request)

    def _use(self, packet: wire.Packet) -> None:
        """Replace members of clustered queues in the packet by those that serve the client, and count the use."""
        if isinstance(packet, wire.PutMessage):
            packet.message.queue_id = self.use(packet.message.queue_id, Role.PRODUCER)
            packet.additional_queue_ids = [
                self.use(queue_id, Role.PRODUCER) for queue_id in packet.additional_queue_ids
            ]
        elif isinstance(packet, wire.ReadMessage):
            packet.queue_id = self.use(packet.queue_id, Role.CONSUMER)

    def existing_queue(self, queue_id: int) -> QueueHandle:
        """Return a queue that the client may use. Raises QueueNotFound."""
        found = self.queue(queue_id)
        if found is None:
            raise QueueNotFound(queue_id)
        return found

    def identify(self, client: Client) -> None:
        """Identify the connection as this client's."""
        self.enter()
        self.client_id = client.id
        self.mode = client.mode
        self._handlers = IDENTIFIED

    # Answers

    def reply(self, request: TelestoRequest, packet: wire.Packet) -> None:
        """Respond with a packet, or with an error if it exceeds a frame."""
        try:
            data = wire.encode(packet)
        except wire.FrameTooLarge as error:
            self.refuse(request, InvalidBody(str(error)))
        else:
            self.finish(request, data)

    def answer(self, request: TelestoRequest, error: FlyballError | None) -> None:
        """Respond with Success, or with the error."""
        if error is None:
            self.finish(request, wire.encode_success(request.packet_id))
        else:
            self.refuse(request, error)

    def refuse(self, request: Span, error: FlyballError) -> None:
        assert isinstance(request, TelestoRequest)
        if isinstance(error, Refusal):
            code = error.code
            request.result = Result.EMPTY if code == ErrorCode.NO_MESSAGES_RETRIEVED else Result.REFUSED
        else:
            code = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), ErrorCode.INTERNAL_ERROR)
            request.result = result_of(error)
        self.finish(request, wire.encode_error(request.packet_id, code, str(error)[:_MAX_DETAILS_LENGTH]))


def ping(session: TelestoSession, packet: wire.Ping, request: TelestoRequest) -> None:
    request.kind = Kind.PING
    session.reply(request, wire.Pong(packet.packet_id))


# Clients


def register_client(session: TelestoSession, packet: wire.RegisterClient, request: TelestoRequest) -> None:
    request.kind = Kind.REGISTER
    session.check_entry()
    if not 0 <= packet.mode <= _HIGHEST_MODE:
        raise RequestError(f"there is no client mode {packet.mode}")
    mode = ClientMode.FULL if packet.mode == ClientMode.FULL else ClientMode.READ_ONLY
    name = _fit_name(packet.client_name)

    def registered(error: FlyballError | None) -> None:
        session.release()
        if error is None:
            session.identify(client)
            session.reply(request, wire.RegisterClientResponse(packet.packet_id, client.id))
        else:
            session.refuse(request, error)

    client = session.broker.create_client(name, mode, registered)
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
    session.perform(_create_claimed(session, _fit_name(packet.queue_name), request), request)


async def _create_claimed(session: TelestoSession, name: str, request: TelestoRequest) -> None:
    """Create a queue after claiming its name."""

    def created(error: FlyballError | None) -> None:
        if error is None:
            session.reply(request, wire.CreateQueueResponse(request.packet_id, queue.id))
        else:
            session.refuse(request, error)

    if not await session.hub.peering.may_create(DEFAULT_VHOST, name):
        raise QueueNameTaken(name)
    queue = session.hub.queues.topology.create_queue(name, created)
    request.queue_id = queue.id


def delete_queue(session: TelestoSession, packet: wire.DeleteQueue, request: TelestoRequest) -> None:
    request.kind = Kind.DELETE_QUEUE
    request.queue_id = packet.queue_id
    session.existing_queue(packet.queue_id).delete(lambda count, error: session.answer(request, error))


def get_queue_id(session: TelestoSession, packet: wire.GetQueueId, request: TelestoRequest) -> None:
    request.kind = Kind.LOOK_UP
    _check_no_zero(packet.queue_name)
    reply = partial(_reply_with_id, session, packet.queue_name, request)
    if session.hub.queues.locate(DEFAULT_VHOST, packet.queue_name) is None:
        session.look_again(reply, request)
    else:
        reply()


def _reply_with_id(session: TelestoSession, name: str, request: TelestoRequest) -> None:
    found = session.hub.queues.locate(DEFAULT_VHOST, name)
    if found is None:
        raise QueueNotFound(name)
    session.reply(request, wire.GetQueueIdResponse(request.packet_id, found.queue.id))


def get_queue_name(session: TelestoSession, packet: wire.GetQueueName, request: TelestoRequest) -> None:
    request.kind = Kind.LOOK_UP
    name = session.existing_queue(packet.queue_id).queue.name
    session.reply(request, wire.GetQueueNameResponse(packet.packet_id, name))


def get_queues(session: TelestoSession, packet: wire.GetQueues, request: TelestoRequest) -> None:
    """List all queues; for a clustered one, only the member to which its name resolves on this node."""
    request.kind = Kind.LOOK_UP
    here = [state.queue for state in session.broker.engine.queues]
    named = {queue.name: queue for queue in [*session.hub.directory.queues, *here] if queue.vhost == DEFAULT_VHOST}
    if not named:
        raise Refusal(ErrorCode.NO_QUEUES_EXISTING, "there are no queues")
    queues = sorted(named.values(), key=lambda queue: queue.id)
    session.reply(request, wire.GetQueuesResponse(packet.packet_id, queues))


def get_active_queues(session: TelestoSession, packet: wire.GetActiveQueues, request: TelestoRequest) -> None:
    """List a queue once per message in it that is visible to the client."""
    request.kind = Kind.LOOK_UP
    session.perform(_get_active_queues_of_all(session, request), request)


async def _get_active_queues_of_all(session: TelestoSession, request: TelestoRequest) -> None:
    """Include the queues of other nodes, except those that do not respond in time."""
    reader = session.client_id
    answers, _ = await session.hub.peering.ask_owners("queue.active", {"reader": reader}, ACTIVE_LIMIT_S)
    found = {queue.id: (queue, count) for queue, count in session.broker.engine.active_queues(reader)}
    for answer in answers.values():
        for queue_id, count in answer:
            remote = session.hub.directory.get(queue_id)
            if remote is not None:
                found[queue_id] = (remote.queue, count)
    active = [found[queue_id] for queue_id in sorted(found) if found[queue_id][0].vhost == DEFAULT_VHOST]
    if not active:
        raise Refusal(ErrorCode.NO_ACTIVE_QUEUES_EXISTING, "there are no messages for this client")
    if sum(count for _, count in active) > wire.FRAME_MAX:
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
        elif sum(len(message.body) for message in messages) > wire.FRAME_MAX:
            session.refuse(request, InvalidBody("the messages of the queue do not fit into an answer"))
        else:
            request.message_count = len(messages)
            texts = [_wire_message(message) for message in messages]
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
    # Same order of checks as the original: its database first refuses a zero byte, then the queue is looked up, then
    # an id is assigned, and only then the length is checked.
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
    # Other nodes may delay it: it is charged to the connection until the response.
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
        if error is not None:
            session.refuse(request, error)
        elif message is None:
            session.refuse(request, Refusal(ErrorCode.NO_MESSAGES_RETRIEVED, "no message was found"))
        else:
            request.message_count = 1
            request.size_bytes = len(message.body)
            _reply_with(session, request, message)

    session.read(queue_id, selector, BodyFormat.TELESTO_TEXT, request, taken)


def _reply_with(session: TelestoSession, request: TelestoRequest, message: Message) -> None:
    data = wire.encode_read_message_response(
        request.packet_id,
        _wire_id(message.id),
        message.queue_id,
        _wire_id(message.sender),
        _wire_id(message.receiver),
        _wire_id(message.context),
        max(-128, min(message.priority, 127)),
        message.arrived_us // 1000,
        as_text(message.body),
    )
    session.finish(request, data)


# Fitting


def _wire_message(message: Message) -> wire.WireMessage:
    return wire.WireMessage(
        _wire_id(message.id),
        message.queue_id,
        _wire_id(message.sender),
        _wire_id(message.receiver),
        _wire_id(message.context),
        max(-128, min(message.priority, 127)),
        message.arrived_us // 1000,
        message.body.decode("utf-8", "replace"),
    )


def _wire_id(number: int | None) -> int:
    """Fit an id into 32 bits: 0 for None, and the low bits of a larger id."""
    return 0 if number is None else number if -_LOW_31_BITS <= number <= _LOW_31_BITS else number & _LOW_31_BITS


def _queue_ids(packet: wire.Packet) -> Sequence[int]:
    """Return the ids of the queues in a packet."""
    if isinstance(packet, wire.PutMessage):
        return (packet.message.queue_id, *packet.additional_queue_ids)
    queue_id: int | None = getattr(packet, "queue_id", None)
    return () if queue_id is None else (queue_id,)


def _check_no_zero(name: str) -> None:
    if "\0" in name:
        raise InvalidName("a name must not contain a zero byte")


def _fit_name(name: str) -> str:
    _check_no_zero(name)
    return name[:MAX_NAME_LENGTH] if not name[MAX_NAME_LENGTH:].strip(" ") else name


def _fit_text(session: TelestoSession, text: str, queue_ids: list[int]) -> str:
    if not text[MAX_TEXT_LENGTH:].strip(" "):
        return text[:MAX_TEXT_LENGTH]
    if not any(session.queue(queue_id) is not None for queue_id in queue_ids):
        raise QueueNotFound(queue_ids[0])
    if session.broker.has_ids_for(1):
        # The original has assigned an id when its database refuses the text.
        session.broker.engine.use_message_id()
    raise InvalidBody(f"a text of {len(text)} characters is longer than {MAX_TEXT_LENGTH}")


# Which packets are allowed

# Reads of messages that may not be in memory.
_READS = (wire.ReadMessage, wire.ReadResponse, wire.GetMessages)

Handler = Callable[[TelestoSession, Any, TelestoRequest], None]

UNIDENTIFIED: Mapping[type[wire.Packet], Handler] = {
    wire.Ping: ping,
    wire.RegisterClient: register_client,
    wire.IdentifyClient: identify_client,
}

IDENTIFIED: Mapping[type[wire.Packet], Handler] = {
    wire.Ping: ping,
    wire.DeleteClient: delete_client,
    wire.CreateQueue: create_queue,
    wire.DeleteQueue: delete_queue,
    wire.GetQueueId: get_queue_id,
    wire.GetQueueName: get_queue_name,
    wire.GetQueues: get_queues,
    wire.GetActiveQueues: get_active_queues,
    wire.GetMessages: get_messages,
    wire.PutMessage: put_message,
    wire.ReadMessage: read_message,
    wire.ReadResponse: read_response,
}
