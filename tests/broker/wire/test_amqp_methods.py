"""The methods of AMQP 0-9-1: their fields on the wire, and that they are made from their description."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flyball.broker.wire.amqp
from flyball.broker.wire.amqp import (
    CHANNEL_ERRORS,
    METHODS,
    AmqpError,
    BasicAck,
    BasicConsume,
    BasicDeliver,
    BasicNack,
    BasicPublish,
    BasicQos,
    ChannelClose,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionOpen,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ExchangeUnbindOk,
    Method,
    QueueDeclare,
    QueueDeclareOk,
    ReplyCode,
    Value,
    reply_text,
)

ROOT = Path(__file__).parents[3]

short_strings = st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")[:255].decode("utf-8", "ignore"))
tables: st.SearchStrategy[dict[str, Value]] = st.dictionaries(
    short_strings, st.one_of(st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), st.text(max_size=9)), max_size=3
)
numbers = {
    "class_id": 16,
    "method_id": 16,
    "reply_code": 16,
    "channel_max": 16,
    "frame_max": 32,
    "heartbeat": 16,
    "ticket": 16,
    "version_major": 8,
    "version_minor": 8,
    "message_count": 32,
    "consumer_count": 32,
    "prefetch_size": 32,
    "prefetch_count": 16,
    "delivery_tag": 64,
}
byte_strings = {"mechanisms", "locales", "response", "challenge", "new_secret"}
content = {"properties": b"\0\0", "body": b""}
words = {
    "server_properties": tables,
    "client_properties": tables,
    "arguments": tables,
}
text_fields = {
    *("mechanism", "locale", "virtual_host", "reply_text", "reason", "realm", "exchange", "type", "destination"),
    *("source", "routing_key", "queue", "consumer_tag"),
}


def field_values(name: str) -> st.SearchStrategy[object]:
    if name in numbers:
        return st.integers(0, (1 << numbers[name]) - 1)
    if name in words:
        return words[name]
    if name in byte_strings:
        return st.binary(max_size=300)
    if name in text_fields:
        return short_strings
    if name in content:
        return st.just(content[name])
    return st.booleans()


@st.composite
def methods(draw: st.DrawFn) -> Method:
    """Any method with any fields."""
    kind = draw(st.sampled_from(sorted(METHODS.values(), key=lambda method: method.NAME)))
    return kind(draw(st.integers(0, 65535)), *[draw(field_values(name)) for name in kind.FIELDS])


def parse_frame(frame: bytes) -> Method:
    """Return the method of exactly one method frame."""
    assert frame[0] == 1
    assert frame[-1] == 0xCE
    assert int.from_bytes(frame[3:7]) == len(frame) - 8
    kind = METHODS[int.from_bytes(frame[7:11])]
    return kind.parse(int.from_bytes(frame[1:3]), frame, 11, len(frame) - 1)


@settings(max_examples=600, deadline=None)
@given(methods())
def test_every_method_is_read_as_it_was_written(method: Method) -> None:
    assert parse_frame(method.encode()) == method


def small_value(name: str) -> object:
    """Return a value of the field that is not empty, so that it can be cut within itself."""
    if name in numbers:
        return 1
    if name in words:
        return {"key": True}
    if name in byte_strings:
        return b"octets"
    if name in text_fields:
        return "text"
    return content.get(name, True)


@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda kind: kind.NAME)
def test_fields_that_end_too_early_or_too_late_are_refused(kind: type[Method]) -> None:
    payload = kind(1, *map(small_value, kind.FIELDS)).encode()[11:-1]
    # What lies behind the frame is not the method's.
    buffer = payload + bytes(300)
    assert kind.parse(1, buffer, 0, len(payload)).encode()[11:-1] == payload
    for end in {*range(len(payload) + 4)} - {len(payload)}:
        with pytest.raises(AmqpError) as caught:
            kind.parse(1, buffer, 0, end)
        assert caught.value.code == ReplyCode.SYNTAX_ERROR, end


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(sorted(METHODS)), st.binary(max_size=80))
def test_random_fields_are_read_or_refused(key: int, payload: bytes) -> None:
    try:
        method = METHODS[key].parse(1, payload, 0, len(payload))
    except AmqpError:
        return
    assert parse_frame(method.encode()) == method or "nan" in repr(method)


# Written out by hand from the specification, with its reserved fields.
RECORDED: list[tuple[Method, str]] = [
    (ConnectionTune(0, 2047, 131072, 60), "01 0000 0000000c 000a 001e 07ff 00020000 003c ce"),
    (ConnectionOpen(0, "/"), "01 0000 00000008 000a 0028 01 2f 00 00 ce"),
    (ChannelOpen(1), "01 0001 00000005 0014 000a 00 ce"),
    (ChannelOpenOk(1), "01 0001 00000008 0014 000b 00000000 ce"),
    (ChannelClose(3, 404, "no", 50, 10), "01 0003 0000000d 0014 0028 0194 02 6e6f 0032 000a ce"),
    (ExchangeUnbindOk(1), "01 0001 00000004 0028 0033 ce"),
    (
        QueueDeclare(1, "q", False, True, False, True, False, {"a": True}),
        "01 0001 00000011 0032 000a 0000 01 71 0a 00000004 01 61 74 01 ce",
    ),
    (QueueDeclareOk(1, "q", 5, 2), "01 0001 0000000e 0032 000b 01 71 00000005 00000002 ce"),
    (BasicQos(1, 0, 100, True), "01 0001 0000000b 003c 000a 00000000 0064 01 ce"),
    (
        BasicConsume(1, "q", "c", False, True, False, True, {}),
        "01 0001 0000000f 003c 0014 0000 01 71 01 63 0a 00000000 ce",
    ),
    (BasicPublish(1, "x", "key", True, False), "01 0001 0000000d 003c 0028 0000 01 78 03 6b6579 01 ce"),
    (BasicAck(1, 7, True), "01 0001 0000000d 003c 0050 0000000000000007 01 ce"),
    (BasicNack(1, 7, False, True), "01 0001 0000000d 003c 0078 0000000000000007 02 ce"),
    (
        BasicDeliver(1, "c", 1, True, "", "q"),
        "01 0001 00000012 003c 003c 01 63 0000000000000001 01 00 01 71 ce",
    ),
    (
        ConnectionStart(0, 0, 9, {}, b"PLAIN", b"en_US"),
        "01 0000 0000001c 000a 000a 00 09 00000000 00000005 504c41494e 00000005 656e5f5553 ce",
    ),
    (
        ConnectionStartOk(0, {}, "PLAIN", b"\0a\0b", "en_US"),
        "01 0000 0000001c 000a 000b 00000000 05 504c41494e 00000004 00610062 05 656e5f5553 ce",
    ),
]


@pytest.mark.parametrize(("method", "octets"), RECORDED, ids=[method.NAME for method, _ in RECORDED])
def test_methods_lie_on_the_wire_as_the_specification_has_it(method: Method, octets: str) -> None:
    assert method.encode() == bytes.fromhex(octets)
    assert parse_frame(bytes.fromhex(octets)) == method


def test_reserved_fields_are_ignored() -> None:
    with_ticket = bytes.fromhex("01 0001 00000011 0032 000a 1234 01 71 0a 00000004 01 61 74 01 ce")
    assert parse_frame(with_ticket) == QueueDeclare(1, "q", False, True, False, True, False, {"a": True})
    insisting = bytes.fromhex("01 0000 0000000a 000a 0028 01 2f 02 6162 01 ce")
    assert parse_frame(insisting) == ConnectionOpen(0, "/")


def test_names_that_are_no_utf8_are_refused() -> None:
    with pytest.raises(AmqpError, match="Malformed UTF-8") as caught:
        parse_frame(bytes.fromhex("01 0001 0000000e 0032 000b 01 ff 00000005 00000002 ce"))
    assert caught.value.code == ReplyCode.FRAME_ERROR


def test_a_short_string_above_255_octets_cannot_be_written() -> None:
    assert len(QueueDeclareOk(1, "x" * 255, 0, 0).encode()) == 276
    with pytest.raises(ValueError, match="256"):
        QueueDeclareOk(1, "é" * 128, 0, 0).encode()


def test_methods_differ_by_kind_channel_and_fields() -> None:
    assert BasicAck(1, 2, True) == BasicAck(1, 2, True)
    assert BasicAck(1, 2, True) != BasicAck(2, 2, True)
    assert BasicAck(1, 2, True) != BasicAck(1, 3, True)
    assert ChannelOpen(1) != ChannelOpenOk(1)


def test_reply_texts_begin_with_the_code_and_fit_into_a_short_string() -> None:
    assert reply_text(ReplyCode.NOT_FOUND, "no queue 'q'") == "NOT_FOUND - no queue 'q'"
    for length in range(230, 270):
        text = reply_text(ReplyCode.NOT_FOUND, "é" * (length // 2) + "e" * (length % 2))
        assert len(text.encode()) <= 255
        assert text.startswith("NOT_FOUND - é")
        assert (length > 243) == text.endswith("...")


def test_soft_errors_end_the_channel_only() -> None:
    assert ReplyCode.NOT_FOUND in CHANNEL_ERRORS
    assert ReplyCode.PRECONDITION_FAILED in CHANNEL_ERRORS
    assert ReplyCode.FRAME_ERROR not in CHANNEL_ERRORS
    assert ReplyCode.CONNECTION_FORCED not in CHANNEL_ERRORS


def test_the_package_offers_every_method() -> None:
    for method in METHODS.values():
        assert getattr(flyball.broker.wire.amqp, method.__name__) is method
