"""The ThorBangMQ protocol: the effect of each request, and the FAIL lines of its report.

Pipelined requests are executed concurrently; each has one response, sent whole and in the order of requests. As in
the original, broadcasts are found only by reads by time without a sender.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flyball.broker.core.body_format import BodyFormat
from flyball.broker.core.placement import Role
from flyball.broker.protocols.requests import RequestSession, result_of
from flyball.broker.transport.connection import Hub
from flyball.broker.wire import thorbang as wire
from flyball.errors import (
    ClientInUse,
    ConnectionLimitReached,
    FlyballError,
    InvalidName,
    QueueNotFound,
)
from flyball.model import DEFAULT_VHOST, ClientMode, Draft, Message, Order, Selector
from flyball.trace.schema import Kind, Protocol, Result
from flyball.trace.span import Span

# Maximum length of the name of a queue or client, in characters.
MAX_NAME_LENGTH = 25

# Timeout of requests to other nodes.
ASK_LIMIT_S = 10.0

_UNKNOWN = wire.encode_fail("UNKNOWN", -1)


class ThorBangRequest(Span):
    """A request, and its response while earlier responses are pending."""

    answer: bytes | None = None


class ThorBangSession(RequestSession):
    """A connection. It has no identity: each request contains sender and receiver."""

    PROTOCOL = Protocol.THORBANG

    def __init__(self, hub: Hub, max_request_bytes: int) -> None:
        self._decoder = wire.RequestDecoder(max_request_bytes)
        super().__init__(hub, self._decoder)
        self._line: deque[ThorBangRequest] = deque()
        # Whether a request was malformed: its response is the last one, and later requests are ignored.
        self._is_refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self in self.hub.connections:
            try:
                self.check_entry()
            except ConnectionLimitReached as error:
                self.close(str(error))
                return
            self.enter()

    def new_request(self) -> ThorBangRequest:
        self.requests += 1
        return ThorBangRequest()

    def feed(self, data: bytes) -> None:
        if not self._is_refused:
            super().feed(data)

    def release_buffers(self) -> None:
        super().release_buffers()
        for request in self._line:
            # These requests complete, but their peer is disconnected.
            if request.answer is not None:
                request.answer = b""

    def goes_alone(self, parsed: wire.Request, request: Span) -> bool:
        if isinstance(parsed, wire.Pop):
            # A taken message only waits for its commit, which others can share.
            return not self.has_reserved(request)
        assert isinstance(request, ThorBangRequest)
        return isinstance(parsed, wire.Peek) and request.answer is None

    def decode(self) -> wire.Request | None:
        return None if self._is_refused else self._decoder.next_request()

    def handle(self, parsed: wire.Request, request: Span) -> None:
        assert isinstance(request, ThorBangRequest)
        self._line.append(request)
        # A peer with another protocol may be a web page in a browser on this machine (DNS rebinding, cross-site
        # request).
        self._is_refused = isinstance(parsed, wire.Malformed) or (
            isinstance(parsed, wire.Send) and parsed.malformed_after
        )
        handler = HANDLERS[type(parsed)]
        # On the path of every request: without peers there are no clustered queues.
        if self.hub.peering.is_clustered:
            self._use(parsed)
        if self._names_something_new(parsed):
            self.look_again(partial(handler, self, parsed, request), request)
        else:
            handler(self, parsed, request)

    def _use(self, parsed: wire.Request) -> None:
        """Replace members of clustered queues in the request by those that serve the client, and count the use."""
        if isinstance(parsed, wire.Send):
            parsed.queue_ids = [self.use(queue_id, Role.PRODUCER) for queue_id in parsed.queue_ids]
        elif isinstance(parsed, wire.Peek | wire.Pop):
            parsed.queue_id = self.use(parsed.queue_id, Role.CONSUMER)

    def _names_something_new(self, parsed: wire.Request) -> bool:
        match parsed:
            case wire.Send():
                return not self._knows(*parsed.queue_ids) or self.lacks_sender(parsed)
            case wire.Peek() | wire.Pop() | wire.RemoveQueue():
                return not self._knows(parsed.queue_id)
            case wire.RemoveClient():
                return not self.broker.engine.has_client(parsed.client_id)
            case _:
                return isinstance(parsed, wire.CreateClient)

    def lacks_sender(self, parsed: wire.Send) -> bool:
        """Whether the sender of a message is unknown; a node that discards messages accepts any sender."""
        engine = self.broker.engine
        return engine.keeps_messages and bool(parsed.queue_ids) and not engine.has_client(parsed.sender)

    def _knows(self, *queue_ids: int) -> bool:
        return all(self.queue(queue_id) is not None for queue_id in queue_ids)

    def reply(self, request: ThorBangRequest, answer: bytes) -> None:
        """Respond to the request after the responses to earlier ones."""
        line = self._line
        if line[0] is request:
            line.popleft()
            self.finish(request, answer)
            while line and line[0].answer is not None:
                waiting = line.popleft()
                assert waiting.answer is not None
                self.finish(waiting, waiting.answer)
            if self._is_refused and not line:
                self.close("malformed request")
        else:
            request.answer = answer
            self.reserve(request, len(answer))
            if request.started_ns:
                request.answered_ns = time.perf_counter_ns()

    def answer(self, request: ThorBangRequest, error: FlyballError | None) -> None:
        """Respond with OK, or with the error."""
        if error is None:
            self.reply(request, wire.OK)
        else:
            self.refuse(request, error)

    def refuse(self, request: Span, error: FlyballError) -> None:
        assert isinstance(request, ThorBangRequest)
        request.result = result_of(error)
        if isinstance(error, QueueNotFound):
            self.reply(request, wire.encode_fail("QUEUE", max(int(error.queue), -1)))
        else:
            self.reply(request, _UNKNOWN)


def malformed(session: ThorBangSession, parsed: wire.Malformed, request: ThorBangRequest) -> None:
    request.result = Result.REFUSED
    session.reply(request, wire.BAD_REQUEST)


def hello(session: ThorBangSession, parsed: wire.Hello, request: ThorBangRequest) -> None:
    request.kind = Kind.PING
    session.reply(request, wire.OK)


def send(session: ThorBangSession, parsed: wire.Send, request: ThorBangRequest) -> None:
    """Store the message in the queues from left to right, up to the first that is missing or not a number."""
    request.kind = Kind.PUT
    broker = session.broker
    broker.check_copies(len(parsed.queue_ids))
    if session.lacks_sender(parsed):
        request.result = Result.REFUSED
        session.reply(request, wire.encode_fail("CLIENT", max(parsed.sender, -1)))
        return
    queue_ids = parsed.queue_ids
    missing: int | None = None
    for at, queue_id in enumerate(queue_ids):
        if session.queue(queue_id) is None:
            missing = queue_id
            queue_ids = queue_ids[:at]
            break
    request.queue_id = queue_ids[0] if queue_ids else 0
    request.size_bytes = len(parsed.content)
    request.message_count = len(queue_ids)

    def stored(error: FlyballError | None) -> None:
        if error is None and missing is not None:
            error = QueueNotFound(missing)
        if error is None and parsed.malformed_after:
            malformed(session, wire.Malformed(), request)
        else:
            session.answer(request, error)

    receiver = parsed.receiver if parsed.receiver > 0 else None
    draft = Draft(parsed.content, parsed.sender, receiver, parsed.context or None, parsed.priority)
    # Other nodes may delay it: it is charged to the connection until the response.
    waits = partial(session.reserve, request, len(draft.body))
    session.hub.queues.put_draft(draft, queue_ids, stored, session, waits)


def peek(session: ThorBangSession, parsed: wire.Peek, request: ThorBangRequest) -> None:
    request.kind = Kind.PEEK
    _read(session, parsed, request, removes=False)


def pop(session: ThorBangSession, parsed: wire.Pop, request: ThorBangRequest) -> None:
    request.kind = Kind.TAKE
    _read(session, parsed, request, removes=True)


def _read(session: ThorBangSession, parsed: wire.Peek | wire.Pop, request: ThorBangRequest, *, removes: bool) -> None:
    request.queue_id = parsed.queue_id
    found = partial(_found, session, request)
    session.read(parsed.queue_id, _selector(parsed), BodyFormat.NO_ZERO, request, found, removes=removes)


def create_queue(session: ThorBangSession, parsed: wire.CreateQueue, request: ThorBangRequest) -> None:
    request.kind = Kind.CREATE_QUEUE
    session.perform(_create_claimed(session, _fit_name(parsed.name), request), request)


async def _create_claimed(session: ThorBangSession, name: str, request: ThorBangRequest) -> None:
    """Create a queue after claiming its name, made unique with a number."""
    engine = session.broker.engine
    number = engine.next_queue_id
    distinct = name
    peering = session.hub.peering
    while engine.find_queue(distinct) is not None or not await peering.may_create(DEFAULT_VHOST, distinct):
        distinct = f"{name}#{number}"
        number += 1

    def created(error: FlyballError | None) -> None:
        if error is None:
            session.reply(request, wire.encode_id(queue.id))
        else:
            session.refuse(request, error)

    queue = session.hub.queues.topology.create_queue(distinct, created)
    request.queue_id = queue.id


def create_client(session: ThorBangSession, parsed: wire.CreateClient, request: ThorBangRequest) -> None:
    request.kind = Kind.REGISTER
    engine = session.broker.engine
    name = _distinct(_fit_name(parsed.name), engine.next_client_id, lambda name: engine.find_client(name) is not None)

    def created(error: FlyballError | None) -> None:
        if error is None:
            session.reply(request, wire.encode_id(client.id))
        else:
            session.refuse(request, error)

    client = session.broker.create_client(name, ClientMode.FULL, created)


def remove_queue(session: ThorBangSession, parsed: wire.RemoveQueue, request: ThorBangRequest) -> None:
    request.kind = Kind.DELETE_QUEUE
    request.queue_id = parsed.queue_id
    queue = session.queue(parsed.queue_id)

    def removed(error: FlyballError | None) -> None:
        session.answer(request, None if isinstance(error, QueueNotFound) else error)
        session.release()

    if queue is None:
        session.reply(request, wire.OK)
    else:
        session.hold()
        try:
            queue.delete_empty(lambda _, error: removed(error))
        except FlyballError as error:
            removed(error)


def remove_client(session: ThorBangSession, parsed: wire.RemoveClient, request: ThorBangRequest) -> None:
    if not session.broker.engine.has_client(parsed.client_id):
        session.reply(request, wire.OK)
    else:
        session.perform(_remove_client_of_all(session, parsed.client_id, request), request)


async def _remove_client_of_all(session: ThorBangSession, client_id: int, request: ThorBangRequest) -> None:
    """Remove a client unless a node has messages from it, or does not respond."""
    answers, errors = await session.hub.peering.ask_owners("client.is_sender", {"client_id": client_id}, ASK_LIMIT_S)
    if errors:
        raise errors[0]
    if any(answers.values()):
        raise ClientInUse(client_id)
    session.broker.delete_client(client_id, lambda error: session.answer(request, error), only_unused=True)


Handler = Callable[[ThorBangSession, Any, ThorBangRequest], None]

HANDLERS: Mapping[type[wire.Request], Handler] = {
    wire.Malformed: malformed,
    wire.Hello: hello,
    wire.Send: send,
    wire.Peek: peek,
    wire.Pop: pop,
    wire.CreateQueue: create_queue,
    wire.CreateClient: create_client,
    wire.RemoveQueue: remove_queue,
    wire.RemoveClient: remove_client,
}


def _selector(parsed: wire.Peek | wire.Pop) -> Selector:
    return Selector(
        reader=parsed.receiver,
        unaddressed=parsed.by_time and parsed.sender is None,
        sender=parsed.sender,
        order=Order.OLDEST if parsed.by_time else Order.PRIORITY,
    )


def _found(
    session: ThorBangSession, request: ThorBangRequest, message: Message | None, error: FlyballError | None
) -> None:
    if error is not None:
        session.refuse(request, error)
    elif message is None:
        request.result = Result.EMPTY
        session.reply(request, wire.MSG0)
    else:
        request.message_count = 1
        request.size_bytes = len(message.body)
        session.reply(
            request, wire.encode_message(message.sender or 0, message.context or 0, message.id, message.body)
        )


def _distinct(name: str, number: int, is_taken: Callable[[str], bool]) -> str:
    """Return an unused name: names need not be unique in the original, and are never looked up again."""
    distinct = name
    while is_taken(distinct):
        distinct = f"{name}#{number}"
        number += 1
    return distinct


def _fit_name(name: str) -> str:
    """Return the name as a column of that width stores it: excess blanks are truncated, other excess is refused."""
    if name[MAX_NAME_LENGTH:].strip(" "):
        raise InvalidName(f"a name of {len(name)} characters is longer than {MAX_NAME_LENGTH}")
    return name[:MAX_NAME_LENGTH]
