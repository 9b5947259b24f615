"""The model of a domain: what belongs to whom, and how it is found."""

from __future__ import annotations

import pytest

from flyball.broker.cluster.domain import ClusteredQueue, Domain, Node, Queue, cluster_key, split_key, title
from flyball.errors import ClusterError

ORDERS = cluster_key("/", "orders")


def domain() -> Domain:
    made = Domain()
    for number, name in ((1, "a"), (2, "b")):
        made.add_node(Node(number, name))
    made.clusters[ORDERS] = ClusteredQueue("orders", fixed_nodes=frozenset({1}))
    for queue in (
        Queue(10, "orders", 1, cluster=ORDERS),
        Queue(11, "orders", 2, cluster=ORDERS),
        Queue(12, "plain", 2),
    ):
        made.queues[queue.id] = queue
    return made


def test_a_key_gives_its_names_back_whatever_is_in_them() -> None:
    assert split_key(cluster_key('a|"b', "c/d")) == ('a|"b', "c/d")
    assert title(ORDERS) == "orders"
    assert title(cluster_key("shop", "orders")) == "orders in shop"


def test_a_member_is_shared_by_its_node_and_its_cluster_and_not_copied() -> None:
    made = domain()
    (of_node,) = [queue for queue in made.queues_of(1) if queue.cluster]
    (of_cluster,) = [queue for queue in made.members_of(ORDERS) if queue.node == 1]
    assert of_node is of_cluster


def test_what_has_moved_is_found_at_its_new_node_at_once() -> None:
    made = domain()
    made.queues[12].node = 1
    assert [queue.id for queue in made.queues_of(1)] == [10, 12]
    assert [queue.id for queue in made.queues_of(2)] == [11]


def test_what_is_not_there_is_refused() -> None:
    made = domain()
    with pytest.raises(ClusterError, match="no node 7"):
        made.node(7)
    with pytest.raises(ClusterError, match="no clustered queue 'others'"):
        made.cluster(cluster_key("/", "others"))
    with pytest.raises(ClusterError, match="choose another name"):
        made.add_node(Node(3, "a"))


def test_a_node_is_found_by_its_name_and_one_that_is_written_alike_is_suggested() -> None:
    made = domain()
    made.add_node(Node(3, "paris"))
    assert made.node_named("paris").id == 3
    with pytest.raises(ClusterError, match="did you mean 'paris'"):
        made.node_named("pariss")
