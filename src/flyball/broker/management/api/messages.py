"""Publish and get of single messages over HTTP: for people and tests, not for production traffic."""

from __future__ import annotations

import base64
import codecs
import json
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from typing import Any, TypeVar

from starlette.responses import Response, StreamingResponse

from flyball.broker.management.api import fields
from flyball.broker.management.api.answers import HEADERS, MEDIA_TYPE, SLICE, answer, text_of
from flyball.broker.management.api.bodies import Bodies
from flyball.broker.management.api.context import Body, Call, Routes
from flyball.broker.management.api.direct_client import DirectChannel, channel
from flyball.broker.management.inspection import plain
from flyball.broker.management.slices import next_slice
from flyball.broker.wire.amqp import BasicGetOk, Properties, read_table, write_table
from flyball.errors import InvalidArgument

T = TypeVar("T")

# Size limit of a document with a message.
MAX_PUBLISH_BYTES = 32 * 1024 * 1024

# Bytes of messages after which no more are added to a response.
MAX_GOT_BYTES = 16 * 1024 * 1024

# Bytes encoded per turn of the event loop; a multiple of three for base64.
PIECE_BYTES = 384 * 1024
LARGE_BYTES = 16 * 1024

# Memory of a message in addition to its body.
MESSAGE_COST_BYTES = 2048

_TEXTS = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
_OCTETS = ("delivery_mode", "priority")

# Ack modes, and whether rejected messages are requeued.
ACK_MODES = {
    "ack_requeue_true": None,
    "ack_requeue_false": None,
    "reject_requeue_true": True,
    "reject_requeue_false": False,
}

_REMOVED = "ack_requeue_false"

_PUBLISH = Body(
    {"properties": "object", "routing_key": "string", "payload": "string", "payload_encoding": "string"},
    ("properties", "routing_key", "payload", "payload_encoding"),
)
_GET = Body(
    {"count": "integer", "ackmode": "string", "encoding": "string", "truncate": "integer"},
    ("count", "ackmode", "encoding"),
)


routes = Routes()


@routes.post("/exchanges/{vhost}/{exchange}/publish", body=_PUBLISH)
async def publish(call: Call) -> Response:
    """Publish a message; the response says whether it was routed, and comes once it is stored."""
    vhost, exchange = call.vhost, call.part("exchange")
    document = await call.document(MAX_PUBLISH_BYTES)
    body = _body_of(document)
    maximum = call.node.amqp.settings.max_message_bytes
    if len(body) > maximum:
        raise InvalidArgument(f"message size {len(body)} is larger than configured max size {maximum}")
    properties = encoded_properties(fields.table(document, "properties"))
    routing_key = fields.text(document, "routing_key")
    async with channel(call, vhost) as inside:
        return answer({"routed": await inside.publish(exchange, routing_key, properties, body)})


@routes.post("/queues/{vhost}/{name}/get", body=_GET)
async def get(call: Call) -> Response:
    """Get messages from the head of a queue; `ackmode` says what happens to them then."""
    vhost, name = call.vhost, call.part("name")
    document = await call.document()
    mode, encoding = _mode_of(document), fields.text(document, "encoding")
    if encoding not in ("auto", "base64"):
        raise InvalidArgument(f"unknown encoding {encoding!r}: use auto or base64")
    count = fields.number(document, "count", minimum=0)
    truncate = None if document.get("truncate") is None else fields.number(document, "truncate", minimum=0)
    bodies = call.context.bodies
    async with channel(call, vhost) as inside:
        found = await _taken(inside, name, count, bodies, is_removed=mode == _REMOVED)
        response = StreamingResponse(_texts(found, encoding, truncate), 200, HEADERS, MEDIA_TYPE)
        # The messages are in memory until the response is sent or dropped.
        release = weakref.finalize(response, bodies.forget, sum(map(_cost_bytes, found)))
        response.body_iterator = _followed_by(response.body_iterator, release)
        requeue = ACK_MODES[mode]
        if requeue is not None:
            # Last: a message requeued earlier would be the next one to get.
            for message in found:
                inside.reject(message.delivery_tag, requeue=requeue)
    return response


async def _taken(
    inside: DirectChannel, queue_name: str, count: int, bodies: Bodies, *, is_removed: bool
) -> list[BasicGetOk]:
    """Get messages up to the memory limits of a response and of all responses. They are charged until they are sent.

    Raises Refused if there is no room for any.
    """
    bodies.check()
    found: list[BasicGetOk] = []
    got_bytes = 0
    try:
        while len(found) < count and got_bytes < MAX_GOT_BYTES:
            # Limited concurrency: while it passes through the channel, a message exists in several copies.
            async with bodies.reading:
                if bodies.are_too_many:
                    break
                message = await inside.get(queue_name, no_ack=is_removed)
                if message is None:
                    break
                found.append(message)
                got_bytes += _cost_bytes(message)
                bodies.take(_cost_bytes(message))
    except BaseException:
        bodies.forget(got_bytes)
        raise
    return found


async def _followed_by(texts: AsyncIterable[T], done: Callable[[], object]) -> AsyncIterator[T]:
    try:
        async for text in texts:
            yield text
    finally:
        done()


def _cost_bytes(message: BasicGetOk) -> int:
    return len(message.body) + MESSAGE_COST_BYTES


def _mode_of(document: fields.Document) -> str:
    if document.get("ackmode") is None and document.get("requeue") is not None:
        # The field of older tools.
        return "ack_requeue_true" if fields.flag(document, "requeue", True) else _REMOVED
    mode = fields.text(document, "ackmode")
    if mode not in ACK_MODES:
        raise InvalidArgument(f"unknown ackmode {mode!r}: use {', '.join(ACK_MODES)}")
    return mode


def _body_of(document: fields.Document) -> bytes:
    payload, encoding = fields.text(document, "payload"), fields.text(document, "payload_encoding")
    if encoding == "string":
        return payload.encode()
    if encoding != "base64":
        raise InvalidArgument(f"unknown payload_encoding {encoding!r}: use string or base64")
    try:
        return base64.b64decode(payload, validate=True)
    except ValueError:
        raise InvalidArgument("field 'payload' is not valid base64") from None


# Documents of messages


async def _texts(found: Sequence[BasicGetOk], encoding: str, truncate: int | None) -> AsyncIterator[str]:
    """Yield the list of message documents, yielding to other tasks after each piece."""
    separator = "["
    for place, message in enumerate(found, start=1):
        head = text_of(_facts, message)
        if not head:
            continue
        content = memoryview(message.body)[:truncate]
        is_text = encoding != "base64" and await _is_text(content, is_whole=len(content) == len(message.body))
        kind = "string" if is_text else "base64"
        yield f'{separator}{head.removesuffix("}")},"payload_encoding":"{kind}","payload":"'
        decoder = codecs.getincrementaldecoder("utf-8")()
        for piece in _pieces(content):
            yield _quoted(decoder.decode(piece)) if is_text else base64.b64encode(piece).decode()
            await _give_way(content)
        yield '"}'
        separator = ","
        if place % SLICE == 0:
            await next_slice()
    yield "[]" if separator == "[" else "]"


def _facts(message: BasicGetOk) -> dict[str, Any]:
    return {
        "payload_bytes": len(message.body),
        "redelivered": message.redelivered,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "message_count": message.message_count,
        "properties": shown_properties(message.properties),
    }


async def _give_way(content: memoryview) -> None:
    """Yield to other tasks after a large message: a turn of the loop costs as much as a dozen short ones."""
    if len(content) > LARGE_BYTES:
        await next_slice()


def _pieces(content: memoryview) -> Iterator[memoryview]:
    return (content[begin : begin + PIECE_BYTES] for begin in range(0, len(content), PIECE_BYTES))


def _quoted(text: str) -> str:
    """Return a string as in JSON, without the quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


async def _is_text(content: memoryview, *, is_whole: bool) -> bool:
    """Return whether the content is valid UTF-8; a truncated one may end inside a character."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for piece in _pieces(content):
            decoder.decode(piece)
            await _give_way(content)
        decoder.decode(b"", final=is_whole)
    except UnicodeDecodeError:
        return False
    return True


# Properties


def encoded_properties(document: fields.Document) -> bytes:
    """Return the AMQP encoding of message properties. Raises InvalidArgument."""
    known = {*_TEXTS, *_OCTETS, "timestamp", "headers"}
    for name in document:
        if name not in known:
            raise InvalidArgument(f"unknown property {name!r}: use {', '.join(sorted(known))}")
    properties = Properties()
    for name in _TEXTS:
        if document.get(name) is not None:
            setattr(properties, name, fields.text(document, name))
    for name in _OCTETS:
        if document.get(name) is not None:
            setattr(properties, name, _below(fields.number(document, name, minimum=0), 2**8, name))
    if document.get("timestamp") is not None:
        properties.timestamp = _below(fields.number(document, "timestamp", minimum=0), 2**64, "timestamp")
    headers = fields.table(document, "headers")
    try:
        properties.headers = write_table(headers) if headers else None
        return properties.encode()
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"AMQP cannot encode these properties: {error}") from error


def shown_properties(encoded: bytes) -> dict[str, Any]:
    """Return the present properties of a message by name."""
    properties = Properties.decode(encoded)
    found: dict[str, Any] = {
        name: getattr(properties, name)
        for name in (*_TEXTS, *_OCTETS, "timestamp")
        if getattr(properties, name) is not None
    }
    if properties.headers is not None:
        found["headers"] = read_table(properties.headers, 0, len(properties.headers))[0]
    return {name: plain(value) for name, value in found.items()}


def _below(value: int, end: int, name: str) -> int:
    if value >= end:
        raise InvalidArgument(f"property {name!r} must be below {end}")
    return value
