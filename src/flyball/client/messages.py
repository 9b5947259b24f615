"""Messages of the client: drafts to send and received messages."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from flyball.broker.wire.amqp import (
    Properties,
    Value,
    join_table,
    read_table,
    split_table,
    write_table,
    write_value,
)
from flyball.client.values import MAX_INT, MAX_LONG, body_bytes, check_int, check_seconds
from flyball.model import Order

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MAX_PRIORITY = 255
MAX_TTL_S = 2**32 / 1000

SENDER, RECEIVER, CONTEXT = "x-flyball-sender", "x-flyball-receiver", "x-flyball-context"
PROPERTIES = "x-flyball-properties"
_DELIVERY_COUNT = "x-delivery-count"

PERSISTENT, TRANSIENT = 2, 1

# Limits of a batch that is published and confirmed together.
BATCH_MESSAGES = 1000
BATCH_BYTES = 1024 * 1024

# Most messages have the same properties: this many are cached.
_CACHED = 1000

# Properties and body, AMQP-encoded.
Content = tuple[bytes, bytes]


@dataclass(slots=True)
class Draft:
    """A message to send. A body given as str is encoded as UTF-8."""

    body: bytes | str
    # Receiver id, for consumers that filter by it.
    receiver: int | None = None
    # A number that correlates messages.
    context: int | None = None
    # 0 to 255.
    priority: int = 0
    # Time to live; None for unlimited.
    ttl_s: float | None = None
    # Whether it survives a restart of the node.
    persistent: bool = True
    # Opaque to the node, returned with the message.
    properties: bytes = b""
    # Sender id, for consumers that filter by it.
    sender: int | None = None


@dataclass(slots=True)
class ReceivedMessage:
    """A message from a queue. `sender`, `receiver` and `context` are None if they were not set."""

    body: bytes
    queue: str = ""
    # Ascending in order of arrival; known for listed and peeked messages.
    id: int | None = None
    sender: int | None = None
    receiver: int | None = None
    context: int | None = None
    priority: int = 0
    arrived_us: int | None = None
    properties: bytes = b""
    persistent: bool = True
    # Number of earlier deliveries; for a taken message 0 or 1.
    delivery_count: int = 0
    redelivered: bool = False
    correlation_id: str | None = None
    reply_to: str | None = None
    # AMQP headers of a message that was taken or consumed.
    headers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The body as text. Raises UnicodeDecodeError for invalid UTF-8."""
        return self.body.decode()

    @property
    def arrived(self) -> datetime | None:
        """Arrival time at the node, in UTC; known for listed and peeked messages."""
        return None if self.arrived_us is None else _EPOCH + timedelta(microseconds=self.arrived_us)


# Encoding


def content_of(draft: Draft, *, reply_to: str | None = None, correlation_id: str | None = None) -> Content:
    """Encode a draft for AMQP. Raises InvalidBody, InvalidValue."""
    properties = _encoded(
        None if draft.sender is None else check_int("sender", draft.sender, 1, MAX_INT),
        None if draft.receiver is None else check_int("receiver", draft.receiver, 1, MAX_INT),
        None if draft.context is None else check_int("context", draft.context, -MAX_LONG - 1, MAX_LONG),
        check_int("priority", draft.priority, 0, MAX_PRIORITY),
        None if draft.ttl_s is None else max(1, int(check_seconds("ttl_s", draft.ttl_s, MAX_TTL_S, above=0) * 1000)),
        bool(draft.persistent),
        body_bytes(draft.properties),
        reply_to,
        correlation_id,
    )
    return properties, body_bytes(draft.body)


@lru_cache(_CACHED)
def _encoded(
    sender: int | None,
    receiver: int | None,
    context: int | None,
    priority: int,
    ttl_ms: int | None,
    persistent: bool,
    own: bytes,
    reply_to: str | None,
    correlation_id: str | None,
) -> bytes:
    named = ((SENDER, sender), (RECEIVER, receiver), (CONTEXT, context), (PROPERTIES, own or None))
    headers: dict[str, Value] = {name: value for name, value in named if value is not None}
    return Properties(
        headers=write_table(headers) if headers else None,
        delivery_mode=PERSISTENT if persistent else TRANSIENT,
        priority=priority or None,
        expiration=None if ttl_ms is None else str(ttl_ms),
        reply_to=reply_to,
        correlation_id=correlation_id,
    ).encode()


def with_copies(content: Content, queues: Sequence[str]) -> Content:
    """Return the message with a CC header for these queues."""
    if not queues:
        return content
    properties = Properties.decode(content[0])
    headers = {} if properties.headers is None else split_table(properties.headers)
    copies: list[Value] = [*queues]
    headers["CC"] = write_value(copies)
    properties.headers = join_table(headers)
    return properties.encode(), content[1]


def batches(drafts: Iterable[Draft | bytes | str]) -> Iterator[list[Content]]:
    """Split messages into batches. Raises InvalidBody, InvalidValue."""
    batch: list[Content] = []
    left_bytes = BATCH_BYTES
    for draft in drafts:
        content = content_of(draft if isinstance(draft, Draft) else Draft(draft))
        batch.append(content)
        left_bytes -= len(content[0]) + len(content[1])
        if left_bytes <= 0 or len(batch) == BATCH_MESSAGES:
            yield batch
            batch, left_bytes = [], BATCH_BYTES
    if batch:
        yield batch


# Decoding


class _Known(NamedTuple):
    sender: int | None
    receiver: int | None
    context: int | None
    priority: int
    arrived_us: int | None
    own: bytes
    persistent: bool
    delivery_count: int
    correlation_id: str | None
    reply_to: str | None
    headers: Mapping[str, Any]


@lru_cache(_CACHED)
def _decoded(properties: bytes) -> _Known:
    found = Properties.decode(properties)
    headers: Mapping[str, Any] = {}
    if found.headers is not None:
        headers = read_table(found.headers, 0, len(found.headers))[0]
    own = headers.get(PROPERTIES, b"")
    return _Known(
        _number(headers, SENDER),
        _number(headers, RECEIVER),
        _number(headers, CONTEXT),
        found.priority or 0,
        None if found.timestamp is None else found.timestamp * 1_000_000,
        own.encode() if isinstance(own, str) else bytes(own),
        found.delivery_mode == PERSISTENT,
        _number(headers, _DELIVERY_COUNT) or 0,
        found.correlation_id,
        found.reply_to,
        MappingProxyType(headers),
    )


def _number(headers: Mapping[str, Any], name: str) -> int | None:
    value = headers.get(name)
    return value if isinstance(value, int) else None


def received(queue: str, properties: bytes, body: bytes, redelivered: bool) -> ReceivedMessage:
    """Return a message delivered by AMQP."""
    known = _decoded(properties)
    return ReceivedMessage(
        body,
        queue,
        None,
        known.sender,
        known.receiver,
        known.context,
        known.priority,
        known.arrived_us,
        known.own,
        known.persistent,
        max(known.delivery_count, redelivered),
        redelivered,
        known.correlation_id,
        known.reply_to,
        known.headers,
    )


def listed(document: Mapping[str, Any]) -> ReceivedMessage:
    """Return a message from the HTTP API."""
    return ReceivedMessage(
        base64.b64decode(document["body"]),
        document["queue"],
        document["id"],
        document["sender"],
        document["receiver"],
        document["context"],
        document["priority"],
        document["arrived_us"],
        base64.b64decode(document["properties"]),
        document["persistent"],
        document["delivery_count"],
        document["delivery_count"] > 0,
    )


# Selection


def selection(
    order: Order | None, context: int | None, sender: int | None, receiver: int | None
) -> dict[str, int | str]:
    """Return the consumer arguments of a selection. Raises InvalidValue."""
    found: dict[str, int | str] = {}
    if order is not None:
        found["order"] = Order(order).name.lower()
    if context is not None:
        found["context"] = check_int("context", context, -MAX_LONG - 1, MAX_LONG)
    if sender is not None:
        found["sender"] = check_int("sender", sender, 1, MAX_INT)
    if receiver is not None:
        found["receiver"] = check_int("receiver", receiver, 1, MAX_INT)
    return found
