"""Reads of queues that leave their messages there, however long the queues are, and removals up to a message.

A listing is a stream: JSON lines, or Arrow's record batches for those who accept them. It is read in pages, from
whatever node serves the queue, and a page is made when the one before is on its way.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from starlette.responses import Response, StreamingResponse

from flyball.broker.core.handles import QueueHandle
from flyball.broker.core.pending import result
from flyball.broker.core.presentation import own_properties
from flyball.broker.engine.access import Action
from flyball.broker.management.api import fields
from flyball.broker.management.api.answers import HEADERS, answer, json_text
from flyball.broker.management.api.context import Call, Right, Routes
from flyball.broker.management.api.inside import has_queue
from flyball.broker.protocols.amqp.consuming import selector_in
from flyball.errors import NotPermitted, QueueNotFound
from flyball.model import Message

# Messages and bytes that are read, encoded and sent in one go; a message may be larger.
PAGE_MESSAGES = 500
PAGE_BYTES = 512 * 1024

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
# JSON has no times, so it tells microseconds.
_JSON_NAMES = ["arrived_us" if name == "arrived" else name for name in _SCHEMA.names]
_END_OF_ARROW_STREAM = b"\xff\xff\xff\xff\0\0\0\0"

_PAGE = {"after": "messages with a larger id (0)", "limit": "messages at the most"}
_SELECTION = {
    "order": "which comes first: oldest, newest or priority",
    "context": "messages with this number only",
    "sender": "messages of this sender only",
    "receiver": "messages to this receiver or to nobody only",
}

Encode = Callable[[str, Sequence[Message]], bytes]


_PATH = "/flyball/queues/{vhost}/{name}/messages"
_WHOLE = {**_PAGE, "up_to": "messages up to this id"}

routes = Routes()


@routes.get(_PATH, Right.ANYBODY, query=_WHOLE)
async def list_messages(call: Call) -> Response:
    """The ready messages of a queue, oldest first, as JSON lines or an Arrow stream. They stay where they are."""
    queue = await _queue_of(call)
    query = call.request.query_params
    after_id = fields.number(query, "after", 0, least=0)
    up_to_id = fields.number(query, "up_to", MAX_ID, least=0)
    limit = fields.number(query, "limit", MAX_ID, least=0)
    bodies = call.context.bodies
    bodies.check()
    is_arrow = ARROW_STREAM in call.request.headers.get("accept", "")
    encode = _arrow if is_arrow else _json_lines
    # Whatever is wrong with the queue or the store is told before the status is on its way.
    first = await _page(queue, after_id, limit)

    async def chunks() -> AsyncIterator[bytes]:
        left, page = limit, first
        if is_arrow:
            yield _SCHEMA.serialize().to_pybytes()
        while page and left:
            is_last = page[-1].id >= up_to_id
            last_id = page[-1].id
            wanted = [message for message in page if message.id <= up_to_id] if is_last else page
            chunk = encode(queue.queue.name, wanted) if wanted else b""
            left -= len(wanted)
            page = []
            bodies.under_way_bytes += len(chunk)
            try:
                yield chunk
            finally:
                bodies.under_way_bytes -= len(chunk)
            if is_last:
                break
            page = await _page(queue, last_id, left)
        if is_arrow:
            yield _END_OF_ARROW_STREAM

    return StreamingResponse(chunks(), 200, HEADERS, ARROW_STREAM if is_arrow else JSON_LINES)


@routes.get(f"{_PATH}/first", Right.ANYBODY, query=_SELECTION)
async def show_first(call: Call) -> Response:
    """The message that a consumer with this selection would get next, or null. It stays where it is."""
    queue = await _queue_of(call)
    query = call.request.query_params
    arguments: dict[str, object] = {"x-order": query["order"]} if "order" in query else {}
    for name in ("context", "sender", "receiver"):
        if name in query:
            arguments[f"x-{name}"] = fields.number(query, name)
    name = queue.queue.name
    message: Message | None = await result(partial(queue.peek, selector_in(arguments, f"queue '{name}'")))
    return answer(None if message is None else _document(name, message))


@routes.get(f"{_PATH}/ids", Right.ANYBODY, query=_PAGE)
async def list_ids(call: Call) -> Response:
    """The ids of the ready messages of a queue, oldest first, when all of these are durable."""
    queue = await _queue_of(call)
    query = call.request.query_params
    limit = fields.number(query, "limit", MAX_IDS, least=0)
    after_id = fields.number(query, "after", 0, least=0)
    return answer({"ids": await result(partial(queue.list_ids, after_id, min(limit, MAX_IDS)))})


@routes.delete(_PATH, Right.ANYBODY, query={"up_to": "messages up to this id"})
async def remove_messages(call: Call) -> Response:
    """Remove the ready messages of a queue up to an id, and tell how many there were. What is unacked stays."""
    queue = await _queue_of(call)
    up_to_id = fields.number(call.request.query_params, "up_to", least=0)
    total, count = 0, REMOVED_AT_ONCE
    while count == REMOVED_AT_ONCE:
        count = await result(partial(queue.remove_oldest, up_to_id, REMOVED_AT_ONCE))
        total += count
    return answer({"removed": total})


MAX_ID = 2**63 - 1


async def _queue_of(call: Call) -> QueueHandle:
    """Return the queue of a request, on whichever node. Raises QueueNotFound, QueueLocked and NotPermitted."""
    vhost, name = call.vhost, call.part("name")
    if not call.access.may(call.user.name, vhost, Action.READ, name):
        raise NotPermitted(f"read access to queue '{name}' in vhost '{vhost}' refused for user '{call.user.name}'")
    queue = call.node.hub.queues.find(vhost, name) if await has_queue(call.node, vhost, name) else None
    if queue is None:
        raise QueueNotFound(name, vhost)
    queue.check_access(None)
    return queue


async def _page(queue: QueueHandle, after_id: int, limit: int) -> list[Message]:
    """Return some messages with a larger id, all of which are in memory; none if there are no more."""
    if not limit:
        return []
    found: list[Message] = await result(partial(queue.browse, after_id, min(limit, PAGE_MESSAGES)))
    left_bytes = PAGE_BYTES
    for place, message in enumerate(found):
        left_bytes -= message.footprint_bytes
        if left_bytes < 0:
            return found[: max(place, 1)]
    return found


def _json_lines(queue_name: str, messages: Sequence[Message]) -> bytes:
    return "".join([json_text(_document(queue_name, message)) + "\n" for message in messages]).encode()


def _fields(queue_name: str, message: Message) -> tuple[Any, ...]:
    """Return what is told of a message, in the order of the schema."""
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
        message.body,
    )


def _document(queue_name: str, message: Message) -> dict[str, object]:
    found = dict(zip(_JSON_NAMES, _fields(queue_name, message), strict=True))
    return found | {name: base64.b64encode(found[name]).decode() for name in ("properties", "body")}


def _arrow(queue_name: str, messages: Sequence[Message]) -> bytes:
    columns = zip(*[_fields(queue_name, message) for message in messages], strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    encoded: bytes = pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA).serialize().to_pybytes()
    return encoded
