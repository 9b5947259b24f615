"""The one node that decides for the domain: it tells the manager what the nodes report, and does what that decides.

Any node can lead: all that must outlive a leader is in the registry, and the next one's manager is told anew.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from flyball.cluster.agent import Agent
from flyball.cluster.clusters import Clusters
from flyball.cluster.decisions import Wait
from flyball.cluster.domain import Role, cluster_key
from flyball.cluster.executing import Executor
from flyball.cluster.manager import Manager
from flyball.cluster.nodes import Nodes
from flyball.cluster.overview import Overview
from flyball.cluster.provisioners import Provisioner
from flyball.cluster.sessions import new_session_id
from flyball.cluster.tasks import Errands
from flyball.cluster.telling import Teller
from flyball.errors import ClusterError, Fenced, StoreError
from flyball.store.registry import NodeRecord, NodeState

log = logging.getLogger(__name__)

PERIOD_S = 1.0

ELSEWHERE_S = 0.5
"""When a client may ask again for which there is no other node than the one that it cannot reach."""

DECISIONS_TOLD = 50
"""So many of the last decisions are shown to who asks."""

_numbers = itertools.count(1)


class Leader:
    """Leads the domain while the registry lets it."""

    def __init__(self, agent: Agent, provisioners: Mapping[str, Provisioner], tasks: asyncio.TaskGroup) -> None:
        self._agent = agent
        self._membership = agent.node.membership
        self._registry = agent.node.membership.registry
        self.overview = Overview(agent.node)
        self.clusters = Clusters(agent, self.overview)
        self.nodes = Nodes(agent, self.overview, provisioners)
        self._errands = Errands(tasks)
        self._begin()
        agent.node.peers.commands.update({"cluster.place": self.place, "cluster.left": self.left})

    async def run(self) -> None:
        """Try to lead, and do it, until cancelled. Raises Fenced."""
        try:
            while True:
                try:
                    await self.step()
                except Fenced:
                    raise
                except StoreError as error:
                    # The store is away, or a node that was dead has just joined again: look anew.
                    self._agent.leads = False
                    log.info("leading the domain is tried again: %s", error)
                await asyncio.sleep(PERIOD_S)
        finally:
            self._errands.cancel()

    async def step(self) -> None:
        """Do what a leader does about once a second, if this node is the one."""
        leads = await self._registry.lead()
        if leads != self._agent.leads:
            log.info("this node %s the domain", "leads" if leads else "no longer leads")
            self._errands.cancel()
            self._begin()
            if leads:
                await self._membership.catch_up()
                self.clusters.begin()
                # Before anybody can ask for a place: a manager that knows no members would make some.
                self._teller.tell_all(time.monotonic())
            self._agent.leads = leads
        if not leads:
            return
        if self._membership.may_judge:
            await self._bury_the_dead()
        await self.decide()
        self._finish_what_was_begun()
        await self._trim_changes()

    async def decide(self) -> None:
        """Tell the manager what is new, and do what it decides. Raises StoreError."""
        now_s = time.monotonic()
        self._teller.tell_all(now_s)
        self.manager.tick(now_s)
        await self._executor.carry_out(self.manager.take_decisions())

    # Clients

    async def place(
        self, vhost: str, name: str, role: str, session_id: str = "", avoid: str = "", arrives: bool = True
    ) -> dict[str, Any]:
        """Elect a member for a client; return its node, or how long to wait. Raises ClusterError.

        One who `arrives` will say its session id there; of others the first that comes is taken for this one.
        """
        if not self._agent.leads:
            raise ClusterError("this node does not lead the domain: ask again")
        now_s = time.monotonic()
        cluster = cluster_key(vhost, name)
        if not self._teller.knows_cluster(cluster):
            self._teller.tell_all(now_s)
        wanted = self._role_of(role, cluster)
        known_as = session_id or (new_session_id(wanted, cluster) if arrives else None)
        avoided = next((node.id for node in self.overview.nodes if node.name == avoid), None)
        # Whoever asks again waits as long as the member has been coming: nobody tells who asks again.
        waited_s = self.manager.waiting_s(cluster, now_s)
        answer = self.manager.join(cluster, wanted, now_s, session=known_as, waited_s=waited_s, avoid=avoided)
        decisions = self.manager.take_decisions()
        if decisions:
            self._errands.spawn(("decided", next(_numbers)), partial(self._executor.carry_out, decisions))
        if isinstance(answer, Wait):
            return {"retry_s": answer.retry_after_s, "reason": answer.reason}
        node = self.overview.node(answer.node)
        if node is None or (avoid and node.name == avoid):
            self.manager.leave(answer.session, now_s)
            return {"retry_s": ELSEWHERE_S, "reason": f"there is no other node than '{avoid}' at present"}
        return {
            "node": node.name,
            "addresses": dict(node.addresses),
            "queue_id": answer.member,
            "session_id": answer.session,
        }

    async def left(self, session_id: str) -> None:
        """A client has said that it goes."""
        self.manager.leave(session_id, time.monotonic())

    def _role_of(self, role: str, cluster: str) -> Role:
        """Return what a client counts as: one that may be both, as what there is less of."""
        if role != "client":
            return Role(role)
        known = self.manager.snapshot(cluster, time.monotonic())
        return Role.PRODUCER if known["producers"] <= known["consumers"] else Role.CONSUMER

    # What people ask for

    async def create_cluster(self, key: str, options: Mapping[str, Any], nodes: Sequence[NodeRecord]) -> None:
        """Create a clustered queue. Raises FlyballError."""
        self._teller.unready.add(key)
        try:
            await self.clusters.create(key, options, nodes)
        finally:
            self._teller.unready.discard(key)

    async def add_member(self, key: str, node: NodeRecord) -> None:
        """Add a member that a person wants. Raises FlyballError."""
        queue_id = await self.clusters.add_member(key, node.id)
        await self.clusters.keep_member(key, queue_id, node)
        await self.decide()

    async def remove_member(self, key: str, node: NodeRecord) -> None:
        """Let the member on a node be drained and removed. Raises FlyballError."""
        queue_id = self.overview.member_on(key, node.id)
        if queue_id is None:
            raise ClusterError(f"node '{node.name}' has no member of that clustered queue")
        await self.clusters.wish_away(key, queue_id, node)
        await self.decide()

    async def remove_node(self, node: NodeRecord) -> None:
        """Let a node be drained and stopped. Raises FlyballError."""
        await self.nodes.begin_removal(node)
        await self.clusters.wish_away_all(node)
        await self.decide()

    async def forget_node(self, node: NodeRecord) -> None:
        """Remove a dead node from the domain. Raises FlyballError."""
        await self._bury_the_dead()
        await self.nodes.forget(node)

    def decisions_of(self, cluster: str) -> list[dict[str, str]]:
        """Return what was decided last for a clustered queue, and why; newest last."""
        ago_s = time.time() - time.monotonic()
        found = [record for record in self.manager.history if record.decision.cluster == cluster]
        return [
            {
                "at": datetime.fromtimestamp(ago_s + record.at, UTC).isoformat(timespec="seconds"),
                "what": type(record.decision).__name__,
                "reason": record.decision.reason,
            }
            for record in found[-DECISIONS_TOLD:]
        ]

    def loads_of(self, cluster: str) -> dict[str, float]:
        """Return what the members of a clustered queue bear, by their ids."""
        if not self._teller.knows_cluster(cluster):
            return {}
        snapshot = self.manager.snapshot(cluster, time.monotonic())
        return {str(member["member"]): member["load"] * member["capacity"] for member in snapshot["members"]}

    # Inside

    def _begin(self) -> None:
        """Another term: the manager learns everything anew."""
        registry = self._registry
        self.manager = Manager(name=f"{registry.node_id}.{registry.epoch}.{next(_numbers)}-")
        self._teller = Teller(self.manager, self.overview)
        self._executor = Executor(self._agent, self.overview, self.manager, self.clusters, self.nodes, self._errands)

    async def _bury_the_dead(self) -> None:
        """Take the place of nodes whose leases are over, and finish what an earlier leader has begun."""
        for node in self.overview.nodes:
            if node.id == self.overview.own_id or node.is_live:
                continue
            if node.state is not NodeState.DEAD and not await self._registry.declare_dead(node.id, node.epoch):
                continue
            left_behind = self.overview.left_behind(node.id)
            if left_behind or self._teller.knows_node(node.id):
                log.warning("node '%s' is dead: %d queues have to be served by others", node.name, len(left_behind))
                self._agent.node.peers.lost(node.id)
                self._teller.tell_death(node, time.monotonic())
                await self._executor.carry_out(self.manager.take_decisions())

    def _finish_what_was_begun(self) -> None:
        """Go on with what is defined and not yet so, whoever led when it was wished."""
        for key, node in self.overview.missing():
            if key not in self._teller.unready:
                self._errands.spawn(("add a member", key, node.id), partial(self._add_missing, key, node))
        for node in self.overview.leaving:
            self._errands.spawn(("remove node", node.id), partial(self._let_go, node))
        for key, value in self.overview.clusters.items():
            if value.get("deleted"):
                self._errands.spawn(("delete clustered queue", key), partial(self.clusters.finish_deletion, key))

    async def _add_missing(self, key: str, node: NodeRecord) -> None:
        await self.clusters.add_member(key, node.id)

    async def _let_go(self, node: NodeRecord) -> None:
        is_dead = node.state is NodeState.DEAD
        if node.is_live or (is_dead and not self.overview.left_behind(node.id)):
            await self.nodes.let_go(node)

    async def _trim_changes(self) -> None:
        """Forget changes that everybody has followed who will not have to join again."""
        seen = [node.seen_version for node in self.overview.nodes if not node.is_gone]
        await self._registry.trim_changes(min(seen, default=0))
