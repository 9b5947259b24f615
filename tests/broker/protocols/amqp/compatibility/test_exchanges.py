"""Exchanges: how they are declared and deleted, what is refused, and where they route to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika import spec

from tests.broker.protocols.amqp.compatibility.peer import Peer

NewName = Callable[[], str]
TYPES = ("direct", "fanout", "topic", "headers")
REFUSED_ON_DEFAULT = "ACCESS_REFUSED - operation not permitted on the default exchange"


def declare(peer: Peer, name: str, type: str = "direct", **options: Any) -> None:
    peer.ask(spec.Exchange.Declare(exchange=name, type=type, **options), spec.Exchange.DeclareOk)


def queue(peer: Peer, exchange: str, *keys: str, **arguments: Any) -> str:
    """Declare a queue with bindings and return its name."""
    name: str = peer.ask(spec.Queue.Declare(exclusive=True), spec.Queue.DeclareOk).queue
    for key in keys:
        bind(peer, name, exchange, key, **arguments)
    return name


def bind(peer: Peer, queue: str, exchange: str, key: str = "", **arguments: Any) -> None:
    peer.ask(
        spec.Queue.Bind(queue=queue, exchange=exchange, routing_key=key, arguments=arguments or None),
        spec.Queue.BindOk,
    )


def count(peer: Peer, queue: str) -> int:
    """Return the number of ready messages."""
    messages: int = peer.ask(spec.Queue.Declare(queue=queue, passive=True), spec.Queue.DeclareOk).message_count
    return messages


def counts(peer: Peer, *queues: str) -> list[int]:
    return [count(peer, queue) for queue in queues]


def publish(peer: Peer, exchange: str, key: str = "", headers: dict[str, Any] | None = None) -> None:
    """Publish and wait until the message is where it belongs. The channel has to confirm."""
    peer.publish(b"x", exchange, key, spec.BasicProperties(headers=headers))
    peer.expect(spec.Basic.Ack)


@pytest.fixture
def confirming(peer: Peer) -> Peer:
    """The peer, with a channel that confirms."""
    peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
    return peer


# Declaring


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("durable", [False, True])
def test_an_exchange_can_be_declared_again_the_same_way(peer: Peer, name: str, type: str, durable: bool) -> None:
    declare(peer, name, type, durable=durable)
    declare(peer, name, type, durable=durable)
    declare(peer, name, type, passive=True)
    peer.ask(spec.Exchange.Delete(exchange=name), spec.Exchange.DeleteOk)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"type": "fanout"}, "'type' for exchange '{0}' in vhost '/': received 'fanout' but current is 'direct'"),
        ({"durable": True}, "'durable' for exchange '{0}' in vhost '/': received 'true' but current is 'false'"),
        (
            {"auto_delete": True},
            "'auto_delete' for exchange '{0}' in vhost '/': received 'true' but current is 'false'",
        ),
        ({"internal": True}, "'internal' for exchange '{0}' in vhost '/': received 'true' but current is 'false'"),
        (
            {"arguments": {"alternate-exchange": "y"}},
            "'alternate-exchange' for exchange '{0}' in vhost '/': received 'y' but current is 'x'",
        ),
        (
            {"arguments": {}},
            "'alternate-exchange' for exchange '{0}' in vhost '/': "
            "received none but current is the value 'x' of type 'longstr'",
        ),
    ],
    ids=["type", "durable", "auto_delete", "internal", "other argument", "missing argument"],
)
def test_an_exchange_cannot_be_declared_again_another_way(
    peer: Peer, name: str, options: dict[str, Any], complaint: str
) -> None:
    first = {"type": "direct", "arguments": {"alternate-exchange": "x"}}
    peer.ask(spec.Exchange.Declare(exchange=name, **first), spec.Exchange.DeclareOk)

    peer.send(spec.Exchange.Declare(exchange=name, **{**first, **options}))

    text = "PRECONDITION_FAILED - inequivalent arg " + complaint.format(name)
    peer.expect_channel_close(406, text, spec.Exchange.Declare)


def test_a_passive_declaration_compares_nothing(peer: Peer, name: str) -> None:
    declare(peer, name, "direct")

    declare(peer, name, "fanout", passive=True, durable=True, internal=True)
    declare(peer, name, "nonsense", passive=True)


def test_arguments_that_mean_nothing_are_not_compared(peer: Peer, name: str) -> None:
    declare(peer, name, arguments={"anything": 1})

    declare(peer, name, arguments={"anything": 2})


def test_a_passive_declaration_of_a_missing_exchange_closes_the_channel(peer: Peer, name: str) -> None:
    peer.send(spec.Exchange.Declare(exchange=name, passive=True))

    peer.expect_channel_close(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'", spec.Exchange.Declare)


@pytest.mark.parametrize(("type", "word"), [("nonsense", "unknown"), ("", "invalid")])
def test_an_unknown_type_ends_the_connection(peer: Peer, name: str, type: str, word: str) -> None:
    peer.send(spec.Exchange.Declare(exchange=name, type=type))

    peer.expect_connection_close(503, f"COMMAND_INVALID - {word} exchange type '{type}'", spec.Exchange.Declare)


def test_names_that_begin_with_amq_are_reserved(peer: Peer, name: str) -> None:
    peer.send(spec.Exchange.Declare(exchange=f"amq.{name}"))

    text = f"ACCESS_REFUSED - exchange name 'amq.{name}' contains reserved prefix 'amq.*'"
    peer.expect_channel_close(403, text, spec.Exchange.Declare)


def test_a_standard_exchange_can_be_declared_as_it_is(peer: Peer) -> None:
    for name in TYPES:
        declare(peer, f"amq.{name}", name, durable=True)
    declare(peer, "amq.match", "headers", durable=True)


def test_an_alternate_exchange_is_named_by_a_string(peer: Peer, name: str) -> None:
    peer.send(spec.Exchange.Declare(exchange=name, arguments={"alternate-exchange": 5}))

    text = (
        f"PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in exchange '{name}' in vhost"
    )
    peer.expect_channel_close(406, text, spec.Exchange.Declare)


def test_line_ends_are_taken_out_of_names(peer: Peer, name: str) -> None:
    declare(peer, f"{name}\r\nx")

    declare(peer, f"{name}x", passive=True)


def test_no_answer_comes_where_none_is_wanted(peer: Peer, name: str, new_name: NewName) -> None:
    other = new_name()
    declare(peer, other, "fanout")
    peer.send(spec.Exchange.Declare(exchange=name, type="fanout", nowait=True))
    peer.send(spec.Exchange.Bind(destination=name, source=other, nowait=True))
    peer.send(spec.Exchange.Unbind(destination=name, source=other, nowait=True))
    peer.send(spec.Exchange.Delete(exchange=name, nowait=True))

    peer.send(spec.Exchange.Declare(exchange=name, passive=True))

    peer.expect_channel_close(404, "NOT_FOUND", spec.Exchange.Declare)


# The default exchange


@pytest.mark.parametrize(
    "method",
    [
        spec.Exchange.Declare(exchange="", type="direct", durable=True),
        spec.Exchange.Declare(exchange="", passive=True),
        spec.Exchange.Delete(exchange=""),
        spec.Exchange.Bind(destination="", source="amq.fanout"),
        spec.Exchange.Bind(destination="amq.fanout", source=""),
        spec.Exchange.Unbind(destination="amq.fanout", source=""),
    ],
    ids=["declare", "passive", "delete", "bind to", "bind from", "unbind from"],
)
def test_the_default_exchange_is_as_it_is(peer: Peer, method: Any) -> None:
    peer.send(method)

    peer.expect_channel_close(403, REFUSED_ON_DEFAULT, type(method))


@pytest.mark.parametrize("method", [spec.Queue.Bind, spec.Queue.Unbind])
def test_bindings_of_the_default_exchange_cannot_be_changed(peer: Peer, name: str, method: Any) -> None:
    peer.ask(spec.Queue.Declare(queue=name, exclusive=True), spec.Queue.DeclareOk)

    peer.send(method(queue=name, exchange="", routing_key=name))

    peer.expect_channel_close(403, REFUSED_ON_DEFAULT, method)


# Deleting


def test_deleting_what_is_not_there_is_no_error(peer: Peer, name: str) -> None:
    peer.ask(spec.Exchange.Delete(exchange=name), spec.Exchange.DeleteOk)
    peer.ask(spec.Exchange.Delete(exchange=name, if_unused=True), spec.Exchange.DeleteOk)


@pytest.mark.parametrize("name", ["amq.direct", "amq.of-no-such-name"])
def test_standard_exchanges_cannot_be_deleted(peer: Peer, name: str) -> None:
    peer.send(spec.Exchange.Delete(exchange=name))

    text = f"ACCESS_REFUSED - deletion of system exchange '{name}' in vhost '/' not allowed"
    peer.expect_channel_close(403, text, spec.Exchange.Delete)


def test_an_exchange_with_a_binding_is_in_use(peer: Peer, name: str) -> None:
    declare(peer, name)
    bound = queue(peer, name, "key")

    peer.send(spec.Exchange.Delete(exchange=name, if_unused=True))

    text = f"PRECONDITION_FAILED - exchange '{name}' in vhost '/' in use"
    peer.expect_channel_close(406, text, spec.Exchange.Delete)
    peer.open_channel()
    peer.ask(spec.Queue.Unbind(queue=bound, exchange=name, routing_key="key"), spec.Queue.UnbindOk)
    peer.ask(spec.Exchange.Delete(exchange=name, if_unused=True), spec.Exchange.DeleteOk)


def test_a_deleted_exchange_takes_its_bindings_with_it(confirming: Peer, name: str) -> None:
    declare(confirming, name)
    bound = queue(confirming, name, "key")
    confirming.ask(spec.Exchange.Delete(exchange=name), spec.Exchange.DeleteOk)
    declare(confirming, name)

    publish(confirming, name, "key")

    assert count(confirming, bound) == 0


def test_an_auto_delete_exchange_ends_with_its_last_binding(peer: Peer, name: str) -> None:
    declare(peer, name, "fanout", auto_delete=True)
    first, second = queue(peer, name, ""), queue(peer, name, "")
    peer.ask(spec.Queue.Unbind(queue=first, exchange=name), spec.Queue.UnbindOk)
    declare(peer, name, passive=True)

    peer.ask(spec.Queue.Delete(queue=second), spec.Queue.DeleteOk)

    peer.send(spec.Exchange.Declare(exchange=name, passive=True))
    peer.expect_channel_close(404, "NOT_FOUND", spec.Exchange.Declare)


def test_an_auto_delete_exchange_ends_with_its_last_binding_to_an_exchange(
    peer: Peer, name: str, new_name: NewName
) -> None:
    other = new_name()
    declare(peer, name, "fanout", auto_delete=True)
    declare(peer, other, "fanout")
    peer.ask(spec.Exchange.Bind(destination=other, source=name), spec.Exchange.BindOk)

    peer.ask(spec.Exchange.Delete(exchange=other), spec.Exchange.DeleteOk)

    peer.send(spec.Exchange.Declare(exchange=name, passive=True))
    peer.expect_channel_close(404, "NOT_FOUND", spec.Exchange.Declare)


# Binding exchanges


def test_exchanges_route_through_each_other_and_a_queue_gets_a_message_once(
    confirming: Peer, name: str, new_name: NewName
) -> None:
    topic = new_name()
    declare(confirming, name, "fanout")
    declare(confirming, topic, "topic")
    confirming.ask(spec.Exchange.Bind(destination=topic, source=name, routing_key="no matter"), spec.Exchange.BindOk)
    # The way back makes a cycle.
    confirming.ask(spec.Exchange.Bind(destination=name, source=topic, routing_key="#"), spec.Exchange.BindOk)
    twice = queue(confirming, topic, "a.#", "*.b")
    bind(confirming, twice, name)
    other = queue(confirming, topic, "c")

    publish(confirming, name, "a.b")

    assert counts(confirming, twice, other) == [1, 0]


def test_an_unbound_exchange_gets_nothing_more(confirming: Peer, name: str, new_name: NewName) -> None:
    other = new_name()
    declare(confirming, name, "direct")
    declare(confirming, other, "fanout")
    bound = queue(confirming, other, "")
    confirming.ask(spec.Exchange.Bind(destination=other, source=name, routing_key="k"), spec.Exchange.BindOk)
    publish(confirming, name, "k")
    assert count(confirming, bound) == 1

    confirming.ask(spec.Exchange.Unbind(destination=other, source=name, routing_key="k"), spec.Exchange.UnbindOk)

    publish(confirming, name, "k")
    assert count(confirming, bound) == 1


@pytest.mark.parametrize("missing", ["source", "destination"])
def test_both_ends_of_a_binding_have_to_exist(peer: Peer, name: str, missing: str) -> None:
    peer.send(spec.Exchange.Bind(**{"source": "amq.fanout", "destination": "amq.fanout", missing: name}))

    peer.expect_channel_close(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'", spec.Exchange.Bind)


def test_removing_a_binding_that_is_not_there_is_no_error(peer: Peer, name: str) -> None:
    peer.ask(spec.Exchange.Unbind(source=name, destination="amq.fanout"), spec.Exchange.UnbindOk)
    peer.ask(spec.Exchange.Unbind(source="amq.topic", destination=name), spec.Exchange.UnbindOk)
    peer.ask(spec.Exchange.Unbind(source="amq.topic", destination="amq.fanout"), spec.Exchange.UnbindOk)


def test_clients_cannot_publish_to_an_internal_exchange_but_others_route_to_it(
    confirming: Peer, name: str, new_name: NewName
) -> None:
    outer = new_name()
    declare(confirming, name, "fanout", internal=True)
    declare(confirming, outer, "fanout")
    confirming.ask(spec.Exchange.Bind(destination=name, source=outer), spec.Exchange.BindOk)
    bound = queue(confirming, name, "")
    publish(confirming, outer)
    assert count(confirming, bound) == 1

    confirming.publish(b"x", name)

    text = f"ACCESS_REFUSED - cannot publish to internal exchange '{name}' in vhost '/'"
    confirming.expect_channel_close(403, text, spec.Basic.Publish)


# Routing


def test_the_default_exchange_routes_by_the_name_of_the_queue(confirming: Peer) -> None:
    names = [queue(confirming, "") for _ in range(2)]

    publish(confirming, "", names[1])

    assert counts(confirming, *names) == [0, 1]


def test_direct_compares_the_whole_key(confirming: Peer, name: str) -> None:
    declare(confirming, name, "direct")
    queues = [queue(confirming, name, "a"), queue(confirming, name, "a", "b"), queue(confirming, name, "a.b")]

    publish(confirming, name, "a")

    assert counts(confirming, *queues) == [1, 1, 0]


def test_fanout_ignores_the_key(confirming: Peer, name: str) -> None:
    declare(confirming, name, "fanout")
    queues = [queue(confirming, name, "a"), queue(confirming, name, "b", "c")]

    publish(confirming, name, "d")

    assert counts(confirming, *queues) == [1, 1]


def test_a_message_that_no_binding_wants_goes_to_the_alternate_exchange(
    confirming: Peer, name: str, new_name: NewName
) -> None:
    alternate = new_name()
    declare(confirming, alternate, "fanout")
    declare(confirming, name, "direct", arguments={"alternate-exchange": alternate})
    wanted, rest = queue(confirming, name, "wanted"), queue(confirming, alternate, "")

    publish(confirming, name, "wanted")
    publish(confirming, name, "unwanted")

    assert counts(confirming, wanted, rest) == [1, 1]


def test_a_missing_alternate_exchange_is_no_error(confirming: Peer, name: str, new_name: NewName) -> None:
    declare(confirming, name, "direct", arguments={"alternate-exchange": new_name()})

    publish(confirming, name, "anything")


TOPICS = [
    ("#", ["", "a", "a.b", "a.b.c", "."], []),
    # An empty key has no word at all, one of a single point has two.
    ("*", ["a"], ["", "a.b", "."]),
    ("a", ["a"], ["", "b", "a.b", "a."]),
    ("*.b", ["a.b", ".b"], ["b", "a.b.c"]),
    ("a.*", ["a.b", "a."], ["a", "a.b.c"]),
    ("a.#", ["a", "a.b", "a.b.c", "a."], ["b", "", "b.a"]),
    ("#.c", ["c", "b.c", "a.b.c"], ["c.a", ""]),
    ("a.#.c", ["a.c", "a.b.c", "a.b.b.c"], ["a", "a.c.b"]),
    ("#.b.#", ["b", "a.b", "b.c", "a.b.c", "a.a.b.c.c"], ["a", "ab"]),
    ("*.*", ["a.b", "."], ["a", "a.b.c"]),
    ("#.*", ["a", "a.b"], [""]),
    ("a#", ["a#"], ["a", "ab"]),
    ("", [""], ["a"]),
]


@pytest.mark.parametrize(("pattern", "fitting", "others"), TOPICS, ids=[pattern for pattern, _, _ in TOPICS])
def test_topics_match_word_by_word(
    confirming: Peer, name: str, pattern: str, fitting: list[str], others: list[str]
) -> None:
    declare(confirming, name, "topic")
    bound = queue(confirming, name, pattern)

    got = []
    for key in fitting + others:
        before = count(confirming, bound)
        publish(confirming, name, key)
        if count(confirming, bound) > before:
            got.append(key)

    assert got == fitting


HEADERS: dict[str, tuple[dict[str, Any], dict[str, Any] | None, bool]] = {
    "all of them": ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 0}, True),
    "one is missing": ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1}, False),
    "one differs": ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "y"}, False),
    "all is the default": ({"a": 1, "b": "x"}, {"a": 1}, False),
    "any of them": ({"x-match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
    "none of any": ({"x-match": "any", "a": 1, "b": "x"}, {"a": 2, "c": 1}, False),
    "any of nothing": ({"x-match": "any"}, {"a": 1}, False),
    "all of nothing": ({"x-match": "all"}, {"a": 1}, True),
    "all of nothing without headers": ({"x-match": "all"}, None, True),
    "present, whatever its value": ({"x-match": "all", "a": None}, {"a": 7}, True),
    "not present": ({"x-match": "all", "a": None}, {"b": 7}, False),
    "a string is no number": ({"x-match": "all", "a": 1}, {"a": "1"}, False),
    "true is not one": ({"x-match": "all", "a": 1}, {"a": True}, False),
    "x- is left out of all": ({"x-match": "all", "x-a": 1, "b": 1}, {"b": 1}, True),
    "x- is left out of any": ({"x-match": "any", "x-a": 1, "b": 1}, {"x-a": 1}, False),
    "all-with-x looks at x-": ({"x-match": "all-with-x", "x-a": 1, "b": 1}, {"b": 1}, False),
    "all-with-x has x-": ({"x-match": "all-with-x", "x-a": 1, "b": 1}, {"b": 1, "x-a": 1}, True),
    "any-with-x looks at x-": ({"x-match": "any-with-x", "x-a": 1, "b": 1}, {"x-a": 1}, True),
    "tables are compared": ({"x-match": "all", "a": {"b": 1}}, {"a": {"b": 1}}, True),
    "lists are compared": ({"x-match": "all", "a": [1, "b"]}, {"a": [1, "c"]}, False),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_are_matched_with_the_arguments_of_a_binding(confirming: Peer, name: str, case: str) -> None:
    arguments, headers, fits = HEADERS[case]
    declare(confirming, name, "headers")
    bound = queue(confirming, name)
    bind(confirming, bound, name, "", **arguments)

    publish(confirming, name, "any key", headers)

    assert count(confirming, bound) == (1 if fits else 0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("sometimes", 'Invalid x-match field value <<"sometimes">>; expected all, any, all-with-x, or any-with-x'),
        (1, "Invalid x-match field type signedint (value 1); expected longstr"),
    ],
)
def test_a_binding_with_an_unknown_x_match_is_refused(peer: Peer, value: object, text: str) -> None:
    bound = queue(peer, "amq.headers")

    peer.send(spec.Queue.Bind(queue=bound, exchange="amq.headers", arguments={"x-match": value}))

    peer.expect_channel_close(406, f"PRECONDITION_FAILED - {text}", spec.Queue.Bind)
