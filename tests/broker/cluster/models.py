"""A domain that consists of its model alone: every command takes effect at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from flyball.broker.cluster.commands import PlaceFacts, carry_out
from flyball.broker.cluster.facts import (
    DecisionFacts,
    DomainFacts,
    MemberCounts,
    MoveFacts,
    NodeFacts,
    QueueFacts,
    TopicFacts,
    cluster_facts,
    domain_facts,
)
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.errors import ClusterError


@dataclass
class ModelCluster:
    """A clustered queue."""

    options: ClusterOptions
    # By node.
    members: dict[str, MemberCounts] = field(default_factory=dict)
    decisions: list[DecisionFacts] = field(default_factory=list)


def queue_facts(name: str, vhost: str = "/", **counts: int | None) -> QueueFacts:
    known = {"vhost": vhost, "name": name, "ready": 0, "unacked": 0, "producers": 0, "consumers": 0, **counts}
    return cast(QueueFacts, known)


class ModelAdministration:
    """Keeps the rules of a domain: nodes and members must be there, and nothing is left behind."""

    def __init__(self, provisioners: Sequence[str] = ("local", "cloud")) -> None:
        self.nodes: dict[str, NodeFacts] = {}
        self.clusters: dict[tuple[str, str], ModelCluster] = {}
        self.topics: dict[tuple[str, str], TopicFacts] = {}
        self.moves: list[MoveFacts] = []
        # Whether nodes take their time to join and to leave.
        self.arrives_later = False
        # The name of the node that is asked, if it is one of them.
        self.asked = ""
        self._provisioners = provisioners
        self._leader: str | None = None
        self._last_id = 0

    async def read(self) -> DomainFacts:
        for node in self.nodes.values():
            node["lease_left_s"] = 4.5 if node["state"] == "up" else None
        return domain_facts(
            nodes=self.nodes.values(),
            clusters=[
                cluster_facts(vhost, name, cluster.options, cluster.members.values(), cluster.decisions)
                for (vhost, name), cluster in self.clusters.items()
            ],
            topics=self.topics.values(),
            provisioners=self._provisioners,
            leader=self._leader,
            asked=self.asked if self.asked in self.nodes else None,
        )

    def facts(self) -> DomainFacts:
        return asyncio.run(self.read())

    # Nodes

    async def add_node(self, name: str, provisioner: str) -> None:
        self.node(name, provisioner, state="joining" if self.arrives_later else "up")

    def node(self, name: str, provisioner: str | None = None, *, state: str = "up", is_managed: bool = False) -> None:
        known = self.nodes.get(name)
        self._last_id += known is None
        node_id = self._last_id if known is None else known["id"]
        address = f"127.0.0.1:{5600 + node_id}"
        self.nodes[name] = {
            "id": node_id,
            "name": name,
            "state": state,
            "epoch": 1 if known is None else known["epoch"] + 1,
            "lease_left_s": None,
            "addresses": {"amqp": address, "telesto": address},
            "provisioner": provisioner,
            "managed": is_managed,
            "queues": [],
        }
        if self._leader not in self.nodes:
            self._leader = name

    async def remove_node(self, name: str, *, force: bool) -> None:
        if self.arrives_later and not force:
            self.nodes[name]["state"] = "leaving"
            return
        for cluster in self.clusters.values():
            cluster.members.pop(name, None)
        del self.nodes[name]

    async def settle(self) -> None:
        """Let those nodes be there that are coming, and those be gone that are going."""
        for node in list(self.nodes.values()):
            if node["state"] == "joining":
                node["state"] = "up"
            elif node["state"] == "leaving":
                await self.remove_node(node["name"], force=True)

    # Clustered queues

    async def create_cluster(self, vhost: str, name: str, options: ClusterOptions, nodes: Sequence[str]) -> None:
        self.clusters[vhost, name] = ModelCluster(options)
        for node in nodes:
            await self.add_member(vhost, name, node)
        if not nodes:
            chosen = min(node["name"] for node in self.nodes.values() if node["state"] == "up")
            self.member(vhost, name, chosen)

    def member(self, vhost: str, name: str, node: str) -> MemberCounts:
        """Return the member on a node; if there is none, add it as the manager would."""
        cluster = self.clusters[vhost, name]
        return cluster.members.setdefault(node, MemberCounts(node, cluster.options.capacity))

    async def change_cluster(self, vhost: str, name: str, changes: Mapping[str, Any]) -> None:
        cluster = self.clusters[vhost, name]
        cluster.options = ClusterOptions.from_dict({**cluster.options.to_dict(), **changes})
        for member in cluster.members.values():
            member.capacity = cluster.options.capacity

    async def delete_cluster(self, vhost: str, name: str) -> None:
        del self.clusters[vhost, name]

    async def add_member(self, vhost: str, name: str, node: str) -> None:
        member = self.member(vhost, name, node)
        member.is_marked, member.is_fixed = False, True

    async def remove_member(self, vhost: str, name: str, node: str) -> None:
        del self.clusters[vhost, name].members[node]

    async def rebalance(self, *, dry_run: bool) -> Sequence[MoveFacts]:
        moves = list(self.moves)
        if not dry_run:
            self.moves.clear()
        return moves

    async def decided(self, since: int, term: str) -> dict[str, Any]:
        return {"leader": None, "term": None, "last": 0, "decisions": []}

    async def place(self, vhost: str, name: str, role: Role) -> PlaceFacts:
        members = [member for member in self.clusters[vhost, name].members.values() if not member.is_marked]
        if not members:
            raise ClusterError(f"there is no room at {name!r} yet: try again in 2 s")
        chosen = min(members, key=lambda m: m.producers if role is Role.PRODUCER else m.consumers)
        return {"node": chosen.node, "addresses": dict(self.nodes[chosen.node]["addresses"])}

    # Topics, which a real node knows by itself

    async def create_topic(self, name: str, parent: str | None = None, vhost: str = "/") -> None:
        if (vhost, name) in self.topics:
            raise ClusterError(f"there is a topic {name!r} already")
        self.topic(name, parent, vhost)

    def topic(
        self, name: str, parent: str | None = None, vhost: str = "/", subscriptions: Sequence[str] = ()
    ) -> None:
        self.topics[vhost, name] = {
            "vhost": vhost,
            "name": name,
            "parent": parent,
            "subscriptions": list(subscriptions),
        }

    async def set_parent(self, name: str, parent: str | None = None, vhost: str = "/") -> None:
        self.topics[vhost, name]["parent"] = parent

    async def delete_topic(self, name: str, vhost: str = "/") -> None:
        if any(topic["vhost"] == vhost and topic["parent"] == name for topic in self.topics.values()):
            raise ClusterError(f"topic {name!r} has children")
        del self.topics[vhost, name]

    async def list_topics(self, vhost: str | None = None) -> list[dict[str, object]]:
        return [
            {"name": topic["name"], "vhost": topic["vhost"], "parent": topic["parent"]}
            for _, topic in sorted(self.topics.items())
            if vhost in (None, topic["vhost"])
        ]

    @property
    def topic_commands(self) -> dict[str, Any]:
        return {
            "topic.create": self.create_topic,
            "topic.parent": self.set_parent,
            "topic.delete": self.delete_topic,
            "topic.list": self.list_topics,
        }

    def execute(self, command: str, arguments: Mapping[str, Any]) -> Any:
        """Carry out a command as a node would."""
        if command in self.topic_commands:
            return asyncio.run(self.topic_commands[command](**arguments))
        return asyncio.run(carry_out(self, command, arguments))
