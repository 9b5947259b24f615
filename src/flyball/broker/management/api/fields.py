"""The fields of documents that are sent to the API: taken as RabbitMQ takes them, or refused with what they must be.

What is `null` counts as not given. Knows nothing of what the fields are for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyball.errors import InvalidArgument

Document = Mapping[str, Any]

_FLAGS = {True: True, False: False, "true": True, "false": False}


def text(document: Document, name: str, default: str | None = None) -> str:
    """Return a text; without a default it is needed. Raises InvalidArgument."""
    value = document.get(name)
    if value is None:
        if default is None:
            raise InvalidArgument(f"the field {name!r} is missing")
        return default
    if not isinstance(value, str):
        raise InvalidArgument(f"the field {name!r} has to be a text")
    return value


def flag(document: Document, name: str, default: bool) -> bool:
    """Return true or false, which may be written as texts. Raises InvalidArgument."""
    value = document.get(name)
    if value is None:
        return default
    if not isinstance(value, bool | str) or value not in _FLAGS:
        raise InvalidArgument(f"the field {name!r} has to be true or false")
    return _FLAGS[value]


def number(
    document: Document,
    name: str,
    default: int | None = None,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
) -> int:
    """Return an integer, which may be written as a text; without a default it is needed. Raises InvalidArgument."""
    value = document.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) <= 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or (minimum is not None and value < minimum):
        limit = "" if minimum is None else f", {minimum} or more"
        raise InvalidArgument(f"the field {name!r} has to be a whole number{limit}")
    if maximum is not None and value > maximum:
        raise InvalidArgument(f"the field {name!r} has to be at most {maximum}")
    return value


def table(document: Document, name: str) -> dict[str, Any]:
    """Return an object, an empty one if there is none. Raises InvalidArgument."""
    value = document.get(name)
    # To RabbitMQ an empty list is an empty object, and it says so itself at times.
    if value is None or value == []:
        return {}
    if not isinstance(value, dict):
        raise InvalidArgument(f"the field {name!r} has to be an object")
    return value


def names(document: Document, name: str) -> list[str]:
    """Return texts that are listed, or joined by commas; none if there are none. Raises InvalidArgument."""
    value = document.get(name)
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise InvalidArgument(f"the field {name!r} has to be a list of texts")
    return value
