"""A node that dies, stands still or loses its store is replaced by the others, and comes back as a new one.

How soon that has to be is tested in tests/broker/cluster/test_time_to_repair.py, in simulated time.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest
from bench.chaos.proxy import HOST, Proxy

from flyball.broker.cluster.facts import DomainFacts
from flyball.broker.store.postgres.embedded import SOCKET_NAME
from tests.broker.cluster.ends.site import (
    LIMIT_S,
    MORTAL_LEASE_S,
    Site,
    cluster_of,
    drain,
    members_of,
    numbered,
    owner_of,
    publish,
    state_of,
)

NewSite = Callable[..., Site]


@pytest.fixture
def new_site(new_site: NewSite) -> NewSite:
    """Nodes that are missed as soon as others are by default."""
    return partial(new_site, lease_s=MORTAL_LEASE_S)


def test_queues_of_a_killed_node_are_served_by_others(
    new_site: NewSite,
) -> None:
    site = new_site("a", "b", "c")
    site.run("domain", "cluster", "create", "orders", "--member", "b", "--member", "c")
    connection = site.amqp("b")
    connection.channel().queue_declare("plain", durable=True)
    publish(connection, "plain", numbered(100))
    publish(connection, "orders", numbered(100))
    consumer = site.amqp("c").channel()
    consumer.basic_qos(prefetch_count=10)
    found: list[tuple[bytes, bool]] = []
    deliveries = consumer.consume("plain", inactivity_timeout=0.5)
    # It holds ten that it has not acknowledged when the owner dies.
    next(method for method, _, _ in deliveries if method is not None)
    began_s = time.monotonic()
    site.kill("b")
    site.wait_until(lambda facts: state_of(facts, "b") == "dead")
    for method, _, body in deliveries:
        if method is not None:
            found.append((body, method.redelivered))
            consumer.basic_ack(method.delivery_tag)
        if {body for body, _ in found} >= set(numbered(100)):
            break
        assert time.monotonic() - began_s < LIMIT_S
    orders = drain(site.amqp("a"), "orders", 100)
    print(f"all served by others {time.monotonic() - began_s:.1f} s after kill -9")
    assert sorted(orders) == sorted(numbered(100))


def test_others_serve_also_if_the_leader_is_killed(new_site: NewSite) -> None:
    site = new_site("a", "b")
    leader = str(site.facts()["leader"])
    [other] = {"a", "b"} - {leader}
    connection = site.amqp(leader)
    connection.channel().queue_declare("plain", durable=True)
    publish(connection, "plain", numbered(50))
    began_s = time.monotonic()
    site.kill(leader)
    site.wait_until(lambda facts: owner_of(facts, "plain") == other)
    assert sorted(drain(site.amqp(other), "plain", 50)) == sorted(numbered(50))
    print(f"all served by others {time.monotonic() - began_s:.1f} s after kill -9 of the leader")


def test_another_node_leads_when_the_leader_is_killed(new_site: NewSite) -> None:
    site = new_site("a", "b", "c")
    leader = str(site.facts()["leader"])
    site.run("domain", "cluster", "create", "orders", "--member", leader)
    publish(site.amqp(leader), "orders", numbered(50))
    others = [name for name in site.nodes if name != leader]
    began_s = time.monotonic()
    site.kill(leader)
    site.wait_until(lambda facts: facts["leader"] in others, at=others[0])
    led_s = time.monotonic() - began_s
    # The only member lives on elsewhere, and is left again when its node is back.
    site.wait_until(lambda facts: members_of(facts, "orders")[0] in others, at=others[0])
    print(f"another node led after {led_s:.1f} s, and had repaired after {time.monotonic() - began_s:.1f} s")
    assert sorted(drain(site.amqp(others[1]), "orders", 50)) == sorted(numbered(50))
    place = json.loads(site.run("domain", "place", "orders", "--json", at=others[1]))
    assert place["node"] in others


def test_a_node_that_stood_still_joins_as_a_new_one_and_delivers_nothing_of_old(new_site: NewSite) -> None:
    site = new_site("a", "b")
    owner = site.amqp("b")
    owner.channel().queue_declare("plain", durable=True)
    publish(owner, "plain", numbered(50))
    epoch = next(node["epoch"] for node in site.facts()["nodes"] if node["name"] == "b")
    began_s = time.monotonic()
    site.nodes["b"].signal(signal.SIGSTOP)
    try:
        site.wait_until(lambda facts: owner_of(facts, "plain") == "a", at="a")
        assert sorted(drain(site.amqp("a"), "plain", 50)) == sorted(numbered(50))
        print(f"all served by others {time.monotonic() - began_s:.1f} s after SIGSTOP")
    finally:
        site.nodes["b"].signal(signal.SIGCONT)

    def is_new(facts: object) -> bool:
        [node] = [node for node in facts["nodes"] if node["name"] == "b"]  # type: ignore[index]
        return bool(node["state"] == "up" and node["epoch"] > epoch)

    site.wait_until(is_new, at="a")
    [node] = [node for node in site.facts("a")["nodes"] if node["name"] == "b"]
    again = site.amqp_at(node["addresses"]["amqp"])
    publish(again, "plain", [b"new"])
    assert drain(again, "plain", 1) == [b"new"]


def test_a_node_that_is_cut_off_from_its_store_is_replaced_and_comes_back(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    store = urlsplit(new_database())
    [folder] = parse_qs(store.query)["host"]

    async def scenario() -> None:
        async with Proxy(Path(folder) / SOCKET_NAME) as wire:
            await asyncio.to_thread(disturb, wire, asyncio.get_running_loop())

    def disturb(wire: Proxy, loop: asyncio.AbstractEventLoop) -> None:
        with Site(tmp_path, store.geturl(), lease_s=MORTAL_LEASE_S) as site:
            site.start("a")
            site.start("b", store=f"postgresql://postgres@{HOST}:{wire.port}{store.path}")
            connection = site.amqp("b")
            connection.channel().queue_declare("plain", durable=True)
            publish(connection, "plain", numbered(50))
            began_s = time.monotonic()
            loop.call_soon_threadsafe(wire.cut)
            site.wait_until(lambda facts: owner_of(facts, "plain") == "a", at="a")
            assert sorted(drain(site.amqp("a"), "plain", 50)) == sorted(numbered(50))
            print(f"all served by others {time.monotonic() - began_s:.1f} s after the cut")
            loop.call_soon_threadsafe(wire.heal)
            site.wait_until(lambda facts: state_of(facts, "b") == "up", at="a")

    asyncio.run(scenario())


def test_a_provisioned_node_that_dies_is_replaced(new_site: NewSite) -> None:
    site = new_site("a")
    site.run("domain", "node", "add", "extra")
    _kill_started(site, "extra")
    site.wait_until(lambda facts: _has_come_back(facts, "extra"))
    site.run("domain", "node", "remove", "extra")


def test_a_node_that_the_manager_has_started_is_replaced_when_it_dies(new_site: NewSite) -> None:
    site = new_site("a")
    options = ["--capacity", "2", "--provisioner", "local", "--option", "period_s=0.2"]
    site.run("domain", "cluster", "create", "orders", "--member", "a", *options)
    consumers = [site.amqp("a").channel() for _ in range(3)]
    for consumer in consumers:
        consumer.basic_consume("orders", lambda *_: None)
    site.wait_until(lambda facts: len(members_of(facts, "orders")) == 2)
    [started] = set(members_of(site.facts(), "orders")) - {"a"}
    _kill_started(site, started)
    site.wait_until(lambda facts: _has_come_back(facts, started))
    # Its member is back too, and a consumer that is connected elsewhere is served from there.
    site.wait_until(lambda facts: set(members_of(facts, "orders", marked=False)) == {"a", started})
    site.wait_until(lambda facts: all(member["consumers"] for member in cluster_of(facts, "orders")["members"]))


def _has_come_back(facts: DomainFacts, name: str) -> bool:
    """Return whether a node serves that was declared dead."""
    return any(node["name"] == name and node["state"] == "up" and node["epoch"] > 2 for node in facts["nodes"])


def _kill_started(site: Site, name: str) -> None:
    """End a node that the domain has started on node a, without a warning."""
    folder = str(site.folder / "a" / "nodes" / name)
    [process] = [process for process in psutil.process_iter(["cmdline"]) if folder in (process.info["cmdline"] or ())]
    process.kill()
