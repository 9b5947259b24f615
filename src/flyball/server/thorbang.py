"""ThorBangMQ's protocol at work: what each request does, and the FAIL lines of its report.

Requests that arrive together are carried out together and answered in their order. One answer for each request, in
one piece. Broadcasts are found as the original finds them: by time, without a sender, and only there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from flyball.errors import FlyballError, InvalidName, QueueNotFound, RequestError
from flyball.model import DEFAULT_VHOST, ClientMode, Draft, Message, Order, Selector
from flyball.server.connection import Hub, RequestConnection, result_of
from flyball.trace.schema import Kind, Protocol, Result
from flyball.trace.span import Span
from flyball.wire import thorbang as wire

MAX_NAME_LENGTH = 25
"""Longest name of a queue or client, in characters."""

_UNKNOWN = wire.encode_fail("UNKNOWN", -1)


class ThorBangRequest(Span):
    """A request, and its answer while those before it are not answered yet."""

    answer: bytes | None = None


class ThorBangSession(RequestConnection):
    """One connection. It has no identity: sender and receiver are part of each request."""

    PROTOCOL = Protocol.THORBANG

    def __init__(self, hub: Hub, max_request_bytes: int) -> None:
        super().__init__(hub)
        self._decoder = wire.RequestDecoder(max_request_bytes)
        self._line: deque[ThorBangRequest] = deque()

    def new_request(self) -> ThorBangRequest:
        return ThorBangRequest()

    def feed(self, data: bytes) -> None:
        self._decoder.feed(data)

    def decode(self) -> wire.Request | None:
        return self._decoder.next_request()

    def handle(self, parsed: wire.Request, request: Span) -> None:
        assert isinstance(request, ThorBangRequest)
        self._line.append(request)
        HANDLERS[type(parsed)](self, parsed, request)

    def reply(self, request: ThorBangRequest, answer: bytes) -> None:
        """Answer the request as soon as those before it are answered."""
        line = self._line
        if line[0] is request:
            line.popleft()
            self.finish(request, answer)
            while line and line[0].answer is not None:
                waiting = line.popleft()
                assert waiting.answer is not None
                self.finish(waiting, waiting.answer)
        else:
            request.answer = answer
            if request.started_ns:
                request.answered_ns = time.perf_counter_ns()

    def answer(self, request: ThorBangRequest, error: FlyballError | None) -> None:
        """Answer with OK, or with the error."""
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
    """Store the message in the queues from left to right, as far as they exist and are numbers."""
    request.kind = Kind.PUT
    broker = session.broker
    engine = broker.engine
    if engine.keeps_messages and parsed.queue_ids and not engine.has_client(parsed.sender):
        request.result = Result.REFUSED
        session.reply(request, wire.encode_fail("CLIENT", max(parsed.sender, -1)))
        return
    queue_ids = parsed.queue_ids
    missing: int | None = None
    for at, queue_id in enumerate(queue_ids):
        if not engine.has_queue(queue_id):
            missing = queue_id
            queue_ids = queue_ids[:at]
            break
    request.queue_id = queue_ids[0] if queue_ids else 0
    request.size_bytes = len(parsed.content)
    request.message_count = len(queue_ids)

    def stored(messages: object, error: FlyballError | None) -> None:
        if error is None and missing is not None:
            error = QueueNotFound(missing)
        if error is None and parsed.malformed_after:
            malformed(session, wire.Malformed(), request)
        else:
            session.answer(request, error)

    receiver = parsed.receiver if parsed.receiver > 0 else None
    draft = Draft(parsed.content, parsed.sender, receiver, parsed.context or None, parsed.priority)
    broker.put(draft, queue_ids, stored)


def peek(session: ThorBangSession, parsed: wire.Peek, request: ThorBangRequest) -> None:
    request.kind = Kind.PEEK
    request.queue_id = parsed.queue_id
    session.broker.peek(parsed.queue_id, _selector(parsed), lambda m, error: _found(session, request, m, error))


def pop(session: ThorBangSession, parsed: wire.Pop, request: ThorBangRequest) -> None:
    request.kind = Kind.TAKE
    request.queue_id = parsed.queue_id
    session.broker.take(
        parsed.queue_id, _selector(parsed), lambda m, error: _found(session, request, m, error), _has_no_zero
    )


def create_queue(session: ThorBangSession, parsed: wire.CreateQueue, request: ThorBangRequest) -> None:
    request.kind = Kind.CREATE_QUEUE
    if session.broker.in_company:
        _check_length(parsed.name)
        session.hub.spawn(_create_claimed(session, parsed.name, request))
    else:
        _create(session, parsed.name, request)


async def _create_claimed(session: ThorBangSession, name: str, request: ThorBangRequest) -> None:
    """Create a queue with a name that no other node has, nor is about to have."""
    engine = session.broker.engine
    number = engine.next_queue_id
    distinct = name
    try:
        while engine.find_queue(distinct) is not None or not await session.hub.company.claim(DEFAULT_VHOST, distinct):
            distinct = f"{name}#{number}"
            number += 1
        _create(session, distinct, request)
    except FlyballError as error:
        session.refuse(request, error)


def _create(session: ThorBangSession, name: str, request: ThorBangRequest) -> None:
    engine = session.broker.engine
    distinct = _distinct(name, engine.next_queue_id, lambda name: engine.find_queue(name) is not None)

    def created(error: FlyballError | None) -> None:
        if error is None:
            session.reply(request, wire.encode_id(queue.id))
        else:
            session.refuse(request, error)

    queue = session.broker.create_queue(distinct, created)
    request.queue_id = queue.id


def create_client(session: ThorBangSession, parsed: wire.CreateClient, request: ThorBangRequest) -> None:
    request.kind = Kind.REGISTER
    engine = session.broker.engine
    name = _distinct(parsed.name, engine.next_client_id, lambda name: engine.find_client(name) is not None)

    def created(error: FlyballError | None) -> None:
        if error is None:
            session.reply(request, wire.encode_id(client.id))
        else:
            session.refuse(request, error)

    client = session.broker.create_client(name, ClientMode.FULL, created)


def remove_queue(session: ThorBangSession, parsed: wire.RemoveQueue, request: ThorBangRequest) -> None:
    request.kind = Kind.DELETE_QUEUE
    request.queue_id = parsed.queue_id
    if session.broker.engine.has_queue(parsed.queue_id):
        session.broker.delete_queue(parsed.queue_id, lambda error: session.answer(request, error), only_empty=True)
    else:
        session.reply(request, wire.OK)


def remove_client(session: ThorBangSession, parsed: wire.RemoveClient, request: ThorBangRequest) -> None:
    if session.broker.engine.has_client(parsed.client_id):
        session.broker.delete_client(parsed.client_id, lambda error: session.answer(request, error), only_unused=True)
    else:
        session.reply(request, wire.OK)


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
    if error is None and message is not None and not _has_no_zero(message):
        error = RequestError(f"message {message.id} contains a zero byte")
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


def _has_no_zero(message: Message) -> bool:
    """Whether the protocol can express the message: a zero byte would end it too early."""
    return b"\0" not in message.body


def _distinct(name: str, number: int, is_taken: Callable[[str], bool]) -> str:
    """Return a name that is free: the original's names need not differ, and nobody asks for them again."""
    _check_length(name)
    distinct = name
    while is_taken(distinct):
        distinct = f"{name}#{number}"
        number += 1
    return distinct


def _check_length(name: str) -> None:
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidName(f"a name of {len(name)} characters is longer than {MAX_NAME_LENGTH}")
