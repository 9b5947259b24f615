"""A message's properties: kept octet by octet, and what a broker reads of them."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.broker.wire.amqp import NO_PROPERTIES, AmqpError, Properties, ReplyCode, essentials, write_table

strings = st.none() | st.text(max_size=30).map(lambda text: text.encode("utf-8", "replace").decode())
octets = st.none() | st.integers(0, 255)
property_lists = st.builds(
    Properties,
    content_type=strings,
    content_encoding=strings,
    headers=st.none() | st.dictionaries(st.text("abc", max_size=3), st.integers(0, 9), max_size=3).map(write_table),
    delivery_mode=octets,
    priority=octets,
    correlation_id=strings,
    reply_to=strings,
    expiration=strings,
    message_id=strings,
    timestamp=st.none() | st.integers(0, (1 << 64) - 1),
    type=strings,
    user_id=strings,
    app_id=strings,
    cluster_id=strings,
)
FULL = Properties(
    content_type="text/plain", content_encoding="gzip", headers=write_table({"a": 1}), delivery_mode=2, priority=9,
    correlation_id="c", reply_to="r", expiration="60000", message_id="m", timestamp=1, type="t", user_id="guest",
    app_id="a", cluster_id="k",
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(property_lists)
def test_properties_are_read_as_they_were_written(properties: Properties) -> None:
    data = properties.encode()
    assert Properties.decode(data) == properties
    assert Properties.decode(data).encode() == data


@settings(max_examples=300, deadline=None)
@given(property_lists)
def test_essentials_are_those_of_the_whole_list(properties: Properties) -> None:
    found = essentials(properties.encode())
    assert found.persistent == (properties.delivery_mode == 2)
    assert found.priority == (properties.priority or 0)
    assert found.expiration == properties.expiration
    assert found.user_id == properties.user_id
    assert found.reply_to == properties.reply_to
    assert found.headers == properties.headers


def test_properties_lie_on_the_wire_as_the_specification_has_it() -> None:
    data = bytes.fromhex(
        "fffc 0a 746578742f706c61696e 04 677a6970 0000000b 01 61 6c 0000000000000001 02 09 01 63 01 72 05 3630303030"
        "01 6d 0000000000000001 01 74 05 6775657374 01 61 01 6b"
    )
    assert FULL.encode() == data
    assert Properties.decode(data) == FULL
    assert Properties().encode() == NO_PROPERTIES
    assert Properties(delivery_mode=2).encode() == bytes.fromhex("1000 02")


def test_the_usual_properties_are_persistent_or_not() -> None:
    assert essentials(bytes.fromhex("1000 02")).persistent
    assert not essentials(bytes.fromhex("1000 01")).persistent
    assert not essentials(NO_PROPERTIES).persistent
    assert essentials(Properties(content_type="text/plain", delivery_mode=2).encode()).persistent


def error_of(read: Callable[[bytes], object], data: bytes) -> ReplyCode | None:
    try:
        read(data)
    except AmqpError as error:
        return error.code
    return None


def refused(data: bytes) -> bool:
    """Whether the list is refused. Both readers have to agree, and to raise nothing but a syntax error."""
    code = error_of(Properties.decode, data)
    assert code in (None, ReplyCode.SYNTAX_ERROR)
    assert error_of(essentials, data) == code
    return code is not None


def test_every_list_that_is_cut_off_or_too_long_is_refused() -> None:
    data = FULL.encode()
    for size in range(len(data)):
        assert refused(data[:size])
    assert refused(data + b"\0")
    assert refused(NO_PROPERTIES + b"\0")
    assert not refused(data)


@pytest.mark.parametrize("flags", [0x0001, 0x0002, 0x1001])
def test_flags_that_stand_for_nothing_are_refused(flags: int) -> None:
    assert refused(struct.pack(">H", flags) + b"\x02")


def test_headers_that_are_no_table_are_refused_when_they_arrive() -> None:
    assert not refused(struct.pack(">H", 1 << 13) + write_table({"a": "b"}))
    assert refused(struct.pack(">HI", 1 << 13, 3) + b"\x01a?")


@settings(max_examples=500, deadline=None)
@given(property_lists, st.data())
def test_a_damaged_list_is_read_or_refused_and_both_readers_agree(
    properties: Properties, data: st.DataObject
) -> None:
    damaged = bytearray(properties.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    if not refused(bytes(damaged)):
        assert Properties.decode(bytes(damaged)).encode() == damaged


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40))
def test_random_lists_are_read_or_refused(data: bytes) -> None:
    if not refused(data):
        assert Properties.decode(data).encode() == data
