"""Metrics with a name of RabbitMQ's match RabbitMQ's own plugin for Prometheus: same kind, same labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

from flyball.broker.management.metrics import tables
from flyball.broker.management.part import console_part
from flyball.broker.settings import Address
from flyball.lab.rabbitmq import free_ports, rabbitmq
from tests.broker.management.metrics.scrapes import Scrape, scrape
from tests.nodes import RunningNode

FAMILIES = [
    *tables.RABBITMQ_NODE,
    *tables.RABBITMQ_QUEUES,
    *tables.RABBITMQ_CHANNELS,
    *tables.RABBITMQ_CONNECTIONS,
]
PATHS = ["/metrics", "/metrics/per-object", *[f"/metrics/detailed?family={family}" for family in FAMILIES]]

# Of the channel and of the queue, what is there only after all of the below.
COUNTED_LAST = [
    "rabbitmq_channel_messages_acked_total",
    "rabbitmq_channel_messages_delivered_ack_total",
    "rabbitmq_channel_get_total",
    "rabbitmq_channel_messages_unacked",
    "rabbitmq_channel_consumers",
    "rabbitmq_queue_messages_unacked",
    "rabbitmq_queue_consumers",
    "rabbitmq_queue_messages_published_total",
]


def begin(address: tuple[str, int]) -> Any:
    """Have something of each kind in a broker; return the connection, which has to stay open for it."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(*address, heartbeat=0))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    for _ in range(4):
        channel.basic_publish("", "orders", b"something", pika.BasicProperties(delivery_mode=2))
    channel.basic_ack(channel.basic_get("orders")[0].delivery_tag)
    channel.basic_get("orders", auto_ack=True)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("orders", print)
    return connection


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with free_ports(1) as [port]:
        settings = f"prometheus.tcp.ip = 127.0.0.1\nprometheus.tcp.port = {port}\ncollect_statistics_interval = 200"
        with rabbitmq(tmp_path_factory.mktemp("rabbitmq"), settings, ["rabbitmq_prometheus"]) as broker:
            connection = begin((broker.host, broker.port))
            address = Address("127.0.0.1", port)
            # It counts now and then only.
            while not all(sum(scrape(address).all(name).values()) for name in COUNTED_LAST):
                pass
            yield address
            connection.close()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    data = tmp_path_factory.mktemp("node")
    with RunningNode(data, parts=[console_part()], store="memory", http="127.0.0.1:0") as node:
        connection = begin(node.address("amqp"))
        yield node.address("http")
        connection.close()


@pytest.fixture(scope="module")
def here(ours: Address) -> Scrape:
    return scrape(ours)


@pytest.fixture(scope="module")
def there(theirs: Address) -> Scrape:
    return scrape(theirs)


def of_rabbitmq(found: Scrape) -> dict[str, tuple[str, set[str]]]:
    """Return the kind and the labels of each metric that has a name of RabbitMQ's."""
    return {
        name: (found.kinds[name], labels) for name, labels in found.labels().items() if name.startswith("rabbitmq_")
    }


@pytest.mark.parametrize("path", PATHS)
def test_every_metric_with_rabbitmqs_name_is_there_as_well(ours: Address, theirs: Address, path: str) -> None:
    here, there = of_rabbitmq(scrape(ours, path)), of_rabbitmq(scrape(theirs, path))
    assert len(here) > 2, "besides who it is"
    assert {name: there.get(name) for name in here} == here


@pytest.mark.parametrize(
    "name",
    [
        "rabbitmq_queue_messages",
        "rabbitmq_queue_messages_ready",
        "rabbitmq_queue_messages_unacked",
        "rabbitmq_queue_consumers",
        "rabbitmq_queue_messages_published_total",
        "rabbitmq_channel_messages_published_total",
        "rabbitmq_channel_messages_confirmed_total",
        "rabbitmq_channel_messages_acked_total",
        "rabbitmq_channel_get_ack_total",
        "rabbitmq_channel_get_total",
        "rabbitmq_channel_messages_delivered_ack_total",
        "rabbitmq_channel_messages_unacked",
        "rabbitmq_channel_consumers",
        "rabbitmq_connection_channels",
        "rabbitmq_connections",
        "rabbitmq_channels",
        "rabbitmq_consumers",
        "rabbitmq_queues",
        "rabbitmq_connections_opened_total",
        "rabbitmq_channels_opened_total",
        "rabbitmq_queues_declared_total",
        "rabbitmq_queues_created_total",
    ],
)
def test_the_same_use_gives_the_same_numbers(here: Scrape, there: Scrape, name: str) -> None:
    assert here.value(name) == there.value(name)


@pytest.mark.parametrize(
    "name", ["received", "confirmed", "routed", "unroutable_dropped", "unroutable_returned", "delivered"]
)
def test_the_sums_of_the_whole_node_are_the_same(here: Scrape, there: Scrape, name: str) -> None:
    full = f"rabbitmq_global_messages_{name}_total"
    assert sum(here.all(full).values()) == sum(there.all(full).values())
