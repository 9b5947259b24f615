"""ThorBangMQ's text protocol: bytes in, requests out, and the encoding of responses.

Sans-IO: the caller owns the socket. Requests and responses are UTF-8 text terminated by one NUL byte. An invalid
request is decoded as `Malformed`: the session responds to it and closes the connection.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from flyball.errors import ProtocolError
from flyball.model import MAX_COPIES

OK = b"OK\0"
# Stands for a missing message.
MSG0 = b"MSG0\0"
BAD_REQUEST = b"BAD REQUEST\0"


@dataclass(slots=True)
class Request:
    """The base of all requests."""


@dataclass(slots=True)
class Malformed(Request):
    """An invalid request, whose response is BAD REQUEST."""


@dataclass(slots=True)
class Hello(Request):
    pass


@dataclass(slots=True)
class Send(Request):
    """Store the content in each queue, from left to right. A receiver below 1 means none.

    `malformed_after`: the list continues with something that is not a number. The message is still put into
    `queue_ids`, and then the response is BAD REQUEST.
    """

    receiver: int
    sender: int
    queue_ids: list[int]
    malformed_after: bool
    priority: int
    context: int
    content: bytes


@dataclass(slots=True)
class Peek(Request):
    """Show a message, from any sender if `sender` is None."""

    receiver: int
    queue_id: int
    sender: int | None
    by_time: bool


@dataclass(slots=True)
class Pop(Request):
    """Take a message, from any sender if `sender` is None."""

    receiver: int
    queue_id: int
    sender: int | None
    by_time: bool


@dataclass(slots=True)
class CreateQueue(Request):
    name: str


@dataclass(slots=True)
class RemoveQueue(Request):
    queue_id: int


@dataclass(slots=True)
class CreateClient(Request):
    name: str


@dataclass(slots=True)
class RemoveClient(Request):
    client_id: int


class RequestDecoder:
    """Turns the bytes of a connection into requests.

    A request above `max_request_bytes`, without its NUL, raises ProtocolError, as do all later calls.
    """

    __slots__ = ("_buffer", "_max_request_bytes", "_offset", "_searched")

    def __init__(self, max_request_bytes: int) -> None:
        self._max_request_bytes = max_request_bytes
        self._buffer = bytearray()
        self._offset = 0
        # No NUL between the offset and here: a long request is searched once, not at each feed.
        self._searched = 0

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if self._offset:
            del self._buffer[: self._offset]
            self._searched -= self._offset
            self._offset = 0
        self._buffer += data

    @property
    def buffered_bytes(self) -> int:
        """Size of incomplete or unread requests."""
        return len(self._buffer) - self._offset

    def clear(self) -> None:
        """Drop all bytes: nothing more is read from this stream."""
        self._buffer = bytearray()
        self._offset = self._searched = 0

    def next_request(self) -> Request | None:
        """Return the next request, or None until more bytes are fed. Raises ProtocolError."""
        buffer = self._buffer
        start = self._offset
        end = buffer.find(0, self._searched)
        size = (end if end >= 0 else len(buffer)) - start
        if size > self._max_request_bytes:
            raise ProtocolError(f"a request exceeds {self._max_request_bytes} bytes")
        if end < 0:
            self._searched = len(buffer)
            return None
        self._offset = self._searched = end + 1
        # Undecodable sequences become U+FFFD, split as by the original's decoder.
        return parse_request(buffer[start:end].decode("utf-8", "replace"))


def parse_request(text: str) -> Request:
    """Parse a request, given without its NUL."""
    command, comma, arguments = text.partition(",")
    parse = _PARSERS.get(command)
    if parse is None or not (comma or command == "HELLO"):
        return Malformed()
    try:
        return parse(arguments)
    except ValueError:
        return Malformed()


def _parse_hello(arguments: str) -> Request:
    return Hello()


def _parse_send(arguments: str) -> Request:
    receiver, sender, queues, priority, context, content = arguments.split(",", 5)
    send = Send(_long(receiver), _long(sender), [], False, _int(priority), _long(context), content.encode())
    if queues.isascii() and queues.isdigit():
        send.queue_ids.append(_long(queues))
        return send
    # Empty parts at the end are ignored, but an empty list is written as a semicolon, not as nothing.
    parts = queues.rstrip(";").split(";", MAX_COPIES + 1) if queues.strip(";") or not queues else []
    # Of an oversized list, only one entry beyond the limit is parsed, so that it is refused: each number takes time.
    for part in parts[: MAX_COPIES + 1]:
        try:
            send.queue_ids.append(_long(part))
        except ValueError:
            if not send.queue_ids:
                return Malformed()
            send.malformed_after = True
            break
    return send


def _parse_peek(arguments: str) -> Request:
    receiver, queue_id, flag = arguments.split(",", 2)
    return Peek(_long(receiver), _long(queue_id), None, _int(flag) == 1)


def _parse_peek_from_sender(arguments: str) -> Request:
    receiver, queue_id, sender, flag = arguments.split(",", 3)
    return Peek(_long(receiver), _long(queue_id), _long(sender), _int(flag) == 1)


def _parse_pop(arguments: str) -> Request:
    receiver, queue_id, flag = arguments.split(",", 2)
    return Pop(_long(receiver), _long(queue_id), None, _int(flag) == 1)


def _parse_pop_from_sender(arguments: str) -> Request:
    receiver, queue_id, sender, flag = arguments.split(",", 3)
    return Pop(_long(receiver), _long(queue_id), _long(sender), _int(flag) == 1)


def _parse_create_queue(arguments: str) -> Request:
    return CreateQueue(arguments)


def _parse_remove_queue(arguments: str) -> Request:
    return RemoveQueue(_long(arguments))


def _parse_create_client(arguments: str) -> Request:
    return CreateClient(arguments)


def _parse_remove_client(arguments: str) -> Request:
    return RemoveClient(_long(arguments))


_PARSERS: dict[str, Callable[[str], Request]] = {
    "HELLO": _parse_hello,
    "MSG": _parse_send,
    "PEEKQ": _parse_peek,
    "PEEKS": _parse_peek_from_sender,
    "POPQ": _parse_pop,
    "POPS": _parse_pop_from_sender,
    "CREATEQUEUE": _parse_create_queue,
    "REMOVEQUEUE": _parse_remove_queue,
    "CREATECLIENT": _parse_create_client,
    "REMOVECLIENT": _parse_remove_client,
}

_NUMBER = re.compile(r"([+-]?)(\d+)")
# Numbers with at most this many ASCII digits fit into 64 and 32 bits without a check.
_SURE_LONG_DIGITS = 18
_SURE_INT_DIGITS = 9


def _long(text: str) -> int:
    """Return the signed 64-bit number, or raise ValueError."""
    if len(text) <= _SURE_LONG_DIGITS and text.isascii() and text.isdigit():
        return int(text)
    return _number(text, 1 << 63)


def _int(text: str) -> int:
    """Return the signed 32-bit number, or raise ValueError."""
    if len(text) <= _SURE_INT_DIGITS and text.isascii() and text.isdigit():
        return int(text)
    return _number(text, 1 << 31)


def _number(text: str, bound: int) -> int:
    """Return the number, from -bound to bound - 1: an optional sign, and decimal digits of any script.

    Not `int()` alone, which also accepts blanks and underscores, and fails on thousands of leading zeros.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError("not a number")
    sign, digits = match.groups()
    if not digits.isascii():
        digits = "".join([str(unicodedata.decimal(digit)) for digit in digits])
    digits = digits.lstrip("0")
    if len(digits) > 19:
        raise ValueError("number out of range")
    value = int(sign + (digits or "0"))
    if not -bound <= value < bound:
        raise ValueError("number out of range")
    return value


def encode_message(sender: int, context: int, message_id: int, content: bytes) -> bytes:
    """Encode the response with a message. The content is UTF-8 without NUL."""
    return b"MSG,%d,%d,%d,%b\0" % (sender, context, message_id, content)


def encode_fail(kind: str, id: int) -> bytes:
    """Encode an error response. The kind is QUEUE, CLIENT, MESSAGE or UNKNOWN; the last has the id -1."""
    return f"FAIL {kind} {id}\0".encode()


def encode_id(id: int) -> bytes:
    """Encode the id of a created object."""
    return b"%d\0" % id


class AnswerDecoder:
    """Splits the bytes of a server into responses, without their NULs. For clients in tests and benchmarks."""

    __slots__ = ("_buffer", "_searched")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def next_answer(self) -> bytes | None:
        """Return the next response, or None until more bytes are fed."""
        end = self._buffer.find(0, self._searched)
        if end < 0:
            self._searched = len(self._buffer)
            return None
        self._searched = 0
        answer = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return answer
