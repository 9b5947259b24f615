"""Arguments of consumers, and generated names."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from flyball.broker.core.presentation import MAX_CLIENT_ID, MAX_CONTEXT, MIN_CONTEXT, checked_number
from flyball.broker.engine.routing.values import type_name
from flyball.errors import InvalidArgument
from flyball.model import Order, Selector, size_of

MAX_PREFETCH = 65_535

# Maximum size of a consumer's arguments, which it keeps. A decoded table may use twenty times its size on the wire.
MAX_ARGUMENTS_BYTES = 16 * 1024

_ORDERS = {order.name.lower(): order for order in Order}
_SELECTING = (
    ("x-sender", 1, MAX_CLIENT_ID),
    ("x-receiver", 1, MAX_CLIENT_ID),
    ("x-context", MIN_CONTEXT, MAX_CONTEXT),
)


def consumer_arguments(arguments: Mapping[str, Any], what: str) -> tuple[int, float | None]:
    """Return priority and prefetch. `x-prefetch` is a Flyball extension and may be a fraction."""
    size_bytes = size_of(arguments)
    if size_bytes > MAX_ARGUMENTS_BYTES:
        raise InvalidArgument(
            f"arguments of {size_bytes} bytes exceed the limit of {MAX_ARGUMENTS_BYTES} for a consumer of {what}"
        )
    priority = arguments.get("x-priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidArgument(f"invalid arg 'x-priority' for {what}: \"expected integer, got {type_name(priority)}\"")
    for name in ("x-cancel-on-ha-failover", "x-delivery-count"):
        flag = arguments.get(name, False)
        if not isinstance(flag, bool):
            problem = f"{{unacceptable_type,{type_name(flag)}}}"
            raise InvalidArgument(f"invalid arg '{name}' for {what}: {problem}")
    prefetch = arguments.get("x-prefetch")
    if prefetch is None:
        return priority, None
    # Some clients can encode a fraction only as a decimal.
    is_number = isinstance(prefetch, int | float | Decimal) and not isinstance(prefetch, bool)
    if not is_number or not 0 <= prefetch <= MAX_PREFETCH:
        raise InvalidArgument(f"invalid arg 'x-prefetch' for {what}: expected a number from 0 to {MAX_PREFETCH}")
    return priority, float(prefetch)


def selector_in(arguments: Mapping[str, Any], what: str) -> Selector | None:
    """Return the consumer's message filter from Flyball's arguments, or None if it has none of them."""
    order = arguments.get("x-order")
    found: dict[str, int] = {}
    for name, minimum, maximum in _SELECTING:
        if name in arguments:
            found[name] = checked_number(arguments[name], f"arg '{name}' for {what}", minimum, maximum)
    if order is None and not found:
        return None
    if order is not None and not (isinstance(order, str) and order in _ORDERS):
        raise InvalidArgument(f"invalid arg 'x-order' for {what}: expected one of {', '.join(_ORDERS)}")
    return Selector(
        found.get("x-receiver"),
        True,
        found.get("x-sender"),
        found.get("x-context"),
        _ORDERS["oldest" if order is None else order],
    )


def new_tag() -> str:
    """Return a unique consumer tag."""
    return f"amq.ctag-{_token()}"


def new_queue_name() -> str:
    return f"amq.gen-{_token()}"


def _token() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
