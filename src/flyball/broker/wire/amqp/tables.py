"""Field tables: names and typed values, of every type that RabbitMQ accepts.

A raw table always starts with its length in four octets. If a name occurs twice, the first one counts, as in
RabbitMQ.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, TypeAlias

from flyball.broker.wire.amqp.fields import (
    read_long,
    read_loose_shortstr,
    read_octet,
    skip_longstr,
    skip_shortstr,
    syntax_error,
    write_longstr,
    write_shortstr,
)
from flyball.model import Timestamp as Timestamp

# Maximum nesting of tables and arrays.
MAX_DEPTH: Final = 100

EMPTY_TABLE: Final = b"\0\0\0\0"


# The values of fields: t is bool; b B s u I i l L are int; f d are float; D is Decimal; S is str, or bytes if it is
# not valid UTF-8; x is bytes; T is datetime or Timestamp; A is list; F is dict; V is None.
Value: TypeAlias = (
    "bool | int | float | Decimal | str | bytes | datetime | Timestamp | list[Value] | dict[str, Value] | None"
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_DATETIME_S: Final = 253_402_300_799
_SECOND: Final = timedelta(seconds=1)

_DECIMAL: Final = struct.Struct(">Bi")
_LONG: Final = struct.Struct(">I")
_TYPED_DECIMAL: Final = struct.Struct(">cBi")
_TYPED_DOUBLE: Final = struct.Struct(">cd")
_TYPED_INTEGER: Final = struct.Struct(">cq")
_TYPED_TIMESTAMP: Final = struct.Struct(">cQ")

# L is signed like l, according to RabbitMQ's errata to the specification.
_INTEGERS: Final[dict[int, struct.Struct]] = {
    ord("b"): struct.Struct(">b"),
    ord("B"): struct.Struct(">B"),
    ord("s"): struct.Struct(">h"),
    ord("u"): struct.Struct(">H"),
    ord("I"): struct.Struct(">i"),
    ord("i"): struct.Struct(">I"),
    ord("l"): struct.Struct(">q"),
    ord("L"): struct.Struct(">q"),
}
_FLOATS: Final[dict[int, struct.Struct]] = {ord("f"): struct.Struct(">f"), ord("d"): struct.Struct(">d")}
# Number of octets after the type, for types of constant size.
_FIXED_BYTES: Final[dict[int, int]] = {
    **{kind: layout.size for kind, layout in _INTEGERS.items()},
    **{kind: layout.size for kind, layout in _FLOATS.items()},
    ord("t"): 1,
    ord("D"): 5,
    ord("T"): 8,
    ord("V"): 0,
}
_TIMESTAMP: Final = struct.Struct(">Q")

_ARRAY: Final = ord("A")
_BINARY: Final = ord("x")
_BOOL: Final = ord("t")
_DECIMAL_KIND: Final = ord("D")
_STRING: Final = ord("S")
_TABLE: Final = ord("F")
_TIMESTAMP_KIND: Final = ord("T")


def read_table(data: bytes, at: int, end: int) -> tuple[dict[str, Value], int]:
    """Return the table at `at` and its end. Raises AmqpError if it is malformed or nested too deep."""
    return _read_table(data, at, end, 0)


def write_table(table: Mapping[str, Value]) -> bytes:
    """Return the table, prefixed with its length. Raises ValueError for values that no field can hold."""
    return write_longstr(b"".join([write_shortstr(name) + write_value(value) for name, value in table.items()]))


def split_table(data: bytes) -> dict[str, bytes]:
    """Return the raw values (type octet and content) of a raw table; `read_value` reads one.

    Raises AmqpError if the table is malformed or does not take up all of `data`.
    """
    check_table(data, 0, len(data))
    fields: dict[str, bytes] = {}
    at = 4
    end = len(data)
    while at < end:
        name, start = read_loose_shortstr(data, at, end)
        at = _skip_value(data, start, end, 0)
        if name not in fields:
            fields[name] = data[start:at]
    return fields


def split_array(raw: bytes) -> list[bytes]:
    """Return the raw elements (type octet and content) of a raw array, which begins with its own type octet.

    Raises AmqpError if it is not a well-formed array.
    """
    if _skip_value(raw, 0, len(raw), 0) != len(raw) or raw[0] != _ARRAY:
        raise syntax_error("not an array")
    elements: list[bytes] = []
    at = 5
    end = len(raw)
    while at < end:
        start = at
        at = _skip_value(raw, start, end, 1)
        elements.append(raw[start:at])
    return elements


def join_array(elements: Iterable[bytes]) -> bytes:
    """Return the raw array of raw elements: the inverse of `split_array`."""
    return b"A" + write_longstr(b"".join(elements))


def join_table(fields: Mapping[str, bytes]) -> bytes:
    """Return the raw table of raw values: the inverse of `split_table`."""
    return write_longstr(b"".join([write_shortstr(name) + raw for name, raw in fields.items()]))


def check_table(data: bytes, at: int, end: int) -> None:
    """Raise AmqpError unless `data[at:end]` is exactly one well-formed raw table."""
    if _skip_table(data, at, end, 0) != end:
        raise syntax_error("octets follow a table")


def read_value(raw: bytes) -> Value:
    """Return the value of a type octet and its content. Raises AmqpError for malformed or additional data."""
    value, stop = _read_value(raw, 0, len(raw), 0)
    if stop != len(raw):
        raise syntax_error("octets follow a field's value")
    return value


def write_value(value: Value) -> bytes:
    """Return type octet and content. Integers are encoded as in RabbitMQ, with 64 bits (l).

    Raises ValueError for values that no field can hold: an integer above 64 bits, a Decimal above 32.
    """
    if isinstance(value, str):
        return b"S" + write_longstr(value.encode("utf-8", "surrogateescape"))
    # Before int, of which bool is a subclass.
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{value} does not fit into 64 bits")
        return _TYPED_INTEGER.pack(b"l", value)
    if value is None:
        return b"V"
    if isinstance(value, dict):
        return b"F" + write_table(value)
    if isinstance(value, list):
        return b"A" + write_longstr(b"".join([write_value(element) for element in value]))
    if isinstance(value, bytes):
        return b"x" + write_longstr(value)
    if isinstance(value, datetime):
        return _write_seconds((value - _EPOCH) // _SECOND)
    if isinstance(value, Timestamp):
        return _write_seconds(value.seconds)
    if isinstance(value, Decimal):
        return _write_decimal(value)
    return _TYPED_DOUBLE.pack(b"d", value)


def _write_seconds(seconds: int) -> bytes:
    if not 0 <= seconds < 1 << 64:
        raise ValueError(f"a timestamp of {seconds} seconds")
    return _TYPED_TIMESTAMP.pack(b"T", seconds)


def _write_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} is not a finite decimal number")
    # Larger scales do not fit anyway: do not compute the digits.
    if not -255 <= exponent <= 10:
        raise ValueError(f"{value} has no scale between 0 and 255")
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    if sign:
        unscaled = -unscaled
    if not -(1 << 31) <= unscaled < 1 << 31:
        raise ValueError(f"the digits of {value} do not fit into 32 bits")
    return _TYPED_DECIMAL.pack(b"D", max(-exponent, 0), unscaled)


def _read_table(data: bytes, at: int, end: int, depth: int) -> tuple[dict[str, Value], int]:
    stop = _container_end(data, at, end, depth)
    at += 4
    table: dict[str, Value] = {}
    while at < stop:
        name, at = read_loose_shortstr(data, at, stop)
        value, at = _read_value(data, at, stop, depth)
        if name not in table:
            table[name] = value
    return table, stop


def _read_array(data: bytes, at: int, end: int, depth: int) -> tuple[list[Value], int]:
    stop = _container_end(data, at, end, depth)
    at += 4
    array: list[Value] = []
    while at < stop:
        value, at = _read_value(data, at, stop, depth)
        array.append(value)
    return array, stop


def _container_end(data: bytes, at: int, end: int, depth: int) -> int:
    if depth > MAX_DEPTH:
        raise syntax_error(f"tables and arrays are nested more than {MAX_DEPTH} deep")
    stop = at + 4 + read_long(data, at, end)
    if stop > end:
        raise syntax_error("a table or array does not fit into what holds it")
    return stop


def _read_value(data: bytes, at: int, end: int, depth: int) -> tuple[Value, int]:
    kind = read_octet(data, at, end)
    at += 1
    size = _FIXED_BYTES.get(kind)
    if size is not None:
        if at + size > end:
            raise syntax_error("a table or array ends before its fields")
        return _read_fixed(data, at, kind), at + size
    if kind == _TABLE:
        return _read_table(data, at, end, depth + 1)
    if kind == _ARRAY:
        return _read_array(data, at, end, depth + 1)
    if kind not in (_STRING, _BINARY):
        raise syntax_error(f"unknown field type {kind:#04x}")
    stop = skip_longstr(data, at, end)
    content = data[at + 4 : stop]
    if kind == _STRING:
        try:
            return content.decode(), stop
        except UnicodeDecodeError:
            return content, stop
    return content, stop


def _read_fixed(data: bytes, at: int, kind: int) -> Value:
    layout = _INTEGERS.get(kind)
    if layout is not None:
        integer: int = layout.unpack_from(data, at)[0]
        return integer
    if kind == _BOOL:
        return data[at] != 0
    layout = _FLOATS.get(kind)
    if layout is not None:
        number: float = layout.unpack_from(data, at)[0]
        return number
    if kind == _TIMESTAMP_KIND:
        seconds: int = _TIMESTAMP.unpack_from(data, at)[0]
        return _EPOCH + timedelta(seconds=seconds) if seconds <= _LAST_DATETIME_S else Timestamp(seconds)
    if kind == _DECIMAL_KIND:
        scale, unscaled = _DECIMAL.unpack_from(data, at)
        return Decimal(unscaled).scaleb(-scale)
    return None


def _skip_table(data: bytes, at: int, end: int, depth: int) -> int:
    stop = _container_end(data, at, end, depth)
    at += 4
    while at < stop:
        at = _skip_value(data, skip_shortstr(data, at, stop), stop, depth)
    return stop


def _skip_value(data: bytes, at: int, end: int, depth: int) -> int:
    """Return the end of the value whose type octet is at `at`. Raises AmqpError if it is malformed."""
    kind = read_octet(data, at, end)
    at += 1
    if kind in (_STRING, _BINARY):
        return skip_longstr(data, at, end)
    size = _FIXED_BYTES.get(kind)
    if size is not None:
        if at + size > end:
            raise syntax_error("a table or array ends before its fields")
        return at + size
    if kind == _TABLE:
        return _skip_table(data, at, end, depth + 1)
    if kind != _ARRAY:
        raise syntax_error(f"unknown field type {kind:#04x}")
    stop = _container_end(data, at, end, depth + 1)
    at += 4
    while at < stop:
        at = _skip_value(data, at, stop, depth + 1)
    return stop
