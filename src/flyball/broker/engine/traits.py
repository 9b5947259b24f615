"""The arguments of a queue: length limits, time to live, dead-lettering, priorities.

Checks and texts are RabbitMQ's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flyball.broker.engine.routing.values import alike, shown, type_name
from flyball.errors import InvalidArgument, UnlikeDeclared
from flyball.model import Arguments, Order, Queue, Selector

MAX_PRIORITY = 255
# Maximum length of the name of an exchange and of a routing key in AMQP.
MAX_SHORTSTR_BYTES = 255
# Maximum time to live of a message or queue: a hundred years.
MAX_MS = 100 * 365 * 86400 * 1000

_OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
_TYPES = ("classic", "quorum")


@dataclass(slots=True)
class Traits:
    """The effective settings of a queue. Times are in microseconds; None means unlimited."""

    message_ttl_us: int | None = None
    # Time after which an unused queue is deleted.
    expires_us: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    # Behaviour of a full queue: drop-head, reject-publish or reject-publish-dlx.
    overflow: str = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    max_priority: int = 0
    single_active_consumer: bool = False
    # Number of requeues above which a message is dead-lettered or dropped.
    delivery_limit: int | None = None
    is_quorum: bool = False
    # The selector of AMQP consumers: all messages, by age or by priority.
    selector: Selector = field(default_factory=Selector)
    # Whether arriving messages take the fast path: none of the above affects them.
    is_plain: bool = True

    @property
    def rejects(self) -> bool:
        """Whether a full queue refuses new messages instead of dropping old ones."""
        return self.overflow != "drop-head"

    def priority_of(self, priority: int) -> int:
        """Return the effective priority of a message in the queue."""
        return min(priority, self.max_priority) if self.max_priority else priority

    def expiry_of(self, expires_us: int | None, now_us: int) -> int | None:
        """Return the earlier of the message's own expiry and the queue's."""
        if self.message_ttl_us is None:
            return expires_us
        latest_us = now_us + self.message_ttl_us
        return latest_us if expires_us is None else min(expires_us, latest_us)

    @classmethod
    def of(cls, settings: Arguments) -> Traits:
        """Build from effective settings with names without `x-` and already checked values."""
        traits = cls(
            message_ttl_us=_microseconds(settings.get("message-ttl")),
            expires_us=_microseconds(settings.get("expires")),
            max_length=settings.get("max-length"),
            max_length_bytes=settings.get("max-length-bytes"),
            overflow=settings.get("overflow", "drop-head"),
            dead_letter_exchange=settings.get("dead-letter-exchange"),
            dead_letter_routing_key=settings.get("dead-letter-routing-key"),
            max_priority=settings.get("max-priority") or 0,
            single_active_consumer=settings.get("single-active-consumer", False),
            is_quorum=settings.get("queue-type") == "quorum",
        )
        limit = settings.get("delivery-limit")
        if traits.is_quorum and limit is not None and limit >= 0:
            traits.delivery_limit = limit
        if traits.max_priority:
            traits.selector = Selector(order=Order.PRIORITY)
        traits.is_plain = (
            traits.message_ttl_us is None
            and traits.max_length is None
            and traits.max_length_bytes is None
            and not traits.max_priority
        )
        return traits


def _microseconds(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else milliseconds * 1000


# Checks of a declaration

# Returns the error of a value in RabbitMQ's words, or None if it is valid.
_Check = Callable[[Any], str | None]


def _integer(minimum: int = 0, maximum: int | None = None) -> _Check:
    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return f'"expected integer, got {type_name(value)}"'
        if value < minimum:
            return f"{{value_{'negative' if value < 0 else 'zero'},{value}}}"
        if maximum is not None and value > maximum:
            return f"{{max_value_exceeded,{value}}}"
        return None

    return check


def _time(minimum: int = 0) -> _Check:
    def check(value: Any) -> str | None:
        problem = _integer(minimum)(value)
        return problem or (f"{{value_too_large,{value}}}" if value > MAX_MS else None)

    return check


def _delivery_limit(value: Any) -> str | None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return None if is_integer else f'"expected integer, got {type_name(value)}"'


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else f"{{unacceptable_type,{type_name(value)}}}"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else f"{{unacceptable_type,{type_name(value)}}}"


def _overflow(value: Any) -> str | None:
    return _text(value) or (None if value in _OVERFLOWS else "invalid_overflow")


def _queue_mode(value: Any) -> str | None:
    return _text(value) or (None if value in ("default", "lazy") else f"\"unsupported queue mode '{value}'\"")


def _queue_version(value: Any) -> str | None:
    return _integer()(value) or (None if value in (1, 2) else f"\"unsupported queue version '{value}'\"")


def _queue_type(value: Any) -> str | None:
    return _text(value) or (None if value in _TYPES else f"\"unsupported queue type '{value}'\"")


def _dead_letter_strategy(value: Any) -> str | None:
    return _text(value) or (None if value in ("at-most-once", "at-least-once") else "invalid_dlx_strategy")


_CHECKS: dict[str, _Check] = {
    "x-queue-type": _queue_type,
    "x-expires": _time(minimum=1),
    "x-message-ttl": _time(),
    "x-dead-letter-exchange": _text,
    "x-dead-letter-routing-key": _text,
    "x-max-length": _integer(),
    "x-max-length-bytes": _integer(),
    "x-max-priority": _integer(maximum=MAX_PRIORITY),
    "x-overflow": _overflow,
    "x-queue-mode": _queue_mode,
    "x-queue-version": _queue_version,
    "x-single-active-consumer": _flag,
    "x-delivery-limit": _delivery_limit,
    "x-dead-letter-strategy": _dead_letter_strategy,
    "x-quorum-initial-group-size": _integer(),
    "x-max-in-memory-length": _integer(),
    "x-max-in-memory-bytes": _integer(),
    "x-queue-leader-locator": _text,
}
_OF_STREAMS = ("x-initial-cluster-size", "x-max-age", "x-stream-max-segment-size-bytes")
_NOT_FOR = {
    "classic": (
        "x-delivery-limit",
        "x-quorum-initial-group-size",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-dead-letter-strategy",
        "x-queue-leader-locator",
        *_OF_STREAMS,
    ),
    "quorum": ("x-max-priority", "x-queue-mode", "x-queue-version", *_OF_STREAMS),
}


def usable(arguments: Arguments) -> dict[str, Any]:
    """Drop invalid stored arguments, which cannot be from a declaration.

    A dead-letter exchange or routing key that is too long is kept: messages that cannot be dead-lettered because of
    it are parked, visible to an operator.
    """
    return {name: value for name, value in arguments.items() if name not in _CHECKS or _CHECKS[name](value) is None}


def described(queue_name: str, vhost: str) -> str:
    return f"queue '{queue_name}' in vhost '{vhost}'"


def check_declaration(queue: Queue) -> None:
    """Raise InvalidArgument unless the declaration is valid."""
    what = described(queue.name, queue.vhost)
    arguments = queue.arguments
    kind = arguments.get("x-queue-type", "classic")
    problem = _queue_type(kind)
    if problem is not None:
        raise InvalidArgument(f"invalid arg 'x-queue-type' for {what}: {problem}")
    # Arguments that a queue type does not support are refused with any value, as in RabbitMQ.
    for name in _NOT_FOR[kind]:
        if name in arguments:
            raise InvalidArgument(f"invalid arg '{name}' for {what} of queue type rabbit_{kind}_queue")
    for name, check in _CHECKS.items():
        if name not in arguments:
            continue
        problem = check(arguments[name])
        if problem is not None and name == "x-dead-letter-exchange":
            raise InvalidArgument(f"invalid type '{type_name(arguments[name])}' for arg '{name}' in {what}")
        if problem is not None:
            raise InvalidArgument(f"invalid arg '{name}' for {what}: {problem}")
    for name in ("x-dead-letter-exchange", "x-dead-letter-routing-key"):
        # RabbitMQ accepts these and fails when it publishes the dead letter.
        if len(arguments.get(name, "").encode("utf-8", "surrogateescape")) > MAX_SHORTSTR_BYTES:
            raise InvalidArgument(f"invalid arg '{name}' for {what}: longer than {MAX_SHORTSTR_BYTES} bytes")
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise InvalidArgument(f"invalid arg 'x-dead-letter-routing-key' for {what}: routing_key_but_no_dlx_defined")
    if kind == "quorum":
        for is_so, property_name in (
            (queue.auto_delete, "auto-delete"),
            (queue.exclusive, "exclusive-owner"),
            (not queue.durable, "non-durable"),
        ):
            if is_so:
                raise InvalidArgument(f"invalid property '{property_name}' for {what}")


def check_alike(existing: Queue, declared: Queue) -> None:
    """Raise UnlikeDeclared if an existing queue is redeclared with other properties."""
    what = f"queue '{existing.name}'"
    for name, was, is_now in (
        ("durable", existing.durable, declared.durable),
        ("auto_delete", existing.auto_delete, declared.auto_delete),
    ):
        if was != is_now:
            raise UnlikeDeclared(name, what, existing.vhost, f"'{shown(is_now)}'", f"'{shown(was)}'")
    for name in _CHECKS:
        if name not in existing.arguments and name not in declared.arguments:
            continue
        # The default type is classic.
        if name == "x-queue-type" and _is_classic(existing.arguments) and _is_classic(declared.arguments):
            continue
        if name not in existing.arguments or name not in declared.arguments:
            received, current = _with_type(declared.arguments, name), _with_type(existing.arguments, name)
            raise UnlikeDeclared(name, what, existing.vhost, received, current)
        if not alike(existing.arguments[name], declared.arguments[name]):
            received, current = shown(declared.arguments[name]), shown(existing.arguments[name])
            raise UnlikeDeclared(name, what, existing.vhost, f"'{received}'", f"'{current}'")


def _is_classic(arguments: Arguments) -> bool:
    return "x-queue-type" not in arguments or arguments["x-queue-type"] == "classic"


def _with_type(arguments: Arguments, name: str) -> str:
    if name not in arguments:
        return "none"
    return f"the value '{shown(arguments[name])}' of type '{type_name(arguments[name])}'"
