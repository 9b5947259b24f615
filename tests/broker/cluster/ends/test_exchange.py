"""Members of a clustered queue share its clients and exchange messages: none is lost, none comes twice."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter

import httpx
import pika
import pytest

from flyball.broker.cluster.facts import DomainFacts
from flyball.broker.settings import Address
from flyball.client import ConnectionFactory
from tests.broker.cluster.ends.site import LIMIT_S, Site, cluster_of, drain, members_of, numbered, publish


def create(site: Site, name: str, *members: str, **options: object) -> None:
    arguments = [argument for member in members for argument in ("--member", member)]
    arguments += [argument for key, value in options.items() for argument in ("--option", f"{key}={value}")]
    site.run("domain", "cluster", "create", name, *arguments)


def given(facts: DomainFacts, name: str) -> int:
    return sum(member["given"] for member in cluster_of(facts, name)["members"])


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "transient"])
def test_what_a_member_may_not_hold_goes_to_the_others(site: Site, persistent: bool) -> None:
    name = f"surplus-{persistent}"
    create(site, name, "a", "b", "c", surplus=100)
    publish(site.amqp("a"), name, numbered(400), persistent=persistent)

    def is_spread(facts: DomainFacts) -> bool:
        held = [member["ready"] for member in cluster_of(facts, name)["members"]]
        return sum(held) == 400 and max(held) <= 200 and min(held) > 0

    site.wait_until(is_spread)
    assert Counter(drain(site.amqp("a"), name, 400)) == Counter(numbered(400))


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "transient"])
def test_an_empty_member_whose_consumers_wait_gets_messages(site: Site, persistent: bool) -> None:
    name = f"hungry-{persistent}"
    create(site, name, "a", "b")
    publish(site.amqp("a"), name, numbered(60), persistent=persistent)
    assert Counter(drain(site.amqp("b"), name, 60)) == Counter(numbered(60))
    site.wait_until(lambda facts: given(facts, name) == 60)


def test_a_single_message_is_not_left_where_nobody_consumes(site: Site) -> None:
    create(site, "lonely", "a", "b")
    publish(site.amqp("a"), "lonely", [b"one"])
    assert drain(site.amqp("b"), "lonely", 1) == [b"one"]


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "transient"])
def test_redelivered_flag_survives_a_transfer_to_another_member(site: Site, persistent: bool) -> None:
    name = f"returned-{persistent}"
    create(site, name, "a", "b")
    here, there = site.amqp("a").channel(), site.amqp("b").channel()
    publish(site.amqp("a"), name, [b"one"], persistent=persistent)
    method, _, _ = here.basic_get(name)
    here.basic_nack(method.delivery_tag, requeue=True)
    method, _, body = next(there.consume(name, inactivity_timeout=LIMIT_S))
    there.basic_ack(method.delivery_tag)
    there.close()
    assert (body, method.redelivered) == (b"one", True)


def test_a_balanced_load_makes_no_transfers(site: Site) -> None:
    create(site, "balanced", "a", "b", "c")

    async def use() -> dict[str, int]:
        factory = ConnectionFactory(*site.addresses)
        producers = [await factory.connect("producer", "balanced") for _ in range(3)]
        consumers = [await factory.connect("consumer", "balanced") for _ in range(3)]
        nodes = Counter(client.node for client in (*producers, *consumers))
        received = 0
        for number in range(150):
            for producer in producers:
                await producer.send(b"%d" % number)
            for consumer in consumers:
                delivery = await consumer.receive(wait_s=LIMIT_S)
                assert delivery is not None
                await delivery.ack()
                received += 1
        for client in (*producers, *consumers):
            await client.close()
        assert received == 450
        return nodes

    # One producer and one consumer each: that is where the potential is least.
    assert asyncio.run(use()) == {"a": 2, "b": 2, "c": 2}
    assert given(site.facts(), "balanced") == 0


def test_a_marked_member_hands_over_all_it_has(site: Site) -> None:
    create(site, "drained", "a", "b")
    publish(site.amqp("b"), "drained", numbered(1500))
    publish(site.amqp("b"), "drained", numbered(500, 1500), persistent=False)
    assert site.run("domain", "cluster", "remove", "drained", "b") == "drained has no member on b\n"
    assert members_of(site.facts(), "drained") == ["a"]
    assert Counter(drain(site.amqp("c"), "drained", 2000)) == Counter(numbered(2000))


def test_clients_are_placed_by_http_and_by_the_gateway(site: Site) -> None:
    create(site, "placed", "b", "c")
    base = f"http://{site.address('a', 'http')}/api/place"
    query = {"queue": "placed", "role": "producer"}
    answers = [httpx.get(base, params=query, auth=("guest", "guest"), timeout=LIMIT_S) for _ in range(4)]
    nodes = [answer.json()["node"] for answer in answers]
    assert sorted(nodes) == ["b", "b", "c", "c"]
    command = [sys.executable, "-m", "flyball", "gateway", "--queue", "placed", "--listen", "127.0.0.1:0"]
    command += ["--node", site.address("a", "http")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as gateway:
        assert gateway.stdout is not None
        address = Address.parse(gateway.stdout.readline().strip().removeprefix("amqp on "))
        for _ in range(2):
            with pika.BlockingConnection(pika.ConnectionParameters(*address)) as connection:
                publish(connection, "placed", [b"tea"])
        gateway.terminate()
    site.wait_until(lambda facts: sum(m["ready"] for m in cluster_of(facts, "placed")["members"]) == 2)
    assert drain(site.amqp("a"), "placed", 2) == [b"tea", b"tea"]


def test_the_plain_policy_places_by_numbers_of_clients_only(site: Site) -> None:
    create(site, "plainly", "a", "b", policy="plain")
    roles = ["producer"] * 4 + ["consumer"] * 4
    places = [json.loads(site.run("domain", "place", "plainly", "--role", role, "--json"))["node"] for role in roles]
    assert Counter(places[:4]) == Counter(places[4:]) == {"a": 2, "b": 2}
