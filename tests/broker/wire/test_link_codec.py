"""Frames of the link between nodes: whole, a byte at a time, round and round, and beyond their limits."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.broker.wire import link
from flyball.broker.wire.amqp import write_origin
from flyball.errors import ProtocolError
from flyball.model import Message, Order, Selector

LONGS = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(0, 2**31 - 1)
OPTIONAL = st.none() | LONGS
NUMBERS = st.lists(LONGS, max_size=20)
PREFETCHES = st.floats(0, allow_nan=False)
REST = (st.booleans(), st.integers(-(2**31), 2**31 - 1), OPTIONAL, OPTIONAL, OPTIONAL, OPTIONAL)
NAMES = st.text(max_size=20)
# With lone surrogates, as names have them whose octets are not UTF-8.
ANY_TEXT = st.text(st.characters(), max_size=60)
# What came through AMQP has an origin, and properties as AMQP has them.
CONTENTS = st.builds(link.Content, st.binary(max_size=100), st.binary(max_size=100), st.just(b""), *REST) | st.builds(
    link.Content,
    st.binary(max_size=100),
    st.sampled_from([b"\0\0", b"\x10\0\x02", b"\x80\0\x0atext/plain"]),
    st.builds(write_origin, NAMES, NAMES),
    *REST,
)
DELIVERIES = st.builds(link.Deliver, LONGS, LONGS, LONGS, COUNTS, CONTENTS, st.booleans())
HANDED_OVER = st.builds(link.Deliver, st.just(0), LONGS, LONGS, COUNTS, CONTENTS, st.booleans())
SELECTORS = st.builds(Selector, OPTIONAL, st.booleans(), OPTIONAL, OPTIONAL, st.sampled_from(Order))

FRAMES: st.SearchStrategy[link.Frame] = st.one_of(
    st.builds(link.Hello, st.integers(0, 65535), LONGS, LONGS, st.binary(min_size=32, max_size=32)),
    st.builds(link.Proof, st.binary(min_size=32, max_size=32)),
    st.builds(link.Request, LONGS, st.binary(max_size=100)),
    st.builds(link.Response, LONGS, st.binary(max_size=100)),
    st.builds(link.Failure, LONGS, st.text(max_size=30), ANY_TEXT),
    st.builds(link.Put, LONGS, NUMBERS, CONTENTS),
    st.builds(link.PutDone, st.integers(0, 4), NUMBERS),
    st.builds(link.Consume, LONGS, LONGS, PREFETCHES, LONGS, st.booleans(), st.none() | SELECTORS),
    st.builds(link.Consuming, LONGS),
    DELIVERIES,
    st.builds(link.Settle, LONGS, st.integers(0, 3), NUMBERS),
    st.builds(link.Window, LONGS, PREFETCHES),
    st.builds(link.Pause, LONGS),
    st.builds(link.Resume, LONGS),
    st.builds(link.Cancel, LONGS),
    st.builds(link.Cancelled, LONGS, st.integers(0, 3)),
    st.builds(link.Get, LONGS, LONGS),
    st.builds(link.Got, LONGS, st.integers(0, 2**64 - 1), st.none() | HANDED_OVER),
    st.builds(link.Read, LONGS, LONGS, SELECTORS, st.booleans(), st.booleans()),
    st.builds(link.List, LONGS, LONGS, LONGS, COUNTS),
    st.builds(link.Listed, LONGS, st.lists(HANDED_OVER, max_size=5)),
    st.builds(link.Hand, LONGS, LONGS, LONGS, st.lists(HANDED_OVER, max_size=5)),
    st.builds(link.Handed, LONGS, st.integers(0, 4)),
    st.builds(link.Reply, ANY_TEXT, CONTENTS),
)


def message_of(delivery: link.Deliver) -> Message:
    content = delivery.content
    return Message(
        delivery.message_id,
        1,
        content.body,
        content.sender,
        content.receiver,
        content.context,
        content.priority,
        delivery.arrived_us,
        content.time_us,
        content.properties,
        content.persistent,
        content.origin,
        delivery.delivery_count,
        delivery.recovered,
    )


def encode(frame: link.Frame) -> bytes:
    match frame:
        case link.Hello():
            return link.encode_hello(frame)
        case link.Proof(digest):
            return link.encode_proof(digest)
        case link.Request(number, text):
            return link.encode_request(number, text)
        case link.Response(number, text):
            return link.encode_response(number, text)
        case link.Failure(number, kind, explanation):
            return link.encode_failure(number, kind, explanation)
        case link.Put(number, queue_ids, content):
            return link.encode_put(number, queue_ids, content)
        case link.PutDone(outcome, numbers):
            return link.encode_put_done(outcome, numbers)
        case link.Consume():
            return link.encode_consume(frame)
        case link.Consuming(number):
            return link.encode_consuming(number)
        case link.Deliver():
            return link.encode_deliver(frame.consumer, message_of(frame))
        case link.Settle(consumer, settlement, message_ids):
            return link.encode_settle(consumer, settlement, message_ids)
        case link.Window(consumer, prefetch):
            return link.encode_window(consumer, prefetch)
        case link.Pause(consumer):
            return link.encode_pause(consumer)
        case link.Resume(consumer):
            return link.encode_resume(consumer)
        case link.Cancel(consumer):
            return link.encode_cancel(consumer)
        case link.Cancelled(consumer, ending):
            return link.encode_cancelled(consumer, ending)
        case link.Get(number, queue_id):
            return link.encode_get(number, queue_id)
        case link.Got(number, ready, message):
            return link.encode_got(number, ready, None if message is None else message_of(message))
        case link.Read():
            return link.encode_read(frame)
        case link.List(number, queue_id, after_id, limit):
            return link.encode_list(number, queue_id, after_id, limit)
        case link.Listed(number, messages):
            return link.encode_listed(number, [message_of(message) for message in messages])
        case link.Hand(number, batch, queue_id, messages):
            return link.encode_hand(number, batch, queue_id, [message_of(message) for message in messages])
        case link.Handed(number, outcome):
            return link.encode_handed(number, outcome)
        case link.Reply(name, content):
            return link.encode_reply(name, content)


def decode(parts: Iterable[bytes], frame_max: int = 1_000_000) -> list[link.Frame]:
    decoder = link.LinkDecoder(frame_max)
    found: list[link.Frame] = []
    for part in parts:
        decoder.feed(part)
        while (frame := decoder.next_frame()) is not None:
            found.append(frame)
    return found


@given(st.lists(FRAMES, max_size=8))
def test_frames_come_out_as_they_went_in_whole_and_a_byte_at_a_time(frames: list[link.Frame]) -> None:
    data = b"".join(encode(frame) for frame in frames)
    assert decode([data]) == frames
    assert decode(data[at : at + 1] for at in range(len(data))) == frames


@given(st.lists(FRAMES, min_size=2, max_size=8), st.data())
def test_frames_may_be_fed_before_those_ahead_of_them_are_read(frames: list[link.Frame], data: st.DataObject) -> None:
    encoded = b"".join(encode(frame) for frame in frames)
    cut = data.draw(st.integers(0, len(encoded)))
    decoder = link.LinkDecoder(1_000_000)
    decoder.feed(encoded[:cut])
    first = decoder.next_frame()
    decoder.feed(encoded[cut:])
    found = [] if first is None else [first]
    while (frame := decoder.next_frame()) is not None:
        found.append(frame)
    assert found == frames


CONTENT = link.Content(b"body", b"\0\0", write_origin("x", "key"), True, 1, 2, 3, 4, 5)
DELIVERY = link.Deliver(0, 1, 2, 3, CONTENT, True)
SELECTOR = Selector(1, True, 2, 3, Order.NEWEST)

# One of each kind, with something in each of its fields.
WHOLE: list[link.Frame] = [
    link.Hello(1, 2, 3, bytes(32)),
    link.Proof(bytes(32)),
    link.Failure(1, "kind", "why"),
    link.Put(1, [2, 3], CONTENT),
    link.PutDone(1, [2, 3]),
    link.Consume(1, 2, 3.0, 4, True, SELECTOR),
    link.Consume(1, 2, 3.0, 4, True, None),
    link.Consuming(1),
    replace(DELIVERY, consumer=7),
    link.Settle(1, 2, [3, 4]),
    link.Window(1, 2.0),
    link.Pause(1),
    link.Resume(1),
    link.Cancel(1),
    link.Cancelled(1, 2),
    link.Get(1, 2),
    link.Got(1, 2, DELIVERY),
    link.Got(1, 2, None),
    link.Read(1, 2, SELECTOR, True, False),
    link.List(1, 2, 3, 4),
    link.Listed(1, [DELIVERY, DELIVERY]),
    link.Hand(1, 2, 3, [DELIVERY]),
    link.Handed(1, 2),
    link.Reply("name", CONTENT),
]


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


@pytest.mark.parametrize("frame", WHOLE, ids=lambda frame: type(frame).__name__)
def test_a_frame_that_is_cut_short_or_too_long_for_its_fields_is_refused(frame: link.Frame) -> None:
    payload = encode(frame)[4:]
    assert decode([framed(payload)]) == [frame]
    for changed in (*(payload[:size] for size in range(1, len(payload))), payload + b"x"):
        with pytest.raises(ProtocolError):
            decode([framed(changed)])


@pytest.mark.parametrize("frame", [link.Request(1, b"text"), link.Response(1, b"text")])
def test_a_command_or_answer_without_its_whole_number_is_refused(frame: link.Frame) -> None:
    payload = encode(frame)[4:]
    for size in range(1, 9):
        with pytest.raises(ProtocolError):
            decode([framed(payload[:size])])


@given(st.binary(max_size=200))
def test_any_bytes_give_frames_or_a_protocol_error(data: bytes) -> None:
    try:
        decode([data])
    except ProtocolError:
        return


@pytest.mark.parametrize("kind", [5, 6, 7, 11, 18, 19, 21])
def test_a_short_frame_is_refused_alike_whatever_follows_it(kind: int) -> None:
    frame = struct.pack(">IB", 1, kind)
    said: list[str] = []
    for follows in (b"", b"\0" * 40):
        with pytest.raises(ProtocolError) as refused:
            decode([frame + follows])
        said.append(str(refused.value))
    assert said[0] == said[1]


def test_a_frame_beyond_the_limit_is_refused_by_its_header_alone() -> None:
    with pytest.raises(ProtocolError, match="at most 96"):
        decode([struct.pack(">IB", 97, 3)], frame_max=100)
    assert decode([struct.pack(">IB", 96, 3)], frame_max=100) == []


def test_nobody_who_has_proved_nothing_may_send_a_long_frame() -> None:
    hello = link.encode_hello(link.Hello(link.VERSION, 1, 1, bytes(32)))
    assert len(hello) <= link.HANDSHAKE_MAX
    with pytest.raises(ProtocolError):
        decode([link.encode_request(1, bytes(1000))], link.LinkDecoder().frame_max)


@pytest.mark.parametrize(
    ("origin", "properties"),
    [(b"\xe4\x00", b"\0\0"), (b"\x00", b"\0\0"), (b"\x00\x00more", b"\0\0"), (b"\x00\x00", b"\x80\0\xff")],
)
def test_origin_and_properties_that_no_client_could_read_are_refused(origin: bytes, properties: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode([link.encode_put(1, [1], link.Content(b"body", properties, origin))])


@pytest.mark.parametrize("data", [struct.pack(">IB", 1, 99), struct.pack(">IB", 0, 1)])
def test_an_unknown_kind_and_an_empty_frame_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode([data])


def test_a_count_that_cannot_fit_is_refused_before_anything_is_allocated() -> None:
    puts = struct.pack(">BqI", 6, 1, 2**32 - 1)
    hands = struct.pack(">BqqqI", 19, 1, 1, 1, 2**32 - 1)
    for payload in (puts, hands):
        with pytest.raises(ProtocolError, match="4294967295"):
            decode([struct.pack(">I", len(payload)) + payload])


@pytest.mark.parametrize("prefetch", [-1.0, float("nan")])
def test_a_window_that_is_no_number_of_messages_is_refused(prefetch: float) -> None:
    with pytest.raises(ProtocolError, match="prefetch"):
        decode([link.encode_window(1, prefetch)])


def test_the_proofs_of_both_sides_differ_and_depend_on_everything_that_was_said() -> None:
    caller = link.Hello(link.VERSION, 1, 5, bytes(32))
    listener = link.Hello(link.VERSION, 2, 7, bytes(range(32)))
    proof = link.proof_of_caller(b"secret", caller, listener)
    others = [
        link.proof_of_listener(b"secret", caller, listener),
        link.proof_of_caller(b"another", caller, listener),
        link.proof_of_caller(b"secret", link.Hello(link.VERSION, 1, 6, bytes(32)), listener),
        link.proof_of_caller(b"secret", caller, link.Hello(link.VERSION, 2, 7, bytes(32))),
    ]
    assert link.is_proof(proof, link.proof_of_caller(b"secret", caller, listener))
    assert not any(link.is_proof(proof, other) for other in others)
