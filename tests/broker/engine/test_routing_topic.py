"""Topic exchanges: what patterns fit, against a matcher too simple to be wrong."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.broker.engine.routing.tables import Headers, Targets
from flyball.broker.engine.routing.topic import TopicTable
from flyball.errors import RoutingTooCostly
from flyball.model import Binding


def fits(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return fits(pattern[1:], words) or (bool(words) and fits(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and fits(pattern[1:], words[1:])


def split(key: str) -> list[str]:
    return key.split(".") if key else []


def a_table(patterns: list[str]) -> TopicTable:
    table = TopicTable()
    for pattern in patterns:
        table.add(Binding("x", pattern, routing_key=pattern))
    return table


def found(table: TopicTable, key: str) -> list[str]:
    return [name for targets in table.match(key, Headers(dict)) for name in targets.queues]


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("a.b", ["a.b"], ["", "a", "b", "a.b.c", "a..b", "a.b."]),
        ("a.*", ["a.b", "a.", "a.*", "a.#"], ["a", "a.b.c", ""]),
        ("*", ["a", "*", "#"], ["", "a.b", "."]),
        ("#", ["", "a", "a.b", ".", "a..b"], []),
        ("", [""], ["a", "."]),
        ("a.#", ["a", "a.b", "a.b.c", "a."], ["", "b", "b.a"]),
        ("#.a", ["a", "b.a", ".a"], ["", "a.b", "a."]),
        ("#.a.#", ["a", "b.a", "a.b", "b.a.b"], ["", "b", "b.b"]),
        ("*.#", ["a", "a.b", "."], [""]),
        ("#.*.#.*", ["a.b", "a.b.c"], ["", "a"]),
        ("#.#", ["", "a", "a.b"], []),
        ("a.*.b", ["a..b", "a.c.b"], ["a.b", "a.c.c.b"]),
        ("a*", ["a*"], ["ab", "a"]),
        ("a#.b", ["a#.b"], ["a.b", "b"]),
    ],
)
def test_a_pattern_fits_what_rabbitmq_says(pattern: str, fitting: list[str], others: list[str]) -> None:
    table = a_table([pattern])
    assert [key for key in fitting + others if found(table, key)] == fitting


words = st.sampled_from(["a", "b", "c", ""])
keys = st.lists(words, max_size=7).map(".".join)
patterns = st.lists(words | st.sampled_from(["*", "#"]), max_size=7).map(".".join)


@given(st.lists(patterns, max_size=25, unique=True), st.lists(keys, max_size=10))
def test_a_message_finds_every_pattern_that_fits_and_each_once(bound: list[str], published: list[str]) -> None:
    table = a_table(bound)
    for key in published:
        expected = [pattern for pattern in bound if fits(split(pattern), split(key))]
        assert sorted(found(table, key)) == sorted(expected)


@given(st.lists(patterns, max_size=25, unique=True), st.data(), st.lists(keys, max_size=10))
def test_a_pattern_that_was_removed_leaves_nothing_behind(
    bound: list[str], data: st.DataObject, published: list[str]
) -> None:
    table = a_table(bound)
    gone = data.draw(st.lists(st.sampled_from(bound), unique=True)) if bound else []
    for pattern in gone:
        table.remove(Binding("x", pattern, routing_key=pattern))
    for key in published:
        expected = [pattern for pattern in bound if pattern not in gone and fits(split(pattern), split(key))]
        assert sorted(found(table, key)) == sorted(expected)
    for pattern in set(bound) - set(gone):
        table.remove(Binding("x", pattern, routing_key=pattern))
    assert table._root.empty


def test_targets_that_are_found_are_never_empty() -> None:
    table = a_table(["a.b.c"])
    assert table.match("a.b", Headers(dict)) == []
    assert all(isinstance(targets, Targets) and not targets.empty for targets in table.match("a.b.c", Headers(dict)))


def test_message_whose_keys_meet_too_many_places_is_refused() -> None:
    patterns = [".".join(words) for words in itertools.product("#*a", repeat=6)]
    table = a_table([pattern + ".z" for pattern in patterns])
    key = ".".join(["a"] * 100)
    headers = Headers(dict)

    def route_all() -> None:
        for _ in range(600):
            table.match(key, headers)

    with pytest.raises(RoutingTooCostly):
        route_all()
