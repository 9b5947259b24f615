"""Names and arguments survive the columns of PostgreSQL, whatever a peer put into them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.broker.store.postgres.values import from_json, from_text, to_json, to_text

TEXT = st.text(st.characters(exclude_categories=()) | st.sampled_from(["\0", "\\", "$", "\ud800", "\udc80"]))
KEYS = TEXT | st.sampled_from(["$bytes", "$float", "$", "\\0024bytes", "\\0000"])

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False)
    | TEXT
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.just(UTC)).map(lambda time: time.replace(fold=0)),
    lambda values: st.lists(values) | st.dictionaries(KEYS, values),
    max_leaves=20,
)


def types_in(value: object) -> object:
    if isinstance(value, dict):
        return {key: types_in(element) for key, element in value.items()}
    if isinstance(value, list):
        return [types_in(element) for element in value]
    return type(value), repr(value)


@given(st.dictionaries(KEYS, VALUES))
def test_every_argument_comes_back_with_its_type(arguments: dict[str, object]) -> None:
    stored = to_json(arguments)
    stored.encode()  # fails for invalid Unicode
    assert "\\u0000" not in stored
    found = from_json(stored)
    assert found == arguments
    assert types_in(found) == types_in(arguments)


@given(TEXT)
def test_every_text_comes_back_and_ordinary_text_is_stored_as_it_is(text: str) -> None:
    stored = to_text(text)
    assert "\0" not in stored.encode().decode()
    assert from_text(stored) == text
    if not set(text) & {"\\", "\0"} and text.isascii():
        assert stored == text


def test_what_json_can_say_is_stored_as_json() -> None:
    arguments = {"x-max-length": 5, "x-queue-type": "classic", "deep": {"list": [None, True, "\N{SNOWMAN}"]}}
    assert json.loads(to_json(arguments)) == arguments


def test_numbers_that_are_none_and_times_of_other_places_come_back() -> None:
    there = datetime(2024, 2, 29, 12, tzinfo=timezone(timedelta(hours=-3)))
    found = from_json(to_json({"float": float("nan"), "decimal": Decimal("NaN"), "there": there, "pair": (1, 2)}))
    assert found["float"] != found["float"]
    assert found["decimal"].is_nan()
    assert (found["there"], found["there"].utcoffset(), found["pair"]) == (there, there.utcoffset(), [1, 2])


def test_a_type_that_no_field_table_has_is_refused() -> None:
    with pytest.raises(TypeError, match="set"):
        to_json({"x": {1, 2}})
