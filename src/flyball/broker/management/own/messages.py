"""Reads of queues that leave their messages there, however long the queues are, and removals up to a message.

A listing is a stream: JSON lines, or Arrow's record batches for those who accept them. It is read in pages, from
whatever node serves the queue, and a page is made when the one before is on its way.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

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
from flyball.model import Message, Selector

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
    queue = await _Queue.of(call)
    query = call.request.query_params
    after_id = fields.number(query, "after", 0, least=0)
    up_to_id = fields.number(query, "up_to", MAX_ID, least=0)
    limit = fields.number(query, "limit", MAX_ID, least=0)
    bodies = call.context.bodies
    bodies.check()
    is_arrow = ARROW_STREAM in call.request.headers.get("accept", "")
    encode = _arrow if is_arrow else _json_lines
    # Whatever is wrong with the queue or the store is told before the status is on its way.
    first = await queue.page(after_id, min(limit, PAGE_MESSAGES))

    async def chunks() -> AsyncIterator[bytes]:
        left, page = limit, first
        if is_arrow:
            yield _SCHEMA.serialize().to_pybytes()
        while page and left:
            is_last = page[-1].id >= up_to_id
            last_id = page[-1].id
            wanted = [message for message in page if message.id <= up_to_id] if is_last else page
            chunk = encode(queue.name, wanted) if wanted else b""
            left -= len(wanted)
            page = []
            bodies.under_way_bytes += len(chunk)
            try:
                yield chunk
            finally:
                bodies.under_way_bytes -= len(chunk)
            if is_last:
                break
            page = await queue.page(last_id, min(left, PAGE_MESSAGES))
        if is_arrow:
            yield _END_OF_ARROW_STREAM

    return StreamingResponse(chunks(), 200, HEADERS, ARROW_STREAM if is_arrow else JSON_LINES)


@routes.get(f"{_PATH}/first", Right.ANYBODY, query=_SELECTION)
async def show_first(call: Call) -> Response:
    """The message that a consumer with this selection would get next, or null. It stays where it is."""
    queue = await _Queue.of(call)
    query = call.request.query_params
    arguments: dict[str, object] = {"x-order": query["order"]} if "order" in query else {}
    for name in ("context", "sender", "receiver"):
        if name in query:
            arguments[f"x-{name}"] = fields.number(query, name)
    message = await queue.peek(selector_in(arguments, f"queue '{queue.name}'"))
    return answer(None if message is None else _document(queue.name, message))


@routes.get(f"{_PATH}/ids", Right.ANYBODY, query=_PAGE)
async def list_ids(call: Call) -> Response:
    """The ids of the ready messages of a queue, oldest first, when all of these are durable."""
    queue = await _Queue.of(call)
    query = call.request.query_params
    limit = fields.number(query, "limit", MAX_IDS, least=0)
    return answer({"ids": await queue.ids(fields.number(query, "after", 0, least=0), min(limit, MAX_IDS))})


@routes.delete(_PATH, Right.ANYBODY, query={"up_to": "messages up to this id"})
async def remove_messages(call: Call) -> Response:
    """Remove the ready messages of a queue up to an id, and tell how many there were. What is unacked stays."""
    queue = await _Queue.of(call)
    up_to_id = fields.number(call.request.query_params, "up_to", least=0)
    total = count = await queue.remove(up_to_id)
    while count == REMOVED_AT_ONCE:
        count = await queue.remove(up_to_id)
        total += count
    return answer({"removed": total})


MAX_ID = 2**63 - 1


class _Queue:
    """A queue on whichever node, for a user who may read it."""

    def __init__(self, queue: QueueHandle) -> None:
        self._queue = queue
        self.name = queue.queue.name

    @classmethod
    async def of(cls, call: Call) -> _Queue:
        """Return the queue of a request. Raises QueueNotFound, QueueLocked and NotPermitted."""
        vhost, name = call.vhost, call.part("name")
        if not call.access.may(call.user.name, vhost, Action.READ, name):
            raise NotPermitted(
                f"read access to queue '{name}' in vhost '{vhost}' refused for user '{call.user.name}'"
            )
        if not await has_queue(call.node, vhost, name):
            raise QueueNotFound(name, vhost)
        queue = call.node.hub.queues.find(vhost, name)
        if queue is None:
            raise QueueNotFound(name, vhost)
        queue.check_access(None)
        return cls(queue)

    async def page(self, after_id: int, limit: int) -> list[Message]:
        """Return some messages with a larger id, all of which are in memory; none if there are no more."""
        if not limit:
            return []
        found: list[Message] = await result(partial(self._queue.browse, after_id, limit))
        left_bytes = PAGE_BYTES
        for place, message in enumerate(found):
            left_bytes -= message.footprint_bytes
            if left_bytes < 0:
                return found[: max(place, 1)]
        return found

    async def peek(self, selector: Selector | None) -> Message | None:
        return await result(partial(self._queue.peek, selector))

    async def ids(self, after_id: int, limit: int) -> list[int]:
        return await result(partial(self._queue.list_ids, after_id, limit))

    async def remove(self, up_to_id: int) -> int:
        return await result(partial(self._queue.remove_oldest, up_to_id, REMOVED_AT_ONCE))


def _json_lines(queue_name: str, messages: Sequence[Message]) -> bytes:
    return "".join([json_text(_document(queue_name, message)) + "\n" for message in messages]).encode()


def _document(queue_name: str, message: Message) -> dict[str, object]:
    return {
        "id": message.id,
        "queue": queue_name,
        "sender": message.sender,
        "receiver": message.receiver,
        "context": message.context,
        "priority": message.priority,
        "arrived_us": message.arrived_us,
        "properties": base64.b64encode(own_properties(message)).decode(),
        "persistent": message.persistent,
        "delivery_count": message.delivery_count,
        "body": base64.b64encode(message.body).decode(),
    }


def _arrow(queue_name: str, messages: Sequence[Message]) -> bytes:
    columns = [
        [message.id for message in messages],
        [queue_name] * len(messages),
        [message.sender for message in messages],
        [message.receiver for message in messages],
        [message.context for message in messages],
        [message.priority for message in messages],
        [message.arrived_us for message in messages],
        [own_properties(message) for message in messages],
        [message.persistent for message in messages],
        [message.delivery_count for message in messages],
        [message.body for message in messages],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    encoded: bytes = pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA).serialize().to_pybytes()
    return encoded
