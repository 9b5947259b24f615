"""What a domain is made of, as plain data: nodes, queues, clustered queues, topics and users, and who leads it.

It is the one model that is read: `read_model` fills it and `facts` describes it. Everything is kept once and by its
id; whatever refers to something else holds that id, so that no reference can be out of date. Nothing here decides
anything, does I/O or knows a store.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from flyball.broker.cluster.names import suggestion, titled
from flyball.broker.cluster.options import ClusterOptions
from flyball.errors import ClusterError
from flyball.model import DEFAULT_VHOST


def cluster_key(vhost: str, name: str) -> str:
    """Return a text for a clustered queue or topic, whatever characters are in its names."""
    return json.dumps([vhost, name], ensure_ascii=False)


def split_key(key: str) -> tuple[str, str]:
    """Return the virtual host and the name that a key was made of."""
    vhost, name = json.loads(key)
    return vhost, name


def title(key: str) -> str:
    """Return how a person calls a clustered queue."""
    return titled(*split_key(key))


@dataclass(slots=True)
class Node:
    """One broker process."""

    id: int
    name: str
    state: str = "up"
    epoch: int = 0
    addresses: Mapping[str, str] = field(default_factory=dict)
    provisioner: str | None = None
    """Who started it; None for a node that somebody started by hand."""
    lease_left_s: float | None = None
    """Below zero the lease is over."""
    is_managed: bool = False
    """Whether the manager had it started for a clustered queue."""

    @property
    def is_live(self) -> bool:
        return self.state != "dead"


@dataclass(slots=True)
class Queue:
    """A queue, which belongs to one node. A member of a clustered queue belongs to both."""

    id: int
    name: str
    node: int
    vhost: str = DEFAULT_VHOST
    durable: bool = True
    cluster: str | None = None
    """The key of the clustered queue that it is a member of."""
    is_marked: bool = False
    """Whether it takes no new clients and is to be removed once it is empty."""
    capacity: float | None = None
    ready: int = 0
    unacked: int = 0
    producers: int = 0
    consumers: int = 0
    is_counted: bool = True
    """Whether its node has told how much is in it: a node with very many queues does not of all."""
    given: int = 0
    """Messages that it has handed to other members since its node serves it."""
    load: float | None = None
    """What it bears, where that is measured; of others the weights of their clients count."""


@dataclass(slots=True)
class Topic:
    """Messages for all its subscribers, and for those of its ancestors."""

    name: str
    vhost: str = DEFAULT_VHOST
    parent: str | None = None
    """Another topic of the same virtual host."""
    subscriptions: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return cluster_key(self.vhost, self.name)


@dataclass(slots=True)
class ClusteredQueue:
    """A queue with members on several nodes, which share its clients and exchange messages."""

    name: str
    vhost: str = DEFAULT_VHOST
    options: ClusterOptions = field(default_factory=ClusterOptions)
    fixed_nodes: frozenset[int] = frozenset()
    """Where a person wants a member: the manager never removes those."""

    @property
    def key(self) -> str:
        return cluster_key(self.vhost, self.name)


@dataclass(slots=True)
class User:
    """Somebody who may log in, at every node."""

    name: str
    tags: tuple[str, ...] = ()


class DecisionFacts(TypedDict):
    """A decision of the manager, as JSON says it."""

    at: str
    what: str
    reason: str


@dataclass(slots=True)
class Domain:
    """The nodes that share one registry, and all they have."""

    nodes: dict[int, Node] = field(default_factory=dict)
    queues: dict[int, Queue] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    users: dict[str, User] = field(default_factory=dict)
    clusters: dict[str, ClusteredQueue] = field(default_factory=dict)
    provisioners: Sequence[str] = ()
    decisions: Mapping[str, Sequence[DecisionFacts]] = field(default_factory=dict)
    """The last ones of each clustered queue, by its key, newest last."""
    leader: int | None = None
    """The node that manages the domain."""
    asked: int | None = None
    """The node that says all this."""

    def add_node(self, node: Node) -> None:
        """Take a node in. Its name must be its own."""
        for other in self.nodes.values():
            if other.name == node.name and other.id != node.id:
                raise ClusterError(f"there is a node {node.name!r} already: choose another name")
        self.nodes[node.id] = node

    def node(self, node_id: int) -> Node:
        """Return a node. Raises ClusterError if it is not there."""
        try:
            return self.nodes[node_id]
        except KeyError:
            raise ClusterError(f"there is no node {node_id}: look at `flyball domain show`") from None

    def node_named(self, name: str) -> Node:
        """Return a node by its name. Raises ClusterError that names one which is written alike."""
        for node in self.nodes.values():
            if node.name == name:
                return node
        names = [node.name for node in self.nodes.values()]
        raise ClusterError(f"there is no node {name!r}{suggestion(name, names)}")

    def cluster(self, key: str) -> ClusteredQueue:
        """Return a clustered queue. Raises ClusterError if it is not there."""
        try:
            return self.clusters[key]
        except KeyError:
            raise ClusterError(f"there is no clustered queue {title(key)!r}: create it first") from None

    def queues_of(self, node_id: int) -> Iterator[Queue]:
        """Yield the queues that a node serves, members of clustered ones included."""
        return (queue for queue in self.queues.values() if queue.node == node_id)

    def members_of(self, key: str) -> Iterator[Queue]:
        """Yield the members of a clustered queue: they are the nodes' queues, not others."""
        return (queue for queue in self.queues.values() if queue.cluster == key)
