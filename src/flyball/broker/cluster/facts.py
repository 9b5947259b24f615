"""A domain as commands show it and plans compare it: what JSON can say, with shares and loads worked out.

Pure: it reads the model and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from flyball.broker.cluster.domain import ClusteredQueue, DecisionFacts, Domain, Node, Queue, Topic
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


def facts_of(domain: Domain) -> DomainFacts:
    """Describe a domain, all in the order of names."""
    nodes = sorted(domain.nodes.values(), key=lambda node: node.name)
    names = {node.id: node.name for node in nodes}
    topics = [topic for _, topic in sorted(domain.topics.items())]
    return {
        "asked": None if domain.asked is None else names.get(domain.asked),
        "leader": None if domain.leader is None else names.get(domain.leader),
        "provisioners": sorted(domain.provisioners),
        "nodes": [_node_facts(domain, node) for node in nodes],
        "clusters": [_cluster_facts(domain, cluster) for _, cluster in sorted(domain.clusters.items())],
        "topics": [_topic_facts(topic) for topic in topics],
        "clustered_topics": _clustered_topic_facts(topics, [node.name for node in nodes if node.is_live]),
        "users": [{"name": name, "tags": sorted(user.tags)} for name, user in sorted(domain.users.items())],
        "factories": _factory_facts([node.name for node in nodes]),
    }


def _node_facts(domain: Domain, node: Node) -> NodeFacts:
    queues = sorted(domain.queues_of(node.id), key=lambda queue: (queue.vhost, queue.name))
    return {
        "id": node.id,
        "name": node.name,
        "state": str(node.state),
        "epoch": node.epoch,
        "lease_left_s": None if node.lease_left_s is None else round(node.lease_left_s, 1),
        "addresses": dict(node.addresses),
        "provisioner": node.provisioner,
        "managed": node.is_managed,
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


def _cluster_facts(domain: Domain, cluster: ClusteredQueue) -> ClusterFacts:
    members = sorted(domain.members_of(cluster.key), key=lambda member: domain.node(member.node).name)
    producers, consumers = sum(member.producers for member in members), sum(member.consumers for member in members)
    usable = sum(_capacity(cluster, member) for member in members if not member.is_marked)
    loads = [_load(cluster, member) for member in members]
    return {
        "vhost": cluster.vhost,
        "name": cluster.name,
        "options": cluster.options.to_dict(),
        "producers": producers,
        "consumers": consumers,
        "load": _ratio(sum(loads), usable),
        "members": [_member_facts(domain, cluster, member, producers, consumers) for member in members],
        "decisions": list(domain.decisions.get(cluster.key, ())),
    }


def _member_facts(
    domain: Domain, cluster: ClusteredQueue, member: Queue, producers: int, consumers: int
) -> MemberFacts:
    capacity = _capacity(cluster, member)
    return {
        "node": domain.node(member.node).name,
        "marked": member.is_marked,
        "fixed": member.node in cluster.fixed_nodes,
        "producers": member.producers,
        "consumers": member.consumers,
        "x": _ratio(member.producers, producers),
        "y": _ratio(member.consumers, consumers),
        "load": _ratio(_load(cluster, member), capacity),
        "capacity": capacity,
        "ready": member.ready,
        "unacked": member.unacked,
        "given": member.given,
    }


def _capacity(cluster: ClusteredQueue, member: Queue) -> float:
    return cluster.options.capacity if member.capacity is None else member.capacity


def _load(cluster: ClusteredQueue, member: Queue) -> float:
    if member.load is not None:
        return member.load
    options = cluster.options
    return member.producers * options.weight(Role.PRODUCER) + member.consumers * options.weight(Role.CONSUMER)


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, 4) if whole else 0.0


def _topic_facts(topic: Topic) -> TopicFacts:
    return {
        "vhost": topic.vhost,
        "name": topic.name,
        "parent": topic.parent,
        "subscriptions": sorted(topic.subscriptions),
    }


def _clustered_topic_facts(topics: Sequence[Topic], live: list[str]) -> list[ClusteredTopicFacts]:
    """All nodes have all topics: where there are several nodes, each is a clustered one."""
    if len(live) < 2:
        return []
    return [{"vhost": topic.vhost, "name": topic.name, "nodes": live} for topic in topics]


def _factory_facts(nodes: list[str]) -> list[FactoryFacts]:
    """Each node has a connection factory of its name; that of the domain chooses among them for each client."""
    own: list[FactoryFacts] = [{"name": name, "clustered": False, "nodes": [name]} for name in nodes]
    return [*own, {"name": "domain", "clustered": True, "nodes": nodes}] if nodes else []
