"""Values of arguments and headers: equality across types, and RabbitMQ's notation.

In Python True equals 1 and 1 equals 1.0; a broker with clients in other languages must distinguish them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from flyball.model import Timestamp

_INT32_MAX = (1 << 31) - 1


def frozen(value: Any) -> tuple[str, Any]:
    """Return a hashable key that is equal only for values of the same type and content."""
    if isinstance(value, Mapping):
        return ("table", tuple(sorted((name, frozen(item)) for name, item in value.items())))
    if isinstance(value, (list, tuple)):
        return ("array", tuple([frozen(item) for item in value]))
    if isinstance(value, float) and value != value:
        # NaN does not equal itself: a repeated bind would add a binding each time.
        return ("float", "nan")
    return (type(value).__name__, value)


def equal(wanted: Any, found: Any) -> bool:
    """Whether a header has the value that a binding requires.

    Numbers of any width compare by value, strings by their bytes. Otherwise values of different types differ.
    """
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, (int, float)):
        return isinstance(found, (int, float)) and wanted == found
    if isinstance(wanted, (str, bytes)):
        return isinstance(found, (str, bytes)) and _octets(wanted) == _octets(found)
    return frozen(wanted) == frozen(found)


def _octets(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


def type_name(value: Any) -> str:
    """Return RabbitMQ's name of the value's type, for reply texts."""
    if value is None:
        return "void"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "signedint" if -_INT32_MAX <= value <= _INT32_MAX else "long"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str):
        return "longstr"
    if isinstance(value, bytes):
        return "binary"
    if isinstance(value, Mapping):
        return "table"
    if isinstance(value, (list, tuple)):
        return "array"
    if isinstance(value, (datetime, Timestamp)):
        return "timestamp"
    return type(value).__name__.lower()


def shown(value: Any) -> str:
    """Return the value as RabbitMQ writes it inside quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, Mapping):
        return f"[{','.join([_field_shown(name, item) for name, item in value.items()])}]"
    if isinstance(value, (list, tuple)):
        return f"[{','.join([f'{{{type_name(item)},{_term(item)}}}' for item in value])}]"
    return "undefined" if value is None else str(_seconds(value))


def _field_shown(name: str, value: Any) -> str:
    return f'{{<<"{name}">>,{type_name(value)},{_term(value)}}}'


def _term(value: Any) -> str:
    """Return the value in Erlang's notation, as an element of another value."""
    return f'<<"{shown(value)}">>' if isinstance(value, (str, bytes)) else shown(value)


def _seconds(value: Any) -> Any:
    """Return the seconds of a timestamp, or any other value unchanged."""
    if isinstance(value, Timestamp):
        return value.seconds
    return int(value.timestamp()) if isinstance(value, datetime) else value


def alike(known: Any, declared: Any) -> bool:
    """Whether an argument is redeclared with the same value: unlike in headers, 10.0 differs from 10.

    A timestamp equals the number of its seconds, as in RabbitMQ.
    """
    known, declared = _seconds(known), _seconds(declared)
    return isinstance(known, float) == isinstance(declared, float) and equal(known, declared)
