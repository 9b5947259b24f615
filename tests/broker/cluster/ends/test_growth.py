"""A clustered queue grows with its clients and shrinks without them, and nothing is lost or doubled on the way."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import pika
import pika.exceptions
import pytest

from flyball.broker.cluster.facts import DomainFacts
from flyball.client import Client, ConnectionFactory
from flyball.client.api import Api
from flyball.client.consumer import Delivery
from flyball.client.errors import LeaseLost
from flyball.client.http import Place
from flyball.errors import FlyballError
from flyball.lab.history import Checker, Kind, Recorder
from tests.broker.cluster.ends.site import LIMIT_S, Site, cluster_of, drain, members_of, publish, up
from tests.broker.peers import ThorBangPeer

NewSite = Callable[..., Site]


class History:
    """Requests of clients and their answers, checked at the end."""

    def __init__(self) -> None:
        self._checker = Checker()
        self._recorder = Recorder(self._checker.note)

    def publish(self, producer: str) -> bytes:
        return json.dumps([producer, self._recorder.publish(producer)]).encode()

    def note(self, kind: Kind, body: bytes, who: str = "", *, is_redelivered: bool | None = None) -> None:
        producer, number = json.loads(body)
        self._recorder.note(kind, producer, number, who=who, is_redelivered=is_redelivered)

    def check(self) -> None:
        verdict = self._checker.finish()
        assert verdict.is_clean, str(verdict)


def test_the_eleventh_client_of_a_member_that_bears_ten_brings_a_second_member(new_site: NewSite) -> None:
    site = new_site("a", "b")
    options = ["--capacity", "10", "--max-members", "2", "--option", "dwell_s=1", "--option", "period_s=0.2"]
    site.run("domain", "cluster", "create", "orders", "--member", "a", *options)

    async def join_and_leave() -> None:
        async with AsyncExitStack() as clients:
            factory = ConnectionFactory(site.address("a", "amqp"))
            placed = []
            for number in range(11):
                client = await factory.connect("producer" if number % 2 else "consumer", "orders")
                clients.push_async_callback(client.close)
                placed.append(client.node)
                if number == 9:
                    assert members_of(await asyncio.to_thread(site.facts), "orders") == ["a"]
            assert placed[:10] == ["a"] * 10
            await asyncio.to_thread(
                site.wait_until, lambda facts: members_of(facts, "orders", marked=False) == ["a", "b"]
            )
            # The rebalancer brings some over, until no move would make the load more even.
            await asyncio.to_thread(site.wait_until, lambda facts: _spread(facts, "orders") == [5, 6])

    asyncio.run(join_and_leave())
    # The member that no client has asked for goes again, and never the last one.
    site.wait_until(lambda facts: members_of(facts, "orders") == ["a"])
    reasons = [decision["what"] for decision in site.cluster("orders")["decisions"]]
    assert reasons.count("AddMember") == reasons.count("Mark") == reasons.count("RemoveMember") == 1


def _spread(facts: DomainFacts, name: str) -> list[int]:
    members = cluster_of(facts, name)["members"]
    return sorted(member["producers"] + member["consumers"] for member in members)


def test_node_is_started_for_clients_without_room_and_stopped_after_them(new_site: NewSite) -> None:
    site = new_site("a")
    options = ["--capacity", "4", "--provisioner", "local", "--option", "dwell_s=1", "--option", "period_s=0.2"]
    site.run("domain", "cluster", "create", "orders", "--member", "a", *options)
    history = History()

    async def work() -> None:
        factory = ConnectionFactory(site.address("a", "amqp"))
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            producers = [tasks.create_task(_produce(factory, history, f"p{number}", stop)) for number in range(3)]
            consumers = [tasks.create_task(_consume(factory, history, f"c{number}")) for number in range(3)]
            await asyncio.to_thread(
                site.wait_until, lambda facts: len(members_of(facts, "orders", marked=False)) == 2
            )
            await asyncio.to_thread(site.wait_until, lambda facts: min(_spread(facts, "orders")) >= 2)
            stop.set()
            await asyncio.wait(producers)
            await asyncio.to_thread(site.wait_until, lambda facts: _waiting(facts) == 0)
            for consumer in consumers:
                consumer.cancel()

    asyncio.run(work())
    site.wait_until(lambda facts: members_of(facts, "orders") == ["a"])
    site.wait_until(lambda facts: up(facts) == {"a"} and len(facts["nodes"]) == 1)
    history.check()


def _waiting(facts: DomainFacts) -> int:
    members = cluster_of(facts, "orders")["members"]
    return sum(member["ready"] + member["unacked"] for member in members)


async def _produce(factory: ConnectionFactory, history: History, name: str, stop: asyncio.Event) -> None:
    async with await factory.connect("producer", "orders") as producer:
        while not stop.is_set():
            body = history.publish(name)
            try:
                await producer.send(body)
            except FlyballError:
                history.note(Kind.UNKNOWN, body)
            else:
                history.note(Kind.CONFIRMED, body)
            await asyncio.sleep(0)


async def _consume(factory: ConnectionFactory, history: History, name: str) -> None:
    async with await factory.connect("consumer", "orders") as consumer:
        async for delivery in consumer:
            await _acknowledge(delivery, history, name)


async def _acknowledge(delivery: Delivery, history: History, name: str) -> bool:
    """Acknowledge what a consumer got, and note what comes of it; return whether it was taken."""
    body = delivery.message.body
    history.note(Kind.DELIVERED, body, name)
    history.note(Kind.ACK, body, name)
    try:
        await delivery.ack()
    except LeaseLost:
        history.note(Kind.ACK_REFUSED, body, name)
        return False
    history.note(Kind.ACKED, body, name)
    return True


def test_plain_amqp_clients_are_served_from_elsewhere_when_their_member_goes(new_site: NewSite) -> None:
    site = new_site("a", "b")
    site.run("domain", "cluster", "create", "orders", "--member", "a", "--member", "b", "--option", "period_s=0.2")
    history = History()
    stop = threading.Event()
    confirmed: list[bytes] = []
    found: list[bytes] = []

    def produce() -> None:
        channel = site.amqp("a").channel()
        channel.confirm_delivery()
        while not stop.is_set():
            body = history.publish("plain")
            channel.basic_publish("", "orders", body, pika.BasicProperties(delivery_mode=2))
            history.note(Kind.CONFIRMED, body)
            confirmed.append(body)

    def consume() -> None:
        connection = site.amqp("a")
        channel = connection.channel()
        channel.basic_qos(prefetch_count=5)
        last_s = time.monotonic()
        with suppress(pika.exceptions.AMQPError):
            for method, _, body in channel.consume("orders", inactivity_timeout=0.2):
                if method is not None:
                    last_s = time.monotonic()
                    history.note(Kind.DELIVERED, body, "consumer", is_redelivered=method.redelivered)
                    history.note(Kind.ACK, body, "consumer")
                    channel.basic_ack(method.delivery_tag)
                    found.append(body)
                has_all = not producer.is_alive() and len(found) >= len(confirmed)
                if has_all or time.monotonic() - last_s > LIMIT_S:
                    break

    producer, consumer = threading.Thread(target=produce), threading.Thread(target=consume)
    workers = [producer, consumer]
    for worker in workers:
        worker.start()
    try:
        site.wait_until(lambda facts: _clients(facts, "a") == 2)
        # Both stay connected to the node, whose member is drained and removed below them.
        assert site.run("domain", "cluster", "remove", "orders", "a") == "orders has no member on a\n"
        assert members_of(site.facts(), "orders") == ["b"]
        count = len(found)
        site.wait_until(lambda facts: len(found) > count + 20 and _clients(facts, "b") == 2)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    history.check()
    assert drain(site.amqp("b"), "orders", 1, limit_s=1) == []
    publish(site.amqp("a"), "orders", [b"after"])


@pytest.mark.parametrize("entry", ["a", "c"])
def test_plain_python_clients_count_and_keep_no_member_from_going(new_site: NewSite, entry: str) -> None:
    site = new_site("a", "b", "c")
    site.run("domain", "cluster", "create", "orders", "--member", "a", "--option", "period_s=0.2")
    history = History()
    address = site.address(entry, "amqp")

    async def produce(stop: asyncio.Event) -> None:
        async with Client.connect(address) as client:
            while not stop.is_set():
                body = history.publish("plain")
                await client.put("orders", body)
                history.note(Kind.CONFIRMED, body)

    async def consume(name: str, found: list[bytes]) -> None:
        async with Client.connect(address) as client, client.consume("orders", prefetch=3) as consumer:
            async for delivery in consumer:
                if await _acknowledge(delivery, history, name):
                    found.append(delivery.message.body)

    async def wait() -> None:
        # Nothing is ever addressed to it: it goes on waiting at another member.
        async with Client.connect(address) as client:
            await client.take("orders", context=77, wait_s=3600)
            raise AssertionError("the wait has ended")

    async def work() -> None:
        stop, found = asyncio.Event(), list[bytes]()
        async with asyncio.TaskGroup() as tasks:
            producing = tasks.create_task(produce(stop))
            consuming = [tasks.create_task(consume(f"c{number}", found)) for number in range(2)]
            waiting = tasks.create_task(wait())
            await asyncio.to_thread(site.wait_until, lambda facts: _clients(facts, "a") == 4)
            await asyncio.to_thread(site.run, "domain", "cluster", "add", "orders", "b")
            said = await asyncio.to_thread(site.run, "domain", "cluster", "remove", "orders", "a")
            assert said == "orders has no member on a\n"
            count = len(found)
            await asyncio.to_thread(
                site.wait_until, lambda facts: len(found) > count + 20 and _clients(facts, "b") >= 3
            )
            stop.set()
            await producing
            await asyncio.to_thread(site.wait_until, lambda facts: _waiting(facts) == 0)
            for client in (*consuming, waiting):
                client.cancel()

    asyncio.run(work())
    history.check()


def test_thorbang_client_continues_with_the_id_of_a_removed_member(new_site: NewSite) -> None:
    site = new_site("a", "b", thorbang="127.0.0.1:0")
    site.run("domain", "cluster", "create", "orders", "--member", "a", "--option", "period_s=0.2")
    with Api(Place(site.url("a"))) as api:
        number = api.get("queues", "/", "orders", columns="id")["id"]
    with site.nodes["a"].connect("thorbang") as connection:
        peer = ThorBangPeer(connection)
        sender, _ = peer.set_up()
        for text in ("first", "second"):
            assert peer.ask(f"MSG,-1,{sender},{number},1,0,{text}") == ["OK"]
        assert peer.ask(f"POPQ,{sender},{number},1")[0].endswith(",first")
        site.wait_until(lambda facts: _clients(facts, "a") == 2)
        site.run("domain", "cluster", "add", "orders", "b")
        assert site.run("domain", "cluster", "remove", "orders", "a") == "orders has no member on a\n"
        site.wait_until(lambda facts: _clients(facts, "b") == 2)
        assert peer.ask(f"MSG,-1,{sender},{number},1,0,third") == ["OK"]
        popped = [peer.ask(f"POPQ,{sender},{number},1")[0] for _ in range(2)]
        # What was handed over keeps no order with what came to the new member itself.
        assert sorted(text.rpartition(",")[2] for text in popped) == ["second", "third"]


def _clients(facts: DomainFacts, node: str) -> int:
    members = cluster_of(facts, "orders")["members"]
    return sum(member["producers"] + member["consumers"] for member in members if member["node"] == node)
