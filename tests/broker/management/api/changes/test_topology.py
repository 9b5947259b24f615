"""Exchanges, queues and bindings are declared and deleted over HTTP, as far as permissions go."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import httpx
import pika
import pytest

from tests.nodes import RunningNode

Place = Callable[..., str]
NewUser = Callable[..., httpx.Client]


@pytest.fixture
def amqp(console_node: RunningNode, vhost: str) -> pika.BlockingConnection:
    host, port = console_node.address("amqp")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, vhost))
    yield connection
    if connection.is_open:
        connection.close()


def test_a_queue_is_declared_and_deleted(api: httpx.Client, place: Place, amqp: pika.BlockingConnection) -> None:
    path = place("queues", "a/b ä")
    body = {"durable": False, "arguments": {"x-max-length": 3}}
    assert api.put(path, json=body).status_code == 201
    assert api.put(path, json=body).status_code == 204
    amqp.channel().queue_declare("a/b ä", passive=True)
    assert api.delete(path).status_code == 204
    assert api.delete(path).status_code == 404


def test_what_is_not_said_is_as_in_amqp(api: httpx.Client, place: Place) -> None:
    api.put(place("queues", "q"), json={})
    assert api.put(place("queues", "q"), json={"durable": "false", "auto_delete": None}).status_code == 204
    refused = api.put(place("queues", "q"), json={"durable": True})
    assert (refused.status_code, refused.json()["error"]) == (400, "bad_request")
    assert refused.json()["reason"].startswith("inequivalent arg 'durable' for queue 'q' in vhost ")


@pytest.mark.parametrize(
    ("name", "body", "reason"),
    [
        ("q", {"durable": "perhaps"}, "'durable' must be true or false"),
        ("q", {"arguments": [1]}, "'arguments' must be an object"),
        ("q", {"arguments": {"x-message-ttl": "long"}}, "invalid arg 'x-message-ttl'"),
        ("q", {"arguments": {"x-max-length": 2**70}}, "does not fit into 64 bits"),
        ("amq.mine", {}, "contains reserved prefix 'amq.*'"),
        ("q" * 256, {}, "a short string of 256 octets"),
    ],
)
def test_a_queue_that_cannot_be_is_refused_with_the_reason(
    name: str, body: dict[str, object], reason: str, api: httpx.Client, place: Place
) -> None:
    answer = api.put(place("queues", name), json=body)
    assert answer.status_code == 400, answer.text
    assert reason in answer.json()["reason"]


def test_a_queue_goes_only_if_empty_or_unused_if_that_is_asked(
    api: httpx.Client, place: Place, amqp: pika.BlockingConnection
) -> None:
    api.put(place("queues", "q"), json={})
    channel = amqp.channel()
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"hello")
    refused = api.delete(place("queues", "q"), params={"if-empty": "true"})
    assert (refused.status_code, "not empty" in refused.json()["reason"]) == (400, True)
    channel.basic_consume("q", lambda *_: None)
    refused = api.delete(place("queues", "q"), params={"if-unused": "true"})
    assert (refused.status_code, "in use" in refused.json()["reason"]) == (400, True)
    assert api.delete(place("queues", "q"), params={"if-unused": "false"}).status_code == 204


def test_an_exclusive_queue_is_its_connections(
    api: httpx.Client, place: Place, amqp: pika.BlockingConnection
) -> None:
    channel = amqp.channel()
    channel.queue_declare("mine", exclusive=True)
    channel.queue_bind("mine", "amq.direct", "key")
    binding = place("bindings", "e", "amq.direct", "q", "mine")
    got = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for refused in (
        api.delete(place("queues", "mine")),
        api.delete(place("queues", "mine", "contents")),
        api.put(place("queues", "mine"), json={"durable": False}),
        api.post(place("queues", "mine", "get"), json=got),
        api.post(binding, json={"routing_key": "other", "arguments": {}}),
        api.delete(f"{binding}/key"),
    ):
        assert (refused.status_code, "locked" in refused.json()["reason"]) == (400, True), refused.url


def test_a_queue_is_purged(api: httpx.Client, place: Place, amqp: pika.BlockingConnection) -> None:
    api.put(place("queues", "q"), json={})
    channel = amqp.channel()
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "q", b"hello")
    assert api.delete(place("queues", "q", "contents")).status_code == 204
    assert channel.queue_declare("q", passive=True).method.message_count == 0
    assert api.delete(place("queues", "nothing", "contents")).status_code == 404


def test_there_are_no_mirrors_to_synchronise(api: httpx.Client, place: Place) -> None:
    api.put(place("queues", "q"), json={})
    assert api.post(place("queues", "q", "actions"), json={"action": "sync"}).status_code == 204
    refused = api.post(place("queues", "q", "actions"), json={"action": "dance"})
    assert (refused.status_code, refused.json()["error"]) == (400, "bad_request")
    assert api.post(place("queues", "nothing", "actions"), json={"action": "sync"}).status_code == 404


def test_an_exchange_is_declared_and_deleted(api: httpx.Client, place: Place, amqp: pika.BlockingConnection) -> None:
    path = place("exchanges", "x")
    body = {"type": "topic", "durable": True, "auto_delete": False, "internal": False, "arguments": {}}
    assert api.put(path, json=body).status_code == 201
    assert api.put(path, json=body).status_code == 204
    amqp.channel().exchange_declare("x", "topic", durable=True)
    refused = api.put(path, json={"type": "direct", "durable": True})
    assert (refused.status_code, "inequivalent arg 'type'" in refused.json()["reason"]) == (400, True)
    api.put(place("queues", "q"), json={})
    api.post(place("bindings", "e", "x", "q", "q"), json={"routing_key": "#"})
    refused = api.delete(path, params={"if-unused": "true"})
    assert (refused.status_code, "in use" in refused.json()["reason"]) == (400, True)
    assert api.delete(path).status_code == 204
    assert api.delete(path).status_code == 404


def test_the_brokers_own_exchanges_stay(api: httpx.Client, place: Place) -> None:
    for name in ("amq.direct", "amq.default"):
        refused = api.delete(place("exchanges", name))
        assert (refused.status_code, "not " in refused.json()["reason"]) == (400, True)
    assert "unknown exchange type 'odd'" in api.put(place("exchanges", "x"), json={"type": "odd"}).json()["reason"]


@pytest.mark.parametrize(
    ("body", "props"),
    [
        ({}, "~"),
        ({"routing_key": "a.b"}, "a.b"),
        ({"routing_key": "a/b ~ä"}, None),
        ({"routing_key": "k", "arguments": {"x-match": "any", "colour": "red"}}, None),
    ],
)
def test_a_binding_is_made_found_and_removed(
    body: dict[str, object], props: str | None, api: httpx.Client, place: Place
) -> None:
    api.put(place("queues", "q"), json={})
    between = place("bindings", "e", "amq.topic", "q", "q")
    made = api.post(between, json=body)
    assert made.status_code == 201
    [binding] = api.get(between).json()
    assert binding["arguments"] == body.get("arguments", {})
    assert props in (None, binding["properties_key"])
    # The location is relative to the URL of the request.
    assert api.get(between.removesuffix("/q") + "/" + made.headers["location"]).json() == binding
    assert api.delete(f"{between}/{quote(binding['properties_key'], safe='')}").status_code == 204
    assert api.get(between).json() == []
    assert api.delete(f"{between}/{quote(binding['properties_key'], safe='')}").status_code == 404


def test_exchanges_are_bound_to_each_other(api: httpx.Client, place: Place) -> None:
    api.put(place("exchanges", "x"), json={"type": "fanout"})
    between = place("bindings", "e", "amq.topic", "e", "x")
    assert api.post(between, json={"routing_key": "a"}).status_code == 201
    assert [binding["destination_type"] for binding in api.get(between).json()] == ["exchange"]
    assert api.delete(between + "/a").status_code == 204
    assert api.post(place("bindings", "e", "nothing", "e", "x"), json={}).status_code == 404
    assert api.post(place("bindings", "e", "amq.topic", "q", "nothing"), json={}).status_code == 404


def test_what_a_user_may_not_do_by_amqp_it_may_not_do_here(
    api: httpx.Client, place: Place, new_user: NewUser
) -> None:
    api.put(place("queues", "q"), json={})
    api.put(place("exchanges", "x"), json={"type": "fanout"})
    api.post(place("bindings", "e", "x", "q", "q"), json={})
    message = {"properties": {}, "routing_key": "q", "payload": "m", "payload_encoding": "string"}
    wanted = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for patterns in (("", "", ""), None):
        client = new_user("monitoring", patterns)
        for answer in (
            client.put(place("queues", "mine"), json={}),
            client.delete(place("queues", "q")),
            client.delete(place("queues", "q", "contents")),
            client.put(place("exchanges", "mine"), json={"type": "fanout"}),
            client.delete(place("exchanges", "x")),
            client.post(place("bindings", "e", "x", "q", "q"), json={"routing_key": "k"}),
            client.delete(place("bindings", "e", "x", "q", "q", "~")),
            client.post(place("exchanges", "x", "publish"), json=message),
            client.post(place("queues", "q", "get"), json=wanted),
        ):
            assert (answer.status_code, answer.json()["error"]) == (401, "not_authorised")
            assert "refused for user" in answer.json()["reason"]
    assert api.get(place("bindings", "e", "x", "q", "q")).json() != []


def test_without_a_tag_nothing_is_allowed(place: Place, new_user: NewUser) -> None:
    assert new_user("").put(place("queues", "mine"), json={}).status_code == 401


def test_what_is_done_over_http_leaves_no_connection_behind(
    api: httpx.Client, console_node: RunningNode, place: Place
) -> None:
    api.put(place("queues", "q"), json={})
    api.put(place("queues", "q"), json={"durable": True})
    # Those of other tests may be about to end.
    console_node.wait_until(lambda node: not node.hub.connections and not node.hub.stalled)
