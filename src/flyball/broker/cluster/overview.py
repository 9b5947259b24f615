"""Current state of the domain as this node knows it: nodes, queues with their owners, definitions.

Read-only lookups without I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flyball.broker.cluster.capacity_models import CapacityModels, Trial
from flyball.broker.cluster.names import cluster_key, split_key, title
from flyball.broker.cluster.options import ClusterOptions
from flyball.broker.node.node import Node
from flyball.broker.store.registry import NodeRecord, NodeState
from flyball.errors import ClusterError
from flyball.model import Queue

log = logging.getLogger(__name__)

# A queue and the id of the node that serves it.
Placed = tuple[Queue, int]


class Overview:
    """The domain as one node knows it."""

    def __init__(self, node: Node, models: CapacityModels | None = None) -> None:
        self._models = models
        self._membership = node.membership
        self._definitions = node.definitions
        self._directory = node.topology.directory
        self._engine = node.hub.broker.engine
        self._options: dict[str, tuple[Mapping[str, Any], ClusterOptions]] = {}

    # Nodes

    @property
    def nodes(self) -> Sequence[NodeRecord]:
        return self._membership.nodes

    @property
    def own_id(self) -> int:
        return self._membership.node_id

    @property
    def live(self) -> list[NodeRecord]:
        """Nodes whose leases have not expired."""
        return [node for node in self.nodes if node.is_live]

    @property
    def up(self) -> list[NodeRecord]:
        """Nodes that serve clients."""
        return [node for node in self.nodes if node.is_live and node.state is NodeState.UP]

    @property
    def staying(self) -> list[NodeRecord]:
        """Nodes that serve clients and are not leaving."""
        return [node for node in self.up if not self.is_leaving(node.name)]

    def node(self, node_id: int) -> NodeRecord | None:
        return self._membership.node(node_id)

    def named(self, name: str) -> NodeRecord:
        """Return the node of that name. Raises ClusterError."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise ClusterError(f"unknown node '{name}': see `flyball domain show`")

    def name_of(self, node_id: int) -> str:
        node = self.node(node_id)
        return str(node_id) if node is None else node.name

    def origin(self, name: str) -> Mapping[str, Any]:
        """Return the definition of a node: its provisioner, and whether it is leaving; empty without a definition."""
        return self._definitions.of("node").get(name, {})

    def is_leaving(self, name: str) -> bool:
        """Return whether the node is being removed."""
        return bool(self.origin(name).get("leaving"))

    @property
    def leaving(self) -> list[NodeRecord]:
        return [node for node in self.nodes if self.is_leaving(node.name)]

    def capacity_of(self, node_id: int) -> float:
        """Return the capacity of a node relative to an ordinary one."""
        node = self.node(node_id)
        return 1.0 if node is None else float(node.report.get("capacity", 1.0))

    # Queues

    def queues(self) -> Iterator[Placed]:
        """Yield every queue of the domain with the id of its owner."""
        for state in self._engine.queues:
            yield state.queue, self.own_id
        for remote in self._directory.all():
            yield remote.queue, remote.owner

    def owner_of(self, queue_id: int) -> int | None:
        """Return the id of a queue's owner; None for an unknown queue."""
        if self._engine.has_queue(queue_id):
            return self.own_id
        remote = self._directory.get(queue_id)
        return None if remote is None else remote.owner

    def ordinary(self) -> Iterator[Placed]:
        """Yield the queues that another node could serve: durable, and not members."""
        return ((queue, owner) for queue, owner in self.queues() if is_lasting(queue) and not queue.member)

    def ready(self, queue_id: int, owner: int) -> int:
        """Return the ready messages of an ordinary queue, as its owner reported."""
        node = self.node(owner)
        counts = None if node is None else node.report.get("queues", {}).get(str(queue_id))
        return 0 if counts is None else int(counts[0])

    def has_ordinary(self, vhost: str, name: str) -> bool:
        state = self._engine.find_queue(name, vhost)
        remote = self._directory.find(vhost, name)
        found = [place.queue for place in (state, remote) if place is not None]
        return any(not queue.member for queue in found)

    # Clustered queues

    @property
    def clusters(self) -> Mapping[str, Mapping[str, Any]]:
        """Definitions of the clustered queues, by key."""
        return self._definitions.of("cluster")

    def cluster(self, key: str) -> Mapping[str, Any]:
        """Return the definition of a clustered queue. Raises ClusterError."""
        value = self.clusters.get(key)
        if value is None or value.get("deleted"):
            vhost, name = split_key(key)
            raise ClusterError(f"no clustered queue '{name}' in vhost '{vhost}'")
        return value

    def options(self, key: str) -> ClusterOptions:
        """Return the options of a clustered queue, with the numbers of the capacity model in force."""
        declared = self.declared(key)
        return (
            declared if self._models is None else self._models.in_force(key, declared, self.clusters[key]["options"])
        )

    def trials(self) -> dict[str, Trial]:
        """Return the capacity models in shadow, by clustered queue."""
        if self._models is None:
            return {}
        live = [key for key, value in self.clusters.items() if not value.get("deleted")]
        found = {key: self._models.in_shadow(key, self.declared(key), self.clusters[key]["options"]) for key in live}
        return {key: trial for key, trial in found.items() if trial is not None}

    def declared(self, key: str) -> ClusterOptions:
        """Return the options in the definition of a clustered queue that this version understands."""
        stored = self.clusters[key]["options"]
        known = self._options.get(key)
        if known is None or known[0] != stored:
            options, strange = ClusterOptions.stored(stored)
            if strange:
                log.warning("clustered queue %s: ignoring unknown options %s", title(key), ", ".join(strange))
            known = self._options[key] = stored, options
        return known[1]

    def members(self, key: str) -> list[Placed]:
        """Return the members of a clustered queue with their owners."""
        vhost, name = split_key(key)
        own = self._engine.find_queue(name, vhost)
        found: list[Placed] = [] if own is None else [(own.queue, self.own_id)]
        found += [(remote.queue, remote.owner) for remote in self._directory.members(vhost, name)]
        return [(queue, owner) for queue, owner in found if queue.member]

    def member_on(self, key: str, node_id: int) -> int | None:
        """Return the id of the member on a node."""
        return next((queue.id for queue, owner in self.members(key) if owner == node_id), None)

    def is_fixed(self, key: str, node_id: int) -> bool:
        """Return whether an operator placed a member on that node."""
        return self.name_of(node_id) in self.clusters[key].get("fixed", ())

    def unwanted(self, key: str) -> frozenset[int]:
        """Return the nodes that an operator removed the member from: no member is created there."""
        names = self.clusters[key].get("unwanted", ())
        return frozenset(node.id for node in self.nodes if node.name in names)

    def missing(self) -> Iterator[tuple[str, NodeRecord]]:
        """Yield clustered queues and nodes where a fixed member is missing, since its node had failed."""
        for key, value in self.clusters.items():
            if value.get("fixed") and not value.get("deleted"):
                served = {owner for _, owner in self.members(key)}
                for node in self.staying:
                    if node.name in value["fixed"] and node.id not in served:
                        yield key, node

    def left_behind(self, node_id: int) -> list[Queue]:
        """Return the queues of another node."""
        return [remote.queue for remote in self._directory.of_node(node_id)]

    def forgotten_owners(self) -> set[int]:
        """Return ids of nodes that were removed while a queue was moving to them."""
        return {remote.owner for remote in self._directory.all()} - {node.id for node in self.nodes}


def key_of(queue: Queue) -> str:
    """Return the key of the clustered queue that a member belongs to."""
    return cluster_key(queue.vhost, queue.name)


def is_lasting(queue: Queue) -> bool:
    """Return whether a queue survives its node, so that another one can serve it."""
    return queue.durable and not queue.exclusive
