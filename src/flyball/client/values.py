"""Validates arguments of users before they are encoded."""

from __future__ import annotations

import math
import operator

from flyball.client.errors import InvalidValue
from flyball.errors import InvalidBody, InvalidName
from flyball.model import MAX_NAME_LENGTH

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
MAX_PREFETCH = 65_535


def body_bytes(body: bytes | str) -> bytes:
    """Return the body as bytes; str is encoded as UTF-8."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError as error:
            raise InvalidBody(f"body is not valid Unicode: lone surrogate at index {error.start}") from None
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise InvalidBody(f"invalid body of type {type(body).__name__}: use bytes or str")


def check_name(name: str) -> str:
    """Return the name of a client or queue, if it is valid."""
    if not isinstance(name, str):
        raise InvalidName(f"invalid name of type {type(name).__name__}: use str")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidName(f"name of {len(name)} characters exceeds {MAX_NAME_LENGTH}")
    if "\0" in name:
        raise InvalidName("name contains a NUL character")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidName(f"name is not valid Unicode: lone surrogate at index {error.start}") from None
    return name


def check_int(what: str, value: int, least: int, most: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidValue(f"invalid {what} {value!r}: use an integer") from None
    if not least <= number <= most:
        raise InvalidValue(f"invalid {what} {value}: use a value from {least} to {most}")
    return number


def check_seconds(what: str, value: float, most: float, above: float = -1.0) -> float:
    """Return the duration if it is above `above`, at least 0, and at most `most`."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise InvalidValue(f"invalid {what} {value!r}: use a number of seconds") from None
    if math.isnan(seconds) or seconds < 0 or seconds <= above or seconds > most:
        raise InvalidValue(f"invalid {what} {value}: use 0 to {most} seconds")
    return seconds


def check_prefetch(prefetch: float) -> float:
    try:
        number = float(prefetch)
    except (TypeError, ValueError):
        raise InvalidValue(f"invalid prefetch {prefetch!r}: use a number") from None
    if math.isnan(number) or not 0 <= number <= MAX_PREFETCH:
        raise InvalidValue(f"invalid prefetch {prefetch}: use a value from 0 to {MAX_PREFETCH}")
    return number
