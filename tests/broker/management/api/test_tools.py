"""Tools that know RabbitMQ's API find what they ask for: rabbitmqadmin, KEDA's scaler, pyrabbit as kombu uses it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import kombu
import pika.exceptions
import pytest

from tests.broker.management import rabbitmqadmin
from tests.broker.management.api.conftest import Api, connected, wait_for_the_end
from tests.broker.management.api.test_connections import name_of
from tests.nodes import RunningNode


@pytest.fixture
def waiting(channel: Any) -> str:
    """The name of a queue with two messages, one of them delivered, and a consumer."""
    name = "waiting"
    channel.queue_delete(name)
    channel.queue_declare(name)
    channel.confirm_delivery()
    for _ in range(2):
        channel.basic_publish("", name, b"")
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(name, lambda *_: None)
    return name


# rabbitmqadmin


@pytest.mark.parametrize(
    "what", ["connections", "channels", "consumers", "exchanges", "queues", "bindings", "vhosts", "nodes"]
)
def test_rabbitmqadmin_lists(what: str, admin_tool: Path, console_node: RunningNode, waiting: str) -> None:
    assert rabbitmqadmin.listed(admin_tool, console_node.address("http"), what)


@pytest.mark.parametrize("what", ["parameters", "vhost_limits"])
def test_rabbitmqadmin_lists_nothing_where_there_is_nothing(
    what: str, admin_tool: Path, console_node: RunningNode
) -> None:
    assert "No items" in rabbitmqadmin.run(admin_tool, console_node.address("http"), "list", what)


def test_rabbitmqadmin_shows_tables(admin_tool: Path, console_node: RunningNode, waiting: str) -> None:
    address = console_node.address("http")
    assert "| north" in rabbitmqadmin.run(admin_tool, address, "show", "overview")
    table = rabbitmqadmin.run(admin_tool, address, "-V", "/", "list", "queues", "name", "messages")
    assert [cell.strip() for line in table.splitlines() if waiting in line for cell in line.split("|")[1:3]] == [
        waiting,
        "2",
    ]


def test_rabbitmqadmin_closes_a_connection(admin_tool: Path, console_node: RunningNode, api: Api) -> None:
    with connected(console_node.address("amqp"), client_properties={"connection_name": "to-close"}) as connection:
        name = name_of(api, "to-close")
        rabbitmqadmin.run(admin_tool, console_node.address("http"), "close", "connection", f"name={name}")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            wait_for_the_end(connection)


def test_rabbitmqadmin_says_that_access_is_refused(admin_tool: Path, console_node: RunningNode) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        rabbitmqadmin.run(admin_tool, console_node.address("http"), "list", "queues", password="wrong")
    assert "Access refused" in failed.value.stderr


# KEDA


def test_keda_finds_the_length_and_the_rate_of_a_queue(api: Api, waiting: str) -> None:
    found = api.until(f"/queues/%2F/{waiting}", lambda queue: queue["messages_unacknowledged"] == 1)
    assert (found["name"], found["messages"]) == (waiting, 2)
    assert isinstance(found["message_stats"]["publish_details"]["rate"], float)


@pytest.mark.parametrize("path", ["/queues/%2F", "/queues"])
def test_keda_finds_queues_by_a_pattern(api: Api, path: str, waiting: str) -> None:
    wish = f"page=1&use_regex=true&pagination=false&name=^{waiting}$&page_size=100"
    (found,) = api.get(f"{path}?{wish}")["items"]
    assert (found["name"], found["messages"]) == (waiting, 2)
    assert found["message_stats"]["publish_details"].keys() == {"rate"}


# kombu


@pytest.mark.parametrize(
    "path",
    [
        "overview",
        "nodes",
        "vhosts",
        "vhosts/%2F",
        "exchanges",
        "exchanges/%2F",
        "exchanges/%2F/amq.topic",
        "queues",
        "queues/%2F",
        "queues/%2F/{queue}",
        "queues/%2F/{queue}/bindings",
        "bindings",
        "connections",
        "channels",
        "aliveness-test/%2F",
    ],
)
def test_what_the_manager_of_kombu_asks_for_is_there(api: Api, path: str, waiting: str) -> None:
    assert api.get("/" + path.format(queue=waiting))


def test_the_manager_of_kombu_works(console_node: RunningNode, waiting: str) -> None:
    amqp, http = console_node.address("amqp"), console_node.address("http")
    with kombu.Connection(
        f"amqp://guest:guest@{amqp}//", transport_options={"manager_port": http.port}
    ) as connection:
        manager = connection.manager
        assert manager.get_queue_depth("/", waiting) == 2
        assert waiting in [queue["name"] for queue in manager.get_queues("/")]
        assert manager.get_overview()["node"] == "north"
        assert "amq.topic" in [exchange["name"] for exchange in manager.get_exchanges()]
        assert manager.get_connections()
        assert manager.get_queue_bindings("/", waiting)[0]["destination"] == waiting
        manager.http.client.close()
