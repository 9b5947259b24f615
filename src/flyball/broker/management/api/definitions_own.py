"""Definitions of what RabbitMQ does not have: clustered queues and topics, in the words of domain.toml.

They come in as `flyball domain apply` would do it: the same checks, the same plan, the same commands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

from flyball.broker.cluster.domain import Domain
from flyball.broker.cluster.domain_file import DomainFile, WantedCluster
from flyball.broker.cluster.facts import DomainFacts, facts_of
from flyball.broker.core.topics import Topic
from flyball.broker.node.node import Node

CLUSTERS, TOPICS, BINDINGS = "flyball_clusters", "flyball_topics", "flyball_bindings"
"""The sections of the document. The bindings are those of clustered queues."""

Place = tuple[str, str]
LeaveOut = Callable[[str, Mapping[str, Any], str], None]
"""Notes that something is not imported: its kind, what names it, and why."""


# Out


def clusters(node: Node, vhosts: Collection[str]) -> dict[Place, Mapping[str, Any]]:
    """Return how the clustered queues of some virtual hosts are defined, by virtual host and name."""
    return {
        (value["vhost"], value["name"]): value
        for _, value in sorted(node.definitions.of("cluster").items())
        if value["vhost"] in vhosts and not value.get("deleted")
    }


def of_cluster(value: Mapping[str, Any]) -> dict[str, Any]:
    """Tell a clustered queue: options that are not as usual, and the nodes where somebody wants a member."""
    told = {"name": value["name"], "vhost": value["vhost"], **value["options"]}
    return {**told, "members": list(value["fixed"])} if value.get("fixed") else told


def topics(node: Node, vhosts: Collection[str]) -> list[Topic]:
    return [topic for topic in node.hub.topics.all() if topic.vhost in vhosts]


def of_topic(topic: Topic) -> dict[str, Any]:
    told = {"name": topic.name, "vhost": topic.vhost}
    return told if topic.parent is None else {**told, "parent": topic.parent}


# In


def has_domain(node: Node) -> bool:
    """Whether the node can have clustered queues."""
    return "domain.show" in node.hub.commands


async def present(node: Node) -> DomainFacts:
    """Return the domain as it is; of a node without one, its topics."""
    if has_domain(node):
        facts: DomainFacts = await node.hub.commands["domain.show"]()
        return facts
    alone = facts_of(Domain())
    alone["topics"] = [
        {"vhost": topic.vhost, "name": topic.name, "parent": topic.parent, "subscriptions": []}
        for topic in node.hub.topics.all()
    ]
    return alone


def possible(wanted: DomainFile, facts: DomainFacts, leave_out: LeaveOut) -> DomainFile:
    """Return what can be had here: other domains have other nodes and provisioners."""
    found = wanted.clusters or ()
    return dataclasses.replace(wanted, clusters=tuple(_possible(cluster, facts, leave_out) for cluster in found))


def _possible(cluster: WantedCluster, facts: DomainFacts, leave_out: LeaveOut) -> WantedCluster:
    nodes = {node["name"] for node in facts["nodes"] if node["state"] in ("up", "joining")}
    for name in cluster.members or ():
        if name not in nodes:
            leave_out("member of clustered queue", _names(cluster), f"there is no node '{name}' in this domain")
    options = cluster.options
    if options.provisioner and options.provisioner not in facts["provisioners"]:
        reason = f"there is no provisioner '{options.provisioner}' in this domain"
        leave_out("provisioner of clustered queue", _names(cluster), reason)
        options = dataclasses.replace(options, provisioner="")
    members = tuple(name for name in cluster.members or () if name in nodes)
    return dataclasses.replace(cluster, options=options, members=members or None)


def _names(cluster: WantedCluster) -> dict[str, str]:
    return {"name": cluster.name, "vhost": cluster.vhost}
