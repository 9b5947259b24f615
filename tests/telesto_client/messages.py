"""Messages as users of the client see them: drafts on their way in, received ones on their way out.

What a user passes is checked here, before it is encoded, so that a mistake is a clear error at its place.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from flyball.broker.wire.telesto import Record, WireDraft, WireMessage
from flyball.errors import InvalidBody, InvalidName
from flyball.model import MAX_NAME_LENGTH
from tests.telesto_client.errors import InvalidValue, NotSupported

MAX_PLAIN_TEXT_LENGTH = 2000
"""Longest text of a message in plain Telesto, in characters."""

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
MAX_WAIT_S = MAX_INT // 1000
MAX_PREFETCH = 65_535

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

DRAFT_BYTES = 29
"""What a draft takes on the wire beside its body and properties."""

_REQUEST_BYTES = 64
"""More than a Put takes beside its drafts and queue ids."""

_MOST_DRAFTS = 1000
"""So many messages are put in one request; a longer batch is several."""


@dataclass(slots=True)
class Draft:
    """A message to be put. A body given as text is sent as UTF-8."""

    body: bytes | str
    receiver: int | None = None
    """Id of the only client that may read it; None for anyone."""
    context: int | None = None
    """A number that links messages, such as a response to its request."""
    priority: int = 0
    ttl_s: float | None = None
    """How long it may wait; None for ever."""
    persistent: bool = True
    """Whether it outlives the node."""
    properties: bytes = b""
    """Opaque to the server, given out with the message."""


@dataclass(slots=True)
class ReceivedMessage:
    """A message as the server gave it out. `sender`, `receiver` and `context` are None where there is none."""

    id: int
    queue_id: int
    body: bytes
    sender: int | None
    receiver: int | None
    context: int | None
    priority: int
    arrived_us: int
    properties: bytes = b""
    persistent: bool = True
    delivery_count: int = 0
    """How often it was handed to a consumer before and came back."""
    redelivered: bool = False

    @property
    def text(self) -> str:
        """The body as text. Raises UnicodeDecodeError if it is not UTF-8."""
        return self.body.decode()

    @property
    def arrived(self) -> datetime:
        """When the server took it in, in UTC."""
        return _EPOCH + timedelta(microseconds=self.arrived_us)


def from_record(record: Record) -> ReceivedMessage:
    return ReceivedMessage(
        record.message_id,
        record.queue_id,
        record.body,
        record.sender or None,
        record.receiver or None,
        record.context or None,
        record.priority,
        record.arrived_us,
        record.properties,
        record.persistent,
        record.delivery_count,
        record.redelivered,
    )


def from_plain(message: WireMessage) -> ReceivedMessage:
    return ReceivedMessage(
        message.message_id,
        message.queue_id,
        message.text.encode(),
        message.sender_id or None,
        message.receiver_id or None,
        message.context or None,
        message.priority,
        message.arrived_ms * 1000,
    )


def to_wire(draft: Draft) -> WireDraft:
    """Return the draft as the extension carries it. Raises InvalidBody, InvalidValue."""
    return wire_draft(
        draft.body,
        draft.receiver,
        draft.context,
        draft.priority,
        draft.ttl_s,
        draft.persistent,
        draft.properties,
    )


def wire_draft(
    body: bytes | str,
    receiver: int | None,
    context: int | None,
    priority: int,
    ttl_s: float | None,
    persistent: bool,
    properties: bytes,
) -> WireDraft:
    """Check the fields of a draft and return them as the extension carries them."""
    return WireDraft(
        body_bytes(body),
        0 if receiver is None else check_nonzero("receiver", receiver, MAX_INT),
        0 if context is None else check_nonzero("context", context, MAX_LONG),
        check_int("priority", priority, -MAX_INT - 1, MAX_INT),
        bool(persistent),
        0 if ttl_s is None else max(1, int(check_seconds("ttl_s", ttl_s, MAX_WAIT_S, above=0) * 1000)),
        body_bytes(properties),
    )


def to_plain(draft: Draft, queue_id: int) -> WireMessage:
    """Return the draft as plain Telesto carries it. Raises InvalidBody, InvalidValue, NotSupported."""
    if draft.ttl_s is not None:
        raise NotSupported("a time to live")
    if not draft.persistent:
        raise NotSupported("a message that is not persistent")
    if draft.properties:
        raise NotSupported("properties of a message")
    try:
        text = body_bytes(draft.body).decode()
    except UnicodeDecodeError:
        raise NotSupported("a body that is not UTF-8 text") from None
    if len(text) > MAX_PLAIN_TEXT_LENGTH:
        raise InvalidBody(
            f"a text of {len(text)} characters is longer than the {MAX_PLAIN_TEXT_LENGTH} of plain Telesto"
        )
    if "\0" in text:
        raise InvalidBody("plain Telesto carries no text with a zero character")
    return WireMessage(
        0,
        queue_id,
        0,
        0 if draft.receiver is None else check_nonzero("receiver", draft.receiver, MAX_INT),
        0 if draft.context is None else check_nonzero("context", draft.context, MAX_INT),
        check_int("priority", draft.priority, -128, 127),
        0,
        text,
    )


# Checks


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


def check_nonzero(what: str, value: int, most: int) -> int:
    """Return the number unless it is 0, which stands for none on the wire."""
    if value == 0:
        raise InvalidValue(f"{what} 0 means none: leave it out instead")
    return check_int(what, value, -most - 1, most)


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


def batches(drafts: Iterable[Draft], frame_max: int) -> Iterator[list[WireDraft]]:
    """Cut the drafts into batches that fit into a frame, each. Raises InvalidBody, InvalidValue."""
    batch: list[WireDraft] = []
    room_bytes = frame_max - _REQUEST_BYTES
    left_bytes = room_bytes
    for draft in map(to_wire, drafts):
        size = len(draft.body) + len(draft.properties) + DRAFT_BYTES
        if size > room_bytes:
            raise InvalidBody(f"a message of {size} bytes exceeds the server's limit of {room_bytes}")
        if batch and (size > left_bytes or len(batch) == _MOST_DRAFTS):
            yield batch
            batch, left_bytes = [], room_bytes
        batch.append(draft)
        left_bytes -= size
    if batch:
        yield batch
