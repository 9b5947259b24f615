"""Frames of the link between nodes: bytes in, frames out, and back.

Sans-IO: the caller owns the socket. A frame is its length (32 bits), its kind (8 bits) and its payload.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from flyball.broker.wire.amqp.codec import read_origin
from flyball.broker.wire.amqp.properties import essentials
from flyball.broker.wire.link.frames import (
    NONCE_BYTES,
    PROOF_BYTES,
    Cancel,
    Cancelled,
    Consume,
    Consuming,
    Content,
    Deliver,
    Failure,
    Frame,
    Get,
    Got,
    Hand,
    Handed,
    Hello,
    List,
    Listed,
    Pause,
    Proof,
    Put,
    PutDone,
    Read,
    Reply,
    Request,
    Response,
    Resume,
    Settle,
    Window,
)
from flyball.errors import ProtocolError
from flyball.model import Message, Order, Selector

HANDSHAKE_MAX = 256
"""Nobody who has proved nothing yet may send a longer frame, in bytes."""

_HELLO = 1
_PROOF = 2
_REQUEST = 3
_RESPONSE = 4
_FAILURE = 5
_PUT = 6
_PUT_DONE = 7
_CONSUME = 8
_CONSUMING = 9
_DELIVER = 10
_SETTLE = 11
_WINDOW = 12
_PAUSE = 13
_RESUME = 14
_CANCEL = 15
_CANCELLED = 16
_GET = 17
_GOT = 18
_HAND = 19
_HANDED = 20
_REPLY = 21
_READ = 22
_LIST = 23
_LISTED = 24

_HEADER = struct.Struct(">IB")
_HEADER_BYTES = 5
_HELLO_HEAD = struct.Struct(">Hqq")
_LONG = struct.Struct(">q")
_LONG_BYTE = struct.Struct(">qB")
_LONG_COUNT = struct.Struct(">qI")
_TWO_LONGS = struct.Struct(">qq")
_BYTE_COUNT = struct.Struct(">BI")
_CONSUME_BODY = struct.Struct(">qqdqB")
_SELECTOR = struct.Struct(">BBqqq")
_WINDOW_BODY = struct.Struct(">qd")
# In the count of deliveries: the message was recovered, and may have been delivered more often.
_RECOVERED = 1 << 31
_DELIVER_HEAD = struct.Struct(">qqqI")
_DELIVER_HEAD_BYTES = 28
_SETTLE_HEAD = struct.Struct(">qBI")
_GOT_HEAD = struct.Struct(">qQB")
_HAND_HEAD = struct.Struct(">qqqI")
_LIST_BODY = struct.Struct(">qqqI")
_FAILURE_HEAD = struct.Struct(">qHI")
_SHORT = struct.Struct(">H")
# How names and errors are written: names of AMQP are any octets, those that are not UTF-8 as lone surrogates.
_ANY_TEXT = "surrogatepass"
_READ_HEAD = struct.Struct(">qqB")

_REMOVES = 1
_ONLY_TEXT = 2

# The flags of a selector. It has the order 0 where there is none.
_UNADDRESSED = 1
_OF_READER = 2
_OF_SENDER = 4
_OF_CONTEXT = 8

_CONTENT = struct.Struct(">BiHII")
_CONTENT_BYTES = 15
_PERSISTENT = 1
_HAS_TIME = 2
_HAS_SENDER = 4
_HAS_RECEIVER = 8
_HAS_CONTEXT = 16


class LinkDecoder:
    """Turns the bytes of one direction of a link into frames.

    After a ProtocolError the stream is lost: every further `next_frame` raises it again.
    """

    __slots__ = ("_buffer", "_needed", "_offset", "_partial", "frame_max")

    def __init__(self, frame_max: int = HANDSHAKE_MAX) -> None:
        self.frame_max = frame_max
        """The longest frame, in bytes; it may be changed between two frames."""
        # Frames are read from `_buffer`, the caller's own bytes as a rule. A frame that is not complete gathers
        # in `_partial` until there are `_needed` bytes, so that no byte is copied more than a few times.
        self._buffer = b""
        self._offset = 0
        self._partial = bytearray()
        self._needed = 0

    def feed(self, data: bytes) -> None:
        """Take the bytes that arrived. Cheapest when `next_frame` has returned None before."""
        if self._partial:
            self._partial += data
        elif self._offset == len(self._buffer):
            self._buffer = data
            self._offset = 0
        else:
            self._partial += memoryview(self._buffer)[self._offset :]
            self._partial += data
            self._buffer = b""
            self._offset = 0

    @property
    def buffered_bytes(self) -> int:
        """What is kept of frames that are not complete, or not read yet."""
        return len(self._partial) + len(self._buffer) - self._offset

    def clear(self) -> None:
        """Let go of everything that was fed: nothing more is read from this stream."""
        self._buffer = b""
        self._offset = 0
        self._partial = bytearray()

    def next_frame(self) -> Frame | None:
        """Return the next frame, or None until more bytes are fed. Raises ProtocolError."""
        if self._partial:
            if len(self._partial) < self._needed:
                return None
            self._buffer = bytes(self._partial)
            self._partial = bytearray()
        buffer = self._buffer
        start = self._offset
        at = start + _HEADER_BYTES
        if at > len(buffer):
            self._wait(_HEADER_BYTES)
            return None
        length, kind = _HEADER.unpack_from(buffer, start)
        if length < 1 or length + 4 > self.frame_max:
            raise ProtocolError(f"a frame with a length of {length}; at most {self.frame_max - 4} are allowed")
        read = _READERS.get(kind)
        if read is None:
            raise ProtocolError(f"a frame of the unknown kind {kind}")
        # Checked here: the layout of a short frame's head would be read from the frame behind it.
        if length - 1 < _HEAD_BYTES.get(kind, 0):
            raise ProtocolError(f"a frame of kind {kind} is too short for its fields: {length} bytes")
        end: int = start + 4 + length
        if end > len(buffer):
            self._wait(4 + length)
            return None
        try:
            frame = read(buffer, at, end)
        except (struct.error, UnicodeDecodeError) as error:
            raise ProtocolError(f"a frame of kind {kind} and {length} bytes makes no sense: {error}") from error
        self._offset = end
        return frame

    def _wait(self, needed: int) -> None:
        """Remember how many bytes the next frame takes; let go of what was read."""
        self._needed = needed
        if self._offset == len(self._buffer):
            self._buffer = b""
            self._offset = 0


# Reading. Each gets the buffer, where the payload begins and where it ends, and has to use it up.


def _finish(at: int, end: int) -> None:
    if at != end:
        raise ProtocolError(f"a frame's fields and its length disagree by {end - at} bytes")


def _read_longs(data: bytes, at: int, end: int, count: int) -> list[int]:
    if count * 8 != end - at:
        raise ProtocolError(f"{count} numbers in a frame that has {end - at} bytes left")
    return list(struct.unpack_from(f">{count}q", data, at))


def _read_content(data: bytes, at: int, end: int) -> tuple[Content, int]:
    if end - at < _CONTENT_BYTES:
        raise ProtocolError("a frame ends within a message")
    flags, priority, origin_bytes, properties_bytes, body_bytes = _CONTENT.unpack_from(data, at)
    at += _CONTENT_BYTES
    time_us: int | None = None
    sender: int | None = None
    receiver: int | None = None
    context: int | None = None
    optional: int = (flags & (_HAS_TIME | _HAS_SENDER | _HAS_RECEIVER | _HAS_CONTEXT)).bit_count() * 8
    properties_at: int = at + optional + origin_bytes
    body_at: int = properties_at + properties_bytes
    stop: int = body_at + body_bytes
    if stop > end:
        raise ProtocolError(f"a message that is {stop - end} bytes longer than its frame")
    if optional:
        if flags & _HAS_TIME:
            time_us = _LONG.unpack_from(data, at)[0]
            at += 8
        if flags & _HAS_SENDER:
            sender = _LONG.unpack_from(data, at)[0]
            at += 8
        if flags & _HAS_RECEIVER:
            receiver = _LONG.unpack_from(data, at)[0]
            at += 8
        if flags & _HAS_CONTEXT:
            context = _LONG.unpack_from(data, at)[0]
            at += 8
    origin = data[at:properties_at]
    properties = data[properties_at:body_at]
    if origin:
        # They go to clients as they are, and those must not meet what they cannot read.
        read_origin(origin)
        essentials(properties)
    content = Content(
        data[body_at:stop],
        properties,
        origin,
        flags & _PERSISTENT != 0,
        priority,
        time_us,
        sender,
        receiver,
        context,
    )
    return content, stop


def _read_delivery(data: bytes, at: int, end: int) -> tuple[Deliver, int]:
    if end - at < _DELIVER_HEAD_BYTES:
        raise ProtocolError("a frame ends within a delivery")
    consumer, message_id, arrived_us, delivery_count = _DELIVER_HEAD.unpack_from(data, at)
    content, at = _read_content(data, at + _DELIVER_HEAD_BYTES, end)
    recovered = delivery_count & _RECOVERED != 0
    return Deliver(consumer, message_id, arrived_us, delivery_count & ~_RECOVERED, content, recovered), at


def _read_hello(data: bytes, at: int, end: int) -> Frame:
    _finish(at + _HELLO_HEAD.size + NONCE_BYTES, end)
    version, node_id, epoch = _HELLO_HEAD.unpack_from(data, at)
    return Hello(version, node_id, epoch, data[end - NONCE_BYTES : end])


def _read_proof(data: bytes, at: int, end: int) -> Frame:
    _finish(at + PROOF_BYTES, end)
    return Proof(data[at:end])


def _read_number(data: bytes, at: int, end: int) -> int:
    if end - at < 8:
        raise ProtocolError("a frame ends within its number")
    number: int = _LONG.unpack_from(data, at)[0]
    return number


def _read_request(data: bytes, at: int, end: int) -> Frame:
    return Request(_read_number(data, at, end), data[at + 8 : end])


def _read_response(data: bytes, at: int, end: int) -> Frame:
    return Response(_read_number(data, at, end), data[at + 8 : end])


def _read_failure(data: bytes, at: int, end: int) -> Frame:
    number, kind_bytes, text_bytes = _FAILURE_HEAD.unpack_from(data, at)
    at += _FAILURE_HEAD.size
    middle: int = at + kind_bytes
    _finish(middle + text_bytes, end)
    return Failure(number, data[at:middle].decode(), data[middle:end].decode("utf-8", _ANY_TEXT))


def _read_put(data: bytes, at: int, end: int) -> Frame:
    number, count = _LONG_COUNT.unpack_from(data, at)
    at += _LONG_COUNT.size
    if count * 8 > end - at:
        raise ProtocolError(f"a message for {count} queues in a frame that has {end - at} bytes left")
    queue_ids = list(struct.unpack_from(f">{count}q", data, at))
    content, at = _read_content(data, at + count * 8, end)
    _finish(at, end)
    return Put(number, queue_ids, content)


def _read_put_done(data: bytes, at: int, end: int) -> Frame:
    outcome, count = _BYTE_COUNT.unpack_from(data, at)
    return PutDone(outcome, _read_longs(data, at + _BYTE_COUNT.size, end, count))


def _read_consume(data: bytes, at: int, end: int) -> Frame:
    number, queue_id, prefetch, priority, exclusive = _CONSUME_BODY.unpack_from(data, at)
    selector = _read_selector(data, at + _CONSUME_BODY.size, end)
    return Consume(number, queue_id, _checked(prefetch), priority, exclusive != 0, selector)


def _read_selector(data: bytes, at: int, end: int) -> Selector | None:
    """Return the selector with which a frame ends."""
    _finish(at + _SELECTOR.size, end)
    flags, order, reader, sender, context = _SELECTOR.unpack_from(data, at)
    if order == 0:
        return None
    if order not in tuple(Order):
        raise ProtocolError(f"there is no order {order}")
    return Selector(
        reader if flags & _OF_READER else None,
        flags & _UNADDRESSED != 0,
        sender if flags & _OF_SENDER else None,
        context if flags & _OF_CONTEXT else None,
        Order(order),
    )


def _checked(prefetch: float) -> float:
    if not prefetch >= 0:
        raise ProtocolError(f"a prefetch of {prefetch}")
    return prefetch


def _read_long(data: bytes, at: int, end: int) -> int:
    _finish(at + 8, end)
    number: int = _LONG.unpack_from(data, at)[0]
    return number


def _read_consuming(data: bytes, at: int, end: int) -> Frame:
    return Consuming(_read_long(data, at, end))


def _read_deliver(data: bytes, at: int, end: int) -> Frame:
    delivery, at = _read_delivery(data, at, end)
    _finish(at, end)
    return delivery


def _read_settle(data: bytes, at: int, end: int) -> Frame:
    consumer, settlement, count = _SETTLE_HEAD.unpack_from(data, at)
    return Settle(consumer, settlement, _read_longs(data, at + _SETTLE_HEAD.size, end, count))


def _read_window(data: bytes, at: int, end: int) -> Frame:
    _finish(at + _WINDOW_BODY.size, end)
    consumer, prefetch = _WINDOW_BODY.unpack_from(data, at)
    return Window(consumer, _checked(prefetch))


def _read_pause(data: bytes, at: int, end: int) -> Frame:
    return Pause(_read_long(data, at, end))


def _read_resume(data: bytes, at: int, end: int) -> Frame:
    return Resume(_read_long(data, at, end))


def _read_cancel(data: bytes, at: int, end: int) -> Frame:
    return Cancel(_read_long(data, at, end))


def _read_cancelled(data: bytes, at: int, end: int) -> Frame:
    _finish(at + _LONG_BYTE.size, end)
    consumer, ending = _LONG_BYTE.unpack_from(data, at)
    return Cancelled(consumer, ending)


def _read_get(data: bytes, at: int, end: int) -> Frame:
    _finish(at + _TWO_LONGS.size, end)
    number, queue_id = _TWO_LONGS.unpack_from(data, at)
    return Get(number, queue_id)


def _read_got(data: bytes, at: int, end: int) -> Frame:
    number, ready, is_found = _GOT_HEAD.unpack_from(data, at)
    at += _GOT_HEAD.size
    message: Deliver | None = None
    if is_found:
        message, at = _read_delivery(data, at, end)
    _finish(at, end)
    return Got(number, ready, message)


def _read_read(data: bytes, at: int, end: int) -> Frame:
    number, queue_id, flags = _READ_HEAD.unpack_from(data, at)
    selector = _read_selector(data, at + _READ_HEAD.size, end)
    if selector is None:
        raise ProtocolError("a read without a selector")
    return Read(number, queue_id, selector, flags & _REMOVES != 0, flags & _ONLY_TEXT != 0)


def _read_list(data: bytes, at: int, end: int) -> Frame:
    _finish(at + _LIST_BODY.size, end)
    return List(*_LIST_BODY.unpack_from(data, at))


def _read_listed(data: bytes, at: int, end: int) -> Frame:
    number, count = _LONG_COUNT.unpack_from(data, at)
    return Listed(number, _read_deliveries(data, at + _LONG_COUNT.size, end, count))


def _read_hand(data: bytes, at: int, end: int) -> Frame:
    number, batch, queue_id, count = _HAND_HEAD.unpack_from(data, at)
    return Hand(number, batch, queue_id, _read_deliveries(data, at + _HAND_HEAD.size, end, count))


def _read_deliveries(data: bytes, at: int, end: int, count: int) -> list[Deliver]:
    """Return the messages with which a frame ends."""
    if count * (_DELIVER_HEAD_BYTES + _CONTENT_BYTES) > end - at:
        raise ProtocolError(f"{count} messages in a frame that has {end - at} bytes left")
    messages: list[Deliver] = []
    for _ in range(count):
        message, at = _read_delivery(data, at, end)
        messages.append(message)
    _finish(at, end)
    return messages


def _read_handed(data: bytes, at: int, end: int) -> Frame:
    _finish(at + _LONG_BYTE.size, end)
    number, outcome = _LONG_BYTE.unpack_from(data, at)
    return Handed(number, outcome)


def _read_reply(data: bytes, at: int, end: int) -> Frame:
    name_bytes: int = _SHORT.unpack_from(data, at)[0]
    at += 2
    stop = at + name_bytes
    if stop > end:
        raise ProtocolError("a frame ends within a name")
    content, after = _read_content(data, stop, end)
    _finish(after, end)
    return Reply(data[at:stop].decode("utf-8", _ANY_TEXT), content)


_READERS: dict[int, Callable[[bytes, int, int], Frame]] = {
    _HELLO: _read_hello,
    _PROOF: _read_proof,
    _REQUEST: _read_request,
    _RESPONSE: _read_response,
    _FAILURE: _read_failure,
    _PUT: _read_put,
    _PUT_DONE: _read_put_done,
    _CONSUME: _read_consume,
    _CONSUMING: _read_consuming,
    _DELIVER: _read_deliver,
    _SETTLE: _read_settle,
    _WINDOW: _read_window,
    _PAUSE: _read_pause,
    _RESUME: _read_resume,
    _CANCEL: _read_cancel,
    _CANCELLED: _read_cancelled,
    _GET: _read_get,
    _GOT: _read_got,
    _HAND: _read_hand,
    _HANDED: _read_handed,
    _REPLY: _read_reply,
    _READ: _read_read,
    _LIST: _read_list,
    _LISTED: _read_listed,
}

# How many bytes those frames have at least whose readers begin with a head of several fields.
_HEAD_BYTES: dict[int, int] = {
    _FAILURE: _FAILURE_HEAD.size,
    _PUT: _LONG_COUNT.size,
    _PUT_DONE: _BYTE_COUNT.size,
    _SETTLE: _SETTLE_HEAD.size,
    _GOT: _GOT_HEAD.size,
    _HAND: _HAND_HEAD.size,
    _REPLY: _SHORT.size,
}


# Writing


def _frame(kind: int, payload: bytes) -> bytes:
    return _HEADER.pack(len(payload) + 1, kind) + payload


def _content(content: Content) -> bytes:
    flags = _PERSISTENT if content.persistent else 0
    optional = b""
    if content.time_us is not None:
        flags |= _HAS_TIME
        optional += _LONG.pack(content.time_us)
    if content.sender is not None:
        flags |= _HAS_SENDER
        optional += _LONG.pack(content.sender)
    if content.receiver is not None:
        flags |= _HAS_RECEIVER
        optional += _LONG.pack(content.receiver)
    if content.context is not None:
        flags |= _HAS_CONTEXT
        optional += _LONG.pack(content.context)
    head = _CONTENT.pack(flags, content.priority, len(content.origin), len(content.properties), len(content.body))
    return b"".join((head, optional, content.origin, content.properties, content.body))


def content_of(message: Message) -> Content:
    """Return a message as it goes over the link, with the time when it expires."""
    return Content(
        message.body,
        message.properties,
        message.origin,
        message.persistent,
        message.priority,
        message.expires_us,
        message.sender,
        message.receiver,
        message.context,
    )


def _delivery(consumer: int, message: Message) -> bytes:
    count = message.delivery_count | _RECOVERED if message.recovered else message.delivery_count
    head = _DELIVER_HEAD.pack(consumer, message.id, message.arrived_us, count)
    return head + _content(content_of(message))


def encode_hello(hello: Hello) -> bytes:
    return _frame(_HELLO, _HELLO_HEAD.pack(hello.version, hello.node_id, hello.epoch) + hello.nonce)


def encode_proof(digest: bytes) -> bytes:
    return _frame(_PROOF, digest)


def encode_request(number: int, text: bytes) -> bytes:
    return _frame(_REQUEST, _LONG.pack(number) + text)


def encode_response(number: int, text: bytes) -> bytes:
    return _frame(_RESPONSE, _LONG.pack(number) + text)


def encode_failure(number: int, kind: str, text: str) -> bytes:
    kind_bytes, text_bytes = kind.encode(), text.encode("utf-8", _ANY_TEXT)
    return _frame(_FAILURE, _FAILURE_HEAD.pack(number, len(kind_bytes), len(text_bytes)) + kind_bytes + text_bytes)


def encode_put(number: int, queue_ids: Sequence[int], content: Content) -> bytes:
    head = struct.pack(f">qI{len(queue_ids)}q", number, len(queue_ids), *queue_ids)
    return _frame(_PUT, head + _content(content))


def encode_put_done(outcome: int, numbers: Sequence[int]) -> bytes:
    return _frame(_PUT_DONE, struct.pack(f">BI{len(numbers)}q", outcome, len(numbers), *numbers))


def encode_consume(consume: Consume) -> bytes:
    return _frame(
        _CONSUME,
        _CONSUME_BODY.pack(
            consume.number, consume.queue_id, consume.prefetch, consume.priority, 1 if consume.exclusive else 0
        )
        + _selector(consume.selector),
    )


def encode_consuming(number: int) -> bytes:
    return _frame(_CONSUMING, _LONG.pack(number))


def encode_deliver(consumer: int, message: Message) -> bytes:
    return _frame(_DELIVER, _delivery(consumer, message))


def encode_settle(consumer: int, settlement: int, message_ids: Sequence[int]) -> bytes:
    return _frame(
        _SETTLE, struct.pack(f">qBI{len(message_ids)}q", consumer, settlement, len(message_ids), *message_ids)
    )


def encode_window(consumer: int, prefetch: float) -> bytes:
    return _frame(_WINDOW, _WINDOW_BODY.pack(consumer, prefetch))


def encode_pause(consumer: int) -> bytes:
    return _frame(_PAUSE, _LONG.pack(consumer))


def encode_resume(consumer: int) -> bytes:
    return _frame(_RESUME, _LONG.pack(consumer))


def encode_cancel(consumer: int) -> bytes:
    return _frame(_CANCEL, _LONG.pack(consumer))


def encode_cancelled(consumer: int, ending: int) -> bytes:
    return _frame(_CANCELLED, _LONG_BYTE.pack(consumer, ending))


def encode_get(number: int, queue_id: int) -> bytes:
    return _frame(_GET, _TWO_LONGS.pack(number, queue_id))


def encode_got(number: int, ready: int, message: Message | None) -> bytes:
    head = _GOT_HEAD.pack(number, ready, 0 if message is None else 1)
    return _frame(_GOT, head if message is None else head + _delivery(0, message))


def encode_read(read: Read) -> bytes:
    flags = (_REMOVES if read.removes else 0) | (_ONLY_TEXT if read.only_text else 0)
    return _frame(_READ, _READ_HEAD.pack(read.number, read.queue_id, flags) + _selector(read.selector))


def _selector(selector: Selector | None) -> bytes:
    if selector is None:
        return _SELECTOR.pack(0, 0, 0, 0, 0)
    flags = (
        (_UNADDRESSED if selector.unaddressed else 0)
        | (_OF_READER if selector.reader is not None else 0)
        | (_OF_SENDER if selector.sender is not None else 0)
        | (_OF_CONTEXT if selector.context is not None else 0)
    )
    return _SELECTOR.pack(flags, selector.order, selector.reader or 0, selector.sender or 0, selector.context or 0)


def encode_list(number: int, queue_id: int, after_id: int, limit: int) -> bytes:
    return _frame(_LIST, _LIST_BODY.pack(number, queue_id, after_id, limit))


def encode_listed(number: int, messages: Sequence[Message]) -> bytes:
    head = _LONG_COUNT.pack(number, len(messages))
    return _frame(_LISTED, head + b"".join([_delivery(0, message) for message in messages]))


def encode_hand(number: int, batch: int, queue_id: int, messages: Sequence[Message]) -> bytes:
    head = _HAND_HEAD.pack(number, batch, queue_id, len(messages))
    return _frame(_HAND, head + b"".join([_delivery(0, message) for message in messages]))


def encode_handed(number: int, outcome: int) -> bytes:
    return _frame(_HANDED, _LONG_BYTE.pack(number, outcome))


def encode_reply(name: str, content: Content) -> bytes:
    encoded = name.encode("utf-8", _ANY_TEXT)
    return _frame(_REPLY, _SHORT.pack(len(encoded)) + encoded + _content(content))
