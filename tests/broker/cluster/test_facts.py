"""What is shown of a domain."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.broker.cluster.domain import (
    ClusteredQueue,
    Domain,
    Node,
    Queue,
    Topic,
)
from flyball.broker.cluster.facts import facts_of
from flyball.broker.cluster.options import ClusterOptions


def domain_of(*clients: tuple[int, int], **options: float) -> Domain:
    """A clustered queue with members that have so many producers and consumers, one on each node."""
    domain = Domain()
    cluster = ClusteredQueue("orders", options=ClusterOptions(**options))  # type: ignore[arg-type]
    domain.clusters[cluster.key] = cluster
    for number, (producers, consumers) in enumerate(clients, 1):
        domain.add_node(Node(number, f"n{number}"))
        domain.queues[number] = Queue(
            number, "orders", number, cluster=cluster.key, producers=producers, consumers=consumers
        )
    return domain


def test_shares_and_loads_follow_from_clients_weights_and_capacities() -> None:
    domain = domain_of((3, 2), (1, 6), capacity=10, producer_weight=2)
    domain.queues[2].capacity = 20
    (cluster,) = facts_of(domain)["clusters"]
    first, second = cluster["members"]
    assert (cluster["producers"], cluster["consumers"]) == (4, 8)
    assert (first["x"], first["y"], first["load"], first["capacity"]) == (0.75, 0.25, 0.8, 10)
    assert (second["x"], second["y"], second["load"], second["capacity"]) == (0.25, 0.75, 0.4, 20)
    assert cluster["load"] == round(16 / 30, 4)


def test_a_marked_member_bears_load_but_is_no_capacity() -> None:
    domain = domain_of((2, 2), (2, 2), capacity=10)
    domain.queues[2].is_marked = True
    (cluster,) = facts_of(domain)["clusters"]
    assert cluster["load"] == 0.8
    assert [member["marked"] for member in cluster["members"]] == [False, True]


def test_a_measured_load_counts_instead_of_weights() -> None:
    domain = domain_of((2, 2), capacity=10)
    domain.queues[1].load = 9.0
    (cluster,) = facts_of(domain)["clusters"]
    assert cluster["load"] == 0.9
    assert cluster["members"][0]["load"] == 0.9


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6))
def test_shares_add_up_to_one_or_to_nothing(clients: list[tuple[int, int]]) -> None:
    (cluster,) = facts_of(domain_of(*clients))["clusters"]
    assert sum(member["producers"] for member in cluster["members"]) == cluster["producers"]
    assert sum(member["x"] for member in cluster["members"]) == pytest.approx(min(1, cluster["producers"]), abs=0.001)
    assert sum(member["y"] for member in cluster["members"]) == pytest.approx(min(1, cluster["consumers"]), abs=0.001)


def test_everything_is_there_and_can_be_said_in_json() -> None:
    domain = domain_of((1, 1), (0, 0))
    domain.clusters[next(iter(domain.clusters))].fixed_nodes = frozenset({2})
    domain.queues[7] = Queue(7, "plain", 1, ready=3, unacked=1, consumers=2)
    for topic in (Topic("news", subscriptions=("b", "a")), Topic("news.sport", parent="news")):
        domain.topics[topic.key] = topic
    domain.leader = 2
    domain.provisioners = ("local",)
    domain.nodes[1].lease_left_s = 4.56
    domain.nodes[2].is_managed = True
    facts = json.loads(json.dumps(facts_of(domain)))
    assert facts["leader"] == "n2"
    assert facts["provisioners"] == ["local"]
    first, second = facts["nodes"]
    assert (first["lease_left_s"], second["lease_left_s"]) == (4.6, None)
    assert (first["managed"], second["managed"]) == (False, True)
    assert first["queues"] == [
        {"vhost": "/", "name": "plain", "ready": 3, "unacked": 1, "producers": 0, "consumers": 2}
    ]
    assert [member["fixed"] for member in facts["clusters"][0]["members"]] == [False, True]
    assert facts["topics"] == [
        {"vhost": "/", "name": "news", "parent": None, "subscriptions": ["a", "b"]},
        {"vhost": "/", "name": "news.sport", "parent": "news", "subscriptions": []},
    ]
    assert facts["clustered_topics"] == [
        {"vhost": "/", "name": "news", "nodes": ["n1", "n2"]},
        {"vhost": "/", "name": "news.sport", "nodes": ["n1", "n2"]},
    ]
    assert facts["factories"] == [
        {"name": "n1", "clustered": False, "nodes": ["n1"]},
        {"name": "n2", "clustered": False, "nodes": ["n2"]},
        {"name": "domain", "clustered": True, "nodes": ["n1", "n2"]},
    ]
    domain.nodes[1].state = "dead"
    assert facts_of(domain)["clustered_topics"] == []


def test_of_a_queue_that_its_node_does_not_tell_of_nothing_is_known() -> None:
    domain = domain_of((1, 1))
    domain.queues[7] = Queue(7, "plain", 1, is_counted=False)
    (node,) = facts_of(domain)["nodes"]
    assert [(queue["name"], queue["ready"], queue["consumers"]) for queue in node["queues"]] == [
        ("plain", None, None)
    ]
