"""Facts that are shown of a domain."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.broker.cluster.facts import (
    ClusterFacts,
    MemberCounts,
    NodeFacts,
    cluster_facts,
    cluster_named,
    domain_facts,
    node_named,
)
from flyball.broker.cluster.options import ClusterOptions
from flyball.errors import ClusterError
from tests.broker.cluster.models import queue_facts


def orders(*members: MemberCounts, **options: Any) -> ClusterFacts:
    return cluster_facts("/", "orders", ClusterOptions(**options), members)


def node(number: int, **changes: Any) -> NodeFacts:
    facts = {"id": number, "name": f"n{number}", "state": "up", "epoch": 0, "lease_left_s": None}
    return cast(NodeFacts, facts | {"addresses": {}, "provisioner": None, "managed": False, "queues": [], **changes})


def test_shares_and_loads_follow_from_clients_weights_and_capacities() -> None:
    cluster = orders(
        MemberCounts("n2", 20, producers=1, consumers=6),
        MemberCounts("n1", 10, producers=3, consumers=2),
        capacity=10,
        producer_weight=2,
    )
    first, second = cluster["members"]
    assert (cluster["producers"], cluster["consumers"]) == (4, 8)
    assert (first["x"], first["y"], first["load"], first["capacity"]) == (0.75, 0.25, 0.8, 10)
    assert (second["x"], second["y"], second["load"], second["capacity"]) == (0.25, 0.75, 0.4, 20)
    assert cluster["load"] == round(16 / 30, 4)


def test_a_marked_member_bears_load_but_is_no_capacity() -> None:
    cluster = orders(
        MemberCounts("n1", 10, producers=2, consumers=2),
        MemberCounts("n2", 10, is_marked=True, producers=2, consumers=2),
    )
    assert cluster["load"] == 0.8
    assert [member["marked"] for member in cluster["members"]] == [False, True]


def test_a_measured_load_counts_instead_of_weights() -> None:
    cluster = orders(MemberCounts("n1", 10, producers=2, consumers=2, load=9.0))
    assert cluster["load"] == 0.9
    assert cluster["members"][0]["load"] == 0.9


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6))
def test_shares_add_up_to_one_or_to_nothing(clients: list[tuple[int, int]]) -> None:
    cluster = orders(
        *(
            MemberCounts(f"n{number}", 100, producers=producers, consumers=consumers)
            for number, (producers, consumers) in enumerate(clients)
        )
    )
    assert sum(member["producers"] for member in cluster["members"]) == cluster["producers"]
    assert sum(member["x"] for member in cluster["members"]) == pytest.approx(min(1, cluster["producers"]), abs=0.001)
    assert sum(member["y"] for member in cluster["members"]) == pytest.approx(min(1, cluster["consumers"]), abs=0.001)


def test_all_is_in_the_order_of_names_and_can_be_said_in_json() -> None:
    nodes = [node(2), node(1, queues=[queue_facts("plain", ready=3)])]
    given: Any = {
        "nodes": nodes,
        "clusters": [orders(MemberCounts("n1", 10))],
        "topics": [
            {"vhost": "/", "name": "news.sport", "parent": "news", "subscriptions": []},
            {"vhost": "/", "name": "news", "parent": None, "subscriptions": ["a", "b"]},
        ],
        "users": {"guest": ("b", "a")},
        "provisioners": ("local", "cloud"),
        "leader": "n2",
    }
    facts = json.loads(json.dumps(domain_facts(**given)))
    assert (facts["leader"], facts["asked"], facts["provisioners"]) == ("n2", None, ["cloud", "local"])
    assert [found["name"] for found in facts["nodes"]] == ["n1", "n2"]
    assert [topic["name"] for topic in facts["topics"]] == ["news", "news.sport"]
    assert facts["users"] == [{"name": "guest", "tags": ["a", "b"]}]
    assert facts["clustered_topics"] == [
        {"vhost": "/", "name": "news", "nodes": ["n1", "n2"]},
        {"vhost": "/", "name": "news.sport", "nodes": ["n1", "n2"]},
    ]
    assert facts["factories"] == [
        {"name": "n1", "clustered": False, "nodes": ["n1"]},
        {"name": "n2", "clustered": False, "nodes": ["n2"]},
        {"name": "domain", "clustered": True, "nodes": ["n1", "n2"]},
    ]
    nodes[0]["state"] = "dead"
    assert domain_facts(**given)["clustered_topics"] == []


def test_what_is_found_by_its_name_or_not_there() -> None:
    facts = domain_facts(nodes=[node(1), node(3, name="paris")], clusters=[orders()])
    assert node_named(facts, "paris")["id"] == 3
    assert cluster_named(facts, "/", "orders")["members"] == []
    with pytest.raises(ClusterError, match="did you mean 'paris'"):
        node_named(facts, "pariss")
    with pytest.raises(ClusterError, match="no clustered queue 'others'"):
        cluster_named(facts, "/", "others")
