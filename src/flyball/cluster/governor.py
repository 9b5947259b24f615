"""What people can ask of a domain, on any node: it is done by the node that leads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flyball.cluster import domain as model
from flyball.cluster.agent import Agent
from flyball.cluster.commands import MoveFacts, PlaceFacts
from flyball.cluster.domain import ClusterOptions, Role, cluster_key
from flyball.cluster.facts import View
from flyball.cluster.leader import Leader
from flyball.cluster.placing import DomainPlacement
from flyball.cluster.provisioners import Provisioner
from flyball.errors import ClusterError
from flyball.server.placement import NoPlaceYet, PlaceRequest
from flyball.server.placement import Role as WireRole
from flyball.store.registry import NodeRecord, NodeState

LONG_S = 120.0
"""So long may take what starts nodes or moves queues."""


class DomainGovernor:
    """The Governor of `commands`: carries out what it is told here if this node leads, else there."""

    def __init__(
        self, agent: Agent, leader: Leader, placement: DomainPlacement, provisioners: Mapping[str, Provisioner]
    ) -> None:
        self.placement = placement
        self._agent = agent
        self._leader = leader
        self._node = agent.node
        self._overview = leader.overview
        self._provisioners = provisioners
        agent.node.peers.commands.update(
            {
                "govern.tell": self._tell,
                "govern.add_node": self._add_node,
                "govern.remove_node": self._remove_node,
                "govern.create_cluster": self._create_cluster,
                "govern.change_cluster": self._change_cluster,
                "govern.delete_cluster": self._delete_cluster,
                "govern.add_member": self._add_member,
                "govern.remove_member": self._remove_member,
                "govern.rebalance": self._rebalance,
            }
        )

    async def view(self) -> View:
        leader = self._agent.leader
        try:
            told = {} if leader is None else await self._agent.ask_leader("govern.tell")
        except ClusterError:
            # It may just have died: what all nodes know is shown nevertheless.
            told = {}
        domain = self._domain()
        domain.registry.leader = None if leader is None else leader.id
        nodes = self._node.membership.nodes
        provisioned = self._node.definitions.of("node")
        return View(
            domain,
            leases_s={node.id: node.lease_left_s for node in nodes},
            managed_nodes=frozenset(node.id for node in nodes if provisioned.get(node.name, {}).get("cluster")),
            loads={int(queue_id): load for queue_id, load in told.get("loads", {}).items()},
            provisioners=sorted(self._provisioners),
            decisions=told.get("decisions", {}),
        )

    async def add_node(self, name: str, provisioner: str) -> None:
        await self._agent.ask_leader("govern.add_node", name=name, provisioner=provisioner, time_limit_s=LONG_S)

    async def remove_node(self, name: str, *, force: bool) -> None:
        await self._agent.ask_leader("govern.remove_node", name=name, force=force)

    async def create_cluster(self, vhost: str, name: str, options: ClusterOptions, nodes: Sequence[str]) -> None:
        await self._agent.ask_leader(
            "govern.create_cluster",
            vhost=vhost,
            name=name,
            options=options.to_dict(only_changed=True),
            nodes=list(nodes),
            time_limit_s=LONG_S,
        )

    async def change_cluster(self, vhost: str, name: str, options: ClusterOptions) -> None:
        await self._agent.ask_leader(
            "govern.change_cluster", vhost=vhost, name=name, options=options.to_dict(only_changed=True)
        )

    async def delete_cluster(self, vhost: str, name: str) -> None:
        await self._agent.ask_leader("govern.delete_cluster", vhost=vhost, name=name, time_limit_s=LONG_S)

    async def add_member(self, vhost: str, name: str, node: str) -> None:
        await self._agent.ask_leader("govern.add_member", vhost=vhost, name=name, node=node)

    async def remove_member(self, vhost: str, name: str, node: str) -> None:
        await self._agent.ask_leader("govern.remove_member", vhost=vhost, name=name, node=node)

    async def rebalance(self, *, dry_run: bool) -> Sequence[MoveFacts]:
        moves: list[MoveFacts] = await self._agent.ask_leader(
            "govern.rebalance", dry_run=dry_run, time_limit_s=LONG_S
        )
        return moves

    async def place(self, vhost: str, name: str, role: Role) -> PlaceFacts:
        place = await self.placement.place(PlaceRequest(vhost, name, WireRole[role.name], arrives=False))
        if isinstance(place, NoPlaceYet):
            raise ClusterError(f"no place yet: {place.reason}; try again in {place.retry_s:g} s")
        return {"node": place.node, "addresses": dict(place.addresses)}

    # The model

    def _domain(self) -> model.Domain:
        domain = model.Domain()
        provisioned = self._node.definitions.of("node")
        for node in self._node.membership.nodes:
            origin = provisioned.get(node.name)
            domain.add_node(
                model.Node(
                    node.id,
                    node.name,
                    self._state_of(node),
                    node.epoch,
                    node.addresses,
                    None if origin is None else origin["provisioner"],
                )
            )
            domain.factories[node.name] = model.ConnectionFactory(node.name, node.id)
        domain.clustered_factories["domain"] = model.ClusteredConnectionFactory("domain", tuple(domain.factories))
        for user in self._node.hub.authority.access.users:
            domain.users[user.name] = model.User(user.name, user.tags)
        for topic in self._node.hub.topics.all():
            names = [str(found["queue"]) for found in self._node.hub.topics.subscriptions(topic.name, topic.vhost)]
            known = model.Topic(topic.name, topic.vhost, topic.parent, subscriptions=tuple(names))
            domain.topics[known.key] = known
        self._add_queues(domain)
        return domain

    def _state_of(self, node: NodeRecord) -> NodeState:
        if not node.is_live:
            return NodeState.DEAD
        return NodeState.LEAVING if self._overview.is_leaving(node.name) else node.state

    def _add_queues(self, domain: model.Domain) -> None:
        counts = self._counts()
        given = self._given()
        clients = self._clients()
        definitions = {key: value for key, value in self._overview.clusters.items() if not value.get("deleted")}
        queues = list(self._overview.queues())
        for key, value in definitions.items():
            fixed = frozenset(node.id for node in self._overview.nodes if node.name in value.get("fixed", ()))
            options = ClusterOptions.from_dict(value["options"])
            domain.clusters[key] = model.ClusteredQueue(value["name"], value["vhost"], options, fixed)
        for queue, owner in queues:
            if owner not in domain.nodes:
                continue
            place = cluster_key(queue.vhost, queue.name) if queue.member else None
            ready, unacked, consumers = counts.get(queue.id, (0, 0, 0))
            known = model.Queue(queue.id, queue.name, owner, queue.vhost, queue.durable, ready=ready, unacked=unacked)
            known.consumers = consumers
            if place is not None and place in domain.clusters:
                known.cluster = place
                known.is_marked = queue.id in definitions[place].get("marked", ())
                known.capacity = self._overview.capacity_of(owner) * domain.clusters[place].options.capacity
                known.given = given.get(queue.id, 0)
                known.producers = clients.get((queue.id, Role.PRODUCER), 0)
                known.consumers = clients.get((queue.id, Role.CONSUMER), 0)
            domain.queues[queue.id] = known

    def _counts(self) -> dict[int, tuple[int, int, int]]:
        """Return ready and unacknowledged messages and consumers of all queues, as their nodes told them."""
        counts: dict[int, tuple[int, int, int]] = {}
        for node in self._node.membership.nodes:
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
        for node in self._node.membership.nodes:
            for _, role, queue_id, _ in node.report.get("sessions", ()) if node.is_live else ():
                place = (queue_id, Role(role))
                clients[place] = clients.get(place, 0) + 1
        return clients

    # On the leader

    async def _tell(self) -> dict[str, Any]:
        """Tell what only the leader knows of clustered queues: what their members bear, and what was decided."""
        loads: dict[str, float] = {}
        for cluster in self._overview.clusters:
            loads |= self._leader.loads_of(cluster)
        decisions = {cluster: self._leader.decisions_of(cluster) for cluster in self._overview.clusters}
        return {"loads": loads, "decisions": decisions}

    async def _add_node(self, name: str, provisioner: str) -> None:
        await self._leader.nodes.start(name, provisioner, "", None)

    async def _remove_node(self, name: str, force: bool) -> None:
        node = self._overview.named(name)
        if not node.is_live:
            await self._leader.forget_node(node)
        elif force:
            raise ClusterError(f"node '{name}' is alive: remove it without --force, or stop it first")
        else:
            await self._leader.remove_node(node)

    async def _create_cluster(self, vhost: str, name: str, options: Mapping[str, Any], nodes: Sequence[str]) -> None:
        chosen = [self._overview.named(node) for node in nodes]
        await self._leader.create_cluster(cluster_key(vhost, name), options, chosen)

    async def _change_cluster(self, vhost: str, name: str, options: Mapping[str, Any]) -> None:
        await self._leader.clusters.change(cluster_key(vhost, name), options)

    async def _delete_cluster(self, vhost: str, name: str) -> None:
        self._overview.cluster(cluster_key(vhost, name))
        await self._leader.clusters.delete(cluster_key(vhost, name))

    async def _add_member(self, vhost: str, name: str, node: str) -> None:
        await self._leader.add_member(cluster_key(vhost, name), self._overview.named(node))

    async def _remove_member(self, vhost: str, name: str, node: str) -> None:
        await self._leader.remove_member(cluster_key(vhost, name), self._overview.named(node))

    async def _rebalance(self, dry_run: bool) -> list[dict[str, Any]]:
        return await self._leader.nodes.rebalance(dry_run=dry_run)
