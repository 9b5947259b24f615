"""The effects of a queue's arguments, and which of them are refused."""

from __future__ import annotations

from typing import Any

import pytest

from flyball.broker.engine.traits import MAX_MS, Traits, check_alike, check_declaration, usable
from flyball.errors import InvalidArgument, UnlikeDeclared
from flyball.model import Queue


def queue(**arguments: Any) -> Queue:
    return Queue(1, "orders", arguments={f"x-{name.replace('_', '-')}": value for name, value in arguments.items()})


@pytest.mark.parametrize("name", ["dead_letter_exchange", "dead_letter_routing_key"])
@pytest.mark.parametrize("letter", ["k", "ä"])
def test_names_for_dead_letters_have_up_to_255_bytes(name: str, letter: str) -> None:
    longest = letter * (255 // len(letter.encode()))
    check_declaration(queue(**{"dead_letter_exchange": "dead", name: longest}))
    with pytest.raises(InvalidArgument, match="longer than 255 bytes"):
        check_declaration(queue(**{"dead_letter_exchange": "dead", name: longest + letter}))


@pytest.mark.parametrize("value", [["classic"], {"a": 1}, None, 5, b"\xff", True])
def test_a_queue_type_that_is_no_text_is_unlike_the_one_declared(value: object) -> None:
    with pytest.raises(UnlikeDeclared):
        check_alike(queue(), queue(queue_type=value))


def test_a_whole_number_is_unlike_the_same_fraction() -> None:
    with pytest.raises(UnlikeDeclared):
        check_alike(queue(message_ttl=10), queue(message_ttl=10.0))
    check_alike(queue(message_ttl=10), queue(message_ttl=10))


def test_stored_arguments_of_the_wrong_type_are_left_out() -> None:
    stored = queue(message_ttl="soon", max_length=[1], expires=MAX_MS + 1, overflow="never", dead_letter_exchange="x")
    traits = Traits.of({name.removeprefix("x-"): value for name, value in usable(stored.arguments).items()})
    assert traits == Traits(dead_letter_exchange="x")


def test_a_stored_name_that_is_too_long_stays_and_parks_its_dead_letters() -> None:
    stored = queue(dead_letter_exchange="", dead_letter_routing_key="k" * 300)
    assert usable(stored.arguments) == stored.arguments
