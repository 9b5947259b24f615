"""Topics in a domain: subscribers on several nodes, publishers anywhere, from AMQP and from Python."""

from __future__ import annotations

import asyncio

from flyball.broker.cluster.facts import DomainFacts
from flyball.client import Client
from tests.broker.cluster.ends.site import LIMIT_S, Site, drain, state_of


def test_message_reaches_subscribers_of_ancestor_topics_on_all_nodes(site: Site) -> None:
    site.run("domain", "topic", "create", "news", at="a")
    site.run("domain", "topic", "create", "sport", "--parent", "news", at="b")

    async def use() -> list[bytes]:
        a, b, c = [Client.connect(site.address(name, "amqp")) for name in "abc"]
        async with a, b, c, a.subscribe("news", durable="archive") as archive, b.subscribe("sport") as fan:
            await asyncio.to_thread(site.wait_until, lambda facts: _subscriptions(facts) == 2, at="c")
            assert await c.topic("sport").publish(b"goal")
            assert await a.topic("news").publish(b"rain")
            bodies = []
            for consumer in (archive, fan, archive):
                delivery = await consumer.next(wait_s=LIMIT_S)
                assert delivery is not None
                bodies.append(delivery.message.body)
                await delivery.ack()
        return bodies

    assert asyncio.run(use()) == [b"goal", b"goal", b"rain"]


def test_a_durable_subscription_collects_while_its_subscriber_is_away(site: Site) -> None:
    site.run("domain", "topic", "create", "durable", at="c")

    async def subscribe() -> None:
        client = Client.connect(site.address("b", "amqp"))
        async with client, client.subscribe("durable", durable="away"):
            pass

    async def publish() -> bool:
        async with Client.connect(site.address("a", "amqp")) as client:
            return await client.topic("durable").publish(b"kept")

    async def read() -> bytes:
        client = Client.connect(site.address("c", "amqp"))
        async with client, client.subscribe("durable", durable="away") as consumer:
            delivery = await consumer.next(wait_s=LIMIT_S)
            assert delivery is not None
            await delivery.ack()
            return delivery.message.body

    asyncio.run(subscribe())
    assert asyncio.run(publish())
    assert asyncio.run(read()) == b"kept"


def test_amqp_clients_use_topics_across_nodes(site: Site) -> None:
    site.run("domain", "topic", "create", "weather")
    subscriber = site.amqp("b").channel()
    subscriber.queue_declare("fog", durable=True)
    subscriber.queue_bind("fog", "weather", "#")
    publisher = site.amqp("c").channel()
    publisher.confirm_delivery()
    publisher.basic_publish("weather", "sea", b"fog")
    assert drain(site.amqp("a"), "fog", 1) == [b"fog"]
    assert state_of(site.facts(), "a") == "up"


def _subscriptions(facts: DomainFacts) -> int:
    return sum(len(topic["subscriptions"]) for topic in facts["topics"] if topic["name"] in ("news", "sport"))
