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


class DomainGovernor:
    """The Governor of `commands`: carries out what it is told here if this node leads, else there."""

    def __init__(
        self, agent: Agent, leader: Leader, placement: DomainPlacement, provisioners: Mapping[str, Provisioner]
    ) -> None:
        self.placement = placement
        self._agent = agent
        self._leader = leader
        self._node = agent.node
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
        told = {} if leader is None else await self._agent.ask_leader("govern.tell")
        domain = self._domain()
        domain.registry.leader = None if leader is None else leader.id
        nodes = self._node.membership.nodes
        provisioned = self._node.definitions.of("node")
        return View(
            domain,
            leases_s={node.id: node.lease_left_s for node in nodes},
            managed_nodes=frozenset(
                node.id for node in nodes if node.name in provisioned and provisioned[node.name]["cluster"]
            ),
            loads={int(queue_id): load for queue_id, load in told.get("loads", {}).items()},
            provisioners=sorted(self._provisioners),
            decisions=told.get("decisions", {}),
        )

    async def add_node(self, name: str, provisioner: str) -> None:
        await self._agent.ask_leader("govern.add_node", name=name, provisioner=provisioner)

    async def remove_node(self, name: str, *, force: bool) -> None:
        await self._agent.ask_leader("govern.remove_node", name=name, force=force)

    async def create_cluster(self, vhost: str, name: str, options: ClusterOptions, nodes: Sequence[str]) -> None:
        await self._agent.ask_leader(
            "govern.create_cluster",
            vhost=vhost,
            name=name,
            options=options.to_dict(only_changed=True),
            nodes=list(nodes),
        )

    async def change_cluster(self, vhost: str, name: str, options: ClusterOptions) -> None:
        await self._agent.ask_leader(
            "govern.change_cluster", vhost=vhost, name=name, options=options.to_dict(only_changed=True)
        )

    async def delete_cluster(self, vhost: str, name: str) -> None:
        await self._agent.ask_leader("govern.delete_cluster", vhost=vhost, name=name)

    async def add_member(self, vhost: str, name: str, node: str) -> None:
        await self._agent.ask_leader("govern.add_member", vhost=vhost, name=name, node=node)

    async def remove_member(self, vhost: str, name: str, node: str) -> None:
        await self._agent.ask_leader("govern.remove_member", vhost=vhost, name=name, node=node)

    async def rebalance(self, *, dry_run: bool) -> Sequence[MoveFacts]:
        moves: list[MoveFacts] = await self._agent.ask_leader("govern.rebalance", dry_run=dry_run)
        return moves

    async def place(self, vhost: str, name: str, role: Role) -> PlaceFacts:
        place = await self.placement.place(PlaceRequest(vhost, name, WireRole[role.name]))
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
                    str(node.state) if node.is_live else str(NodeState.DEAD),
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

    def _add_queues(self, domain: model.Domain) -> None:
        counts = self._counts()
        clients = self._clients()
        definitions = self._node.definitions.of("cluster")
        queues = self._leader.all_queues()
        owners = {queue.id: owner for queue, owner in queues}
        for key, value in definitions.items():
            fixed = frozenset(owners[member] for member in value.get("fixed", ()) if member in owners)
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
                known.capacity = self._capacity(owner) * domain.clusters[place].options.capacity
                known.producers = clients.get((queue.id, Role.PRODUCER), 0)
                known.consumers = clients.get((queue.id, Role.CONSUMER), 0)
            domain.queues[queue.id] = known

    def _capacity(self, node_id: int) -> float:
        node = self._node.membership.node(node_id)
        return 1.0 if node is None else float(node.report.get("capacity", 1.0))

    def _counts(self) -> dict[int, tuple[int, int, int]]:
        """Return ready and unacknowledged messages and consumers of all queues, as their nodes told them."""
        counts: dict[int, tuple[int, int, int]] = {}
        for node in self._node.membership.nodes:
            for queue_id, (ready, unacked, consumers) in node.report.get("queues", {}).items():
                counts[int(queue_id)] = (ready, unacked, consumers)
            for queue_id, told in node.report.get("members", {}).items():
                counts[int(queue_id)] = (told["ready"], told["unacked"], 0)
        return counts

    def _clients(self) -> dict[tuple[int, Role], int]:
        clients: dict[tuple[int, Role], int] = {}
        for node in self._node.membership.nodes:
            for _, role, queue_id in node.report.get("sessions", ()) if node.is_live else ():
                place = (queue_id, Role(role))
                clients[place] = clients.get(place, 0) + 1
        return clients

    # On the leader

    async def _tell(self) -> dict[str, Any]:
        """Tell what only the leader knows of clustered queues: what their members bear, and what was decided."""
        clusters = list(self._node.definitions.of("cluster"))
        loads: dict[str, float] = {}
        for cluster in clusters:
            loads |= self._leader.loads_of(cluster)
        return {"loads": loads, "decisions": {cluster: self._leader.decisions_of(cluster) for cluster in clusters}}

    async def _add_node(self, name: str, provisioner: str) -> None:
        await self._leader.provision(name, provisioner, "", None)

    async def _remove_node(self, name: str, force: bool) -> None:
        node = self._named(name)
        if not node.is_live:
            await self._leader.forget_node(node)
        elif force:
            raise ClusterError(f"node '{name}' is alive: remove it without --force, or stop it first")
        else:
            await self._leader.begin_removal(node)

    async def _create_cluster(self, vhost: str, name: str, options: Mapping[str, Any], nodes: Sequence[str]) -> None:
        if self._leader.has_ordinary_queue(vhost, name):
            raise ClusterError(f"there is already a queue '{name}' in vhost '{vhost}': choose another name")
        key = cluster_key(vhost, name)
        least = ClusterOptions.from_dict(options).min_members
        chosen = [self._named(node) for node in nodes] or self._leader.least_loaded(least)
        value = {"vhost": vhost, "name": name, "options": dict(options), "marked": [], "fixed": []}
        await self._leader.put("cluster", key, value)
        members = [await self._leader.add_member(key, node.id) for node in chosen]
        if nodes:
            await self._leader.put("cluster", key, {**value, "fixed": members})

    async def _change_cluster(self, vhost: str, name: str, options: Mapping[str, Any]) -> None:
        key, value = self._cluster(vhost, name)
        await self._leader.put("cluster", key, {**value, "options": dict(options)})

    async def _delete_cluster(self, vhost: str, name: str) -> None:
        key, _ = self._cluster(vhost, name)
        await self._leader.delete_members(vhost, name)
        await self._leader.delete("cluster", key)

    async def _add_member(self, vhost: str, name: str, node: str) -> None:
        key, _ = self._cluster(vhost, name)
        queue_id = await self._leader.add_member(key, self._named(node).id)
        _, value = self._cluster(vhost, name)
        marked = [member for member in value.get("marked", ()) if member != queue_id]
        fixed = sorted({*value.get("fixed", ()), queue_id})
        await self._leader.put("cluster", key, {**value, "marked": marked, "fixed": fixed})

    async def _remove_member(self, vhost: str, name: str, node: str) -> None:
        key, _ = self._cluster(vhost, name)
        await self._leader.mark_member(key, self._named(node))

    async def _rebalance(self, dry_run: bool) -> list[dict[str, Any]]:
        return await self._leader.rebalance(dry_run=dry_run)

    # Inside

    def _cluster(self, vhost: str, name: str) -> tuple[str, Mapping[str, Any]]:
        key = cluster_key(vhost, name)
        value = self._node.definitions.of("cluster").get(key)
        if value is None:
            raise ClusterError(f"there is no clustered queue '{name}' in vhost '{vhost}'")
        return key, value

    def _named(self, name: str) -> NodeRecord:
        for node in self._node.membership.nodes:
            if node.name == name:
                return node
        raise ClusterError(f"there is no node '{name}': look at `flyball domain show`")
