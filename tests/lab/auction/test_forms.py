"""Reading what visitors type."""

from __future__ import annotations

from decimal import Decimal

import pytest

from flyball.lab.auction.forms import BadForm, Fields


def test_spaces_around_what_was_typed_do_not_count() -> None:
    assert Fields({"name": "  a lamp "}).text("name") == "a lamp"


@pytest.mark.parametrize("value", ["", "   ", "x" * 101, "a\0b"])
def test_text_has_to_be_there_and_short_and_storable(value: str) -> None:
    with pytest.raises(BadForm):
        Fields({"name": value}).text("name")


def test_the_message_names_the_field_as_the_form_does() -> None:
    with pytest.raises(BadForm, match=r"Please fill in: first name\."):
        Fields({}).text("first_name")


@pytest.mark.parametrize("value", ["", "1.5", "0", "11", "-1", "+3", "1_0", "٣", "99999999999999"])
def test_numbers_are_whole_and_within_their_limits(value: str) -> None:
    with pytest.raises(BadForm):
        Fields({"quantity": value}).number("quantity", 1, 10)


def test_numbers_may_be_negative_where_the_limits_allow_it() -> None:
    assert Fields({"rating": "-5"}).number("rating", -5, 5) == -5


@pytest.mark.parametrize("value", ["", "0", "0.00", "-3", "1.234", "1,5", "NaN", "Infinity", "1e3", "99999999999"])
def test_prices_are_amounts_of_money(value: str) -> None:
    with pytest.raises(BadForm):
        Fields({"price": value}).price("price")


def test_a_price_keeps_its_cents() -> None:
    assert Fields({"price": "12.50"}).price("price") == Decimal("12.50")
