"""Errors in the arguments of commands, without the values: those may be secret."""

from __future__ import annotations

from pydantic import ValidationError

from flyball.errors import InvalidArgument


def invalid_argument(command: str, error: ValidationError) -> InvalidArgument:
    """Return what is wrong with the arguments of a command, in one line."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # The value stays out of it: it may be a password.
    place = ".".join(str(part) for part in first["loc"])
    return InvalidArgument(f"{command}: {place}: {first['msg']}")
