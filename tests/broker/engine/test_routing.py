"""The exchanges and bindings of a virtual host: what may be declared, what goes, and where messages go."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from flyball.broker.engine.routing import Removal, Router
from flyball.broker.engine.routing.values import frozen
from flyball.errors import (
    ExchangeInUse,
    ExchangeNotFound,
    InvalidArgument,
    ReservedName,
    UnknownExchangeType,
    UnlikeDeclared,
)
from flyball.model import Arguments, Binding, Destination, Exchange


def no_headers() -> Mapping[str, Any]:
    return {}


def unasked_headers() -> Mapping[str, Any]:
    raise AssertionError("the headers were decoded")


def to_queue(source: str, queue_name: str, routing_key: str = "", arguments: Arguments | None = None) -> Binding:
    return Binding(source, queue_name, Destination.QUEUE, routing_key, arguments or {})


def to_exchange(source: str, destination: str, routing_key: str = "") -> Binding:
    return Binding(source, destination, Destination.EXCHANGE, routing_key)


def a_router(*exchanges: Exchange) -> Router:
    router = Router("/")
    for exchange in exchanges:
        router.declare(exchange)
    return router


def with_alternate(name: str, kind: str, alternate: str) -> Exchange:
    return Exchange(name, kind, arguments={"alternate-exchange": alternate})


def names(removal: Removal) -> tuple[list[str], list[tuple[str, str]]]:
    return (
        [exchange.name for exchange in removal.exchanges],
        [(binding.source, binding.destination) for binding in removal.bindings],
    )


# Declaring


def test_a_new_virtual_host_has_the_exchanges_that_clients_expect() -> None:
    found = {exchange.name: (exchange.type, exchange.internal) for exchange in Router("/").exchanges}
    assert found == {
        "": ("direct", False),
        "amq.direct": ("direct", False),
        "amq.fanout": ("fanout", False),
        "amq.topic": ("topic", False),
        "amq.headers": ("headers", False),
        "amq.match": ("headers", False),
        "amq.rabbitmq.trace": ("topic", True),
    }
    assert all(exchange.durable for exchange in Router("/").exchanges)


def test_a_declared_exchange_is_found_under_its_name() -> None:
    exchange = Exchange("logs", "fanout")
    router = Router("/")
    assert router.find("logs") is None
    assert router.declare(exchange) is True
    assert router.find("logs") is exchange
    assert router.get("logs") is exchange


def test_a_missing_exchange_is_named_with_its_virtual_host() -> None:
    with pytest.raises(ExchangeNotFound, match=r"^no exchange 'logs' in vhost 'orders'$"):
        Router("orders").get("logs")


def test_the_same_declaration_again_changes_nothing() -> None:
    router = a_router(Exchange("logs", "fanout"))
    version = router.version
    assert router.declare(Exchange("logs", "fanout", arguments={"anything": "else"})) is False
    assert router.declare(Exchange("amq.topic", "topic")) is False
    assert router.version == version


@pytest.mark.parametrize(
    ("again", "difference"),
    [
        (Exchange("x", "fanout"), "'type' for exchange 'x' in vhost '/': received 'fanout' but current is 'direct'"),
        (
            Exchange("x", "direct", durable=False),
            "'durable' for exchange 'x' in vhost '/': received 'false' but current is 'true'",
        ),
        (
            Exchange("x", "direct", auto_delete=True),
            "'auto_delete' for exchange 'x' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            Exchange("x", "direct", internal=True),
            "'internal' for exchange 'x' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            Exchange("x", "direct", arguments={"alternate-exchange": "y"}),
            "'alternate-exchange' for exchange 'x' in vhost '/': "
            "received the value 'y' of type 'longstr' but current is none",
        ),
        (
            Exchange("x", "direct", arguments={"alternate-exchange": 5}),
            "'alternate-exchange' for exchange 'x' in vhost '/': "
            "received the value '5' of type 'signedint' but current is none",
        ),
    ],
)
def test_a_declaration_that_differs_is_refused_in_the_words_of_rabbitmq(again: Exchange, difference: str) -> None:
    router = a_router(Exchange("x", "direct"))
    with pytest.raises(UnlikeDeclared) as refused:
        router.declare(again)
    assert str(refused.value) == f"inequivalent arg {difference}"


@pytest.mark.parametrize(
    ("arguments", "difference"),
    [
        ({"alternate-exchange": "z"}, "received 'z' but current is 'y'"),
        ({"alternate-exchange": True}, "received 'true' but current is 'y'"),
        ({"alternate-exchange": b"z"}, "received 'z' but current is 'y'"),
        ({"alternate-exchange": 7}, "received '7' but current is 'y'"),
        ({"alternate-exchange": ["z"]}, "received '[{longstr,<<\"z\">>}]' but current is 'y'"),
        ({"alternate-exchange": {"z": 1}}, "received '[{<<\"z\">>,signedint,1}]' but current is 'y'"),
        ({}, "received none but current is the value 'y' of type 'longstr'"),
    ],
)
def test_another_alternate_exchange_is_a_difference(arguments: Arguments, difference: str) -> None:
    router = a_router(with_alternate("x", "direct", "y"))
    with pytest.raises(UnlikeDeclared) as refused:
        router.declare(Exchange("x", "direct", arguments=arguments))
    assert str(refused.value).endswith(f"'alternate-exchange' for exchange 'x' in vhost '/': {difference}")
    assert router.declare(with_alternate("x", "direct", "y")) is False


def test_an_exchange_that_is_replaced_keeps_its_bindings_in_both_directions() -> None:
    router = a_router(Exchange("x", "direct"), Exchange("above", "fanout"))
    for binding in (to_queue("x", "a", "one"), to_queue("x", "b", "two"), to_exchange("above", "x")):
        router.bind(binding)
    router.replace(Exchange("x", "fanout", durable=False))
    assert router.get("x") == Exchange("x", "fanout", durable=False)
    assert sorted(router.route("above", "one", unasked_headers)) == ["a", "b"]
    router.replace(Exchange("x", "direct"))
    assert router.route("above", "two", unasked_headers) == ["b"]
    router.unbind(to_queue("x", "b", "two"))
    assert router.route("x", "two", unasked_headers) == []


def test_an_unknown_type_is_refused_before_anything_else_is_looked_at() -> None:
    router = a_router(Exchange("x", "direct"))
    for name in ("new", "x", "", "amq.new"):
        with pytest.raises(UnknownExchangeType, match=r"^unknown exchange type 'x-random'$"):
            router.declare(Exchange(name, "x-random"))


def test_names_of_the_broker_cannot_be_declared_anew() -> None:
    router = Router("/")
    with pytest.raises(ReservedName, match=r"^exchange name 'amq.mine' contains reserved prefix 'amq.\*'$"):
        router.declare(Exchange("amq.mine", "direct"))
    with pytest.raises(ReservedName, match=r"^operation not permitted on the default exchange$"):
        router.declare(Exchange("", "direct"))


@pytest.mark.parametrize(
    ("value", "type_name"),
    [
        (5, "signedint"),
        (1 << 40, "long"),
        (None, "void"),
        (True, "bool"),
        (1.5, "double"),
        (b"y", "binary"),
        ([1], "array"),
        ({}, "table"),
    ],
)
def test_an_alternate_exchange_must_be_a_string(value: object, type_name: str) -> None:
    router = Router("/")
    with pytest.raises(InvalidArgument) as refused:
        router.declare(Exchange("x", "direct", arguments={"alternate-exchange": value}))
    assert (
        str(refused.value) == f"invalid type '{type_name}' for arg 'alternate-exchange' in exchange 'x' in vhost '/'"
    )
    assert router.find("x") is None


# Binding


def test_a_binding_is_new_once() -> None:
    router = Router("/")
    assert router.bind(to_queue("amq.direct", "q", "k")) is True
    version = router.version
    assert router.bind(to_queue("amq.direct", "q", "k")) is False
    assert router.version == version
    assert router.bindings() == [to_queue("amq.direct", "q", "k")]


@pytest.mark.parametrize(
    "other",
    [
        to_queue("amq.fanout", "q", "k", {"a": 1}),
        to_queue("amq.direct", "p", "k", {"a": 1}),
        to_exchange("amq.direct", "q", "k"),
        to_queue("amq.direct", "q", "j", {"a": 1}),
        to_queue("amq.direct", "q", "k", {"a": 2}),
        to_queue("amq.direct", "q", "k", {"a": True}),
        to_queue("amq.direct", "q", "k", {"a": 1.0}),
        to_queue("amq.direct", "q", "k", {"a": [1]}),
        to_queue("amq.direct", "q", "k", {"a": {"a": 1}}),
        to_queue("amq.direct", "q", "k", {"b": 1}),
        to_queue("amq.direct", "q", "k"),
    ],
)
def test_bindings_that_differ_in_anything_are_two(other: Binding) -> None:
    router = a_router(Exchange("q", "fanout"))
    router.bind(to_queue("amq.direct", "q", "k", {"a": 1}))
    assert router.bind(other) is True
    assert router.unbind(other).bindings == [other]
    assert router.bindings() == [to_queue("amq.direct", "q", "k", {"a": 1})]


def test_the_order_of_arguments_makes_no_other_binding() -> None:
    router = Router("/")
    router.bind(to_queue("amq.direct", "q", "k", {"a": [{"b": 1, "c": 2}], "d": None}))
    assert router.bind(to_queue("amq.direct", "q", "k", {"d": None, "a": [{"c": 2, "b": 1}]})) is False


def test_bindings_are_listed_by_source_and_by_destination() -> None:
    router = a_router(Exchange("x", "fanout"), Exchange("y", "fanout"))
    first, second = to_queue("x", "q", "1"), to_queue("y", "q", "2")
    third, fourth = to_exchange("x", "y"), to_queue("x", "y")
    for binding in (first, second, third, fourth):
        router.bind(binding)
    assert router.bindings() == [first, third, fourth, second]
    assert router.bindings(source="x") == [first, third, fourth]
    assert router.bindings(destination="q") == [first, second]
    assert router.bindings(destination="y", kind=Destination.EXCHANGE) == [third]
    assert router.bindings(source="x", destination="y") == [fourth]
    assert router.bindings(source="none") == router.bindings(destination="none") == []
    assert router.bindings(destination="none", kind=Destination.EXCHANGE) == []


def test_both_ends_of_a_binding_must_exist_and_the_source_is_asked_for_first() -> None:
    router = a_router(Exchange("x", "fanout"))
    with pytest.raises(ExchangeNotFound, match="'none'"):
        router.bind(to_queue("none", "q"))
    with pytest.raises(ExchangeNotFound, match="'none'"):
        router.bind(to_exchange("x", "none"))
    with pytest.raises(ExchangeNotFound, match="'source'"):
        router.bind(to_exchange("source", "none"))
    assert router.bindings() == []


def test_the_default_exchange_can_neither_be_bound_nor_unbound() -> None:
    router = a_router(Exchange("x", "fanout"))
    for binding in (to_queue("", "q", "k"), to_exchange("", "x"), to_exchange("x", "")):
        for change in (router.bind, router.unbind):
            with pytest.raises(ReservedName, match=r"^operation not permitted on the default exchange$"):
                change(binding)


def test_unbinding_what_is_not_bound_is_no_error() -> None:
    router = a_router(Exchange("x", "fanout", auto_delete=True))
    version = router.version
    for binding in (to_queue("x", "q"), to_queue("none", "q"), to_exchange("x", "none")):
        assert names(router.unbind(binding)) == ([], [])
    assert router.version == version


# Deleting


def test_a_deleted_exchange_takes_its_bindings_in_both_directions_along() -> None:
    router = a_router(Exchange("x", "fanout"), Exchange("y", "fanout"), Exchange("z", "fanout"))
    for binding in (to_exchange("x", "y"), to_exchange("y", "z"), to_queue("y", "q"), to_queue("x", "q")):
        router.bind(binding)
    assert names(router.delete("y")) == (["y"], [("y", "z"), ("y", "q"), ("x", "y")])
    assert router.find("y") is None
    assert router.bindings() == router.bindings(destination="q") == [to_queue("x", "q")]
    router.declare(Exchange("y", "fanout"))
    assert router.route("y", "", no_headers) == []


def test_deleting_a_missing_exchange_is_no_error() -> None:
    assert names(Router("/").delete("none", if_unused=True)) == ([], [])


def test_exchanges_of_the_broker_stay() -> None:
    router = Router("/")
    with pytest.raises(ReservedName, match=r"^operation not permitted on the default exchange$"):
        router.delete("")
    for name in ("amq.direct", "amq.none"):
        with pytest.raises(ReservedName, match=f"^deletion of system exchange '{name}' in vhost '/' not allowed$"):
            router.delete(name)


def test_an_exchange_is_in_use_while_bindings_lead_away_from_it() -> None:
    router = a_router(Exchange("x", "fanout"), Exchange("y", "fanout"))
    router.bind(to_exchange("x", "y"))
    with pytest.raises(ExchangeInUse, match=r"^exchange 'x' in vhost '/' in use$"):
        router.delete("x", if_unused=True)
    assert names(router.delete("y", if_unused=True)) == (["y"], [("x", "y")])
    assert names(router.delete("x", if_unused=True)) == (["x"], [])


def test_an_exchange_that_is_bound_to_itself_can_be_deleted() -> None:
    router = a_router(Exchange("x", "fanout", auto_delete=True))
    router.bind(to_exchange("x", "x"))
    assert names(router.delete("x")) == (["x"], [("x", "x")])


def test_auto_delete_exchange_is_deleted_with_its_last_binding() -> None:
    router = a_router(Exchange("x", "fanout", auto_delete=True), Exchange("y", "fanout"))
    router.bind(to_exchange("y", "x"))
    assert names(router.unbind(to_exchange("y", "x"))) == ([], [("y", "x")])
    router.bind(to_queue("x", "q"))
    router.bind(to_queue("x", "p"))
    assert names(router.unbind(to_queue("x", "q"))) == ([], [("x", "q")])
    assert names(router.unbind(to_queue("x", "p"))) == (["x"], [("x", "p")])


def test_a_queue_that_goes_takes_its_bindings_and_idle_exchanges_along() -> None:
    router = a_router(
        Exchange("x", "direct", auto_delete=True), Exchange("y", "topic", auto_delete=True), Exchange("z", "fanout")
    )
    for binding in (to_queue("x", "q", "1"), to_queue("x", "q", "2"), to_queue("y", "q"), to_queue("y", "p")):
        router.bind(binding)
    router.bind(to_exchange("z", "x"))
    assert names(router.drop_queue("q")) == (["x"], [("x", "q"), ("x", "q"), ("y", "q"), ("z", "x")])
    assert router.bindings() == [to_queue("y", "p")]
    assert names(router.drop_queue("q")) == ([], [])


def test_a_queue_and_an_exchange_of_the_same_name_do_not_share_bindings() -> None:
    router = a_router(Exchange("x", "fanout"), Exchange("same", "fanout"))
    router.bind(to_queue("x", "same"))
    router.bind(to_exchange("x", "same"))
    assert router.drop_queue("same").bindings == [to_queue("x", "same")]
    assert router.bindings() == [to_exchange("x", "same")]


def test_a_long_chain_of_auto_delete_exchanges_goes_at_once() -> None:
    chain = [f"x{number}" for number in range(5_000)]
    router = a_router(*(Exchange(name, "fanout", auto_delete=True) for name in chain))
    for source, destination in itertools.pairwise(chain):
        router.bind(to_exchange(source, destination))
    router.bind(to_queue(chain[-1], "q"))
    assert router.route("x0", "", no_headers) == ["q"]
    assert len(router.drop_queue("q").exchanges) == len(chain)


# Routing


def test_the_default_exchange_leads_to_the_queue_of_the_routing_key() -> None:
    router = Router("/")
    assert router.route("", "q", unasked_headers) == ["q"]
    assert router.route_keys("", ["q", "p", "q"], unasked_headers) == ["q", "p"]


def test_a_message_to_a_missing_exchange_is_refused() -> None:
    for ask in (
        lambda: Router("/").route("x", "", no_headers),
        lambda: Router("/").route_keys("x", [""], no_headers),
        lambda: Router("/").is_plain("x"),
        lambda: Router("/").set_policy_arguments("x", {}),
    ):
        with pytest.raises(ExchangeNotFound):
            ask()


def test_a_direct_exchange_compares_the_routing_key() -> None:
    router = Router("/")
    router.bind(to_queue("amq.direct", "q", "k"))
    router.bind(to_queue("amq.direct", "p", "k"))
    router.bind(to_queue("amq.direct", "r", "#"))
    assert router.route("amq.direct", "k", unasked_headers) == ["q", "p"]
    assert router.route("amq.direct", "", unasked_headers) == []


def test_a_fanout_exchange_ignores_the_routing_key() -> None:
    router = Router("/")
    router.bind(to_queue("amq.fanout", "q", "k"))
    router.bind(to_queue("amq.fanout", "p"))
    assert router.route("amq.fanout", "anything", unasked_headers) == ["q", "p"]


@pytest.mark.parametrize("source", ["amq.direct", "amq.fanout", "amq.topic", "amq.headers"])
def test_a_queue_with_two_bindings_gets_the_message_once_until_both_are_gone(source: str) -> None:
    router = Router("/")
    bindings = [to_queue(source, "q", "k"), to_queue(source, "q", "k", {"x-tag": 1})]
    for binding in bindings:
        router.bind(binding)
    assert router.route(source, "k", no_headers) == ["q"]
    router.unbind(bindings[0])
    assert router.route(source, "k", no_headers) == ["q"]
    router.unbind(bindings[1])
    assert router.route(source, "k", no_headers) == []


def test_what_the_caller_does_with_the_answer_changes_no_later_one() -> None:
    router = Router("/")
    router.bind(to_queue("amq.fanout", "q"))
    router.route("amq.fanout", "", no_headers).clear()
    assert router.route("amq.fanout", "", no_headers) == ["q"]


def test_messages_go_on_from_exchange_to_exchange_and_arrive_once() -> None:
    router = a_router(Exchange("x", "topic"), Exchange("y", "fanout"), Exchange("z", "direct"))
    router.bind(to_exchange("x", "y", "a.#"))
    router.bind(to_exchange("x", "z", "#.b"))
    router.bind(to_exchange("z", "x", "a.b"))
    router.bind(to_queue("y", "q"))
    router.bind(to_queue("z", "q", "a.b"))
    router.bind(to_queue("z", "p", "a.b"))
    assert sorted(router.route("x", "a.b", unasked_headers)) == ["p", "q"]
    assert router.route("x", "a", unasked_headers) == ["q"]
    assert router.route("x", "b", unasked_headers) == []


def test_several_routing_keys_reach_each_queue_once() -> None:
    router = a_router(Exchange("x", "direct"))
    router.bind(to_queue("x", "q", "1"))
    router.bind(to_queue("x", "q", "2"))
    router.bind(to_queue("x", "p", "2"))
    router.bind(to_exchange("x", "amq.fanout", "3"))
    router.bind(to_queue("amq.fanout", "r"))
    assert router.route_keys("x", ["1", "2"], unasked_headers) == ["q", "p"]
    assert router.route_keys("x", ["0", "3"], unasked_headers) == ["r"]
    assert router.route_keys("amq.fanout", ["1", "2"], unasked_headers) == ["r"]


def test_headers_are_decoded_at_most_once() -> None:
    router = Router("/")
    router.bind(to_exchange("amq.headers", "amq.match"))
    router.bind(to_queue("amq.match", "q", "", {"colour": "red"}))
    decoded = []

    def headers() -> Mapping[str, Any]:
        decoded.append(True)
        return {"colour": "red"}

    assert router.route_keys("amq.headers", ["1", "2"], headers) == ["q"]
    assert decoded == [True]


def test_the_alternate_exchange_gets_what_no_binding_fits() -> None:
    router = a_router(with_alternate("x", "direct", "y"), with_alternate("y", "direct", "z"), Exchange("z", "fanout"))
    router.bind(to_queue("x", "q", "1"))
    router.bind(to_queue("y", "p", "2"))
    router.bind(to_queue("z", "r"))
    assert router.route("x", "1", no_headers) == ["q"]
    assert router.route("x", "2", no_headers) == ["p"]
    assert router.route("x", "3", no_headers) == ["r"]
    assert router.route_keys("x", ["1", "2"], no_headers) == ["q"]
    assert router.route_keys("x", ["2", "3"], no_headers) == ["p"]


def test_a_binding_that_fits_is_enough_to_pass_the_alternate_exchange_by() -> None:
    router = a_router(with_alternate("x", "fanout", "amq.fanout"), Exchange("nowhere", "direct"))
    router.bind(to_queue("amq.fanout", "q"))
    router.bind(to_exchange("x", "nowhere"))
    assert router.route("x", "", no_headers) == []


def test_an_exchange_on_the_way_uses_its_own_alternate() -> None:
    router = a_router(with_alternate("x", "direct", "amq.fanout"))
    router.bind(to_queue("amq.fanout", "q"))
    router.bind(to_exchange("amq.topic", "x", "#"))
    router.bind(to_queue("amq.topic", "p", "#"))
    assert router.route("amq.topic", "k", no_headers) == ["p", "q"]


def test_alternates_that_lead_in_a_circle_lead_nowhere() -> None:
    router = a_router(with_alternate("x", "direct", "y"), with_alternate("y", "direct", "x"))
    assert router.route("x", "", no_headers) == []
    router.declare(with_alternate("self", "direct", "self"))
    assert router.route("self", "", no_headers) == []


def test_an_alternate_exchange_may_come_and_go() -> None:
    router = a_router(with_alternate("x", "direct", "y"))
    assert router.route("x", "", no_headers) == []
    version = router.version
    router.declare(Exchange("y", "fanout"))
    router.bind(to_queue("y", "q"))
    assert router.version != version
    assert router.route("x", "", no_headers) == ["q"]
    router.delete("y")
    assert router.route("x", "", no_headers) == []


def test_the_default_exchange_as_alternate_leads_nowhere() -> None:
    router = a_router(with_alternate("x", "direct", ""))
    assert router.route("x", "q", no_headers) == []


def test_a_policy_may_name_the_alternate_but_the_declaration_goes_before() -> None:
    router = a_router(Exchange("x", "direct"), with_alternate("y", "direct", "amq.topic"))
    router.bind(to_queue("amq.fanout", "q"))
    version = router.version
    router.set_policy_arguments("x", {"alternate-exchange": "amq.fanout"})
    assert router.version != version
    assert router.route("x", "", no_headers) == ["q"]
    version = router.version
    router.set_policy_arguments("y", {"alternate-exchange": "amq.fanout"})
    router.set_policy_arguments("x", {"alternate-exchange": "amq.fanout", "other": 1})
    assert router.version == version
    assert router.route("y", "", no_headers) == []
    router.set_policy_arguments("x", {})
    assert router.version != version
    assert router.route("x", "", no_headers) == []


def test_an_exchange_is_plain_while_no_headers_can_matter() -> None:
    router = a_router(with_alternate("x", "direct", "y"), Exchange("y", "fanout"), Exchange("z", "headers"))
    everything = ["", "x", "y", "z"]
    assert all(router.is_plain(name) for name in everything)
    router.bind(to_queue("z", "q", "", {"colour": "red"}))
    assert [name for name in everything if router.is_plain(name)] == ["", "x", "y"]
    router.bind(to_exchange("y", "z"))
    router.bind(to_exchange("z", "x"))
    assert [name for name in everything if router.is_plain(name)] == [""]
    router.unbind(to_exchange("y", "z"))
    assert [name for name in everything if router.is_plain(name)] == ["", "x", "y"]


def test_the_version_changes_with_every_change_of_routes() -> None:
    router = Router("/")
    versions = [router.version]

    def changed() -> bool:
        versions.append(router.version)
        return len(set(versions)) == len(versions)

    router.declare(Exchange("x", "fanout", auto_delete=True))
    assert changed()
    router.bind(to_queue("x", "q"))
    assert changed()
    router.bind(to_queue("x", "p"))
    assert changed()
    router.drop_queue("q")
    assert changed()
    router.unbind(to_queue("x", "p"))
    assert changed()
    router.declare(Exchange("x", "fanout"))
    assert changed()
    router.delete("x")
    assert changed()


@pytest.mark.parametrize("way", ["unbind", "drop_queue", "delete"])
def test_words_of_topic_bindings_count_in_the_size_while_they_are_there(way: str) -> None:
    router = Router("/")
    empty_bytes = router.size_bytes
    router.declare(Exchange("logs", "topic"))
    few = Binding("logs", "few", routing_key="a")
    router.bind(few)
    few_bytes = router.size_bytes
    many = Binding("logs", "many", routing_key="a." + ".".join("b" * 120))
    router.bind(many)
    assert router.size_bytes - few_bytes > 120 * 400
    if way == "unbind":
        router.unbind(many)
        assert router.size_bytes == few_bytes
    elif way == "drop_queue":
        router.drop_queue("many")
        assert router.size_bytes == few_bytes
    else:
        router.delete("logs")
        assert router.size_bytes == empty_bytes


def test_binding_with_an_argument_that_is_not_a_number_is_made_once() -> None:
    assert frozen({"a": [float("nan")]}) == frozen({"a": [float("nan")]})
    assert frozen(float("nan")) != frozen("nan")
