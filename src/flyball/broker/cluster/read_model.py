"""The model of the domain, filled from what its nodes report of themselves and from what is defined."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flyball.broker.cluster import domain as model
from flyball.broker.cluster.agent import Agent
from flyball.broker.cluster.domain import cluster_key
from flyball.broker.cluster.options import Role
from flyball.broker.cluster.overview import Overview
from flyball.broker.store.registry import NodeRecord, NodeState


class ReadModel:
    """Fills the model from what one node knows of the domain."""

    def __init__(self, agent: Agent, overview: Overview, provisioners: Collection[str]) -> None:
        self._node = agent.node
        self._overview = overview
        self._provisioners = provisioners

    def read(self, leader: int | None, told: Mapping[str, Any]) -> model.Domain:
        """Return the present domain. `told` is what only the leader knows, empty if nobody could ask it."""
        domain = model.Domain(
            provisioners=sorted(self._provisioners),
            decisions=told.get("decisions", {}),
            leader=leader,
            asked=self._overview.own_id,
        )
        for node in self._overview.nodes:
            origin = self._overview.origin(node.name)
            domain.add_node(
                model.Node(
                    node.id,
                    node.name,
                    self._state_of(node),
                    node.epoch,
                    node.addresses,
                    origin.get("provisioner"),
                    node.lease_left_s,
                    bool(origin.get("cluster")),
                )
            )
        for user in self._node.hub.authority.access.users:
            domain.users[user.name] = model.User(user.name, user.tags)
        for topic in self._node.hub.topics.all():
            names = [str(found["queue"]) for found in self._node.hub.topics.subscriptions(topic.name, topic.vhost)]
            known = model.Topic(topic.name, topic.vhost, topic.parent, subscriptions=tuple(names))
            domain.topics[known.key] = known
        self._add_queues(domain, {int(queue_id): load for queue_id, load in told.get("loads", {}).items()})
        return domain

    def _state_of(self, node: NodeRecord) -> NodeState:
        if not node.is_live:
            return NodeState.DEAD
        return NodeState.LEAVING if self._overview.is_leaving(node.name) else node.state

    def _add_queues(self, domain: model.Domain, loads: Mapping[int, float]) -> None:
        counts = self._counts()
        given = self._given()
        clients = self._clients()
        definitions = {key: value for key, value in self._overview.clusters.items() if not value.get("deleted")}
        queues = list(self._overview.queues())
        for key, value in definitions.items():
            fixed = frozenset(node.id for node in self._overview.nodes if node.name in value.get("fixed", ()))
            options = self._overview.options(key)
            domain.clusters[key] = model.ClusteredQueue(value["name"], value["vhost"], options, fixed)
        for queue, owner in queues:
            if owner not in domain.nodes:
                continue
            place = cluster_key(queue.vhost, queue.name) if queue.member else None
            known = model.Queue(queue.id, queue.name, owner, queue.vhost, queue.durable)
            known.is_counted = queue.id in counts
            known.ready, known.unacked, known.consumers = counts.get(queue.id, (0, 0, 0))
            if place is not None and place in domain.clusters:
                known.cluster = place
                known.is_marked = queue.id in definitions[place].get("marked", ())
                known.capacity = self._overview.capacity_of(owner) * domain.clusters[place].options.capacity
                known.given = given.get(queue.id, 0)
                known.load = loads.get(queue.id)
                known.producers = clients.get((queue.id, Role.PRODUCER), 0)
                known.consumers = clients.get((queue.id, Role.CONSUMER), 0)
            domain.queues[queue.id] = known

    def _counts(self) -> dict[int, tuple[int, int, int]]:
        """Return ready and unacknowledged messages and consumers of all queues, as their nodes told them."""
        counts: dict[int, tuple[int, int, int]] = {}
        for node in self._overview.nodes:
            for queue_id, (ready, unacked, consumers) in node.report.get("queues", {}).items():
                counts[int(queue_id)] = (ready, unacked, consumers)
            for queue_id, told in node.report.get("members", {}).items():
                counts[int(queue_id)] = (told["ready"], told["unacked"], 0)
        return counts

    def _given(self) -> dict[int, int]:
        """Return how many messages members have handed to others."""
        reports = [node.report.get("members", {}) for node in self._overview.live]
        return {int(queue_id): told["given"] for report in reports for queue_id, told in report.items()}

    def _clients(self) -> dict[tuple[int, Role], int]:
        clients: dict[tuple[int, Role], int] = {}
        for node in self._overview.live:
            for queue_id, counts in node.report.get("clients", {}).items():
                for role, count in counts.items():
                    place = (int(queue_id), Role(role))
                    clients[place] = clients.get(place, 0) + count
        return clients
