"""Maps messages of other protocols to AMQP, as docs/reference/protocols/amqp.md describes."""

from __future__ import annotations

from collections.abc import Mapping

from flyball.broker.engine.traits import MAX_SHORTSTR_BYTES
from flyball.broker.wire.amqp import (
    Properties,
    Value,
    join_table,
    read_value,
    split_table,
    write_origin,
    write_table,
    write_value,
)
from flyball.errors import InvalidArgument
from flyball.model import Correlation, Message

PERSISTENT, TRANSIENT = 2, 1
_MAX_PRIORITY = 255
_DELIVERY_COUNT = "x-delivery-count"

SENDER, RECEIVER, CONTEXT = "x-flyball-sender", "x-flyball-receiver", "x-flyball-context"
PROPERTIES = "x-flyball-properties"

# The value ranges of the store and of the research protocols.
MAX_CLIENT_ID = 2**31 - 1
MIN_CONTEXT, MAX_CONTEXT = -(2**63), 2**63 - 1


def present(message: Message, queue_name: str) -> tuple[bytes, bytes]:
    """Return the AMQP origin and properties of a message of another protocol.

    It appears as published to the default exchange. Fields that AMQP does not have become headers.
    """
    headers: dict[str, Value] = {
        name: value
        for name, value in (
            (SENDER, message.sender),
            (RECEIVER, message.receiver),
            (CONTEXT, message.context),
            ("x-flyball-priority", message.priority if not 0 <= message.priority <= _MAX_PRIORITY else None),
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


def correlation_in(headers: Mapping[str, bytes]) -> Correlation | None:
    """Return sender, receiver and context from the headers of an AMQP message. Raises InvalidArgument."""
    if SENDER not in headers and RECEIVER not in headers and CONTEXT not in headers:
        return None
    return (
        _number_in(headers, SENDER, 1, MAX_CLIENT_ID),
        _number_in(headers, RECEIVER, 1, MAX_CLIENT_ID),
        _number_in(headers, CONTEXT, MIN_CONTEXT, MAX_CONTEXT),
    )


def own_properties(message: Message) -> bytes:
    """Return the properties that the sender put into the header `x-flyball-properties`."""
    # Most messages do not have it, and decoding headers is expensive.
    if PROPERTIES.encode() not in message.properties:
        return b""
    headers = Properties.decode(message.properties).headers
    raw = None if headers is None else split_table(headers).get(PROPERTIES)
    value = None if raw is None else read_value(raw)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return value if isinstance(value, bytes) else b""


def _number_in(headers: Mapping[str, bytes], name: str, minimum: int, maximum: int) -> int | None:
    raw = headers.get(name)
    return None if raw is None else checked_number(read_value(raw), f"header '{name}'", minimum, maximum)


def checked_number(value: object, what: str, minimum: int, maximum: int) -> int:
    """Return a number received from a client if it is in range. Raises InvalidArgument."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidArgument(f"invalid {what}: expected an integer from {minimum} to {maximum}")
    return value


def _routing_key(queue_name: str) -> str:
    """Return a queue's name as a routing key, truncated: other protocols limit characters, AMQP bytes."""
    octets = queue_name.encode("utf-8", "surrogateescape")
    return queue_name if len(octets) <= MAX_SHORTSTR_BYTES else octets[:MAX_SHORTSTR_BYTES].decode("utf-8", "ignore")


def with_delivery_count(properties: bytes, count: int) -> bytes:
    """Return the properties with the header `x-delivery-count`."""
    decoded = Properties.decode(properties)
    headers = {} if decoded.headers is None else split_table(decoded.headers)
    headers[_DELIVERY_COUNT] = write_value(count)
    decoded.headers = join_table(headers)
    return decoded.encode()
