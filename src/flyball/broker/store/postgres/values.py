"""Encoding of names and arguments in columns of PostgreSQL.

Covers the types of AMQP's field tables, and the characters that text and jsonb cannot represent.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from flyball.model import Timestamp

# Maximum nesting: deeper than AMQP's tables may be, and far below the limit of the stack at the next start.
MAX_DEPTH = 250

# The characters that PostgreSQL does not accept in text, and the escape character.
_UNSTORABLE = re.compile("[\\\\\0\ud800-\udfff]")

_ESCAPED = re.compile(r"\\([0-9a-f]{4})")


def to_text(text: str) -> str:
    """Escape the characters that a text column cannot represent; other text is unchanged."""
    return _UNSTORABLE.sub(_escape, text)


def from_text(stored: str) -> str:
    """Reverse `to_text`."""
    return _ESCAPED.sub(_unescape, stored)


def is_plain(text: str) -> bool:
    """Whether a text column can represent it unescaped; a backslash is allowed."""
    return all(odd[0] == "\\" for odd in _UNSTORABLE.finditer(text))


def to_json(values: Mapping[str, Any]) -> str:
    """Encode values for jsonb; types that JSON lacks are tagged: {"$bytes": "AAE="}.

    Raises TypeError for a type that field tables lack, ValueError for values nested too deep or too large.
    """
    return json.dumps(_tagged(values, 0), ensure_ascii=False, allow_nan=False, check_circular=False)


def from_json(stored: str) -> dict[str, Any]:
    """Reverse `to_json`, with the same types."""
    if stored == "{}":
        return {}
    values: dict[str, Any] = _untagged(json.loads(stored))
    return values


def _escape(odd: re.Match[str]) -> str:
    return f"\\{ord(odd[0]):04x}"


def _unescape(escaped: re.Match[str]) -> str:
    return chr(int(escaped[1], 16))


def _tagged(value: object, depth: int) -> object:
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    match value:
        case None | bool() | int():
            return value
        case str():
            return to_text(value)
        case float():
            # Untagged, 1e300 would be read back as an integer, and -0.0 without its sign.
            return {"$float": repr(value)}
        case bytes():
            return {"$bytes": base64.b64encode(value).decode("ascii")}
        case datetime():
            return {"$time": value.isoformat()}
        case Timestamp():
            return {"$seconds": str(value.seconds)}
        case Decimal():
            return {"$decimal": str(value)}
        case list() | tuple():
            return [_tagged(element, depth + 1) for element in value]
        case Mapping():
            return {_to_key(key): _tagged(element, depth + 1) for key, element in value.items()}
    raise TypeError(f"a {type(value).__name__} cannot be an argument")


def _untagged(value: Any) -> Any:
    if isinstance(value, str):
        return from_text(value)
    if isinstance(value, list):
        return [_untagged(element) for element in value]
    if not isinstance(value, dict):
        return value
    for tag, text in value.items():
        if tag.startswith("$"):
            return _VALUE_OF_TAG[tag](text)
    return {from_text(key): _untagged(element) for key, element in value.items()}


def _to_key(key: str) -> str:
    """Escape a key that looks like a tag."""
    stored = to_text(key)
    return "\\0024" + stored[1:] if stored.startswith("$") else stored


_VALUE_OF_TAG: dict[str, Callable[[str], object]] = {
    "$float": float,
    "$bytes": base64.b64decode,
    "$time": datetime.fromisoformat,
    "$seconds": lambda text: Timestamp(int(text)),
    "$decimal": Decimal,
}
