"""The cost of routing in calls, not in time: how it grows with the number of bindings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flyball.broker.engine.routing import Router
from flyball.model import Binding, Destination, Exchange
from tests.broker.engine.test_complexity import calls_of, interpreted

FEW, MANY = 10, 10_000

Fill = Callable[[int], Router]


def a_direct_exchange(count: int) -> Router:
    router = Router("/")
    for number in range(count):
        router.bind(Binding("amq.direct", f"q{number}", routing_key=f"{number}.b.c"))
    return router


def a_topic_exchange(count: int) -> Router:
    router = Router("/")
    for number in range(count):
        router.bind(Binding("amq.topic", f"q{number}", routing_key=f"{number}.*.#"))
        router.bind(Binding("amq.topic", f"q{number}", routing_key=f"{number}.b.{number}"))
    return router


def a_chain_through_other_exchanges(count: int) -> Router:
    router = a_topic_exchange(count)
    router.declare(Exchange("x", "direct", arguments={"alternate-exchange": "y"}))
    router.declare(Exchange("y", "fanout"))
    router.bind(Binding("y", "amq.topic", Destination.EXCHANGE))
    for number in range(count):
        router.bind(Binding("x", f"q{number}", routing_key=f"other {number}"))
    return router


@interpreted
@pytest.mark.parametrize(
    ("fill", "exchange_name"),
    [(a_direct_exchange, "amq.direct"), (a_topic_exchange, "amq.topic"), (a_chain_through_other_exchanges, "x")],
)
def test_a_message_costs_as_many_calls_with_many_bindings_as_with_few(fill: Fill, exchange_name: str) -> None:
    costs = []
    for count in (FEW, MANY):
        router = fill(count)

        def route(router: Router = router) -> None:
            assert router.route(exchange_name, "7.b.c", dict) == ["q7"]

        costs.append(calls_of(route))
    assert costs[0] == costs[1]


@interpreted
@pytest.mark.parametrize("fill", [a_direct_exchange, a_topic_exchange, a_chain_through_other_exchanges])
def test_cost_of_binding_is_independent_of_the_number_of_bindings(fill: Fill) -> None:
    costs = []
    for count in (FEW, MANY):
        router = fill(count)

        def change(router: Router = router) -> None:
            for source in ("amq.direct", "amq.topic", "amq.headers"):
                for queue_name in ("q7", "new"):
                    binding = Binding(source, queue_name, routing_key="7.new.#", arguments={"a": 1})
                    router.bind(binding)
                    router.unbind(binding)
            router.drop_queue("q7")

        costs.append(calls_of(change))
    assert costs[0] == costs[1]


@interpreted
def test_patterns_with_many_wildcards_do_not_multiply() -> None:
    costs = []
    for wildcards in (5, 40):
        router = Router("/")
        router.bind(Binding("amq.topic", "q", routing_key="#.a." * wildcards + "b"))
        router.bind(Binding("amq.topic", "q", routing_key="#.*." * wildcards + "b"))
        key = ".".join(["a"] * 120)
        costs.append(calls_of(lambda router=router, key=key: router.route("amq.topic", key, dict)))  # type: ignore[misc]
    assert costs[1] < 10 * costs[0]


@interpreted
def test_a_headers_exchange_asks_equal_bindings_once() -> None:
    costs = []
    for count in (FEW, MANY):
        router = Router("/")
        for number in range(count):
            router.bind(Binding("amq.headers", f"q{number}", arguments={"colour": "red"}))

        def route(router: Router = router, count: int = count) -> None:
            assert len(router.route("amq.headers", "", lambda: {"colour": "red"})) == count

        costs.append(calls_of(route))
    assert costs[0] == costs[1]


@interpreted
def test_asking_again_whether_an_exchange_is_plain_costs_nothing() -> None:
    costs = []
    for count in (FEW, MANY):
        router = a_chain_through_other_exchanges(count)
        assert router.is_plain("x")
        costs.append(calls_of(lambda router=router: router.is_plain("x")))  # type: ignore[misc]
    assert costs[0] == costs[1]
