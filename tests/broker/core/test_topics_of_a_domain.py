"""Topics of a domain: subscriptions are counted and ended whichever node serves their queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from flyball.broker.core import topics
from flyball.broker.node.node import Node
from flyball.errors import QueueInUse, QueueNotFound
from tests.broker.domains import Pair, two_nodes
from tests.nodes import RunningNode


@pytest.fixture
def pair(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[Pair]:
    """Two nodes: both know the topic `news`, whose durable subscription `billing` the first one serves."""
    with two_nodes(tmp_path, new_database, telesto="off", thorbang="off") as nodes:
        nodes[0].run(lambda node: node.hub.topics.create("news"))
        yield nodes


@pytest.fixture
def channel(pair: Pair) -> Iterator[Any]:
    """A channel of the first node."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(*pair[0].address("amqp"), heartbeat=0))
    channel = connection.channel()
    channel.queue_declare("news/billing", durable=True)
    channel.queue_bind("news/billing", "news", "#")
    pair[1].wait_until(lambda node: bool(node.hub.directory.find("/", "news/billing")))
    pair[1].wait_until(lambda node: bool(node.hub.topics.subscriptions("news")))
    yield channel
    if connection.is_open:
        connection.close()


def subscription(node: RunningNode) -> dict[str, Any]:
    [found] = node.run(lambda node: node.hub.topics.list_subscriptions("news"))
    assert found["subscription"] == "billing"
    return {name: found[name] for name in ("messages", "consumers")}


def test_subscriptions_at_other_nodes_are_counted_and_ended(pair: Pair, channel: Any) -> None:
    async def unsubscribe(node: Node) -> None:
        await node.hub.topics.unsubscribe("news", "billing")

    tag = channel.basic_consume("news/billing", lambda *delivery: None)
    with pytest.raises(QueueInUse):
        pair[1].run(unsubscribe)
    channel.basic_cancel(tag)
    channel.confirm_delivery()
    channel.basic_publish("news", "rain", b"1")
    assert subscription(pair[1]) == {"messages": 1, "consumers": 0}
    pair[1].run(unsubscribe)
    with pytest.raises(QueueNotFound, match="no queue 'news/billing'"):
        pair[1].run(unsubscribe)
    assert pair[0].call(lambda node: node.hub.broker.engine.find_queue("news/billing")) is None


def test_subscriptions_whose_node_is_gone_are_listed_without_counts(
    pair: Pair, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "COUNT_LIMIT_S", 0.2)
    channel.connection.close()
    pair[0].stop()
    assert subscription(pair[1]) == {"messages": None, "consumers": None}
