"""Fields of request documents: accepted as RabbitMQ does, or refused with the expected type.

`null` counts as missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyball.errors import InvalidArgument

Document = Mapping[str, Any]

_FLAGS = {True: True, False: False, "true": True, "false": False}


def text(document: Document, name: str, default: str | None = None) -> str:
    """Return a string; required without a default. Raises InvalidArgument."""
    value = document.get(name)
    if value is None:
        if default is None:
            raise InvalidArgument(f"missing field {name!r}")
        return default
    if not isinstance(value, str):
        raise InvalidArgument(f"field {name!r} must be a string")
    return value


def flag(document: Document, name: str, default: bool) -> bool:
    """Return a boolean, which may be given as a string. Raises InvalidArgument."""
    value = document.get(name)
    if value is None:
        return default
    if not isinstance(value, bool | str) or value not in _FLAGS:
        raise InvalidArgument(f"field {name!r} must be true or false")
    return _FLAGS[value]


def number(
    document: Document,
    name: str,
    default: int | None = None,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
) -> int:
    """Return an integer, which may be given as a string; required without a default. Raises InvalidArgument."""
    value = document.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) <= 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or (minimum is not None and value < minimum):
        limit = "" if minimum is None else f" of at least {minimum}"
        raise InvalidArgument(f"field {name!r} must be an integer{limit}")
    if maximum is not None and value > maximum:
        raise InvalidArgument(f"field {name!r} must be at most {maximum}")
    return value


def table(document: Document, name: str) -> dict[str, Any]:
    """Return an object; empty if missing. Raises InvalidArgument."""
    value = document.get(name)
    # RabbitMQ accepts an empty list for an empty object, and sometimes returns one.
    if value is None or value == []:
        return {}
    if not isinstance(value, dict):
        raise InvalidArgument(f"field {name!r} must be an object")
    return value


def names(document: Document, name: str) -> list[str]:
    """Return a list of strings, which may be given comma-separated; empty if missing. Raises InvalidArgument."""
    value = document.get(name)
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise InvalidArgument(f"field {name!r} must be a list of strings")
    return value
