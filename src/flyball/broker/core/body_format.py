"""Message bodies that a reader's protocol can represent. Other messages stay in their queue."""

from __future__ import annotations

import enum

from flyball.broker.wire.telesto import FRAME_MAX
from flyball.errors import InvalidBody
from flyball.model import Message

# Maximum size of the text in a ReadMessageResponse.
TELESTO_TEXT_BYTES = FRAME_MAX - 38


class BodyFormat(enum.IntEnum):
    """The bodies that a reader accepts. The values are part of the inter-node link's protocol."""

    ALL = 0
    # ThorBangMQ terminates each message with a zero byte.
    NO_ZERO = 1
    # Text that fits into a Telesto frame; invalid UTF-8 becomes U+FFFD.
    TELESTO_TEXT = 2


def fits(message: Message, fit: int) -> bool:
    """Whether the reader's protocol can represent the message."""
    if fit == BodyFormat.NO_ZERO:
        return b"\0" not in message.body
    if fit == BodyFormat.TELESTO_TEXT:
        size = len(message.body)
        return size <= TELESTO_TEXT_BYTES // 3 or len(as_text(message.body)) <= TELESTO_TEXT_BYTES
    return True


def format_error(message: Message, fit: int) -> InvalidBody:
    """Return the error for a message that the reader's protocol cannot represent."""
    if fit == BodyFormat.NO_ZERO:
        return InvalidBody(f"message {message.id} contains a zero byte")
    return InvalidBody(f"message {message.id} of {len(message.body)} bytes does not fit this protocol")


def as_text(body: bytes) -> bytes:
    """Return the body as valid UTF-8, with U+FFFD for invalid bytes."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return body.decode("utf-8", "replace").encode()
    return body
