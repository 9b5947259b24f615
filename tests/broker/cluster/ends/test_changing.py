"""A domain is shown and changed while it runs: nodes, clustered queues and the owners of queues come and go."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

from tests.broker.cluster.ends.site import (
    LIMIT_S,
    MORTAL_LEASE_S,
    Site,
    drain,
    members_of,
    numbered,
    owner_of,
    publish,
    state_of,
    up,
)

NewSite = Callable[..., Site]


def test_a_member_that_somebody_wants_comes_back_with_its_node(new_site: NewSite) -> None:
    site = new_site("a", "b", lease_s=MORTAL_LEASE_S)
    site.run("domain", "cluster", "create", "orders", "--member", "a", "--member", "b")
    publish(site.amqp("b"), "orders", numbered(10))
    site.kill("b")
    site.wait_until(lambda facts: members_of(facts, "orders") == ["a"])
    assert sorted(drain(site.amqp("a"), "orders", 10)) == sorted(numbered(10))
    site.start("b")
    site.wait_until(lambda facts: members_of(facts, "orders") == ["a", "b"])


def test_members_are_added_drained_and_removed(new_site: NewSite) -> None:
    site = new_site("a", "b", "c")
    site.run("domain", "cluster", "create", "orders", "--member", "a", "--option", "surplus=100000")
    assert members_of(site.facts("c"), "orders") == ["a"]
    publish(site.amqp("a"), "orders", numbered(200))
    site.run("domain", "cluster", "add", "orders", "b", at="c")
    said = site.run("domain", "cluster", "remove", "orders", "a", at="c")
    assert said == "orders has no member on a\n"
    assert members_of(site.facts("b"), "orders") == ["b"]
    assert sorted(drain(site.amqp("c"), "orders", 200)) == sorted(numbered(200))
    refused = site.run("domain", "cluster", "remove", "orders", "b", code=1)
    assert "is the last of" in refused
    site.run("domain", "cluster", "delete", "orders", "--yes")
    assert site.facts("b")["clusters"] == []


def test_a_node_is_added_by_a_provisioner_and_removed_with_its_queues_moved(new_site: NewSite) -> None:
    site = new_site("a", "b")
    site.run("domain", "node", "add", "extra")
    [extra] = [node for node in site.facts()["nodes"] if node["name"] == "extra"]
    assert (extra["state"], extra["provisioner"], extra["managed"]) == ("up", "local", False)
    site.run("domain", "cluster", "create", "orders", "--member", "a", "--member", "extra")
    connection = site.amqp_at(extra["addresses"]["amqp"])
    connection.channel().queue_declare("plain", durable=True)
    publish(connection, "plain", numbered(20))
    publish(connection, "plain", [b"transient"], persistent=False)
    publish(connection, "orders", numbered(20))
    site.wait_until(lambda facts: owner_of(facts, "plain") == "extra")
    site.run("domain", "node", "remove", "extra")
    facts = site.facts()
    assert up(facts) == {"a", "b"}
    assert state_of(facts, "extra") is None
    assert drain(site.amqp("b"), "plain", 21) == [*numbered(20), b"transient"]
    assert sorted(drain(site.amqp("b"), "orders", 20)) == sorted(numbered(20))


def test_a_node_that_leads_can_be_removed(new_site: NewSite) -> None:
    site = new_site("a", "b")
    leader = str(site.facts()["leader"])
    [other] = set(site.nodes) - {leader}
    site.run("domain", "cluster", "create", "orders", "--member", "a", "--member", "b")
    site.run("domain", "node", "remove", leader, "--wait", "0", at=other)
    site.wait_until(lambda facts: state_of(facts, leader) is None and facts["leader"] == other, at=other)
    assert site.nodes[leader].wait()[0] == 0
    assert members_of(site.facts(other), "orders") == [other]


DOMAIN = """
[[nodes]]
name = "a"
provisioner = "none"

[[nodes]]
name = "b"

[[clusters]]
name = "orders"
members = ["a", "b"]
max_members = 4

[[topics]]
name = "news"

[[topics]]
name = "news.sport"
parent = "news"
"""


def test_a_file_is_applied_and_changes_nothing_when_applied_again(new_site: NewSite, tmp_path: Path) -> None:
    site = new_site("a")
    file = tmp_path / "domain.toml"
    file.write_text(DOMAIN)
    said = site.run("domain", "apply", str(file), "--yes")
    assert "+ node b, started by local" in said
    facts = site.facts()
    assert up(facts) == {"a", "b"}
    assert members_of(facts, "orders") == ["a", "b"]
    assert [topic["name"] for topic in facts["topics"]] == ["news", "news.sport"]
    again = site.run("domain", "apply", str(file), "--yes")
    assert "+" not in again
    file.write_text(DOMAIN.replace('name = "b"', 'name = "c"').replace('"b"]', '"c"]'))
    site.run("domain", "apply", str(file), "--yes", "--prune")
    facts = site.facts()
    assert (up(facts), members_of(facts, "orders")) == ({"a", "c"}, ["a", "c"])
    site.run("domain", "node", "remove", "c")


def test_queues_are_rebalanced_while_they_are_used_through_another_node(new_site: NewSite) -> None:
    site = new_site("a", "b", "c")
    names = [f"q{number}" for number in range(6)]
    connection = site.amqp("a")
    for name in names:
        connection.channel().queue_declare(name, durable=True)
    site.wait_until(lambda facts: owner_of(facts, "q5") == "a", at="c")
    said = site.run("domain", "rebalance", "--dry-run", "--json", at="c")
    assert [json.loads(line)["source"] for line in said.splitlines()] == ["a"] * 4
    got: dict[str, list[bytes]] = {name: [] for name in names}
    begun = threading.Barrier(len(names) + 1)

    def consume(name: str) -> None:
        connection = site.amqp("c")
        begun.wait()
        # Some come when those of all other queues are published.
        got[name] = drain(connection, name, 300, limit_s=4 * LIMIT_S)
        connection.close()

    consumers = [threading.Thread(target=consume, args=(name,)) for name in names]
    for consumer in consumers:
        consumer.start()
    begun.wait()
    publisher = site.amqp("b")
    for name in names:
        publish(publisher, name, numbered(100))
    site.run("domain", "rebalance", at="b")
    for name in names:
        publish(publisher, name, numbered(200, 100))
    for consumer in consumers:
        consumer.join()
    assert {name: len(set(bodies)) for name, bodies in got.items()} == dict.fromkeys(names, 300)
    owners = [owner_of(site.facts(), name) for name in names]
    assert sorted(map(str, owners)) == ["a", "a", "b", "b", "c", "c"]
