"""Non-destructive reads of queues of any length, and removal up to a message.

A listing is a stream of JSON lines, or of Arrow record batches if the client accepts them. It is read in pages from
the queue's node; the next page is read once the previous one is being sent. Unsent data counts against the limit of
HTTP bodies; a listing waits while that is exceeded.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from starlette.responses import Response, StreamingResponse

from flyball.broker.core.handles import QueueHandle
from flyball.broker.core.pending import Answer, result
from flyball.broker.core.presentation import own_properties
from flyball.broker.engine.access import Action
from flyball.broker.management.api import fields
from flyball.broker.management.api.answers import HEADERS, MEDIA_TYPE, answer, json_text
from flyball.broker.management.api.bodies import Bodies
from flyball.broker.management.api.context import Call, Right, Routes
from flyball.broker.management.api.direct_client import has_queue
from flyball.broker.management.middleware import cut
from flyball.broker.protocols.amqp.arguments import selector_in
from flyball.errors import FlyballError, NotPermitted, QueueNotFound
from flyball.model import Message

T = TypeVar("T")

log = logging.getLogger(__name__)

# Limits of a page; a single message may be larger.
PAGE_MESSAGES = 500
PAGE_BYTES = 512 * 1024

# Size of the first page: it grows while messages are small. Otherwise a page of large messages would be read and
# dropped for each one that is sent.
FIRST_MESSAGES = 4

# A larger message is sent in pieces of this size; a multiple of three for base64.
PIECE_BYTES = 384 * 1024

# How long a connection that was aborted may take to close.
CUT_S = 5.0

MAX_ID = 2**63 - 1

MAX_IDS = 100_000

REMOVED_AT_ONCE = 10_000

JSON_LINES = "application/x-ndjson"
ARROW_STREAM = "application/vnd.apache.arrow.stream"

_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("queue", pa.string()),
        ("sender", pa.int32()),
        ("receiver", pa.int32()),
        ("context", pa.int64()),
        ("priority", pa.int32()),
        ("arrived", pa.timestamp("us", tz="UTC")),
        ("properties", pa.binary()),
        ("persistent", pa.bool_()),
        ("delivery_count", pa.int32()),
        ("body", pa.binary()),
    ]
)
# JSON has no timestamps: microseconds since 1970.
_JSON_NAMES = ["arrived_us" if name == "arrived" else name for name in _SCHEMA.names if name != "body"]
_END_OF_ARROW_STREAM = b"\xff\xff\xff\xff\0\0\0\0"

_PAGE = {"after": "only messages with a larger id (default 0)", "limit": "maximum number of messages"}
_SELECTION = {
    "order": "order: oldest, newest or priority",
    "context": "only messages with this context number",
    "sender": "only messages of this sender",
    "receiver": "only messages to this receiver or without a receiver",
}

Encode = Callable[[str, Sequence[Message]], Iterator[bytes]]


_PATH = "/flyball/queues/{vhost}/{name}/messages"
_WHOLE = {**_PAGE, "up_to": "only messages up to this id"}

routes = Routes()


@routes.get(_PATH, Right.ANY_USER, query=_WHOLE)
async def list_messages(call: Call) -> Response:
    """List the ready messages of a queue, oldest first, as JSON lines or an Arrow stream, without removing them."""
    queue = await _queue_of(call)
    query = call.request.query_params
    after_id = fields.number(query, "after", 0, minimum=0, maximum=MAX_ID)
    up_to_id = fields.number(query, "up_to", MAX_ID, minimum=0)
    limit = fields.number(query, "limit", MAX_ID, minimum=0)
    is_arrow = ARROW_STREAM in call.request.headers.get("accept", "")
    encode = _arrow if is_arrow else _json_lines
    call.context.bodies.check()
    pages = _Pages(queue, call.context.bodies, after_id, up_to_id, limit)
    # The first page is read before the status is sent: errors of the queue or the store get an error status.
    first = await pages.next()

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal first
        page, first = first, []
        try:
            if is_arrow:
                yield _SCHEMA.serialize().to_pybytes()
            while page:
                for piece in encode(queue.queue.name, page):
                    yield piece
                # While waiting for room, hold only the piece that is being sent.
                page, piece = [], b""
                yield piece
                page = await pages.next()
            if is_arrow:
                yield _END_OF_ARROW_STREAM
        except FlyballError as error:
            # An aborted response is the only sign for the client that messages are missing.
            log.warning("aborted a listing of queue %r: %s", queue.queue.name, error)
            if not cut(call.request.scope):
                raise
            await asyncio.sleep(CUT_S)
        finally:
            pages.let_go()

    response = StreamingResponse(chunks(), 200, HEADERS, ARROW_STREAM if is_arrow else JSON_LINES)
    # The response may never be started.
    weakref.finalize(response, pages.let_go)
    return response


@routes.get(f"{_PATH}/first", Right.ANY_USER, query=_SELECTION)
async def show_first(call: Call) -> Response:
    """Return the message that a consumer with this selection would get next, or null, without removing it."""
    queue = await _queue_of(call)
    query = call.request.query_params
    arguments: dict[str, object] = {"x-order": query["order"]} if "order" in query else {}
    for name in ("context", "sender", "receiver"):
        if name in query:
            arguments[f"x-{name}"] = fields.number(query, name)
    name = queue.queue.name
    bodies = call.context.bodies
    bodies.check()
    message = await _read(bodies, partial(queue.peek, selector_in(arguments, f"queue '{name}'")))
    if message is None:
        return answer(None)
    response = StreamingResponse(_each(_json_lines(name, [message])), 200, HEADERS, MEDIA_TYPE)
    bodies.hold(response, message.footprint_bytes)
    return response


@routes.get(f"{_PATH}/ids", Right.ANY_USER, query=_PAGE)
async def list_ids(call: Call) -> Response:
    """List the ids of a queue's ready messages, oldest first, once all of them are durable."""
    queue = await _queue_of(call)
    query = call.request.query_params
    limit = fields.number(query, "limit", MAX_IDS, minimum=0)
    after_id = fields.number(query, "after", 0, minimum=0, maximum=MAX_ID)
    bodies = call.context.bodies
    bodies.check()
    return answer({"ids": await _read(bodies, partial(queue.list_ids, after_id, min(limit, MAX_IDS)))})


@routes.delete(_PATH, Right.ANY_USER, query={"up_to": "only messages up to this id"})
async def remove_messages(call: Call) -> Response:
    """Remove the ready messages of a queue up to an id, and return their number. Unacked ones stay."""
    queue = await _queue_of(call)
    up_to_id = fields.number(call.request.query_params, "up_to", minimum=0, maximum=MAX_ID)
    total, count = 0, REMOVED_AT_ONCE
    while count == REMOVED_AT_ONCE:
        count = await result(partial(queue.remove_oldest, up_to_id, REMOVED_AT_ONCE))
        total += count
    return answer({"removed": total})


async def _queue_of(call: Call) -> QueueHandle:
    """Return the requested queue, on any node. Raises QueueNotFound, QueueLocked and NotPermitted."""
    vhost, name = call.vhost, call.part("name")
    if not call.access.may(call.user.name, vhost, Action.READ, name):
        raise NotPermitted(f"read access to queue '{name}' in vhost '{vhost}' refused for user '{call.user.name}'")
    queue = call.node.hub.queues.find(vhost, name) if await has_queue(call.node, vhost, name) else None
    if queue is None:
        raise QueueNotFound(name, vhost)
    queue.check_access(None)
    return queue


async def _read(bodies: Bodies, operation: Callable[[Answer[T]], object]) -> T:
    """Read from a queue when there is room: reading takes more memory than its result."""
    async with bodies.reading:
        await bodies.room()
        return await result(operation)


class _Pages:
    """The messages of a listing in pages. A page is charged until the next one is requested."""

    def __init__(self, queue: QueueHandle, bodies: Bodies, after_id: int, up_to_id: int, limit: int) -> None:
        self._queue = queue
        self._bodies = bodies
        self._after_id = after_id
        self._up_to_id = up_to_id
        self._left = limit
        self._wanted = FIRST_MESSAGES
        self._held_bytes = 0

    async def next(self) -> list[Message]:
        """Return the next messages, all in memory; empty at the end."""
        self.let_go()
        if not self._left:
            return []
        asked = min(self._left, self._wanted, PAGE_MESSAGES)
        page = _cut_to_size(await _read(self._bodies, partial(self._queue.browse, self._after_id, asked)))
        self._wanted = 2 * asked if len(page) == asked else max(len(page), 1)
        if page:
            self._after_id = page[-1].id
        wanted = [message for message in page if message.id <= self._up_to_id]
        self._left = self._left - len(wanted) if len(wanted) == len(page) else 0
        # Twice: as messages, and encoded.
        self._held_bytes = 2 * sum([message.footprint_bytes for message in wanted])
        self._bodies.take(self._held_bytes)
        return wanted

    def let_go(self) -> None:
        self._bodies.forget(self._held_bytes)
        self._held_bytes = 0


def _cut_to_size(found: list[Message]) -> list[Message]:
    left_bytes = PAGE_BYTES
    for place, message in enumerate(found):
        left_bytes -= message.footprint_bytes
        if left_bytes < 0:
            return found[: max(place, 1)]
    return found


async def _each(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def _json_lines(queue_name: str, messages: Sequence[Message]) -> Iterator[bytes]:
    if len(messages) == 1 and len(messages[0].body) > PIECE_BYTES:
        [message] = messages
        yield json_text(_facts(queue_name, message)).removesuffix("}").encode() + b',"body":"'
        for begin in range(0, len(message.body), PIECE_BYTES):
            yield base64.b64encode(message.body[begin : begin + PIECE_BYTES])
        yield b'"}\n'
    else:
        yield "".join([json_text(_document(queue_name, message)) + "\n" for message in messages]).encode()


def _fields(queue_name: str, message: Message) -> tuple[Any, ...]:
    """Return the fields of a message except its body, in schema order."""
    return (
        message.id,
        queue_name,
        message.sender,
        message.receiver,
        message.context,
        message.priority,
        message.arrived_us,
        own_properties(message),
        message.persistent,
        message.delivery_count,
    )


def _facts(queue_name: str, message: Message) -> dict[str, object]:
    found = dict(zip(_JSON_NAMES, _fields(queue_name, message), strict=True))
    return found | {"properties": base64.b64encode(found["properties"]).decode()}


def _document(queue_name: str, message: Message) -> dict[str, object]:
    return _facts(queue_name, message) | {"body": base64.b64encode(message.body).decode()}


def _arrow(queue_name: str, messages: Sequence[Message]) -> Iterator[bytes]:
    columns = zip(*[(*_fields(queue_name, message), message.body) for message in messages], strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    encoded = pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA).serialize()
    for begin in range(0, encoded.size, PIECE_BYTES):
        yield encoded.slice(begin, min(PIECE_BYTES, encoded.size - begin)).to_pybytes()
