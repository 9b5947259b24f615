"""The state of a domain as JSON: shown by commands, compared by plans, checked by tests.

Pure: `read_model` supplies the numbers; shares and loads are computed here. Objects are identified by their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from flyball.broker.cluster.names import cluster_key, suggestion, titled
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.errors import ClusterError


class DecisionFacts(TypedDict):
    """A decision of the manager."""

    at: str
    what: str
    reason: str


class QueueFacts(TypedDict):
    vhost: str
    name: str
    # None, like the other counts, if its node has not reported.
    ready: int | None
    unacked: int | None
    producers: int | None
    consumers: int | None


class NodeFacts(TypedDict):
    id: int
    name: str
    state: str
    epoch: int
    lease_left_s: float | None
    addresses: dict[str, str]
    provisioner: str | None
    # Whether the manager started it and will remove it automatically.
    managed: bool
    # Ordinary queues; members are listed with their clustered queues.
    queues: list[QueueFacts]


class MemberFacts(TypedDict):
    node: str
    marked: bool
    # Whether an operator placed it: the manager never removes it.
    fixed: bool
    producers: int
    consumers: int
    # Its share of all producers.
    x: float
    # Its share of all consumers.
    y: float
    load: float
    capacity: float
    ready: int
    unacked: int
    # Messages transferred to other members.
    given: int


class ClusterFacts(TypedDict):
    vhost: str
    name: str
    options: dict[str, object]
    producers: int
    consumers: int
    load: float
    members: list[MemberFacts]
    # Newest last.
    decisions: list[DecisionFacts]


class TopicFacts(TypedDict):
    vhost: str
    name: str
    parent: str | None
    subscriptions: list[str]


class ClusteredTopicFacts(TypedDict):
    vhost: str
    name: str
    # Nodes where it can be published to and subscribed to, with the same effect.
    nodes: list[str]


class UserFacts(TypedDict):
    name: str
    tags: list[str]


class FactoryFacts(TypedDict):
    name: str
    clustered: bool
    nodes: list[str]


class DomainFacts(TypedDict):
    # The node that answered.
    asked: str | None
    leader: str | None
    provisioners: list[str]
    nodes: list[NodeFacts]
    clusters: list[ClusterFacts]
    topics: list[TopicFacts]
    clustered_topics: list[ClusteredTopicFacts]
    users: list[UserFacts]
    factories: list[FactoryFacts]


class MoveFacts(TypedDict):
    """A queue that moves from one node to another."""

    what: Literal["queue"]
    vhost: str
    name: str
    source: str
    destination: str
    reason: str


@dataclass(slots=True)
class MemberCounts:
    """Counts of a member of a clustered queue."""

    node: str
    capacity: float
    is_marked: bool = False
    is_fixed: bool = False
    producers: int = 0
    consumers: int = 0
    ready: int = 0
    unacked: int = 0
    given: int = 0
    # Its load, where that is measured; otherwise the weights of its clients are summed.
    load: float | None = None

    def load_by(self, options: ClusterOptions) -> float:
        if self.load is not None:
            return self.load
        return self.producers * options.weight(Role.PRODUCER) + self.consumers * options.weight(Role.CONSUMER)


def domain_facts(
    *,
    nodes: Iterable[NodeFacts] = (),
    clusters: Iterable[ClusterFacts] = (),
    topics: Iterable[TopicFacts] = (),
    users: Mapping[str, Sequence[str]] | None = None,
    provisioners: Iterable[str] = (),
    leader: str | None = None,
    asked: str | None = None,
) -> DomainFacts:
    """Describe a domain; all lists are sorted by name. `users` have tags."""
    ordered = sorted(nodes, key=lambda node: node["name"])
    known_topics = sorted(topics, key=_key_of)
    return {
        "asked": asked,
        "leader": leader,
        "provisioners": sorted(provisioners),
        "nodes": ordered,
        "clusters": sorted(clusters, key=_key_of),
        "topics": known_topics,
        "clustered_topics": _clustered_topic_facts(
            known_topics, [node["name"] for node in ordered if node["state"] != "dead"]
        ),
        "users": [{"name": name, "tags": sorted(tags)} for name, tags in sorted((users or {}).items())],
        "factories": _factory_facts([node["name"] for node in ordered]),
    }


def cluster_facts(
    vhost: str,
    name: str,
    options: ClusterOptions,
    members: Iterable[MemberCounts],
    decisions: Iterable[DecisionFacts] = (),
) -> ClusterFacts:
    """Describe a clustered queue. Marked members count with their load, but not as capacity."""
    known = sorted(members, key=lambda member: member.node)
    producers, consumers = sum(member.producers for member in known), sum(member.consumers for member in known)
    usable = sum(member.capacity for member in known if not member.is_marked)
    return {
        "vhost": vhost,
        "name": name,
        "options": options.to_dict(),
        "producers": producers,
        "consumers": consumers,
        "load": _ratio(sum(member.load_by(options) for member in known), usable),
        "members": [
            {
                "node": member.node,
                "marked": member.is_marked,
                "fixed": member.is_fixed,
                "producers": member.producers,
                "consumers": member.consumers,
                "x": _ratio(member.producers, producers),
                "y": _ratio(member.consumers, consumers),
                "load": _ratio(member.load_by(options), member.capacity),
                "capacity": member.capacity,
                "ready": member.ready,
                "unacked": member.unacked,
                "given": member.given,
            }
            for member in known
        ],
        "decisions": list(decisions),
    }


def node_named(facts: DomainFacts, name: str) -> NodeFacts:
    """Return a node. Raises ClusterError that suggests a similar name."""
    for node in facts["nodes"]:
        if node["name"] == name:
            return node
    raise ClusterError(f"unknown node {name!r}{suggestion(name, [node['name'] for node in facts['nodes']])}")


def cluster_named(facts: DomainFacts, vhost: str, name: str) -> ClusterFacts:
    """Return a clustered queue. Raises ClusterError."""
    for cluster in facts["clusters"]:
        if (cluster["vhost"], cluster["name"]) == (vhost, name):
            return cluster
    raise ClusterError(f"no clustered queue {titled(vhost, name)!r}: create it first")


def _key_of(entry: ClusterFacts | TopicFacts) -> str:
    return cluster_key(entry["vhost"], entry["name"])


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, 4) if whole else 0.0


def _clustered_topic_facts(topics: Sequence[TopicFacts], live: list[str]) -> list[ClusteredTopicFacts]:
    """Every node has every topic: with several nodes, each topic is clustered."""
    if len(live) < 2:
        return []
    return [{"vhost": topic["vhost"], "name": topic["name"], "nodes": live} for topic in topics]


def _factory_facts(nodes: list[str]) -> list[FactoryFacts]:
    """Each node has a connection factory of its name; the domain's factory chooses a node for each client."""
    own: list[FactoryFacts] = [{"name": name, "clustered": False, "nodes": [name]} for name in nodes]
    return [*own, {"name": "domain", "clustered": True, "nodes": nodes}] if nodes else []
