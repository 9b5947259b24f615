"""Which messages the protocols of readers can express: one that they cannot stays in its queue."""

from __future__ import annotations

import enum

from flyball.broker.wire.telesto import FRAME_MAX
from flyball.errors import InvalidBody
from flyball.model import Message

# The longest text that a ReadMessageResponse has room for.
TELESTO_TEXT_BYTES = FRAME_MAX - 38


class BodyFormat(enum.IntEnum):
    """What a reader can be sent. The numbers are those of the link."""

    ALL = 0
    # ThorBangMQ ends each message with a zero byte.
    NO_ZERO = 1
    # Text that fits into a frame of Telesto's protocol; what is not valid UTF-8 becomes U+FFFD.
    TELESTO_TEXT = 2


def fits(message: Message, fit: int) -> bool:
    """Whether a reader can be sent the message."""
    if fit == BodyFormat.NO_ZERO:
        return b"\0" not in message.body
    if fit == BodyFormat.TELESTO_TEXT:
        size = len(message.body)
        return size <= TELESTO_TEXT_BYTES // 3 or len(as_text(message.body)) <= TELESTO_TEXT_BYTES
    return True


def format_error(message: Message, fit: int) -> InvalidBody:
    """Return the error that says why a reader cannot be sent the message."""
    if fit == BodyFormat.NO_ZERO:
        return InvalidBody(f"message {message.id} contains a zero byte")
    return InvalidBody(f"message {message.id} of {len(message.body)} bytes does not fit this protocol")


def as_text(body: bytes) -> bytes:
    """Return the body as valid UTF-8; what is not becomes U+FFFD."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return body.decode("utf-8", "replace").encode()
    return body
