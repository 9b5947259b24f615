"""How a message of another protocol looks to an AMQP client. docs/protocols/amqp.md has the mapping."""

from __future__ import annotations

from flyball.broker.engine.traits import MAX_SHORTSTR_BYTES
from flyball.broker.wire.amqp import (
    Properties,
    Value,
    join_table,
    split_table,
    write_origin,
    write_table,
    write_value,
)
from flyball.model import Message

PERSISTENT, TRANSIENT = 2, 1
_MAX_PRIORITY = 255
_DELIVERY_COUNT = "x-delivery-count"


def present(message: Message, queue_name: str) -> tuple[bytes, bytes]:
    """Return the origin and the properties that an AMQP client is shown of a message of another protocol.

    It seems to have been published to the default exchange. What AMQP has no word for is in the headers.
    """
    headers: dict[str, Value] = {
        name: value
        for name, value in (
            ("x-flyball-sender", message.sender),
            ("x-flyball-receiver", message.receiver),
            ("x-flyball-context", message.context),
            ("x-flyball-priority", message.priority if not 0 <= message.priority <= _MAX_PRIORITY else None),
            ("x-flyball-properties", message.properties or None),
        )
        if value is not None
    }
    properties = Properties()
    properties.delivery_mode = PERSISTENT if message.persistent else TRANSIENT
    properties.headers = write_table(headers) if headers else None
    properties.priority = max(0, min(message.priority, _MAX_PRIORITY)) or None
    properties.correlation_id = None if message.context is None else str(message.context)
    properties.timestamp = message.arrived_us // 1_000_000
    return write_origin("", _routing_key(queue_name)), properties.encode()


def _routing_key(queue_name: str) -> str:
    """Return as much of a queue's name as a routing key can hold: other protocols count characters, AMQP bytes."""
    octets = queue_name.encode("utf-8", "surrogateescape")
    return queue_name if len(octets) <= MAX_SHORTSTR_BYTES else octets[:MAX_SHORTSTR_BYTES].decode("utf-8", "ignore")


def with_delivery_count(properties: bytes, count: int) -> bytes:
    """Return the properties with the header that tells how often the message came back."""
    decoded = Properties.decode(properties)
    headers = {} if decoded.headers is None else split_table(decoded.headers)
    headers[_DELIVERY_COUNT] = write_value(count)
    decoded.headers = join_table(headers)
    return decoded.encode()
