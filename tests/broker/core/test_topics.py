"""Topics on a node: their hierarchy, how they are managed and kept, and that AMQP reaches them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from flyball.broker.core import topics
from flyball.broker.node.node import Node
from flyball.client import CommandRefused
from flyball.client.sync import Client
from flyball.errors import InvalidArgument, InvalidName, NotPermitted, RequestError, TopicNotFound
from tests.broker.protocols.amqp.compatibility.queues import declare, take
from tests.nodes import RunningNode, with_api


@pytest.fixture
def memory_node(start_memory_node: Callable[..., RunningNode]) -> RunningNode:
    """One with an HTTP API, which creates topics."""
    return start_memory_node(**with_api())


@pytest.fixture
def client(memory_node: RunningNode) -> Iterator[Client]:
    with Client.connect(str(memory_node.address("amqp"))) as client:
        yield client


@pytest.fixture
def channel(memory_node: RunningNode) -> Iterator[Any]:
    host, port = memory_node.address("amqp")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0))
    yield connection.channel()
    connection.close()


def parents(node: RunningNode) -> dict[str, str | None]:
    return node.call(lambda running: {topic.name: topic.parent for topic in running.hub.topics.all()})


def test_others_have_their_turn_while_subscriptions_are_listed(
    memory_node: RunningNode, client: Client, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "SLICE", 2)
    client.create_topic("news")
    channel.queue_declare("all")
    for number in range(10):
        channel.queue_bind("all", "news", str(number))

    async def turns_of_others(node: Node) -> int:
        turns = 0
        async with asyncio.TaskGroup() as tasks:
            listing = tasks.create_task(node.hub.topics.list_subscriptions("news"))
            while not listing.done():
                await asyncio.sleep(0)
                turns += 1
        assert len(listing.result()) == 10
        return turns

    assert memory_node.run(turns_of_others) >= 5


def test_others_have_their_turn_while_a_domain_is_described(
    memory_node: RunningNode, client: Client, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "NAMES_SLICE", 2)
    client.create_topic("news")
    for name in ("b", "c", "a"):
        channel.queue_declare(name)
        channel.queue_bind(name, "news", "#")

    async def names(node: Node) -> list[str]:
        slices = node.hub.topics.queue_names("news")
        # Each await of it lets others have their turn.
        assert [slices.send(None) for _ in range(2)] == [None, None]
        try:
            slices.send(None)
        except StopIteration as end:
            return list(end.value)
        raise AssertionError("more turns than slices")

    assert memory_node.run(names) == ["a", "b", "c"]


# Names


def test_a_topic_cannot_have_a_name_of_the_brokers_own(client: Client) -> None:
    for name in ("amq.topic", "amq.news"):
        with pytest.raises(CommandRefused, match=f"topic name '{name}' contains reserved prefix 'amq.\\*'"):
            client.create_topic(name)
    client.create_topic("amq")
    client.delete_topic("amq")


def test_few_durable_subscriptions_are_named_when_a_topic_is_not_deleted(
    client: Client, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "MAX_NAMED", 2)
    client.create_topic("news")
    for name in ("news/a", "news/b", "news/c"):
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, "news", "#")
    with pytest.raises(CommandRefused, match="durable subscriptions a, b and more; end them first"):
        client.delete_topic("news")


# Hierarchy


def test_a_topic_cannot_be_its_own_ancestor(memory_node: RunningNode, client: Client) -> None:
    client.create_topic("a")
    client.create_topic("b", parent="a")
    client.create_topic("c", parent="b")
    for parent in ("a", "b", "c"):
        with pytest.raises(InvalidArgument, match=f"topic '{parent}' cannot be the parent of 'a'"):
            memory_node.run(lambda node: node.hub.topics.set_parent("a", parent))  # noqa: B023
    with pytest.raises(CommandRefused, match="its own parent"):
        client.create_topic("d", parent="d")
    assert parents(memory_node) == {"a": None, "b": "a", "c": "b"}


def test_a_topic_may_get_another_parent(memory_node: RunningNode, client: Client) -> None:
    for name, parent in (("a", None), ("b", None), ("c", "a")):
        client.create_topic(name, parent=parent)
    with pytest.raises(CommandRefused, match="with the parent 'a'"):
        client.create_topic("c", parent="b")
    for _ in range(2):
        memory_node.run(lambda node: node.hub.topics.set_parent("c", "b"))
    with client.subscribe("a") as old, client.subscribe("b") as new:
        assert client.topic("c").publish("x")
        assert new.next(20) is not None
        assert old.next(0) is None
        memory_node.run(lambda node: node.hub.topics.set_parent("c", None))
        assert not client.topic("c").publish("x")


def test_a_parent_must_exist_and_stays_while_it_has_children(memory_node: RunningNode, client: Client) -> None:
    with pytest.raises(TopicNotFound, match="no topic 'a'; create it first"):
        client.create_topic("b", parent="a")
    client.create_topic("a")
    client.create_topic("b", parent="a")
    with pytest.raises(CommandRefused, match="parent of b"):
        client.delete_topic("a")
    client.delete_topic("b")
    client.delete_topic("a")
    assert parents(memory_node) == {}


@pytest.mark.parametrize("name", ["", "x" * 256, "ä" * 200, "amq.news"])
def test_what_cannot_be_the_name_of_a_topic_is_refused(memory_node: RunningNode, name: str) -> None:
    with pytest.raises(RequestError):
        memory_node.run(lambda node: node.hub.topics.create(name))


def test_a_name_of_an_exchange_that_is_no_topic_is_refused(
    memory_node: RunningNode, client: Client, channel: Any
) -> None:
    channel.exchange_declare("news", "fanout", durable=True)
    with pytest.raises(CommandRefused, match="inequivalent arg 'type'"):
        client.create_topic("news")
    assert parents(memory_node) == {}


def test_a_subscription_with_a_name_that_it_cannot_have_is_refused(client: Client) -> None:
    client.create_topic("news")
    for name in ("~x", "x" * 255):
        with pytest.raises(InvalidName), client.subscribe("news", durable=name):
            pass


# Management


def test_subscriptions_are_listed_those_of_amqp_included(
    memory_node: RunningNode, client: Client, channel: Any
) -> None:
    client.create_topic("news")
    queue = declare(channel)
    channel.queue_bind(queue, "news", "*.berlin")
    with client.subscribe("news", durable="billing", pattern="a.#"), client.subscribe("news"):
        client.topic("news").publish("x", key="y.berlin")
        bound, durable, passing = memory_node.run(lambda node: node.hub.topics.list_subscriptions("news"))
        assert bound == {
            "subscription": None,
            "queue": queue,
            "pattern": "*.berlin",
            "durable": bound["durable"],
            "messages": 1,
            "consumers": 0,
        }
        assert (durable["subscription"], durable["queue"]) == ("billing", "news/billing")
        assert (durable["pattern"], durable["durable"], durable["consumers"]) == ("a.#", True, 1)
        assert (passing["subscription"], passing["pattern"], passing["durable"]) == (None, "#", False)


def test_topics_and_subscriptions_survive_a_restart(tmp_path: Path) -> None:
    for turn in range(2):
        with (
            RunningNode(tmp_path, **with_api(store="embedded", thorbang="off")) as node,
            Client.connect(str(node.address("amqp"))) as client,
        ):
            if turn == 0:
                client.create_topic("news")
                client.create_topic("sport", parent="news")
                with client.subscribe("news", durable="billing", pattern="*.berlin"):
                    pass
                client.topic("sport").publish("kept", key="today.berlin")
            else:
                assert parents(node) == {"news": None, "sport": "news"}
                client.topic("sport").publish("fresh", key="today.berlin")
                with client.subscribe("news", durable="billing", pattern="*.berlin") as messages:
                    found = [messages.next(20), messages.next(20)]
                    assert [delivery and delivery.message.text for delivery in found] == ["kept", "fresh"]
                client.delete_topic("sport")


# AMQP


def test_what_python_publishes_arrives_at_amqp_with_topic_and_key(client: Client, channel: Any) -> None:
    client.create_topic("news")
    client.create_topic("weather", parent="news")
    queue = declare(channel)
    channel.queue_bind(queue, "news", "*.berlin")
    client.topic("weather").publish("rain", key="today.berlin", priority=4, context=9)
    found = take(channel, queue, auto_ack=True)
    assert (found.body, found.method.exchange, found.method.routing_key) == (b"rain", "weather", "today.berlin")
    assert (found.properties.priority, found.properties.delivery_mode) == (4, 2)
    assert found.headers == {"x-flyball-context": 9}


def test_what_amqp_publishes_arrives_at_python(client: Client, channel: Any) -> None:
    client.create_topic("news")
    with client.subscribe("news", pattern="today.#") as messages:
        channel.basic_publish("news", "today.berlin", b"rain")
        delivery = messages.next(20)
        assert delivery is not None
        assert delivery.message.text == "rain"
        delivery.ack()


def test_a_topic_exchange_of_amqp_is_a_topic_to_publish_and_subscribe_to(
    memory_node: RunningNode, client: Client, channel: Any
) -> None:
    channel.exchange_declare("logs", "topic")
    with client.subscribe("logs") as messages:
        assert client.topic("logs").publish("x")
        assert messages.next(20) is not None
    assert parents(memory_node) == {}


def test_a_topic_goes_with_its_exchange_and_its_children_have_no_parent_then(
    memory_node: RunningNode, client: Client, channel: Any
) -> None:
    client.create_topic("news")
    client.create_topic("sport", parent="news")
    channel.exchange_delete("news")
    assert parents(memory_node) == {"sport": None}
    client.create_topic("news", parent="sport")


def test_a_topic_publishes_to_no_internal_exchange(client: Client, channel: Any) -> None:
    channel.exchange_declare("inner", "topic", internal=True)
    with pytest.raises(NotPermitted, match="internal exchange 'inner'"):
        client.topic("inner").publish("x")
