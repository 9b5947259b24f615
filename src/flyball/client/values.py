"""What users pass is checked here, before it is encoded, so that a mistake is a clear error at its place."""

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
    """Return the body as bytes; text as UTF-8."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError as error:
            raise InvalidBody(f"the text has half a character at {error.start}: a lone surrogate") from None
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise InvalidBody(f"a body is bytes or text, not {type(body).__name__}")


def check_name(name: str) -> str:
    """Return the name of a client or queue if it can be one."""
    if not isinstance(name, str):
        raise InvalidName(f"a name is text, not {type(name).__name__}")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidName(f"a name of {len(name)} characters is longer than {MAX_NAME_LENGTH}")
    if "\0" in name:
        raise InvalidName("a name must not contain a zero character")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidName(f"the name has half a character at {error.start}: a lone surrogate") from None
    return name


def check_int(what: str, value: int, least: int, most: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidValue(f"{what} is a whole number, not {value!r}") from None
    if not least <= number <= most:
        raise InvalidValue(f"{what} lies between {least} and {most}; {value} does not")
    return number


def check_seconds(what: str, value: float, most: float, above: float = -1.0) -> float:
    """Return the duration if it is a number above `above`, at least 0, and at most `most`."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise InvalidValue(f"{what} is a number of seconds, not {value!r}") from None
    if math.isnan(seconds) or seconds < 0 or seconds <= above or seconds > most:
        raise InvalidValue(f"{what} lies between 0 and {most} seconds; {value} does not")
    return seconds


def check_prefetch(prefetch: float) -> float:
    try:
        number = float(prefetch)
    except (TypeError, ValueError):
        raise InvalidValue(f"a prefetch is a number, not {prefetch!r}") from None
    if math.isnan(number) or not 0 <= number <= MAX_PREFETCH:
        raise InvalidValue(f"a prefetch lies between 0 and {MAX_PREFETCH}; {prefetch} does not")
    return number
