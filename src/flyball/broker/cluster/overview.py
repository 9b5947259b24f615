"""What a node knows of its domain at a moment: its nodes, the queues with their owners, and what is defined.

It only looks things up; nothing is asked of anybody, and nothing is changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
    """The domain as one node sees it."""

    def __init__(self, node: Node) -> None:
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
        """The nodes whose leases have not run out."""
        return [node for node in self.nodes if node.is_live]

    @property
    def up(self) -> list[NodeRecord]:
        """The nodes that serve clients."""
        return [node for node in self.nodes if node.is_live and node.state is NodeState.UP]

    @property
    def staying(self) -> list[NodeRecord]:
        """The nodes that serve clients, but for those that are to leave."""
        return [node for node in self.up if not self.is_leaving(node.name)]

    def node(self, node_id: int) -> NodeRecord | None:
        return self._membership.node(node_id)

    def named(self, name: str) -> NodeRecord:
        """Return the node of that name. Raises ClusterError."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise ClusterError(f"there is no node '{name}': look at `flyball domain show`")

    def name_of(self, node_id: int) -> str:
        node = self.node(node_id)
        return str(node_id) if node is None else node.name

    def origin(self, name: str) -> Mapping[str, Any]:
        """Return who started a node, and what is wanted of it; empty if nothing is known."""
        return self._definitions.of("node").get(name, {})

    def is_leaving(self, name: str) -> bool:
        """Tell whether somebody wants the node removed."""
        return bool(self.origin(name).get("leaving"))

    @property
    def leaving(self) -> list[NodeRecord]:
        return [node for node in self.nodes if self.is_leaving(node.name)]

    def capacity_of(self, node_id: int) -> float:
        """Return what a node can bear, compared with others."""
        node = self.node(node_id)
        return 1.0 if node is None else float(node.report.get("capacity", 1.0))

    # Queues

    def queues(self) -> Iterator[Placed]:
        """Yield every queue of the domain with the node that serves it."""
        for state in self._engine.queues:
            yield state.queue, self.own_id
        for remote in self._directory.all():
            yield remote.queue, remote.owner

    def owner_of(self, queue_id: int) -> int | None:
        """Return the node that serves a queue; None if there is no such queue."""
        if self._engine.has_queue(queue_id):
            return self.own_id
        remote = self._directory.get(queue_id)
        return None if remote is None else remote.owner

    def ordinary(self) -> Iterator[Placed]:
        """Yield the queues that another node could serve instead: durable, and no members."""
        return ((queue, owner) for queue, owner in self.queues() if is_lasting(queue) and not queue.member)

    def ready(self, queue_id: int, owner: int) -> int:
        """Return how many messages an ordinary queue has, as its node told."""
        node = self.node(owner)
        told = None if node is None else node.report.get("queues", {}).get(str(queue_id))
        return 0 if told is None else int(told[0])

    def has_ordinary(self, vhost: str, name: str) -> bool:
        state = self._engine.find_queue(name, vhost)
        remote = self._directory.find(vhost, name)
        found = [place.queue for place in (state, remote) if place is not None]
        return any(not queue.member for queue in found)

    # Clustered queues

    @property
    def clusters(self) -> Mapping[str, Mapping[str, Any]]:
        """How clustered queues are defined, by their keys."""
        return self._definitions.of("cluster")

    def cluster(self, key: str) -> Mapping[str, Any]:
        """Return how a clustered queue is defined. Raises ClusterError."""
        value = self.clusters.get(key)
        if value is None or value.get("deleted"):
            vhost, name = split_key(key)
            raise ClusterError(f"there is no clustered queue '{name}' in vhost '{vhost}'")
        return value

    def options(self, key: str) -> ClusterOptions:
        """Return how a clustered queue is governed, as far as this version knows what was stored."""
        stored = self.clusters[key]["options"]
        known = self._options.get(key)
        if known is None or known[0] != stored:
            options, strange = ClusterOptions.stored(stored)
            if strange:
                log.warning("%s: this version goes without the options %s", title(key), ", ".join(strange))
            known = self._options[key] = stored, options
        return known[1]

    def members(self, key: str) -> list[Placed]:
        """Return the members of a clustered queue with the nodes that serve them."""
        vhost, name = split_key(key)
        own = self._engine.find_queue(name, vhost)
        found: list[Placed] = [] if own is None else [(own.queue, self.own_id)]
        found += [(remote.queue, remote.owner) for remote in self._directory.members(vhost, name)]
        return [(queue, owner) for queue, owner in found if queue.member]

    def member_on(self, key: str, node_id: int) -> int | None:
        """Return the id of the member on a node."""
        return next((queue.id for queue, owner in self.members(key) if owner == node_id), None)

    def is_fixed(self, key: str, node_id: int) -> bool:
        """Tell whether somebody wants a member on that node."""
        return self.name_of(node_id) in self.clusters[key].get("fixed", ())

    def unwanted(self, key: str) -> frozenset[int]:
        """Return the nodes that somebody had the member removed from, and wants none on."""
        names = self.clusters[key].get("unwanted", ())
        return frozenset(node.id for node in self.nodes if node.name in names)

    def missing(self) -> Iterator[tuple[str, NodeRecord]]:
        """Yield where somebody wants a member of a clustered queue that is not there: its node was gone."""
        for key, value in self.clusters.items():
            if value.get("fixed") and not value.get("deleted"):
                served = {owner for _, owner in self.members(key)}
                for node in self.staying:
                    if node.name in value["fixed"] and node.id not in served:
                        yield key, node

    def left_behind(self, node_id: int) -> list[Queue]:
        """Return the queues of a node that is not this one."""
        return [remote.queue for remote in self._directory.of_node(node_id)]

    def forgotten_owners(self) -> set[int]:
        """Return the nodes that were removed from the domain while a queue was on its way to them."""
        return {remote.owner for remote in self._directory.all()} - {node.id for node in self.nodes}


def key_of(queue: Queue) -> str:
    """Return the key of the clustered queue that a member belongs to."""
    return cluster_key(queue.vhost, queue.name)


def is_lasting(queue: Queue) -> bool:
    """Tell whether a queue outlives its node, so that others can serve it."""
    return queue.durable and not queue.exclusive
