"""The properties of a message: fourteen optional fields after a word of flags, as in a content header.

The broker forwards them unchanged; `essentials` decodes the few that it needs itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from flyball.broker.wire.amqp.fields import (
    finish,
    read_longlong,
    read_loose_shortstr,
    read_octet,
    read_short,
    skip_longstr,
    syntax_error,
    write_shortstr,
)
from flyball.broker.wire.amqp.tables import check_table
from flyball.model import Correlation

CONTENT_TYPE: Final = 1 << 15
CONTENT_ENCODING: Final = 1 << 14
HEADERS: Final = 1 << 13
DELIVERY_MODE: Final = 1 << 12
PRIORITY: Final = 1 << 11
CORRELATION_ID: Final = 1 << 10
REPLY_TO: Final = 1 << 9
EXPIRATION: Final = 1 << 8
MESSAGE_ID: Final = 1 << 7
TIMESTAMP: Final = 1 << 6
TYPE: Final = 1 << 5
USER_ID: Final = 1 << 4
APP_ID: Final = 1 << 3
CLUSTER_ID: Final = 1 << 2
# Bits that must be 0: one would announce a second word of flags, which class basic does not have; the other is
# unused.
_NO_FLAGS: Final = 0b11

NO_PROPERTIES: Final = b"\0\0"
TRANSIENT_MODE: Final = 1
PERSISTENT_MODE: Final = 2
DELIVERY_MODES: Final = (TRANSIENT_MODE, PERSISTENT_MODE)


@dataclass(slots=True)
class Properties:
    """A message's properties; None is absent. `headers` is the raw table, see `tables`."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: bytes | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None

    @staticmethod
    def decode(data: bytes) -> Properties:
        """Decode flags and property list. Raises AmqpError for malformed or additional data."""
        end = len(data)
        flags = _read_flags(data)
        self = Properties()
        at = 2
        if flags & CONTENT_TYPE:
            self.content_type, at = read_loose_shortstr(data, at, end)
        if flags & CONTENT_ENCODING:
            self.content_encoding, at = read_loose_shortstr(data, at, end)
        if flags & HEADERS:
            stop = skip_longstr(data, at, end)
            check_table(data, at, stop)
            self.headers = data[at:stop]
            at = stop
        if flags & DELIVERY_MODE:
            self.delivery_mode = read_octet(data, at, end)
            at += 1
        if flags & PRIORITY:
            self.priority = read_octet(data, at, end)
            at += 1
        if flags & CORRELATION_ID:
            self.correlation_id, at = read_loose_shortstr(data, at, end)
        if flags & REPLY_TO:
            self.reply_to, at = read_loose_shortstr(data, at, end)
        if flags & EXPIRATION:
            self.expiration, at = read_loose_shortstr(data, at, end)
        if flags & MESSAGE_ID:
            self.message_id, at = read_loose_shortstr(data, at, end)
        if flags & TIMESTAMP:
            self.timestamp = read_longlong(data, at, end)
            at += 8
        if flags & TYPE:
            self.type, at = read_loose_shortstr(data, at, end)
        if flags & USER_ID:
            self.user_id, at = read_loose_shortstr(data, at, end)
        if flags & APP_ID:
            self.app_id, at = read_loose_shortstr(data, at, end)
        if flags & CLUSTER_ID:
            self.cluster_id, at = read_loose_shortstr(data, at, end)
        finish(at, end)
        return self

    def encode(self) -> bytes:
        """Return flags and property list. Raises ValueError if a string has more than 255 octets."""
        flags = 0
        pieces: list[bytes] = []
        # In the order of the flags, highest first.
        for flag, piece in (
            (CONTENT_TYPE, _string(self.content_type)),
            (CONTENT_ENCODING, _string(self.content_encoding)),
            (HEADERS, self.headers),
            (DELIVERY_MODE, _octet(self.delivery_mode)),
            (PRIORITY, _octet(self.priority)),
            (CORRELATION_ID, _string(self.correlation_id)),
            (REPLY_TO, _string(self.reply_to)),
            (EXPIRATION, _string(self.expiration)),
            (MESSAGE_ID, _string(self.message_id)),
            (TIMESTAMP, None if self.timestamp is None else struct.pack(">Q", self.timestamp)),
            (TYPE, _string(self.type)),
            (USER_ID, _string(self.user_id)),
            (APP_ID, _string(self.app_id)),
            (CLUSTER_ID, _string(self.cluster_id)),
        ):
            if piece is not None:
                flags |= flag
                pieces.append(piece)
        return struct.pack(">H", flags) + b"".join(pieces)


def _string(text: str | None) -> bytes | None:
    return None if text is None else write_shortstr(text)


def _octet(value: int | None) -> bytes | None:
    return None if value is None else bytes((value,))


def _read_flags(data: bytes) -> int:
    flags = read_short(data, 0, len(data))
    if flags & _NO_FLAGS:
        raise syntax_error(f"unknown property flags {flags & _NO_FLAGS:#b}")
    return flags


class Essentials:
    """The properties that the broker itself uses. Shared between messages: must not be changed."""

    __slots__ = (
        "correlation",
        "delivery_mode",
        "expiration",
        "headers",
        "is_plain",
        "persistent",
        "priority",
        "reply_to",
        "user_id",
    )

    def __init__(
        self,
        delivery_mode: int,
        priority: int,
        expiration: str | None,
        user_id: str | None,
        reply_to: str | None,
        headers: bytes | None,
    ) -> None:
        self.delivery_mode = delivery_mode
        self.persistent = delivery_mode == PERSISTENT_MODE
        self.priority = priority
        self.expiration = expiration
        self.user_id = user_id
        self.reply_to = reply_to
        self.headers = headers
        # Whether all except persistence and priority have their defaults.
        self.is_plain = (
            expiration is None
            and user_id is None
            and reply_to is None
            and headers is None
            and delivery_mode in DELIVERY_MODES
        )
        # Flyball's own headers, once they were decoded.
        self.correlation: Correlation | None = None


_TRANSIENT: Final = Essentials(TRANSIENT_MODE, 0, None, None, None, None)
_PERSISTENT: Final = Essentials(PERSISTENT_MODE, 0, None, None, None, None)
# Most messages have at most a delivery mode.
_COMMON: Final[dict[bytes, Essentials]] = {
    NO_PROPERTIES: _TRANSIENT,
    b"\x10\x00\x01": _TRANSIENT,
    b"\x10\x00\x02": _PERSISTENT,
}
_ESSENTIAL: Final = HEADERS | PRIORITY | REPLY_TO | EXPIRATION | USER_ID


def essentials(properties: bytes) -> Essentials:
    """Decode the essentials of flags and property list. Raises AmqpError for malformed or additional data."""
    common = _COMMON.get(properties)
    if common is not None:
        return common
    try:
        return _essentials(properties)
    except IndexError:
        raise syntax_error("a property list ends before its fields") from None


def _essentials(data: bytes) -> Essentials:
    """Like `essentials`, but may also raise IndexError.

    A string that extends beyond the end is detected when the next one is read, or at the very end, so that lengths
    are not checked at each step.
    """
    end = len(data)
    flags = _read_flags(data)
    at = 2
    delivery_mode = TRANSIENT_MODE
    priority = 0
    expiration: str | None = None
    user_id: str | None = None
    reply_to: str | None = None
    headers: bytes | None = None
    if flags & CONTENT_TYPE:
        at += 1 + data[at]
    if flags & CONTENT_ENCODING:
        at += 1 + data[at]
    if flags & HEADERS:
        stop = skip_longstr(data, at, end)
        check_table(data, at, stop)
        headers = data[at:stop]
        at = stop
    if flags & DELIVERY_MODE:
        delivery_mode = data[at]
        at += 1
    if flags & PRIORITY:
        priority = data[at]
        at += 1
    if flags & CORRELATION_ID:
        at += 1 + data[at]
    if flags & REPLY_TO:
        reply_to, at = read_loose_shortstr(data, at, end)
    if flags & EXPIRATION:
        expiration, at = read_loose_shortstr(data, at, end)
    if flags & MESSAGE_ID:
        at += 1 + data[at]
    if flags & TIMESTAMP:
        at += 8
    if flags & TYPE:
        at += 1 + data[at]
    if flags & USER_ID:
        user_id, at = read_loose_shortstr(data, at, end)
    if flags & APP_ID:
        at += 1 + data[at]
    if flags & CLUSTER_ID:
        at += 1 + data[at]
    finish(at, end)
    if not flags & _ESSENTIAL:
        if delivery_mode == PERSISTENT_MODE:
            return _PERSISTENT
        if delivery_mode == TRANSIENT_MODE:
            return _TRANSIENT
    return Essentials(delivery_mode, priority, expiration, user_id, reply_to, headers)
