"""Error messages for invalid command arguments, without the values, which may be secret."""

from __future__ import annotations

from pydantic import ValidationError

from flyball.errors import InvalidArgument


def invalid_argument(command: str, error: ValidationError) -> InvalidArgument:
    """Return the first validation error of a command's arguments, in one line."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # Without the value, which may be a password.
    place = ".".join(str(part) for part in first["loc"])
    return InvalidArgument(f"{command}: {place}: {first['msg']}")
