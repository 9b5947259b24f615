"""Describes the domain for users, from the nodes' reports and the definitions."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any

from flyball.broker.cluster.facts import (
    ClusterFacts,
    DomainFacts,
    MemberCounts,
    NodeFacts,
    QueueFacts,
    TopicFacts,
    cluster_facts,
    domain_facts,
)
from flyball.broker.cluster.options import Role
from flyball.broker.cluster.overview import Overview, key_of
from flyball.broker.node.node import Node
from flyball.broker.store.registry import NodeRecord, NodeState
from flyball.errors import TopicNotFound
from flyball.model import Queue


class ReadModel:
    """Describes the domain."""

    def __init__(self, node: Node, overview: Overview, provisioners: Collection[str]) -> None:
        self._hub = node.hub
        self._overview = overview
        self._provisioners = provisioners

    async def read(self, leader: str | None, details: Mapping[str, Any]) -> DomainFacts:
        """Return the current state. `details` is known to the leader only; empty if it did not answer."""
        topics = await self._topic_facts()
        overview = self._overview
        nodes = {node.id: self._node_facts(node) for node in overview.nodes}
        clusters = {key for key, value in overview.clusters.items() if not value.get("deleted")}
        members: dict[str, list[tuple[Queue, int]]] = {key: [] for key in clusters}
        counts = self._counts()
        for queue, owner in overview.queues():
            if owner not in nodes:
                continue
            if queue.member and key_of(queue) in clusters:
                members[key_of(queue)].append((queue, owner))
            else:
                nodes[owner]["queues"].append(_queue_facts(queue, counts.get(queue.id)))
        for facts in nodes.values():
            facts["queues"].sort(key=lambda queue: (queue["vhost"], queue["name"]))
        own = nodes.get(overview.own_id)
        return domain_facts(
            nodes=nodes.values(),
            clusters=self._cluster_facts(members, counts, details),
            topics=topics,
            users={user.name: user.tags for user in self._hub.authority.access.users},
            provisioners=self._provisioners,
            leader=leader,
            asked=None if own is None else own["name"],
        )

    async def _topic_facts(self) -> list[TopicFacts]:
        """Describe the topics, yielding to the event loop: there may be very many subscriptions."""
        found: list[TopicFacts] = []
        for topic in self._hub.topics.all():
            # A topic deleted meanwhile is left out.
            with contextlib.suppress(TopicNotFound):
                queue_names = await self._hub.topics.queue_names(topic.name, topic.vhost)
                found.append(
                    {"vhost": topic.vhost, "name": topic.name, "parent": topic.parent, "subscriptions": queue_names}
                )
        return found

    def _node_facts(self, node: NodeRecord) -> NodeFacts:
        origin = self._overview.origin(node.name)
        state = NodeState.LEAVING if self._overview.is_leaving(node.name) else node.state
        return {
            "id": node.id,
            "name": node.name,
            "state": str(state if node.is_live else NodeState.DEAD),
            "epoch": node.epoch,
            "lease_left_s": round(node.lease_left_s, 1),
            "addresses": dict(node.addresses),
            "provisioner": origin.get("provisioner"),
            "managed": bool(origin.get("cluster")),
            "queues": [],
        }

    def _cluster_facts(
        self,
        members: Mapping[str, list[tuple[Queue, int]]],
        counts: Mapping[int, Mapping[str, int]],
        details: Mapping[str, Any],
    ) -> list[ClusterFacts]:
        overview = self._overview
        loads, decisions, clients = details.get("loads", {}), details.get("decisions", {}), self._clients()
        found: list[ClusterFacts] = []
        for key, placed in members.items():
            value, options = overview.clusters[key], overview.options(key)
            known = [
                MemberCounts(
                    overview.name_of(owner),
                    overview.capacity_of(owner) * options.capacity,
                    is_marked=queue.id in value.get("marked", ()),
                    is_fixed=overview.is_fixed(key, owner),
                    producers=clients.get((queue.id, Role.PRODUCER), 0),
                    consumers=clients.get((queue.id, Role.CONSUMER), 0),
                    load=loads.get(str(queue.id)),
                    **{name: counts.get(queue.id, {}).get(name, 0) for name in ("ready", "unacked", "given")},
                )
                for queue, owner in placed
            ]
            facts = cluster_facts(value["vhost"], value["name"], options, known, decisions.get(key, ()))
            # Loads are those of the model in force, but a plan compares what was declared.
            facts["options"] = overview.declared(key).to_dict()
            found.append(facts)
        return found

    def _counts(self) -> dict[int, Mapping[str, int]]:
        """Return message and consumer counts of all queues, as their nodes reported."""
        counts: dict[int, Mapping[str, int]] = {}
        # Live nodes last: a dead one may have reported queues that others serve by now.
        for node in sorted(self._overview.nodes, key=lambda node: node.is_live):
            for queue_id, (ready, unacked, consumers) in node.report.get("queues", {}).items():
                counts[int(queue_id)] = {"ready": ready, "unacked": unacked, "consumers": consumers}
            for queue_id, reported in node.report.get("members", {}).items():
                counts[int(queue_id)] = reported
        return counts

    def _clients(self) -> dict[tuple[int, Role], int]:
        """Return the producers and consumers of members, through any node."""
        clients: dict[tuple[int, Role], int] = {}
        for node in self._overview.live:
            for queue_id, counts in node.report.get("clients", {}).items():
                for role, count in counts.items():
                    place = (int(queue_id), Role(role))
                    clients[place] = clients.get(place, 0) + count
        return clients


def _queue_facts(queue: Queue, counts: Mapping[str, int] | None) -> QueueFacts:
    """Describe an ordinary queue. A node with very many queues reports only some."""
    return {
        "vhost": queue.vhost,
        "name": queue.name,
        "ready": None if counts is None else counts["ready"],
        "unacked": None if counts is None else counts["unacked"],
        "producers": None if counts is None else 0,
        "consumers": None if counts is None else counts["consumers"],
    }
