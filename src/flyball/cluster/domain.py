"""What a domain is made of, as plain data: nodes, queues, topics, users, clusters of queues and topics, factories.

Everything is kept once and by its id; whatever refers to something else holds that id, so that no reference can be
out of date. Nothing here decides anything, does I/O or knows a store.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flyball.errors import ClusterError
from flyball.model import DEFAULT_VHOST


class Role(enum.StrEnum):
    """What a session does with a clustered queue."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


class Policy(enum.StrEnum):
    """How the member for a new client is elected."""

    POTENTIAL = "potential"
    """The one whose weighted potential grows least, among those that have room."""
    PLAIN = "plain"
    """The seed's: the one with the smallest share of clients of that role, whatever else it bears."""


class Loads(enum.StrEnum):
    """What a session counts."""

    WEIGHTS = "weights"
    """As much as every other one of its role."""
    MEASURED = "measured"
    """What it has been doing lately."""


def cluster_key(vhost: str, name: str) -> str:
    """Return a text for a clustered queue or topic, whatever characters are in its names."""
    return json.dumps([vhost, name], ensure_ascii=False)


def split_key(key: str) -> tuple[str, str]:
    """Return the virtual host and the name that a key was made of."""
    vhost, name = json.loads(key)
    return vhost, name


def title(key: str) -> str:
    """Return how a person calls a clustered queue."""
    vhost, name = split_key(key)
    return name if vhost == DEFAULT_VHOST else f"{name} in {vhost}"


@dataclass(slots=True, frozen=True)
class ClusterOptions:
    """How a clustered queue is governed. Raises ClusterError for values that cannot work.

    Loads, weights and capacities have one unit: clients, messages/s, or whatever a capacity model was fitted in.
    """

    policy: str = Policy.POTENTIAL
    producer_weight: float = 1.0
    """What a producer costs a member, w_p."""
    consumer_weight: float = 1.0
    """What a consumer costs a member, w_c."""
    capacity: float = 100.0
    """Of a member on a node of ordinary size: w_p producers + w_c consumers should stay below."""
    loads: str = Loads.WEIGHTS
    message_cost: float = 1.0
    """Capacity that one message/s of a session takes, where loads are measured."""
    load_window_s: float = 5.0
    """Over what time a measured load is averaged."""
    theta_up: float = 1.0
    """More is added when the load would exceed this share of the usable capacity."""
    theta_down: float = 0.75
    """A member is marked for removal only if the others then bear at most this share of their capacity."""
    theta_hold: float = 1.25
    """Up to this share an addition waits until the last removal is a dwell time ago."""
    dwell_s: float = 30.0
    """How long the load must have been low before anything is removed: at least what starting a node costs, divided
    by what running one costs per second, and ten periods of the rebalancer."""
    min_members: int = 1
    max_members: int = 16
    provisioner: str = ""
    """Who starts nodes for it. Nobody: it grows on the nodes that are there."""
    start_s: float = 60.0
    """A node that was asked for and is not there after this time will not come."""
    period_s: float = 2.0
    """Between two rounds of the rebalancer."""
    most_moves: int = 10
    """Sessions that move in a period."""
    cool_down_s: float = 30.0
    """Between two moves of one session."""
    epsilon: float = 0.5
    """What a move must gain beyond its cost, in units of w²/C: one client that goes from a member to an equal one
    which has two fewer gains 2."""
    move_cost: float = 1.0
    """What a move costs, in the same unit."""
    wait_s: float = 0.0
    """How long a client that finds no room waits for a node that is being started. Otherwise it is placed at once,
    and moved later."""
    surplus: int = 1000
    """Ready messages that a member keeps before it hands some to others."""

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            _check_option(option.name, getattr(self, option.name))
        if self.theta_down >= self.theta_up:
            raise ClusterError(
                "theta_down must be below theta_up: otherwise one client could add and remove for ever"
            )
        if self.theta_hold < self.theta_up:
            raise ClusterError("theta_hold must not be below theta_up: give at least theta_up")
        if self.min_members > self.max_members:
            raise ClusterError(f"min_members {self.min_members} exceeds max_members {self.max_members}")

    @classmethod
    def from_dict(cls, values: Mapping[str, object], where: str = "cluster") -> ClusterOptions:
        """Return the options that are given, the others as usual. Raises ClusterError that begins with `where`."""
        names = [option.name for option in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise ClusterError(f"{where}: there is no option {name!r}{_suggestion(name, names)}")
        try:
            return cls(**{name: _number_as_declared(name, value) for name, value in values.items()})  # type: ignore[arg-type]
        except ClusterError as error:
            raise ClusterError(f"{where}: {error}") from None

    def to_dict(self, *, only_changed: bool = False) -> dict[str, object]:
        """Return what `from_dict` takes; without those that are as usual if so wished."""
        values = {option.name: getattr(self, option.name) for option in dataclasses.fields(self)}
        return {
            name: str(value) if isinstance(value, enum.Enum) else value
            for name, value in values.items()
            if not only_changed or value != getattr(_USUAL, name)
        }

    def weight(self, role: Role) -> float:
        """Return what a session of the role counts that nothing is known of."""
        return self.producer_weight if role is Role.PRODUCER else self.consumer_weight

    @property
    def potential_unit(self) -> float:
        """The unit of `epsilon` and `move_cost`, as a difference of the potential."""
        weight = max(self.producer_weight, self.consumer_weight)
        return weight * weight / self.capacity


_CHOICES = {"policy": [str(policy) for policy in Policy], "loads": [str(loads) for loads in Loads]}
_COUNTS = {"min_members": 1, "max_members": 1, "most_moves": 0, "surplus": 0}
_MAY_BE_ZERO = {"dwell_s", "cool_down_s", "epsilon", "move_cost", "wait_s"}


def _check_option(name: str, value: object) -> None:
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise ClusterError(f"{name} is {value!r}: choose {' or '.join(_CHOICES[name])}")
    elif name == "provisioner":
        if not isinstance(value, str):
            raise ClusterError(f"{name} is {value!r}: give the name of a provisioner, or '' for none")
    elif name in _COUNTS:
        if not isinstance(value, int) or isinstance(value, bool) or value < _COUNTS[name]:
            raise ClusterError(f"{name} is {value!r}: give a whole number of at least {_COUNTS[name]}")
    elif (
        not isinstance(value, (int, float))
        or isinstance(value, bool)
        or not math.isfinite(value)
        or value < 0
        or (value == 0 and name not in _MAY_BE_ZERO)
    ):
        least = "not below 0" if name in _MAY_BE_ZERO else "above 0"
        raise ClusterError(f"{name} is {value!r}: give a number {least}")


def _number_as_declared(name: str, value: object) -> object:
    """Files say 10 where they mean 10.0."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_whole and isinstance(getattr(_USUAL, name), float) else value  # type: ignore[arg-type]


def _suggestion(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, 1)
    return f", did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}"


_USUAL = ClusterOptions()


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
    given: int = 0
    """Messages that it has handed to other members since its node serves it."""


@dataclass(slots=True)
class Topic:
    """Messages for all its subscribers, and for those of its ancestors."""

    name: str
    vhost: str = DEFAULT_VHOST
    parent: str | None = None
    """Another topic of the same virtual host."""
    nodes: frozenset[int] | None = None
    """Where it is served; None for every node."""
    cluster: str | None = None
    """The key of the clustered topic that it is a member of."""
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
class ClusteredTopic:
    """Topics of several nodes that are one for those who publish and subscribe."""

    name: str
    vhost: str = DEFAULT_VHOST

    @property
    def key(self) -> str:
        return cluster_key(self.vhost, self.name)


@dataclass(slots=True)
class User:
    """Somebody who may log in, at every node."""

    name: str
    tags: tuple[str, ...] = ()


@dataclass(slots=True)
class ConnectionFactory:
    """How clients reach one node."""

    name: str
    node: int


@dataclass(slots=True)
class ClusteredConnectionFactory:
    """A set of factories, from which the manager chooses for each client."""

    name: str
    factories: tuple[str, ...] = ()


@dataclass(slots=True)
class Registry:
    """Where the nodes find each other."""

    address: str = ""
    leader: int | None = None
    """The node that manages the domain."""


@dataclass(slots=True)
class Domain:
    """The nodes that share one registry, and all they have."""

    registry: Registry = field(default_factory=Registry)
    nodes: dict[int, Node] = field(default_factory=dict)
    queues: dict[int, Queue] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    users: dict[str, User] = field(default_factory=dict)
    clusters: dict[str, ClusteredQueue] = field(default_factory=dict)
    clustered_topics: dict[str, ClusteredTopic] = field(default_factory=dict)
    factories: dict[str, ConnectionFactory] = field(default_factory=dict)
    clustered_factories: dict[str, ClusteredConnectionFactory] = field(default_factory=dict)

    def add_node(self, node: Node) -> None:
        """Take a node in. Its name must be its own."""
        for other in self.nodes.values():
            if other.name == node.name and other.id != node.id:
                raise ClusterError(f"there is a node {node.name!r} already: choose another name")
        self.nodes[node.id] = node

    def remove_node(self, node_id: int) -> None:
        """Forget a node that serves no queue any more. Raises ClusterError if it does."""
        node = self.node(node_id)
        left = sum(1 for _ in self.queues_of(node_id))
        if left:
            raise ClusterError(f"node {node.name!r} still serves {left} queue(s): move them first")
        del self.nodes[node_id]

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
        raise ClusterError(
            f"there is no node {name!r}{_suggestion(name, [node.name for node in self.nodes.values()])}"
        )

    def cluster(self, key: str) -> ClusteredQueue:
        """Return a clustered queue. Raises ClusterError if it is not there."""
        try:
            return self.clusters[key]
        except KeyError:
            raise ClusterError(f"there is no clustered queue {title(key)!r}: create it first") from None

    def add_queue(self, queue: Queue) -> None:
        """Take a queue in, or the new facts of one. Its node and its cluster must be there, and a node has at most
        one member of a cluster."""
        self.node(queue.node)
        if queue.cluster is not None:
            self.cluster(queue.cluster)
            for other in self.members_of(queue.cluster):
                if other.node == queue.node and other.id != queue.id:
                    name = self.nodes[queue.node].name
                    raise ClusterError(f"node {name!r} has a member of {title(queue.cluster)!r} already")
        self.queues[queue.id] = queue

    def add_topic(self, topic: Topic) -> None:
        """Take a topic in. Its parent must be there and must not descend from it."""
        ancestor, seen = topic.parent, {topic.name}
        while ancestor is not None:
            if ancestor in seen:
                raise ClusterError(f"topic {topic.name!r} would be its own ancestor: give it another parent")
            seen.add(ancestor)
            found = self.topics.get(cluster_key(topic.vhost, ancestor))
            if found is None:
                raise ClusterError(f"there is no topic {ancestor!r}: create it before its children")
            ancestor = found.parent
        self.topics[topic.key] = topic

    def ancestors_of(self, topic: Topic) -> Iterator[Topic]:
        """Yield the topics whose subscribers get its messages too, nearest first."""
        parent = topic.parent
        while parent is not None and (found := self.topics.get(cluster_key(topic.vhost, parent))) is not None:
            yield found
            parent = found.parent

    def queues_of(self, node_id: int) -> Iterator[Queue]:
        """Yield the queues that a node serves, members of clustered ones included."""
        return (queue for queue in self.queues.values() if queue.node == node_id)

    def topics_of(self, node_id: int) -> Iterator[Topic]:
        """Yield the topics that a node serves."""
        return (topic for topic in self.topics.values() if topic.nodes is None or node_id in topic.nodes)

    def members_of(self, key: str) -> Iterator[Queue]:
        """Yield the members of a clustered queue: they are the nodes' queues, not others."""
        return (queue for queue in self.queues.values() if queue.cluster == key)

    def tree(self) -> dict[str, Any]:
        """Return everything as what JSON can say, nested as a person would draw it."""
        return {
            "registry": dataclasses.asdict(self.registry),
            "nodes": [self._node_tree(node) for _, node in sorted(self.nodes.items())],
            "clusters": [self._cluster_tree(cluster) for _, cluster in sorted(self.clusters.items())],
            "topics": self._topic_trees(),
            "clustered_topics": [
                self._clustered_topic_tree(topic) for _, topic in sorted(self.clustered_topics.items())
            ],
            "users": [{"name": user.name, "tags": list(user.tags)} for _, user in sorted(self.users.items())],
            "factories": [self._factory_tree(name) for name in sorted(self.factories)],
            "clustered_factories": [
                {
                    "name": factory.name,
                    "factories": [self._factory_tree(name) for name in factory.factories if name in self.factories],
                }
                for _, factory in sorted(self.clustered_factories.items())
            ],
        }

    def _node_tree(self, node: Node) -> dict[str, Any]:
        return {
            **dataclasses.asdict(node),
            "addresses": dict(node.addresses),
            "queues": [_queue_tree(queue) for queue in self.queues_of(node.id)],
            "topics": [{"vhost": topic.vhost, "name": topic.name} for topic in self.topics_of(node.id)],
            "users": sorted(self.users),
        }

    def _cluster_tree(self, cluster: ClusteredQueue) -> dict[str, Any]:
        return {
            "vhost": cluster.vhost,
            "name": cluster.name,
            "options": cluster.options.to_dict(),
            "members": [
                {
                    **_queue_tree(queue),
                    "node_name": self.node(queue.node).name,
                    "is_fixed": queue.node in cluster.fixed_nodes,
                }
                for queue in self.members_of(cluster.key)
            ],
        }

    def _topic_trees(self) -> list[dict[str, Any]]:
        """Each topic below its parent; one whose parent is gone stands for itself."""
        trees = {
            key: {
                "vhost": topic.vhost,
                "name": topic.name,
                "subscriptions": list(topic.subscriptions),
                "children": [],
            }
            for key, topic in sorted(self.topics.items())
        }
        roots: list[dict[str, Any]] = []
        for key, tree in trees.items():
            topic = self.topics[key]
            above = None if topic.parent is None else trees.get(cluster_key(topic.vhost, topic.parent))
            siblings: Any = roots if above is None else above["children"]
            siblings.append(tree)
        return roots

    def _clustered_topic_tree(self, clustered: ClusteredTopic) -> dict[str, Any]:
        members = [topic for topic in self.topics.values() if topic.cluster == clustered.key]
        return {
            "vhost": clustered.vhost,
            "name": clustered.name,
            "members": [
                {"name": topic.name, "nodes": None if topic.nodes is None else sorted(topic.nodes)}
                for topic in members
            ],
        }

    def _factory_tree(self, name: str) -> dict[str, Any]:
        """A factory whose node is gone leads nowhere."""
        factory = self.factories[name]
        node = self.nodes.get(factory.node)
        return {
            "name": name,
            "node": None if node is None else node.name,
            "addresses": {} if node is None else dict(node.addresses),
        }


def _queue_tree(queue: Queue) -> dict[str, Any]:
    return dataclasses.asdict(queue)
