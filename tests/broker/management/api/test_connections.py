"""Connections, channels and consumers are shown, and connections can be closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pika.exceptions
import pytest

from flyball.broker.wire.amqp import PROTOCOL_HEADER, ConnectionStartOk, Value
from tests.broker.management.api.conftest import Api, connected, wait_for_the_end
from tests.nodes import RunningNode


def name_of(api: Api, client: str) -> str:
    """Return the name of the connection of the client that calls itself so."""
    found: list[str] = []

    def is_there(connections: list[dict[str, Any]]) -> bool:
        found[:] = [
            connection["name"]
            for connection in connections
            if connection["client_properties"].get("connection_name") == client
        ]
        return bool(found)

    api.until("/connections", is_there)
    return found[0]


def test_a_connection_tells_who_it_is(api: Api, console_node: RunningNode) -> None:
    with connected(console_node.address("amqp"), client_properties={"connection_name": "shown"}) as connection:
        connection.channel()
        name = name_of(api, "shown")
        found = api.until(f"/connections/{quote(name)}", lambda connection: connection["channels"] == 1)
        assert (found["user"], found["vhost"], found["protocol"]) == ("guest", "/", "AMQP 0-9-1")
        assert found["name"] == f"{found['peer_host']}:{found['peer_port']} -> {found['host']}:{found['port']}"
        assert found["recv_oct"] > 0
        assert found["connected_at"] > 1_600_000_000_000
        (channel,) = api.get(f"/connections/{quote(name)}/channels")
        assert channel["name"] == f"{name} (1)"
        assert api.get(f"/channels/{quote(channel['name'])}")["connection_details"]["name"] == name
        assert name in api.names("/vhosts/%2F/connections")
        assert channel["name"] in api.names("/vhosts/%2F/channels")


def test_what_a_client_says_of_itself_need_not_be_text(api: Api, console_node: RunningNode) -> None:
    properties: dict[str, Value] = {"connection_name": "odd", "caf\udce9": {"\udcff": "\udcff"}}
    start_ok = ConnectionStartOk(0, properties, "PLAIN", b"\0guest\0guest", "en_US")
    client = console_node.connect("amqp")
    client.sendall(PROTOCOL_HEADER)
    assert client.recv(65536), "it is asked to log in"
    client.sendall(start_ok.encode())
    assert client.recv(65536), "it has logged in"
    found = api.get(f"/connections/{quote(name_of(api, 'odd'))}")
    assert found["client_properties"]["caf\ufffd"] == {"\ufffd": "\ufffd"}


def test_a_channel_tells_what_it_does(api: Api, console_node: RunningNode) -> None:
    with connected(console_node.address("amqp"), client_properties={"connection_name": "channelled"}) as connection:
        channel = connection.channel()
        channel.queue_declare("channelled")
        channel.confirm_delivery()
        channel.basic_publish("", "channelled", b"")
        channel.basic_qos(prefetch_count=3)
        channel.basic_consume("channelled", lambda *_: None, consumer_tag="reader")
        path = f"/channels/{quote(name_of(api, 'channelled') + ' (1)')}"
        found = api.until(path, lambda channel: channel["messages_unacknowledged"] == 1)
        assert (found["confirm"], found["transactional"], found["consumer_count"]) == (True, False, 1)
        assert found["message_stats"]["publish"] == 1
        assert [consumer["consumer_tag"] for consumer in found["consumer_details"]] == ["reader"]
        for path in ("/consumers", "/consumers/%2F"):
            assert "channelled" in [consumer["queue"]["name"] for consumer in api.get(path)]


def test_clients_of_other_protocols_are_listed_too(api: Api, console_node: RunningNode) -> None:
    console_node.connect("telesto")
    api.until("/connections", lambda found: "Telesto" in [connection["protocol"] for connection in found])


def test_closing_a_connection_tells_its_client_why(api: Api, console_node: RunningNode) -> None:
    with connected(console_node.address("amqp"), client_properties={"connection_name": "closed"}) as connection:
        path = f"/connections/{quote(name_of(api, 'closed'))}"
        assert api.ask(path, "DELETE", headers={"X-Reason": "spring cleaning"}).status_code == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="spring cleaning"):
            wait_for_the_end(connection)
        assert api.ask(path).status_code == 404
        assert api.ask(path, "DELETE").status_code == 404


def test_a_user_sees_and_closes_its_own_connections_only(
    api: Api, api_of: Callable[..., Api], console_node: RunningNode, channel: Any
) -> None:
    own = api_of("owner", ["management"], {"/": ("", "", "")})
    with connected(console_node.address("amqp"), user="owner") as connection:
        connection.channel()
        (found,) = own.until("/connections", lambda connections: len(connections) == 1)
        assert found["user"] == "owner"
        assert [channel["user"] for channel in own.get("/channels")] == ["owner"]
        others = [name for name in api.names("/connections") if name != found["name"]]
        assert own.ask(f"/connections/{quote(others[0])}", "DELETE").status_code == 404
        assert own.names("/connections/username/guest") == []
        assert own.ask("/connections/username/owner", "DELETE").status_code == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            wait_for_the_end(connection)


def test_who_only_looks_on_closes_nothing(api: Api, api_of: Callable[..., Api], console_node: RunningNode) -> None:
    watcher = api_of("connection-watcher", ["monitoring"])
    with connected(console_node.address("amqp"), client_properties={"connection_name": "kept"}):
        name = name_of(api, "kept")
        assert name in watcher.names("/connections")
        assert watcher.ask(f"/connections/{quote(name)}", "DELETE").status_code == 401
        assert name in api.names("/connections")
