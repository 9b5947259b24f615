"""The simple field types of AMQP 0-9-1, the frame around a method, and the error that this package raises.

Readers accept a buffer with the start of the field and the end of its frame, since further frames may follow in it.
"""

from __future__ import annotations

import struct
from typing import Final

from flyball.broker.wire.amqp._generated.reply_codes import ReplyCode
from flyball.errors import ProtocolError

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
# Octets of a frame besides its payload: type, channel, size and the end octet.
FRAME_OVERHEAD: Final = 8

_SHORT: Final = struct.Struct(">H")
_LONG: Final = struct.Struct(">I")
_LONGLONG: Final = struct.Struct(">Q")
_METHOD_HEAD: Final = struct.Struct(">BHI")

MAX_SHORTSTR_BYTES: Final = 255


class AmqpError(ProtocolError):
    """The peer violated AMQP: the connection is closed. The ids are those of the offending method, or 0."""

    def __init__(self, code: ReplyCode, text: str, class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.class_id = class_id
        self.method_id = method_id


def reply_text(code: ReplyCode, text: str) -> str:
    """Return the text in RabbitMQ's form, `NOT_FOUND - no queue 'x'`, truncated to a short string."""
    full = f"{code.name} - {text}".encode("utf-8", "surrogateescape")
    if len(full) <= MAX_SHORTSTR_BYTES:
        return full.decode("utf-8", "surrogateescape")
    # Drop a character that the truncation has split.
    return full[: MAX_SHORTSTR_BYTES - 3].decode("utf-8", "ignore") + "..."


def syntax_error(text: str) -> AmqpError:
    return AmqpError(ReplyCode.SYNTAX_ERROR, text)


def wrong_size(size: int, at: int, end: int) -> AmqpError:
    """Return the error of a frame that does not have `size` octets between `at` and its end."""
    if end - at < size:
        return syntax_error("a frame ends before its fields")
    return syntax_error(f"fields and frame size disagree by {end - at - size} octets")


def finish(at: int, end: int) -> None:
    """Raise AmqpError unless the fields end where their frame does."""
    if at != end:
        raise wrong_size(0, at, end)


def read_octet(data: bytes, at: int, end: int) -> int:
    if at >= end:
        raise syntax_error("a frame ends before its fields")
    return data[at]


def read_short(data: bytes, at: int, end: int) -> int:
    if at + 2 > end:
        raise syntax_error("a frame ends before its fields")
    value: int = _SHORT.unpack_from(data, at)[0]
    return value


def read_long(data: bytes, at: int, end: int) -> int:
    if at + 4 > end:
        raise syntax_error("a frame ends before its fields")
    value: int = _LONG.unpack_from(data, at)[0]
    return value


def read_longlong(data: bytes, at: int, end: int) -> int:
    if at + 8 > end:
        raise syntax_error("a frame ends before its fields")
    value: int = _LONGLONG.unpack_from(data, at)[0]
    return value


def skip_shortstr(data: bytes, at: int, end: int) -> int:
    """Return the end of the short string at `at`."""
    if at >= end or at + 1 + data[at] > end:
        raise syntax_error("a short string does not fit into its frame")
    return at + 1 + data[at]


def read_loose_shortstr(data: bytes, at: int, end: int) -> tuple[str, int]:
    """Return the short string at `at` and its end. Octets that are not UTF-8 become lone surrogates."""
    stop = skip_shortstr(data, at, end)
    return data[at + 1 : stop].decode("utf-8", "surrogateescape"), stop


def read_shortstr(data: bytes, at: int, end: int) -> tuple[str, int]:
    """Return the short string at `at`, which must be UTF-8, and its end."""
    stop = skip_shortstr(data, at, end)
    try:
        return data[at + 1 : stop].decode(), stop
    except UnicodeDecodeError:
        raise AmqpError(ReplyCode.FRAME_ERROR, "Malformed UTF-8 in shortstr") from None


def write_shortstr(text: str) -> bytes:
    """Return the string, prefixed with its length. Raises ValueError above 255 octets."""
    encoded = text.encode("utf-8", "surrogateescape")
    if len(encoded) > MAX_SHORTSTR_BYTES:
        raise ValueError(f"a short string of {len(encoded)} octets")
    return bytes((len(encoded),)) + encoded


def skip_longstr(data: bytes, at: int, end: int) -> int:
    """Return the end of the long string at `at`."""
    stop = at + 4 + read_long(data, at, end)
    if stop > end:
        raise syntax_error("a long string does not fit into its frame")
    return stop


def read_longstr(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Return the long string at `at` and its end."""
    stop = skip_longstr(data, at, end)
    return data[at + 4 : stop], stop


def write_longstr(content: bytes) -> bytes:
    return _LONG.pack(len(content)) + content


def method_frame(channel: int, payload: bytes) -> bytes:
    """Return the method frame with that payload."""
    return b"%b%b\xce" % (_METHOD_HEAD.pack(FRAME_METHOD, channel, len(payload)), payload)
