"""Every node of a domain answers for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pika.exceptions
import pytest

from flyball.broker.management.part import console_part
from flyball.broker.transport.connection import Connection
from tests.broker.domains import is_clustered
from tests.broker.management.api.conftest import Api, connected, wait_for_the_end
from tests.broker.management.api.test_connections import name_of
from tests.nodes import RunningNode

Pair = tuple[RunningNode, RunningNode]


@pytest.fixture
def pair(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[Pair]:
    """Two nodes of a domain: `a` serves the API, `b` no HTTP at all."""
    url = new_database()
    link = {"store": url, "link": "127.0.0.1:0"}
    first = RunningNode(tmp_path / "a", parts=[console_part()], name="a", http="127.0.0.1:0", **link)
    second = RunningNode(tmp_path / "b", parts=[console_part()], name="b", http="off", **link)
    with first, second:
        for node in (first, second):
            node.wait_until(is_clustered)
        yield first, second


def test_all_lists_cover_the_other_node_too(pair: Pair) -> None:
    first, second = pair
    api = Api(first.address("http"))
    with connected(second.address("amqp"), client_properties={"connection_name": "orders"}) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b"")
        channel.basic_consume("orders", lambda *_: None)
        found = api.until("/queues/%2F/orders", lambda queue: queue["consumers"] == 1)
        assert (found["node"], found["messages"], found["message_stats"]["publish"]) == ("b", 1, 1)
        assert [(queue["name"], queue["node"]) for queue in api.get("/queues")] == [("orders", "b")]
        name = name_of(api, "orders")
        assert api.get(f"/connections/{quote(name)}")["node"] == "b"
        assert [consumer["channel_details"]["node"] for consumer in api.get("/consumers")] == ["b"]
        assert [(node["name"], node["running"]) for node in api.get("/nodes")] == [("a", True), ("b", True)]
        overview = api.get("/overview")
        assert (overview["object_totals"]["queues"], overview["queue_totals"]["messages"]) == (1, 1)
        assert overview["object_totals"]["exchanges"] == len(api.get("/exchanges"))
        assert {listener["node"] for listener in overview["listeners"]} == {"a", "b"}
        assert api.get("/vhosts/%2F")["messages"] == 1
        assert api.get("/bindings/%2F/e/amq.default/q/orders")[0]["destination"] == "orders"
        assert api.ask(f"/connections/{quote(name)}", "DELETE", headers={"X-Reason": "moved"}).status_code == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="moved"):
            wait_for_the_end(connection)
    api.close()


def test_a_connection_is_closed_and_not_its_namesake_on_another_node(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "127.0.0.1:40000 -> 127.0.0.1:5672"
    monkeypatch.setattr(Connection, "name", name)
    first, second = pair
    api = Api(first.address("http"))
    with connected(first.address("amqp")) as here, connected(second.address("amqp")) as there:
        assert api.names("/connections") == [name, name]
        assert api.ask(f"/connections/{quote(name)}", "DELETE").status_code == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            wait_for_the_end(here)
        assert there.channel().is_open
    api.close()


def test_a_node_that_does_not_answer_is_not_running_and_its_queues_are_down(pair: Pair) -> None:
    first, second = pair
    api = Api(first.address("http"))
    with connected(second.address("amqp")) as connection:
        connection.channel().queue_declare("orders", durable=True)
        api.until("/queues", lambda queues: [queue["state"] for queue in queues] == ["running"])
    second.stop()
    queue = api.until("/queues/%2F/orders", lambda queue: queue["state"] == "down")
    assert (queue["node"], queue["durable"]) == ("b", True)
    assert [queue["state"] for queue in api.get("/queues")] == ["down"]
    api.close()
