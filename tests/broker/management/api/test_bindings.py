"""Exchanges and the bindings between them and queues, in RabbitMQ's form."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from flyball.broker.management.api.bindings import properties_key
from flyball.model import Binding
from tests.broker.management.api.conftest import Api


@pytest.mark.parametrize(
    ("routing_key", "expected"),
    [("", "~"), ("orders", "orders"), ("a b", "a+b"), ("a.#", "a.%23"), ("~", "%7E"), ("ü/x", "%C3%BC%2Fx")],
)
def test_the_key_of_a_binding_without_arguments_is_its_routing_key(routing_key: str, expected: str) -> None:
    assert properties_key(Binding("source", "queue", routing_key=routing_key)) == expected


def test_the_key_of_a_binding_tells_its_arguments_apart() -> None:
    keys = [properties_key(Binding("s", "q", routing_key="k", arguments={"x": value})) for value in (1, 2, b"\xff")]
    assert len(set(keys)) == 3
    assert all(key.startswith("k~") for key in keys)


@pytest.fixture
def bound(channel: Any) -> None:
    channel.queue_declare("bound")
    channel.exchange_declare("bound-from", "topic")
    channel.exchange_declare("bound-to", "fanout")
    channel.queue_bind("bound", "bound-from", "a.#")
    channel.queue_bind("bound", "bound-from", "b", arguments={"x": 1})
    channel.exchange_bind("bound-to", "bound-from", "c")


def keys(found: list[dict[str, Any]]) -> list[str]:
    return [binding["routing_key"] for binding in found]


@pytest.mark.usefixtures("bound")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/queues/%2F/bound/bindings", ["bound", "a.#", "b"]),
        ("/exchanges/%2F/bound-from/bindings/source", ["a.#", "b", "c"]),
        ("/exchanges/%2F/bound-to/bindings/destination", ["c"]),
        ("/exchanges/%2F/bound-from/bindings/destination", []),
        ("/bindings/%2F/e/bound-from/q/bound", ["a.#", "b"]),
        ("/bindings/%2F/e/bound-from/e/bound-to", ["c"]),
        ("/bindings/%2F/e/amq.default/q/bound", ["bound"]),
        ("/bindings/%2F/e//q/bound", ["bound"]),
    ],
)
def test_bindings_are_found_from_either_end(api: Api, path: str, expected: list[str]) -> None:
    assert keys(api.get(path)) == expected


@pytest.mark.usefixtures("bound")
def test_the_default_exchange_leads_to_every_queue(api: Api) -> None:
    for path in ("/bindings", "/bindings/%2F", "/exchanges/%2F/amq.default/bindings/source"):
        assert {
            "source": "",
            "vhost": "/",
            "destination": "bound",
            "destination_type": "queue",
            "routing_key": "bound",
            "arguments": {},
            "properties_key": "bound",
        } in api.get(path)


@pytest.mark.usefixtures("bound")
def test_each_binding_of_a_list_is_found_by_its_key(api: Api) -> None:
    for ends in ("/bindings/%2F/e/bound-from/q/bound", "/bindings/%2F/e/bound-from/e/bound-to"):
        for binding in api.get(ends):
            assert api.get(f"{ends}/{quote(binding['properties_key'], safe='')}") == binding
            # As some tools do it: the key as it is, which a server decodes.
            assert api.get(f"{ends}/{binding['properties_key']}") == binding


@pytest.mark.usefixtures("bound")
@pytest.mark.parametrize(
    "path",
    [
        "/bindings/%2F/e/bound-from/q/bound/nothing",
        "/bindings/%2F/e/nothing/q/bound",
        "/bindings/%2F/e/bound-from/q/nothing",
        "/bindings/%2F/e/bound-from/e/nothing",
        "/exchanges/%2F/nothing/bindings/source",
        "/exchanges/%2F/nothing/bindings/destination",
        "/exchanges/%2F/nothing",
        "/queues/%2F/nothing/bindings",
    ],
)
def test_what_is_not_there_is_not_found(api: Api, path: str) -> None:
    assert api.ask(path).status_code == 404


@pytest.mark.usefixtures("bound")
def test_an_exchange_tells_how_it_was_declared_and_what_came_in(api: Api, channel: Any) -> None:
    channel.basic_publish("bound-from", "a.1", b"")
    found = api.until("/exchanges/%2F/bound-from", lambda exchange: exchange["message_stats"]["publish_in"] > 0)
    assert (found["type"], found["durable"], found["internal"], found["arguments"]) == ("topic", False, False, {})


def test_the_built_in_exchanges_are_listed(api: Api) -> None:
    expected = {"", "amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.rabbitmq.trace", "amq.topic"}
    assert expected <= set(api.names("/exchanges/%2F"))
    assert set(api.names("/exchanges/%2F")) <= set(api.names("/exchanges"))
    assert api.get("/exchanges/%2F/amq.default")["name"] == ""
