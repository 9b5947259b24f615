"""Drafts and received messages: how they go onto the wire and come from it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from flyball.broker.wire.telesto import Record, WireMessage
from flyball.errors import InvalidBody
from tests.telesto_client import Draft, InvalidValue, NotSupported
from tests.telesto_client.messages import (
    body_bytes,
    check_int,
    check_seconds,
    from_plain,
    from_record,
    to_plain,
    to_wire,
)


def test_a_draft_without_anything_else_is_a_body_for_anyone_that_lasts() -> None:
    wire = to_wire(Draft("é"))
    assert (wire.body, wire.receiver, wire.context, wire.priority) == ("é".encode(), 0, 0, 0)
    assert (wire.persistent, wire.ttl_ms, wire.properties) == (True, 0, b"")


def test_the_shortest_time_to_live_is_a_millisecond() -> None:
    assert to_wire(Draft("x", ttl_s=1e-9)).ttl_ms == 1
    assert to_wire(Draft("x", ttl_s=1.5)).ttl_ms == 1500


def test_a_plain_message_carries_what_telesto_has() -> None:
    message = to_plain(Draft(b"text", receiver=3, context=4, priority=-128), 7)
    assert message == WireMessage(0, 7, 0, 3, 4, -128, 0, "text")


@pytest.mark.parametrize("draft", [Draft("x", ttl_s=1), Draft(b"\xff"), Draft("x", properties=b"p")])
def test_a_plain_message_with_more_is_not_supported(draft: Draft) -> None:
    with pytest.raises(NotSupported):
        to_plain(draft, 1)


def test_zeros_of_the_wire_are_none_and_times_are_utc() -> None:
    message = from_record(Record(5, 6, 0, 0, 0, -1, 1_500_000, False, True, 2, b"p", b"body"))
    assert (message.sender, message.receiver, message.context) == (None, None, None)
    assert message.arrived == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert (message.persistent, message.redelivered, message.delivery_count) == (False, True, 2)
    plain = from_plain(WireMessage(5, 6, 1, 2, 3, 4, 1500, "é"))
    assert (plain.arrived_us, plain.body, plain.text) == (1_500_000, "é".encode(), "é")


def test_bodies_may_be_any_kind_of_bytes() -> None:
    assert body_bytes(bytearray(b"x")) == body_bytes(memoryview(b"x")) == b"x"  # type: ignore[arg-type]
    with pytest.raises(InvalidBody, match="not list"):
        body_bytes([1])  # type: ignore[arg-type]


def test_numbers_are_checked_with_their_names() -> None:
    with pytest.raises(InvalidValue, match="priority lies between -1 and 1; 2 does not"):
        check_int("priority", 2, -1, 1)
    with pytest.raises(InvalidValue, match="priority is a whole number"):
        check_int("priority", 0.5, -1, 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="wait_s is a number of seconds"):
        check_seconds("wait_s", "long", 1)  # type: ignore[arg-type]
