"""What the arguments of a queue mean: limits, dead letters, priorities. Checked as RabbitMQ checks them."""

from __future__ import annotations

from dataclasses import dataclass, field

from flyball.engine.routing.values import type_name
from flyball.errors import InvalidArgument
from flyball.model import Arguments, Order, Selector

MAX_PRIORITY = 255
_MAX_MS = 2**32
"""Times are shorter than so many milliseconds: seven weeks."""

_OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
_TYPES = ("classic", "quorum")


@dataclass(slots=True)
class Traits:
    """How a queue behaves beyond first in, first out. Times in microseconds; None is no limit."""

    message_ttl_us: int | None = None
    expires_us: int | None = None
    """It is deleted when nobody has used it for so long."""
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = "drop-head"
    """What happens when it is full: drop-head, reject-publish or reject-publish-dlx."""
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    max_priority: int | None = None
    single_active_consumer: bool = False
    delivery_limit: int | None = None
    """A message that came back more often is dead."""
    consumer_timeout_us: int | None = None
    is_quorum: bool = False
    selector: Selector = field(default_factory=Selector)
    """What an AMQP reader of the queue gets: everything, the oldest first or the highest priority first."""

    @property
    def has_length_limit(self) -> bool:
        return self.max_length is not None or self.max_length_bytes is not None

    @property
    def rejects(self) -> bool:
        """Whether a full queue refuses new messages instead of dropping old ones."""
        return self.overflow != "drop-head"

    @classmethod
    def of(cls, arguments: Arguments) -> Traits:
        """Read the arguments of a queue. Raises InvalidArgument, whose text names the argument and the reason."""
        traits = cls(
            message_ttl_us=_milliseconds(arguments, "x-message-ttl", least=0),
            expires_us=_milliseconds(arguments, "x-expires", least=1),
            max_length=_integer(arguments, "x-max-length", least=0),
            max_length_bytes=_integer(arguments, "x-max-length-bytes", least=0),
            overflow=_word(arguments, "x-overflow", _OVERFLOWS) or "drop-head",
            dead_letter_exchange=_text(arguments, "x-dead-letter-exchange"),
            dead_letter_routing_key=_text(arguments, "x-dead-letter-routing-key"),
            max_priority=_integer(arguments, "x-max-priority", least=0, most=MAX_PRIORITY),
            single_active_consumer=_flag(arguments, "x-single-active-consumer"),
            delivery_limit=_integer(arguments, "x-delivery-limit", least=0),
            consumer_timeout_us=_milliseconds(arguments, "x-consumer-timeout", least=0),
            is_quorum=_word(arguments, "x-queue-type", _TYPES) == "quorum",
        )
        if traits.dead_letter_routing_key is not None and traits.dead_letter_exchange is None:
            raise InvalidArgument("'x-dead-letter-routing-key': routing_key_but_no_dlx_defined")
        if traits.max_priority is not None:
            traits.selector = Selector(order=Order.PRIORITY)
        return traits


def _integer(arguments: Arguments, name: str, least: int, most: int | None = None) -> int | None:
    value = arguments.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"'{name}': {{unacceptable_type,{type_name(value)}}}")
    if value < least:
        raise InvalidArgument(f"'{name}': {{value_{'negative' if value < 0 else 'zero'},{value}}}")
    if most is not None and value > most:
        raise InvalidArgument(f"'{name}': {{max_value_exceeded,{value}}}")
    return value


def _milliseconds(arguments: Arguments, name: str, least: int) -> int | None:
    value = _integer(arguments, name, least)
    if value is None:
        return None
    if value >= _MAX_MS:
        raise InvalidArgument(f"'{name}': {{value_too_big,{value}}}")
    return value * 1000


def _text(arguments: Arguments, name: str) -> str | None:
    value = arguments.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidArgument(f"'{name}': {{unacceptable_type,{type_name(value)}}}")
    return value


def _word(arguments: Arguments, name: str, known: tuple[str, ...]) -> str | None:
    value = _text(arguments, name)
    if value is not None and value not in known:
        raise InvalidArgument(f"'{name}': invalid value {value!r}, expected one of {', '.join(known)}")
    return value


def _flag(arguments: Arguments, name: str) -> bool:
    value = arguments.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidArgument(f"'{name}': {{unacceptable_type,{type_name(value)}}}")
    return bool(value)
