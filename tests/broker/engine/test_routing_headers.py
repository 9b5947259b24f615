"""Headers exchanges: which headers fit the arguments of a binding, against a matcher too simple to be wrong."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.broker.engine.routing import Router
from flyball.errors import InvalidArgument
from flyball.model import Arguments, Binding


def arrives(arguments: Arguments, headers: Arguments) -> bool:
    router = Router("/")
    router.bind(Binding("amq.headers", "q", arguments=arguments))
    return router.route("amq.headers", "", lambda: headers) == ["q"]


RED, BIG = {"colour": "red"}, {"size": 10}


@pytest.mark.parametrize("extra", [{}, {"x-match": "all"}, {"x-match": "all-with-x"}])
def test_all_headers_of_the_binding_must_be_there(extra: Arguments) -> None:
    arguments = {**RED, **BIG, **extra}
    assert arrives(arguments, {**RED, **BIG, "more": 1})
    assert not arrives(arguments, RED)
    assert not arrives(arguments, {**RED, "size": 11})
    assert not arrives(arguments, {})


@pytest.mark.parametrize("match", ["any", "any-with-x"])
def test_any_header_of_the_binding_is_enough(match: str) -> None:
    arguments = {**RED, **BIG, "x-match": match}
    assert arrives(arguments, RED)
    assert arrives(arguments, {"colour": "blue", **BIG})
    assert not arrives(arguments, {"colour": "blue"})
    assert not arrives(arguments, {})


def test_a_binding_that_asks_for_nothing_fits_with_all_and_not_with_any() -> None:
    for headers in ({}, RED):
        assert arrives({}, headers)
        assert arrives({"x-match": "all-with-x"}, headers)
        assert arrives({"x-match": "all", "x-other": 1}, headers)
        assert not arrives({"x-match": "any"}, headers)
        assert not arrives({"x-match": "any", "x-other": 1}, {**headers, "x-other": 1})


def test_headers_that_begin_with_x_count_only_in_the_variants_with_x() -> None:
    arguments = {"x-origin": "here", **RED}
    assert arrives({"x-match": "all", **arguments}, RED)
    assert not arrives({"x-match": "all-with-x", **arguments}, RED)
    assert arrives({"x-match": "all-with-x", **arguments}, {"x-origin": "here", **RED})
    assert not arrives({"x-match": "any", **arguments}, {"x-origin": "here"})
    assert arrives({"x-match": "any-with-x", **arguments}, {"x-origin": "here"})


def test_x_match_itself_is_never_a_header_to_look_for() -> None:
    assert not arrives({"x-match": "any-with-x"}, {"x-match": "any-with-x"})
    assert arrives({"x-match": "all-with-x"}, {"x-match": "any"})


def test_an_argument_without_value_asks_for_the_presence_of_a_header() -> None:
    assert arrives({"colour": None}, {"colour": "red"})
    assert arrives({"colour": None}, {"colour": None})
    assert not arrives({"colour": None}, {"size": 1})
    assert not arrives({"colour": "red"}, {"colour": None})


@pytest.mark.parametrize(
    ("wanted", "same", "others"),
    [
        (1, [1, 1.0], [True, "1", 2, b"1", Decimal(1), [1]]),
        (2.5, [2.5], ["2.5", Decimal("2.5"), 2]),
        (True, [True], [1, 1.0, "true", False]),
        (False, [False], [0, "", None]),
        ("red", ["red", b"red"], ["Red", "", ["red"]]),
        (b"\xff", [b"\xff", "\udcff"], ["\xff"]),
        (Decimal("1.5"), [Decimal("1.5")], [1.5, "1.5"]),
        ([1, "a"], [[1, "a"]], [["a", 1], [True, "a"], [1.0, "a"], [1], "a"]),
        ({"a": 1, "b": [None]}, [{"b": [None], "a": 1}], [{"a": True, "b": [None]}, {"a": 1}, [1]]),
    ],
)
def test_values_compare_as_their_types_do(wanted: object, same: list[object], others: list[object]) -> None:
    assert [value for value in same + others if arrives({"h": wanted}, {"h": value})] == same


def test_the_routing_key_does_not_matter() -> None:
    router = Router("/")
    router.bind(Binding("amq.headers", "q", routing_key="k", arguments=RED))
    assert router.route("amq.headers", "other", lambda: RED) == ["q"]


@pytest.mark.parametrize(
    ("match", "refusal"),
    [
        ("some", 'Invalid x-match field value <<"some">>; expected all, any, all-with-x, or any-with-x'),
        (True, "Invalid x-match field type bool (value true); expected longstr"),
        (3, "Invalid x-match field type signedint (value 3); expected longstr"),
        (None, "Invalid x-match field type void (value undefined); expected longstr"),
    ],
)
def test_a_wrong_x_match_is_refused_by_a_headers_exchange_only(match: object, refusal: str) -> None:
    router = Router("/")
    with pytest.raises(InvalidArgument) as refused:
        router.bind(Binding("amq.headers", "q", arguments={"x-match": match}))
    assert str(refused.value) == refusal
    assert router.bind(Binding("amq.topic", "q", arguments={"x-match": match}))


names = st.sampled_from(["a", "b", "c", "x-a", "x-b"])
values = st.sampled_from([None, True, 1, 1.0, 2, "1", "2"])
tables = st.dictionaries(names, values, max_size=4)
matches = st.sampled_from([{}, *({"x-match": kind} for kind in ("all", "any", "all-with-x", "any-with-x"))])


def same(wanted: Any, value: Any) -> bool:
    return wanted is None or ((type(wanted) is bool) == (type(value) is bool) and wanted == value)


def fits(arguments: Arguments, headers: Arguments) -> bool:
    kind = arguments.get("x-match", "all")
    tests = [
        name in headers and same(value, headers[name])
        for name, value in arguments.items()
        if name != "x-match" and (kind.endswith("-with-x") or not name.startswith("x-"))
    ]
    return all(tests) if kind.startswith("all") else any(tests)


@given(st.lists(st.tuples(matches, tables), max_size=8), tables)
def test_a_message_reaches_every_queue_whose_binding_fits(
    bound: list[tuple[Arguments, Arguments]], headers: Arguments
) -> None:
    router = Router("/")
    expected = []
    for number, (match, table) in enumerate(bound):
        arguments = {**table, **match}
        router.bind(Binding("amq.headers", f"q{number}", arguments=arguments))
        if fits(arguments, headers):
            expected.append(f"q{number}")
    assert sorted(router.route("amq.headers", "", lambda: headers)) == expected
    for binding in router.bindings():
        router.unbind(binding)
    assert router.is_plain("amq.headers")
