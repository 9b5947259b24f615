"""A domain as commands show it and plans compare it: what JSON can say, with shares and loads worked out.

Pure: what is asked of the registry and of the manager comes as a View.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from flyball.broker.cluster.domain import ClusteredQueue, ClusteredTopic, Domain, Node, Queue, Topic
from flyball.broker.cluster.options import Role


class QueueFacts(TypedDict):
    vhost: str
    name: str
    ready: int | None
    """None, as with the others, if its node has not told."""
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
    managed: bool
    """Whether the manager had it started and will let it go by itself."""
    queues: list[QueueFacts]
    """Ordinary ones; members stand with their clustered queues."""


class MemberFacts(TypedDict):
    node: str
    marked: bool
    fixed: bool
    """Whether a person wants it there: the manager never removes it."""
    producers: int
    consumers: int
    x: float
    """Its share of all producers."""
    y: float
    """Its share of all consumers."""
    load: float
    capacity: float
    ready: int
    unacked: int
    given: int
    """Messages that it has handed to other members."""


class DecisionFacts(TypedDict):
    at: str
    what: str
    reason: str


class ClusterFacts(TypedDict):
    vhost: str
    name: str
    options: dict[str, object]
    producers: int
    consumers: int
    load: float
    members: list[MemberFacts]
    decisions: list[DecisionFacts]
    """Newest last."""


class TopicFacts(TypedDict):
    vhost: str
    name: str
    parent: str | None
    subscriptions: list[str]


class ClusteredTopicFacts(TypedDict):
    vhost: str
    name: str
    nodes: list[str]
    """Where it can be published to and subscribed to, with the same effect."""


class UserFacts(TypedDict):
    name: str
    tags: list[str]


class FactoryFacts(TypedDict):
    name: str
    clustered: bool
    nodes: list[str]


class DomainFacts(TypedDict):
    asked: str | None
    """The node that says this."""
    leader: str | None
    provisioners: list[str]
    nodes: list[NodeFacts]
    clusters: list[ClusterFacts]
    topics: list[TopicFacts]
    clustered_topics: list[ClusteredTopicFacts]
    users: list[UserFacts]
    factories: list[FactoryFacts]


class MoveFacts(TypedDict):
    """Something that goes from one node to another."""

    what: Literal["queue"]
    vhost: str
    name: str
    source: str
    destination: str
    reason: str


@dataclass(slots=True)
class View:
    """The model of a domain, and what the model does not hold."""

    domain: Domain
    leases_s: Mapping[int, float] = field(default_factory=dict)
    """What is left of the leases, by node; below zero they are over."""
    managed_nodes: frozenset[int] = frozenset()
    """Those that the manager had started for a clustered queue."""
    loads: Mapping[int, float] = field(default_factory=dict)
    """What members bear, by their queue ids, where it is measured; of others the weights of their clients count."""
    provisioners: Sequence[str] = ()
    decisions: Mapping[str, Sequence[DecisionFacts]] = field(default_factory=dict)
    """The last ones of each clustered queue, by its key, newest last."""
    asked: int | None = None
    """The node whose view it is."""


def facts_of(view: View) -> DomainFacts:
    """Describe a domain, all in the order of names."""
    domain = view.domain
    leader = domain.registry.leader
    return {
        "asked": domain.nodes[view.asked].name if view.asked in domain.nodes else None,
        "leader": domain.nodes[leader].name if leader in domain.nodes else None,
        "provisioners": sorted(view.provisioners),
        "nodes": [_node_facts(view, node) for node in sorted(domain.nodes.values(), key=lambda node: node.name)],
        "clusters": [_cluster_facts(view, cluster) for _, cluster in sorted(domain.clusters.items())],
        "topics": [_topic_facts(topic) for _, topic in sorted(domain.topics.items())],
        "clustered_topics": [
            _clustered_topic_facts(domain, topic) for _, topic in sorted(domain.clustered_topics.items())
        ],
        "users": [{"name": name, "tags": sorted(user.tags)} for name, user in sorted(domain.users.items())],
        "factories": _factory_facts(domain),
    }


def _node_facts(view: View, node: Node) -> NodeFacts:
    queues = sorted(view.domain.queues_of(node.id), key=lambda queue: (queue.vhost, queue.name))
    lease_s = view.leases_s.get(node.id)
    return {
        "id": node.id,
        "name": node.name,
        "state": str(node.state),
        "epoch": node.epoch,
        "lease_left_s": None if lease_s is None else round(lease_s, 1),
        "addresses": dict(node.addresses),
        "provisioner": node.provisioner,
        "managed": node.id in view.managed_nodes,
        "queues": [_queue_facts(queue) for queue in queues if queue.cluster is None],
    }


def _queue_facts(queue: Queue) -> QueueFacts:
    return {
        "vhost": queue.vhost,
        "name": queue.name,
        "ready": queue.ready if queue.is_counted else None,
        "unacked": queue.unacked if queue.is_counted else None,
        "producers": queue.producers if queue.is_counted else None,
        "consumers": queue.consumers if queue.is_counted else None,
    }


def _cluster_facts(view: View, cluster: ClusteredQueue) -> ClusterFacts:
    domain = view.domain
    members = sorted(domain.members_of(cluster.key), key=lambda member: domain.node(member.node).name)
    producers, consumers = sum(member.producers for member in members), sum(member.consumers for member in members)
    usable = sum(_capacity(cluster, member) for member in members if not member.is_marked)
    loads = [_load(view, cluster, member) for member in members]
    return {
        "vhost": cluster.vhost,
        "name": cluster.name,
        "options": cluster.options.to_dict(),
        "producers": producers,
        "consumers": consumers,
        "load": _ratio(sum(loads), usable),
        "members": [_member_facts(view, cluster, member, producers, consumers) for member in members],
        "decisions": list(view.decisions.get(cluster.key, ())),
    }


def _member_facts(view: View, cluster: ClusteredQueue, member: Queue, producers: int, consumers: int) -> MemberFacts:
    capacity = _capacity(cluster, member)
    return {
        "node": view.domain.node(member.node).name,
        "marked": member.is_marked,
        "fixed": member.node in cluster.fixed_nodes,
        "producers": member.producers,
        "consumers": member.consumers,
        "x": _ratio(member.producers, producers),
        "y": _ratio(member.consumers, consumers),
        "load": _ratio(_load(view, cluster, member), capacity),
        "capacity": capacity,
        "ready": member.ready,
        "unacked": member.unacked,
        "given": member.given,
    }


def _capacity(cluster: ClusteredQueue, member: Queue) -> float:
    return cluster.options.capacity if member.capacity is None else member.capacity


def _load(view: View, cluster: ClusteredQueue, member: Queue) -> float:
    options = cluster.options
    weights = member.producers * options.weight(Role.PRODUCER) + member.consumers * options.weight(Role.CONSUMER)
    return view.loads.get(member.id, weights)


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, 4) if whole else 0.0


def _topic_facts(topic: Topic) -> TopicFacts:
    return {
        "vhost": topic.vhost,
        "name": topic.name,
        "parent": topic.parent,
        "subscriptions": sorted(topic.subscriptions),
    }


def _clustered_topic_facts(domain: Domain, topic: ClusteredTopic) -> ClusteredTopicFacts:
    nodes = sorted(domain.node(node).name for node in topic.nodes)
    return {"vhost": topic.vhost, "name": topic.name, "nodes": nodes}


def _factory_facts(domain: Domain) -> list[FactoryFacts]:
    """A factory whose node is gone leads nowhere, and is shown so."""

    def nodes_of(*names: str) -> list[str]:
        known = [domain.factories[name].node for name in names if name in domain.factories]
        return [domain.nodes[node].name for node in known if node in domain.nodes]

    plain: list[FactoryFacts] = [
        {"name": name, "clustered": False, "nodes": nodes_of(name)} for name in sorted(domain.factories)
    ]
    clustered: list[FactoryFacts] = [
        {"name": name, "clustered": True, "nodes": nodes_of(*factory.factories)}
        for name, factory in sorted(domain.clustered_factories.items())
    ]
    return plain + clustered
