"""Topics in the Python client: publishing, subscribing, hierarchies and patterns, in both flavours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flyball.broker.node.node import Node
from flyball.client import Client, CommandRefused
from flyball.errors import TopicNotFound
from tests.client.flavours import Connect
from tests.nodes import RunningNode

Unique = Callable[[str], str]


@pytest.fixture
def news(unique: Unique) -> str:
    return unique("news")


def disconnect_all(node: Node) -> None:
    for connection in node.hub.connections:
        connection.disconnect()


async def texts(consumer: Any, count: int) -> list[str]:
    """Take `count` messages; there must not be more."""
    found = []
    for _ in range(count):
        delivery = await consumer.next(20)
        found.append(delivery.message.text)
        await delivery.ack()
    assert await consumer.next(0) is None
    return found


async def test_what_is_published_reaches_all_who_have_subscribed(
    connect: Connect, any_address: str, news: str
) -> None:
    async with connect(any_address) as client:
        await client.create_topic(news)
        await client.create_topic(news)
        topic = client.topic(news)
        assert (topic.name, await topic.publish("nobody hears it")) == (news, False)
        async with (
            client.subscribe(news) as one,
            client.subscribe(news, durable="billing") as two,
            client.subscribe(news, durable="billing", prefetch=0),
        ):
            assert await topic.publish("it rains", priority=3, context=7, ttl_s=600)
            delivery = await one.next(20)
            message = delivery.message
            assert (message.text, message.priority, message.context) == ("it rains", 3, 7)
            await delivery.ack()
            assert await texts(two, 1) == ["it rains"]


async def test_a_durable_subscription_keeps_what_is_published_while_nobody_consumes(
    connect: Connect, any_address: str, news: str
) -> None:
    async with connect(any_address) as client:
        await client.create_topic(news)
        async with client.subscribe(news, durable="billing"), client.subscribe(news):
            pass
        assert await client.topic(news).publish("later")
        async with client.subscribe(news, durable="billing") as messages:
            assert await texts(messages, 1) == ["later"]


async def test_unnamed_subscription_ends_with_its_block_or_connection(
    memory_node: RunningNode, address: str, news: str
) -> None:
    def queues() -> list[str]:
        found = memory_node.call(lambda node: [state.queue.name for state in node.hub.broker.engine.queues])
        return [name for name in found if name.startswith(news)]

    async with Client.connect(address) as alice:
        await alice.create_topic(news)
        async with alice.subscribe(news) as messages:
            await alice.topic(news).publish("unread")
            assert await messages.next(20) is not None
            assert len(queues()) == 1
        assert queues() == []
        bob = Client.connect(address)
        await bob.open()
        await bob.subscribe(news).__aenter__()
        await bob.close()
        memory_node.wait_until(
            lambda node: not any(w.queue.name.startswith(news) for w in node.hub.broker.engine.queues)
        )


async def test_a_message_reaches_the_subscribers_of_all_ancestors_once(
    connect: Connect, address: str, unique: Unique
) -> None:
    world, sport, football = unique("world"), unique("sport"), unique("football")
    async with connect(address) as client:
        await client.create_topic(world)
        await client.create_topic(sport, parent=world)
        await client.create_topic(football, parent=sport)
        async with client.subscribe(world) as top, client.subscribe(football) as leaf:
            await client.topic(football).publish("goal")
            await client.topic(sport).publish("marathon")
            await client.topic(world).publish("peace")
            assert await texts(top, 3) == ["goal", "marathon", "peace"]
            assert await texts(leaf, 1) == ["goal"]


async def test_a_pattern_selects_by_the_key(connect: Connect, address: str, news: str, unique: Unique) -> None:
    weather = unique("weather")
    async with connect(address) as client:
        await client.create_topic(news)
        await client.create_topic(weather, parent=news)
        async with client.subscribe(news, pattern="*.berlin") as berlin, client.subscribe(news) as everything:
            await client.topic(weather).publish("rain", key="today.berlin")
            await client.topic(weather).publish("sun", key="today.rome")
            await client.topic(news).publish("opening", key="airport.berlin")
            assert await texts(berlin, 2) == ["rain", "opening"]
            assert await texts(everything, 3) == ["rain", "sun", "opening"]


async def test_another_pattern_is_added_to_a_durable_subscription(connect: Connect, address: str, news: str) -> None:
    async with connect(address) as client:
        await client.create_topic(news)
        async with client.subscribe(news, durable="mine", pattern="a"):
            pass
        async with client.subscribe(news, durable="mine", pattern="b") as messages:
            await client.topic(news).publish("one", key="a")
            await client.topic(news).publish("two", key="b")
            assert await texts(messages, 2) == ["one", "two"]


async def test_topics_that_are_missing_or_in_use_are_told(connect: Connect, address: str, news: str) -> None:
    async with connect(address) as client:
        with pytest.raises(TopicNotFound) as caught:
            await client.topic(news).publish("x")
        assert caught.value.topic == news
        with pytest.raises(TopicNotFound):
            await client.subscribe(news).__aenter__()
        await client.create_topic(news)
        async with client.subscribe(news, durable="billing"):
            with pytest.raises(CommandRefused, match="in use"):
                await client.unsubscribe(news, "billing")
        with pytest.raises(CommandRefused, match="billing"):
            await client.delete_topic(news)
        await client.unsubscribe(news, "billing")
        await client.delete_topic(news)
        with pytest.raises(TopicNotFound):
            await client.topic(news).publish("x")


async def test_after_a_lost_connection_a_subscription_goes_on(
    memory_node: RunningNode, address: str, news: str
) -> None:
    async with Client.connect(address) as client:
        await client.create_topic(news)
        async with client.subscribe(news) as passing, client.subscribe(news, durable="billing") as lasting:
            memory_node.call(disconnect_all)
            await client.ping()
            waiting = asyncio.ensure_future(passing.next())
            # Asking is what makes it subscribe again.
            await asyncio.to_thread(
                memory_node.wait_until,
                lambda node: any(
                    state.consumers
                    for state in node.hub.broker.engine.queues
                    if state.queue.name.startswith(f"{news}/~")
                ),
            )
            await client.topic(news).publish("again")
            delivery = await waiting
            assert delivery is not None
            assert delivery.message.text == "again"
            assert await texts(lasting, 1) == ["again"]
