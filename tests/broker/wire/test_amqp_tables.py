"""Field tables: every type there and back, raw fields kept as they are, and damage that is refused."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.broker.wire.amqp import (
    EMPTY_TABLE,
    AmqpError,
    ReplyCode,
    Timestamp,
    Value,
    check_table,
    join_array,
    join_table,
    read_table,
    read_value,
    split_array,
    split_table,
    write_table,
    write_value,
)

names = st.text(st.characters(codec="utf-8"), max_size=20)
seconds = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)).map(
    lambda moment: moment.replace(microsecond=0)
)
decimals = st.builds(
    lambda unscaled, scale: Decimal(unscaled).scaleb(-scale),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(0, 255),
)
simple = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    decimals,
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.binary(max_size=20),
    seconds,
    st.integers(253_402_300_800, (1 << 64) - 1).map(Timestamp),
)
values: st.SearchStrategy[Value] = st.recursive(
    simple,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=12,
)
tables = st.dictionaries(names, values, max_size=5)


@settings(max_examples=300, deadline=None)
@given(tables)
def test_a_table_is_read_as_it_was_written(table: dict[str, Value]) -> None:
    data = write_table(table)
    assert read_table(b"before" + data + b"after", 6, 6 + len(data)) == (table, 6 + len(data))


@settings(max_examples=200, deadline=None)
@given(tables)
def test_a_table_is_joined_from_what_it_was_split_into(table: dict[str, Value]) -> None:
    data = write_table(table)
    fields = split_table(data)
    assert join_table(fields) == data
    assert {name: read_value(raw) for name, raw in fields.items()} == table
    assert {name: write_value(value) for name, value in table.items()} == fields


# As RabbitMQ's parser has them; see its rabbit_binary_parser and the errata on its site.
RECORDED: list[tuple[str, Value]] = [
    ("74 00", False),
    ("74 02", True),
    ("62 ff", -1),
    ("42 ff", 255),
    ("73 ffff", -1),
    ("75 ffff", 65535),
    ("49 ffffffff", -1),
    ("69 ffffffff", (1 << 32) - 1),
    ("6c ffffffffffffffff", -1),
    ("4c ffffffffffffffff", -1),
    ("66 3fc00000", 1.5),
    ("64 3ff8000000000000", 1.5),
    ("44 02 0000013a", Decimal("3.14")),
    ("44 01 fffffff1", Decimal("-1.5")),
    ("53 00000002 c3a9", "é"),
    ("53 00000001 ff", b"\xff"),
    ("78 00000001 61", b"a"),
    ("41 00000004 7401 7400", [True, False]),
    ("54 0000000000000001", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    ("54 ffffffffffffffff", Timestamp((1 << 64) - 1)),
    ("46 00000003 01 61 56", {"a": None}),
    ("56", None),
]


@pytest.mark.parametrize(("octets", "value"), RECORDED)
def test_every_field_type_of_rabbitmq_is_read(octets: str, value: Value) -> None:
    raw = bytes.fromhex(octets)
    assert read_value(raw) == value
    assert type(read_value(raw)) is type(value)
    data = join_table({"key": raw})
    assert read_table(data, 0, len(data)) == ({"key": value}, len(data))
    assert split_table(data) == {"key": raw}


def test_a_table_of_two_fields_lies_on_the_wire_as_the_specification_has_it() -> None:
    data = bytes.fromhex("00000011 01 61 74 01 02 6263 6c 0000000000000005")
    data = struct.pack(">I", len(data) - 4) + data[4:]
    assert write_table({"a": True, "bc": 5}) == data
    assert write_table({}) == EMPTY_TABLE


def test_of_two_fields_with_one_name_the_first_counts() -> None:
    content = b"\x01ab\x01" + b"\x01ab\x02"
    data = struct.pack(">I", len(content)) + content
    assert read_table(data, 0, len(data))[0] == {"a": 1}
    assert split_table(data) == {"a": b"b\x01"}


def test_not_a_number_is_read() -> None:
    value = read_value(write_value(math.nan))
    assert isinstance(value, float)
    assert math.isnan(value)


def nested(depth: int, kind: bytes) -> bytes:
    """A table with tables or arrays in each other, `depth` of them."""
    raw = b"V"
    for _ in range(depth):
        content = raw if kind == b"A" else b"\x01a" + raw
        raw = kind + struct.pack(">I", len(content)) + content
    return join_table({"a": raw})


@pytest.mark.parametrize("kind", [b"A", b"F"])
def test_tables_may_be_nested_a_hundred_deep_and_no_deeper(kind: bytes) -> None:
    fine = nested(100, kind)
    check_table(fine, 0, len(fine))
    read_table(fine, 0, len(fine))
    for depth in (101, 20_000):
        bomb = nested(depth, kind)
        for refuse in (check_table, read_table):
            with pytest.raises(AmqpError) as caught:
                refuse(bomb, 0, len(bomb))
            assert caught.value.code == ReplyCode.SYNTAX_ERROR
        with pytest.raises(AmqpError):
            split_table(bomb)


def error_of(read: Callable[..., object], *arguments: object) -> ReplyCode | None:
    try:
        read(*arguments)
    except AmqpError as error:
        return error.code
    return None


@settings(max_examples=500, deadline=None)
@given(tables, st.data())
def test_a_damaged_table_is_read_or_refused_and_all_readers_agree(
    table: dict[str, Value], data: st.DataObject
) -> None:
    damaged = bytearray(write_table(table))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(4, len(damaged) - 1) if table else st.integers(0, 3))] = data.draw(
            st.integers(0, 255)
        )
    raw = bytes(damaged)
    code = error_of(read_table, raw, 0, len(raw))
    assert code in (None, ReplyCode.SYNTAX_ERROR)
    assert error_of(check_table, raw, 0, len(raw)) == code
    assert error_of(split_table, raw) == code


def test_a_length_that_is_not_the_tables_is_refused() -> None:
    data = write_table({"a": True})
    for length in (0, 1, 3, 5, 1 << 31, (1 << 32) - 1):
        raw = struct.pack(">I", length) + data[4:]
        assert error_of(check_table, raw, 0, len(raw)) == ReplyCode.SYNTAX_ERROR
        assert error_of(split_table, raw) == ReplyCode.SYNTAX_ERROR


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_random_values_are_read_or_refused(raw: bytes) -> None:
    assert error_of(read_value, raw) in (None, ReplyCode.SYNTAX_ERROR)
    assert error_of(split_table, raw) in (None, ReplyCode.SYNTAX_ERROR)


UNWRITABLE: list[Value] = [
    *(1 << 63, -(1 << 63) - 1),
    *(Decimal("NaN"), Decimal("Infinity"), Decimal("1e11"), Decimal("1e-256"), Decimal(1 << 31)),
    *(Timestamp(-1), Timestamp(1 << 64), datetime(1969, 12, 31, tzinfo=UTC)),
]


@pytest.mark.parametrize("value", UNWRITABLE)
def test_what_no_field_can_hold_is_not_written(value: Value) -> None:
    with pytest.raises(ValueError, match=r"."):
        write_value(value)


@given(st.lists(values, max_size=5))
def test_a_split_array_has_the_raw_elements_and_joins_again(array: list[Value]) -> None:
    raw = write_value(array)
    elements = split_array(raw)
    assert elements == [write_value(element) for element in array]
    assert join_array(elements) == raw


@pytest.mark.parametrize("raw", [b"", b"A", b"A\0\0\0\x05", b"S\0\0\0\0", b"A\0\0\0\0x", b"A\0\0\0\x01?"])
def test_what_is_not_exactly_an_array_is_not_split(raw: bytes) -> None:
    with pytest.raises(AmqpError):
        split_array(raw)
