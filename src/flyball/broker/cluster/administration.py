"""Administrative operations of a domain, available on any node: each command is sent to the leader and runs there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from flyball.broker.cluster.agent import Agent
from flyball.broker.cluster.commands import PlaceFacts, carry_out
from flyball.broker.cluster.domain_placement import DomainPlacement
from flyball.broker.cluster.facts import DomainFacts, MoveFacts
from flyball.broker.cluster.leader import Leader
from flyball.broker.cluster.names import cluster_key
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.broker.cluster.read_model import ReadModel
from flyball.broker.core.placement import NoPlaceYet, PlaceRequest
from flyball.broker.core.placement import Role as WireRole
from flyball.errors import ClusterError

# Time limit of commands that start nodes or ask several of them.
LONG_S = 120.0


class DomainAdministration:
    """The Administration of `commands`; it changes the domain on the leader."""

    def __init__(
        self, agent: Agent, leader: Leader, placement: DomainPlacement, provisioners: Collection[str]
    ) -> None:
        self._agent = agent
        self._leader = leader
        self._placement = placement
        self._overview = leader.overview
        self._model = ReadModel(agent.node, leader.overview, provisioners)
        agent.answer_while_leading({"domain.govern": partial(carry_out, self), "domain.tell": leader.details})

    async def run(self, command: str, arguments: Mapping[str, Any]) -> Any:
        """Run a command on the leader; reads run here, so that they work without a leader."""
        if command == "domain.show":
            return await carry_out(self, command, arguments)
        return await self._agent.ask_leader(
            "domain.govern", name=command, arguments=dict(arguments), time_limit_s=LONG_S
        )

    # Reads

    async def read(self) -> DomainFacts:
        leader = self._agent.leader
        try:
            details = {} if leader is None else await self._agent.ask_leader("domain.tell")
        except ClusterError:
            # The leader may just have died: show what every node knows.
            details = {}
        return await self._model.read(None if leader is None else leader.name, details)

    async def place(self, vhost: str, name: str, role: Role) -> PlaceFacts:
        place = await self._placement.place(PlaceRequest(vhost, name, WireRole[role.name], arrives=False))
        if isinstance(place, NoPlaceYet):
            raise ClusterError(f"no member available yet: {place.reason}; retry in {place.retry_s:g} s")
        return {"node": place.node, "addresses": dict(place.addresses)}

    async def decided(self, since: int, term: str) -> dict[str, Any]:
        leader = self._overview.name_of(self._overview.own_id)
        return {"leader": leader, **self._leader.decision_log.since(since, term)}

    # Changes, on the leader

    async def add_node(self, name: str, provisioner: str) -> None:
        await self._leader.nodes.start(name, provisioner, "", None)

    async def remove_node(self, name: str, *, force: bool) -> None:
        node = self._overview.named(name)
        if not node.is_live:
            await self._leader.forget_node(node)
        elif force:
            raise ClusterError(f"node '{name}' is alive: remove it without --force, or stop it first")
        else:
            await self._leader.nodes.begin_removal(node)
            await self._leader.clusters.forget_node_choices(node)
            await self._leader.decide()

    async def create_cluster(self, vhost: str, name: str, options: ClusterOptions, nodes: Sequence[str]) -> None:
        chosen = [self._overview.named(node) for node in nodes]
        await self._leader.clusters.create(cluster_key(vhost, name), options, chosen)

    async def change_cluster(self, vhost: str, name: str, changes: Mapping[str, Any]) -> None:
        await self._leader.clusters.change(cluster_key(vhost, name), changes)

    async def delete_cluster(self, vhost: str, name: str) -> None:
        await self._leader.clusters.delete(cluster_key(vhost, name))

    async def add_member(self, vhost: str, name: str, node: str) -> None:
        key, found = cluster_key(vhost, name), self._overview.named(node)
        queue_id = await self._leader.clusters.add_member(key, found.id)
        await self._leader.clusters.keep_member(key, queue_id, found)
        await self._leader.decide()

    async def remove_member(self, vhost: str, name: str, node: str) -> None:
        key, found = cluster_key(vhost, name), self._overview.named(node)
        queue_id = self._overview.member_on(key, found.id)
        if queue_id is None:
            raise ClusterError(f"node '{node}' has no member of that clustered queue")
        await self._leader.clusters.drain_member(key, queue_id, found)
        await self._leader.decide()

    async def rebalance(self, *, dry_run: bool) -> Sequence[MoveFacts]:
        return self._leader.rebalance(dry_run=dry_run)
