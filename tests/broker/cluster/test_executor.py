from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flyball.broker.cluster.decisions import Provision
from flyball.broker.cluster.executor import Executor
from flyball.broker.cluster.names import cluster_key
from flyball.broker.store.registry import NodeRecord, NodeState

ORDERS = cluster_key("/", "orders")


def name_for(decision: Provision, *being_started: str, handles: frozenset[str] = frozenset()) -> str:
    """Return what a node is called that is started while n2 is dead and these are being started."""
    dead = NodeRecord(2, "n2", 1, NodeState.DEAD, 1, -1.0)
    overview: Any = SimpleNamespace(
        nodes=[dead],
        node=lambda node_id: dead if node_id == dead.id else None,
        origin=lambda name: {"handle": name} if name in handles else {},
    )
    agent: Any = SimpleNamespace(node=SimpleNamespace(membership=None))
    unused: Any = None
    nodes: Any = SimpleNamespace(being_started=set(being_started))
    return Executor(agent, overview, unused, unused, unused, nodes, unused)._name_for(decision)


def provision(cluster: str, replaces: int | None = None) -> Provision:
    return Provision(cluster=cluster, reason="it is needed", request="1", provisioner="local", replaces=replaces)


def test_node_takes_the_name_of_the_one_it_replaces() -> None:
    assert name_for(provision(ORDERS, replaces=2)) == "n2"
    assert name_for(provision(ORDERS, 2), "n2") == "orders-1"
    assert name_for(provision(ORDERS, replaces=7)) == "orders-1"
    assert name_for(provision(cluster_key("/", "?"))) == "node-1"


def test_a_node_for_a_clustered_queue_is_called_after_it() -> None:
    orders = provision(cluster_key("/", "orders & more"))
    assert name_for(orders) == "orders-more-1"
    assert name_for(orders, "orders-more-1", handles=frozenset({"orders-more-2"})) == "orders-more-3"
