"""A domain that consists of its model alone: what it is told to do is done at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from flyball.broker.cluster.commands import PlaceFacts, carry_out
from flyball.broker.cluster.domain import ClusteredQueue, Domain, Node, Queue, Topic, cluster_key
from flyball.broker.cluster.facts import DomainFacts, MoveFacts, facts_of
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.errors import ClusterError


class ModelGovernor:
    """Keeps the rules of a domain: nodes and members must be there, and nothing is left behind."""

    def __init__(self, provisioners: Sequence[str] = ("local", "cloud")) -> None:
        self.domain = Domain(provisioners=provisioners)
        self.moves: list[MoveFacts] = []
        self.arrives_later = False
        """Whether nodes take their time to join and to leave."""
        self.asked = ""
        """The name of the node that is asked, if it is one of them."""
        self._last_id = 0

    async def read(self) -> Domain:
        for node in self.domain.nodes.values():
            node.lease_left_s = 4.5 if node.state == "up" else None
            if node.name == self.asked:
                self.domain.asked = node.id
        return self.domain

    def facts(self) -> DomainFacts:
        return facts_of(asyncio.run(self.read()))

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    # Nodes

    async def add_node(self, name: str, provisioner: str) -> None:
        self.node(name, provisioner, state="joining" if self.arrives_later else "up")

    def node(self, name: str, provisioner: str | None = None, *, state: str = "up", is_managed: bool = False) -> Node:
        known = [node for node in self.domain.nodes.values() if node.name == name]
        node_id = known[0].id if known else self.next_id()
        epoch = known[0].epoch + 1 if known else 1
        address = f"127.0.0.1:{5600 + node_id}"
        addresses = {"amqp": address, "telesto": address}
        node = Node(node_id, name, state, epoch, addresses, provisioner, is_managed=is_managed)
        self.domain.add_node(node)
        if self.domain.leader not in self.domain.nodes:
            self.domain.leader = node_id
        return node

    async def remove_node(self, name: str, *, force: bool) -> None:
        node = self.domain.node_named(name)
        if self.arrives_later and not force:
            node.state = "leaving"
            return
        for queue in list(self.domain.queues_of(node.id)):
            del self.domain.queues[queue.id]
        for cluster in self.domain.clusters.values():
            cluster.fixed_nodes -= {node.id}
        del self.domain.nodes[node.id]

    async def settle(self) -> None:
        """Let those nodes be there that are coming, and those be gone that are going."""
        for node in list(self.domain.nodes.values()):
            if node.state == "joining":
                node.state = "up"
            elif node.state == "leaving":
                await self.remove_node(node.name, force=True)

    # Clustered queues

    async def create_cluster(self, vhost: str, name: str, options: ClusterOptions, nodes: Sequence[str]) -> None:
        cluster = ClusteredQueue(name, vhost, options)
        self.domain.clusters[cluster.key] = cluster
        for node in nodes:
            await self.add_member(vhost, name, node)
        if not nodes:
            chosen = min(node.name for node in self.domain.nodes.values() if node.state == "up")
            self.member(vhost, name, chosen)

    def member(self, vhost: str, name: str, node: str) -> Queue:
        """Add a member as the manager would."""
        key = cluster_key(vhost, name)
        queue = Queue(self.next_id(), name, self.domain.node_named(node).id, vhost, cluster=key)
        self.domain.queues[queue.id] = queue
        return queue

    async def change_cluster(self, vhost: str, name: str, changes: Mapping[str, Any]) -> None:
        cluster = self.domain.cluster(cluster_key(vhost, name))
        cluster.options = ClusterOptions.from_dict({**cluster.options.to_dict(), **changes})

    async def delete_cluster(self, vhost: str, name: str) -> None:
        key = cluster_key(vhost, name)
        for member in list(self.domain.members_of(key)):
            del self.domain.queues[member.id]
        del self.domain.clusters[key]

    async def add_member(self, vhost: str, name: str, node: str) -> None:
        cluster = self.domain.cluster(cluster_key(vhost, name))
        node_id = self.domain.node_named(node).id
        found = [member for member in self.domain.members_of(cluster.key) if member.node == node_id]
        member = found[0] if found else self.member(vhost, name, node)
        member.is_marked = False
        cluster.fixed_nodes |= {node_id}

    async def remove_member(self, vhost: str, name: str, node: str) -> None:
        cluster = self.domain.cluster(cluster_key(vhost, name))
        node_id = self.domain.node_named(node).id
        (member,) = [member for member in self.domain.members_of(cluster.key) if member.node == node_id]
        cluster.fixed_nodes -= {node_id}
        del self.domain.queues[member.id]

    async def rebalance(self, *, dry_run: bool) -> Sequence[MoveFacts]:
        moves = list(self.moves)
        if not dry_run:
            self.moves.clear()
        return moves

    async def decided(self, since: int, term: str) -> dict[str, Any]:
        return {"leader": None, "term": None, "last": 0, "decisions": []}

    async def place(self, vhost: str, name: str, role: Role) -> PlaceFacts:
        members = [m for m in self.domain.members_of(cluster_key(vhost, name)) if not m.is_marked]
        if not members:
            raise ClusterError(f"there is no room at {name!r} yet: try again in 2 s")
        chosen = min(members, key=lambda m: m.producers if role is Role.PRODUCER else m.consumers)
        node = self.domain.node(chosen.node)
        return {"node": node.name, "addresses": dict(node.addresses)}

    # Topics, which a real node knows by itself

    async def create_topic(self, name: str, parent: str | None = None, vhost: str = "/") -> None:
        topic = Topic(name, vhost, parent)
        if topic.key in self.domain.topics:
            raise ClusterError(f"there is a topic {name!r} already")
        self.domain.topics[topic.key] = topic

    async def set_parent(self, name: str, parent: str | None = None, vhost: str = "/") -> None:
        self.domain.topics[cluster_key(vhost, name)].parent = parent

    async def delete_topic(self, name: str, vhost: str = "/") -> None:
        if any(topic.vhost == vhost and topic.parent == name for topic in self.domain.topics.values()):
            raise ClusterError(f"topic {name!r} has children")
        del self.domain.topics[cluster_key(vhost, name)]

    async def list_topics(self, vhost: str | None = None) -> list[dict[str, object]]:
        return [
            {"name": topic.name, "vhost": topic.vhost, "parent": topic.parent}
            for _, topic in sorted(self.domain.topics.items())
            if vhost in (None, topic.vhost)
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
