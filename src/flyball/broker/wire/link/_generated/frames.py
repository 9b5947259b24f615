"""The frames of the link between nodes: one class each, and how they are read and written.

Made by scripts/generate-wire from protocol.txt: change that, not this.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from flyball.broker.wire.link.contents import (
    Content,
    Deliver,
    read_content,
    read_deliveries,
    read_delivery,
    read_name,
    read_optional_selector,
    read_selector,
    read_text,
    write_content,
    write_deliveries,
    write_delivery,
    write_name,
    write_optional_selector,
    write_selector,
    write_text,
)
from flyball.broker.wire.link.fields import checked_prefetch, frame, too_many, wrong_size
from flyball.model import Message, Selector

_BOOL_U8: Final = struct.Struct(">?B")
_BYTES32: Final = struct.Struct(">32s")
_I64: Final = struct.Struct(">q")
_I64_F64: Final = struct.Struct(">qd")
_I64_I64: Final = struct.Struct(">qq")
_I64_I64_F64_I64_BOOL: Final = struct.Struct(">qqdq?")
_I64_I64_I64: Final = struct.Struct(">qqq")
_I64_I64_I64_U32: Final = struct.Struct(">qqqI")
_I64_U32: Final = struct.Struct(">qI")
_I64_U64: Final = struct.Struct(">qQ")
_I64_U8: Final = struct.Struct(">qB")
_I64_U8_U32: Final = struct.Struct(">qBI")
_U16_I64_I64_BYTES32: Final = struct.Struct(">Hqq32s")
_U32_U8_BYTES32: Final = struct.Struct(">IB32s")
_U32_U8_I64: Final = struct.Struct(">IBq")
_U32_U8_I64_F64: Final = struct.Struct(">IBqd")
_U32_U8_I64_I64: Final = struct.Struct(">IBqq")
_U32_U8_I64_I64_I64_U32: Final = struct.Struct(">IBqqqI")
_U32_U8_I64_U8: Final = struct.Struct(">IBqB")
_U32_U8_U16_I64_I64_BYTES32: Final = struct.Struct(">IBHqq32s")
_U8_U32: Final = struct.Struct(">BI")

__all__ = [
    "Cancel",
    "Cancelled",
    "Consume",
    "Consuming",
    "Failure",
    "Get",
    "Got",
    "Hand",
    "Handed",
    "Hello",
    "List",
    "Listed",
    "Pause",
    "Proof",
    "Put",
    "PutDone",
    "Read",
    "Reply",
    "Request",
    "Response",
    "Resume",
    "Settle",
    "Window",
    "encode_cancel",
    "encode_cancelled",
    "encode_consume",
    "encode_consuming",
    "encode_failure",
    "encode_get",
    "encode_got",
    "encode_hand",
    "encode_handed",
    "encode_hello",
    "encode_list",
    "encode_listed",
    "encode_pause",
    "encode_proof",
    "encode_put",
    "encode_put_done",
    "encode_read",
    "encode_reply",
    "encode_request",
    "encode_response",
    "encode_resume",
    "encode_settle",
    "encode_window",
]


@dataclass(slots=True)
class Hello:
    """The first that each side says."""

    version: int
    node_id: int
    epoch: int
    nonce: bytes


def read_hello(data: bytes, at: int, end: int) -> Hello:
    if end - at != 50:
        raise wrong_size(50, at, end)
    version, node_id, epoch, nonce = _U16_I64_I64_BYTES32.unpack_from(data, at)
    return Hello(version, node_id, epoch, nonce)


def encode_hello(hello: Hello) -> bytes:
    return _U32_U8_U16_I64_I64_BYTES32.pack(51, 1, hello.version, hello.node_id, hello.epoch, hello.nonce)


@dataclass(slots=True)
class Proof:
    """That the sender knows the secret of the domain, made from both Hellos."""

    digest: bytes


def read_proof(data: bytes, at: int, end: int) -> Proof:
    if end - at != 32:
        raise wrong_size(32, at, end)
    digest: bytes = _BYTES32.unpack_from(data, at)[0]
    return Proof(digest)


def encode_proof(digest: bytes) -> bytes:
    return _U32_U8_BYTES32.pack(33, 2, digest)


@dataclass(slots=True)
class Request:
    """A question. Numbers are the asker's, one sequence for all that is answered."""

    number: int
    text: bytes


def read_request(data: bytes, at: int, end: int) -> Request:
    if end - at < 8:
        raise wrong_size(8, at, end)
    number: int = _I64.unpack_from(data, at)[0]
    at += 8
    text = data[at:end]
    return Request(number, text)


def encode_request(number: int, text: bytes) -> bytes:
    return frame(3, _I64.pack(number) + text)


@dataclass(slots=True)
class Response:
    number: int
    text: bytes


def read_response(data: bytes, at: int, end: int) -> Response:
    if end - at < 8:
        raise wrong_size(8, at, end)
    number: int = _I64.unpack_from(data, at)[0]
    at += 8
    text = data[at:end]
    return Response(number, text)


def encode_response(number: int, text: bytes) -> bytes:
    return frame(4, _I64.pack(number) + text)


@dataclass(slots=True)
class Failure:
    """Whatever had that number could not be done."""

    number: int
    # The name of the error's class.
    kind: str
    text: str


def read_failure(data: bytes, at: int, end: int) -> Failure:
    if end - at < 8:
        raise wrong_size(8, at, end)
    number: int = _I64.unpack_from(data, at)[0]
    at += 8
    kind, at = read_name(data, at, end)
    text, at = read_text(data, at, end)
    if at != end:
        raise wrong_size(0, at, end)
    return Failure(number, kind, text)


def encode_failure(number: int, kind: str, text: str) -> bytes:
    return frame(5, _I64.pack(number) + write_name(kind) + write_text(text))


@dataclass(slots=True)
class Put:
    number: int
    queue_ids: list[int]
    content: Content


def read_put(data: bytes, at: int, end: int) -> Put:
    if end - at < 12:
        raise wrong_size(12, at, end)
    number, count = _I64_U32.unpack_from(data, at)
    at += 12
    if count * 8 > end - at:
        raise too_many(count, at, end)
    queue_ids = list(struct.unpack_from(f">{count}q", data, at))
    at += count * 8
    content, at = read_content(data, at, end)
    if at != end:
        raise wrong_size(0, at, end)
    return Put(number, queue_ids, content)


def encode_put(number: int, queue_ids: Sequence[int], content: Content) -> bytes:
    return frame(6, struct.pack(f">qI{len(queue_ids)}q", number, len(queue_ids), *queue_ids) + write_content(content))


@dataclass(slots=True)
class PutDone:
    """Answers many puts at once."""

    outcome: int
    numbers: list[int]


def read_put_done(data: bytes, at: int, end: int) -> PutDone:
    if end - at < 5:
        raise wrong_size(5, at, end)
    outcome, count = _U8_U32.unpack_from(data, at)
    at += 5
    if count * 8 > end - at:
        raise too_many(count, at, end)
    numbers = list(struct.unpack_from(f">{count}q", data, at))
    at += count * 8
    if at != end:
        raise wrong_size(0, at, end)
    return PutDone(outcome, numbers)


def encode_put_done(outcome: int, numbers: Sequence[int]) -> bytes:
    return frame(7, struct.pack(f">BI{len(numbers)}q", outcome, len(numbers), *numbers))


@dataclass(slots=True)
class Consume:
    """Asks for the messages of a queue; the number is the consumer's from then on."""

    number: int
    queue_id: int
    prefetch: float
    priority: int
    exclusive: bool
    # Which messages it asks for; None: in the order of the queue.
    selector: Selector | None


def read_consume(data: bytes, at: int, end: int) -> Consume:
    if end - at < 33:
        raise wrong_size(33, at, end)
    number, queue_id, prefetch, priority, exclusive = _I64_I64_F64_I64_BOOL.unpack_from(data, at)
    at += 33
    prefetch = checked_prefetch(prefetch)
    selector, at = read_optional_selector(data, at, end)
    if at != end:
        raise wrong_size(0, at, end)
    return Consume(number, queue_id, prefetch, priority, exclusive, selector)


def encode_consume(consume: Consume) -> bytes:
    return frame(
        8,
        _I64_I64_F64_I64_BOOL.pack(
            consume.number, consume.queue_id, consume.prefetch, consume.priority, consume.exclusive
        )
        + write_optional_selector(consume.selector),
    )


@dataclass(slots=True)
class Consuming:
    number: int


def read_consuming(data: bytes, at: int, end: int) -> Consuming:
    if end - at != 8:
        raise wrong_size(8, at, end)
    number: int = _I64.unpack_from(data, at)[0]
    return Consuming(number)


def encode_consuming(number: int) -> bytes:
    return _U32_U8_I64.pack(9, 9, number)


@dataclass(slots=True)
class Settle:
    """Ends leases of a consumer, or of messages that were asked for with Get (consumer 0)."""

    consumer: int
    settlement: int
    message_ids: list[int]


def read_settle(data: bytes, at: int, end: int) -> Settle:
    if end - at < 13:
        raise wrong_size(13, at, end)
    consumer, settlement, count = _I64_U8_U32.unpack_from(data, at)
    at += 13
    if count * 8 > end - at:
        raise too_many(count, at, end)
    message_ids = list(struct.unpack_from(f">{count}q", data, at))
    at += count * 8
    if at != end:
        raise wrong_size(0, at, end)
    return Settle(consumer, settlement, message_ids)


def encode_settle(consumer: int, settlement: int, message_ids: Sequence[int]) -> bytes:
    return frame(11, struct.pack(f">qBI{len(message_ids)}q", consumer, settlement, len(message_ids), *message_ids))


@dataclass(slots=True)
class Window:
    """Changes how many messages a consumer may hold."""

    consumer: int
    prefetch: float


def read_window(data: bytes, at: int, end: int) -> Window:
    if end - at != 16:
        raise wrong_size(16, at, end)
    consumer, prefetch = _I64_F64.unpack_from(data, at)
    prefetch = checked_prefetch(prefetch)
    return Window(consumer, prefetch)


def encode_window(consumer: int, prefetch: float) -> bytes:
    return _U32_U8_I64_F64.pack(17, 12, consumer, prefetch)


@dataclass(slots=True)
class Pause:
    consumer: int


def read_pause(data: bytes, at: int, end: int) -> Pause:
    if end - at != 8:
        raise wrong_size(8, at, end)
    consumer: int = _I64.unpack_from(data, at)[0]
    return Pause(consumer)


def encode_pause(consumer: int) -> bytes:
    return _U32_U8_I64.pack(9, 13, consumer)


@dataclass(slots=True)
class Resume:
    consumer: int


def read_resume(data: bytes, at: int, end: int) -> Resume:
    if end - at != 8:
        raise wrong_size(8, at, end)
    consumer: int = _I64.unpack_from(data, at)[0]
    return Resume(consumer)


def encode_resume(consumer: int) -> bytes:
    return _U32_U8_I64.pack(9, 14, consumer)


@dataclass(slots=True)
class Cancel:
    """The consumer wants no more; what it holds it may still settle."""

    consumer: int


def read_cancel(data: bytes, at: int, end: int) -> Cancel:
    if end - at != 8:
        raise wrong_size(8, at, end)
    consumer: int = _I64.unpack_from(data, at)[0]
    return Cancel(consumer)


def encode_cancel(consumer: int) -> bytes:
    return _U32_U8_I64.pack(9, 15, consumer)


@dataclass(slots=True)
class Cancelled:
    """The last for a consumer. For 0, which is none: an acknowledgement came after the queue had moved."""

    consumer: int
    ending: int


def read_cancelled(data: bytes, at: int, end: int) -> Cancelled:
    if end - at != 9:
        raise wrong_size(9, at, end)
    consumer, ending = _I64_U8.unpack_from(data, at)
    return Cancelled(consumer, ending)


def encode_cancelled(consumer: int, ending: int) -> bytes:
    return _U32_U8_I64_U8.pack(10, 16, consumer, ending)


@dataclass(slots=True)
class Get:
    number: int
    queue_id: int


def read_get(data: bytes, at: int, end: int) -> Get:
    if end - at != 16:
        raise wrong_size(16, at, end)
    number, queue_id = _I64_I64.unpack_from(data, at)
    return Get(number, queue_id)


def encode_get(number: int, queue_id: int) -> bytes:
    return _U32_U8_I64_I64.pack(17, 17, number, queue_id)


@dataclass(slots=True)
class Got:
    """One message, leased to the link if Get asked for it, or none; and how many more are ready."""

    number: int
    ready: int
    message: Deliver | None


def read_got(data: bytes, at: int, end: int) -> Got:
    if end - at < 16:
        raise wrong_size(16, at, end)
    number, ready = _I64_U64.unpack_from(data, at)
    at += 16
    message, at = read_delivery(data, at, end)
    if at != end:
        raise wrong_size(0, at, end)
    return Got(number, ready, message)


def encode_got(number: int, ready: int, message: Message | None) -> bytes:
    return frame(18, _I64_U64.pack(number, ready) + write_delivery(message))


@dataclass(slots=True)
class Read:
    """Asks for the first message that a selector fits, to look at it or to remove it: Got, with no lease."""

    number: int
    queue_id: int
    selector: Selector
    # The message is removed durably before the answer comes.
    removes: bool
    # Which messages the reader's protocol can express; another one stays, and is refused.
    fit: int


def read_read(data: bytes, at: int, end: int) -> Read:
    if end - at < 16:
        raise wrong_size(16, at, end)
    number, queue_id = _I64_I64.unpack_from(data, at)
    at += 16
    selector, at = read_selector(data, at, end)
    if end - at != 2:
        raise wrong_size(2, at, end)
    removes, fit = _BOOL_U8.unpack_from(data, at)
    return Read(number, queue_id, selector, removes, fit)


def encode_read(read: Read) -> bytes:
    return frame(
        22,
        _I64_I64.pack(read.number, read.queue_id)
        + write_selector(read.selector)
        + _BOOL_U8.pack(read.removes, read.fit),
    )


@dataclass(slots=True)
class List:
    """Asks for the ready messages of a queue with a larger id, oldest first, to look at them."""

    number: int
    queue_id: int
    after_id: int
    limit: int


def read_list(data: bytes, at: int, end: int) -> List:
    if end - at != 28:
        raise wrong_size(28, at, end)
    number, queue_id, after_id, limit = _I64_I64_I64_U32.unpack_from(data, at)
    return List(number, queue_id, after_id, limit)


def encode_list(number: int, queue_id: int, after_id: int, limit: int) -> bytes:
    return _U32_U8_I64_I64_I64_U32.pack(29, 23, number, queue_id, after_id, limit)


@dataclass(slots=True)
class Listed:
    """Some of them, as many as fit into a frame; none if there are no more."""

    number: int
    messages: list[Deliver]


def read_listed(data: bytes, at: int, end: int) -> Listed:
    if end - at < 8:
        raise wrong_size(8, at, end)
    number: int = _I64.unpack_from(data, at)[0]
    at += 8
    messages, at = read_deliveries(data, at, end)
    if at != end:
        raise wrong_size(0, at, end)
    return Listed(number, messages)


def encode_listed(number: int, messages: Sequence[Message]) -> bytes:
    return frame(24, _I64.pack(number) + write_deliveries(messages))


@dataclass(slots=True)
class Hand:
    number: int
    # The sender's count: one that comes again, over another connection, is answered and not taken twice.
    batch: int
    queue_id: int
    messages: list[Deliver]


def read_hand(data: bytes, at: int, end: int) -> Hand:
    if end - at < 24:
        raise wrong_size(24, at, end)
    number, batch, queue_id = _I64_I64_I64.unpack_from(data, at)
    at += 24
    messages, at = read_deliveries(data, at, end)
    if at != end:
        raise wrong_size(0, at, end)
    return Hand(number, batch, queue_id, messages)


def encode_hand(number: int, batch: int, queue_id: int, messages: Sequence[Message]) -> bytes:
    return frame(19, _I64_I64_I64.pack(number, batch, queue_id) + write_deliveries(messages))


@dataclass(slots=True)
class Handed:
    number: int
    outcome: int


def read_handed(data: bytes, at: int, end: int) -> Handed:
    if end - at != 9:
        raise wrong_size(9, at, end)
    number, outcome = _I64_U8.unpack_from(data, at)
    return Handed(number, outcome)


def encode_handed(number: int, outcome: int) -> bytes:
    return _U32_U8_I64_U8.pack(10, 20, number, outcome)


@dataclass(slots=True)
class Reply:
    """A direct reply to a channel of AMQP on the other node."""

    name: str
    content: Content


def read_reply(data: bytes, at: int, end: int) -> Reply:
    name, at = read_name(data, at, end)
    content, at = read_content(data, at, end)
    if at != end:
        raise wrong_size(0, at, end)
    return Reply(name, content)


def encode_reply(name: str, content: Content) -> bytes:
    return frame(21, write_name(name) + write_content(content))


GeneratedFrame: TypeAlias = (
    Hello
    | Proof
    | Request
    | Response
    | Failure
    | Put
    | PutDone
    | Consume
    | Consuming
    | Settle
    | Window
    | Pause
    | Resume
    | Cancel
    | Cancelled
    | Get
    | Got
    | Read
    | List
    | Listed
    | Hand
    | Handed
    | Reply
)

# By their kinds.
READERS: dict[int, Callable[[bytes, int, int], GeneratedFrame]] = {
    1: read_hello,
    2: read_proof,
    3: read_request,
    4: read_response,
    5: read_failure,
    6: read_put,
    7: read_put_done,
    8: read_consume,
    9: read_consuming,
    11: read_settle,
    12: read_window,
    13: read_pause,
    14: read_resume,
    15: read_cancel,
    16: read_cancelled,
    17: read_get,
    18: read_got,
    22: read_read,
    23: read_list,
    24: read_listed,
    19: read_hand,
    20: read_handed,
    21: read_reply,
}
