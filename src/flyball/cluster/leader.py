"""The one node that decides for the domain: it tells the manager what the nodes report, and does what that decides.

Any node can lead: all that must outlive a leader is in the registry, and the next one's manager is told anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from flyball.cluster.agent import Agent
from flyball.cluster.decisions import (
    AddMember,
    Decision,
    HandOver,
    Mark,
    Move,
    Provision,
    Release,
    RemoveMember,
    SessionReport,
    TakeOver,
    Unmark,
    Wait,
)
from flyball.cluster.domain import ClusterOptions, Role, cluster_key, split_key
from flyball.cluster.manager import Manager
from flyball.cluster.members import outcome
from flyball.cluster.placement import NodeLoad, QueueLoad
from flyball.cluster.provisioners import Provisioner
from flyball.cluster.rebalancing import OwnerMove, rebalance_owners
from flyball.cluster.sessions import new_session_id
from flyball.errors import ClusterError, FlyballError, StoreError, StoreUnavailable
from flyball.model import Definition, Queue
from flyball.server.directory import RemoteQueue
from flyball.store.registry import NodeRecord, NodeState

log = logging.getLogger(__name__)

PERIOD_S = 1.0

DECISIONS_TOLD = 50
"""So many of the last decisions are shown to who asks."""


class Leader:
    """Leads the domain while the registry lets it."""

    def __init__(self, agent: Agent, provisioners: Mapping[str, Provisioner], tasks: asyncio.TaskGroup) -> None:
        self._agent = agent
        self._node = agent.node
        self._membership = agent.node.membership
        self._registry = agent.node.membership.registry
        self._definitions = agent.node.definitions
        self._directory = agent.node.topology.directory
        self._engine = agent.node.hub.broker.engine
        self._provisioners = provisioners
        self._tasks = tasks
        self.manager = Manager()
        self._known_nodes: dict[int, int] = {}
        """The epochs of the nodes that the manager knows, by id."""
        self._known_members: dict[int, str] = {}
        self._known_clusters: dict[str, Mapping[str, Any]] = {}
        self._leaving: set[int] = set()
        """Nodes that somebody wants removed."""
        self._under_way: set[object] = set()
        """Decisions that take long, by what they are about: not to be begun again."""
        agent.node.peers.commands.update({"cluster.place": self.place, "cluster.left": self.left})

    async def run(self) -> None:
        """Try to lead, and do it, until cancelled. Raises Fenced."""
        while True:
            try:
                await self.step()
            except StoreUnavailable as error:
                self._agent.leads = False
                log.info("the registry cannot be asked who leads: %s", error)
            await asyncio.sleep(PERIOD_S)

    async def step(self) -> None:
        """Do what a leader does about once a second, if this node is the one."""
        leads = await self._registry.lead()
        if leads != self._agent.leads:
            log.info("this node %s the domain", "leads" if leads else "no longer leads")
            self._begin()
            self._agent.leads = leads
        if not leads:
            return
        if self._membership.may_judge:
            await self._bury_the_dead()
        self._tell_manager()
        now_s = time.monotonic()
        self.manager.tick(now_s)
        await self._carry_out(self.manager.take_decisions())
        await self._let_go()
        await self._registry.trim_changes(
            min((node.seen_version for node in self._membership.nodes if node.is_live), default=0)
        )

    # Clients

    async def place(self, vhost: str, name: str, role: str, session_id: str = "", avoid: str = "") -> dict[str, Any]:
        """Elect a member for a client; return its node, or how long to wait. Raises ClusterError."""
        if not self._agent.leads:
            raise ClusterError("this node does not lead the domain: ask again")
        cluster = cluster_key(vhost, name)
        self._tell_clusters()
        session_id = session_id or new_session_id(Role(role), cluster)
        avoided = next((node.id for node in self._membership.nodes if node.name == avoid), None)
        now_s = time.monotonic()
        answer = self.manager.join(cluster, Role(role), now_s, session=session_id, avoid=avoided)
        decisions = self.manager.take_decisions()
        if decisions:
            self._spawn(session_id, partial(self._carry_out, decisions))
        if isinstance(answer, Wait):
            return {"retry_s": answer.retry_after_s, "reason": answer.reason}
        node = self._membership.node(answer.node)
        if node is None or (avoid and node.name == avoid):
            self.manager.leave(session_id, now_s)
            return {"retry_s": 0.5, "reason": f"there is no other node than '{avoid}' at present"}
        return {
            "node": node.name,
            "addresses": dict(node.addresses),
            "queue_id": answer.member,
            "session_id": session_id,
        }

    async def left(self, session_id: str) -> None:
        """A client has said that it goes."""
        self.manager.leave(session_id, time.monotonic())

    # What the manager knows

    def _begin(self) -> None:
        """Another term: the manager learns everything anew."""
        self.manager = Manager()
        self._known_nodes.clear()
        self._known_members.clear()
        self._known_clusters.clear()
        self._under_way.clear()

    def _tell_manager(self) -> None:
        self._tell_clusters()
        self._tell_nodes()
        self._tell_members()
        self._tell_reports()

    def _tell_clusters(self) -> None:
        now_s = time.monotonic()
        defined = self._definitions.of("cluster")
        for key, value in defined.items():
            if self._known_clusters.get(key) != value["options"]:
                self._known_clusters[key] = value["options"]
                self.manager.set_cluster(key, ClusterOptions.from_dict(value["options"]), now_s)
        for key in [key for key in self._known_clusters if key not in defined]:
            del self._known_clusters[key]
            self.manager.drop_cluster(key)

    def _tell_nodes(self) -> None:
        now_s = time.monotonic()
        provisioned = self._definitions.of("node")
        for node in self._membership.nodes:
            if node.state is NodeState.UP and node.is_live and self._known_nodes.get(node.id) != node.epoch:
                self._known_nodes[node.id] = node.epoch
                origin = provisioned.get(node.name, {})
                self.manager.node_up(
                    node.id,
                    now_s,
                    epoch=node.epoch,
                    capacity=node.report.get("capacity", 1.0),
                    provisioned_for=origin.get("cluster"),
                    provisioner=origin.get("provisioner", ""),
                    request=origin.get("request"),
                )

    def _tell_members(self) -> None:
        now_s = time.monotonic()
        present: dict[int, tuple[str, int]] = {}
        for queue, owner in self.all_queues():
            if queue.member and self._known_nodes.get(owner) is not None:
                present[queue.id] = (cluster_key(queue.vhost, queue.name), owner)
        for queue_id, (cluster, owner) in present.items():
            value = self._definitions.of("cluster").get(cluster)
            if queue_id not in self._known_members and value is not None:
                self._known_members[queue_id] = cluster
                self.manager.member_added(
                    cluster,
                    queue_id,
                    owner,
                    now_s,
                    is_marked=queue_id in value.get("marked", ()),
                    is_fixed=queue_id in value.get("fixed", ()),
                )
        for queue_id in [queue_id for queue_id in self._known_members if queue_id not in present]:
            self.manager.member_removed(self._known_members.pop(queue_id), queue_id, now_s)

    def _tell_reports(self) -> None:
        now_s = time.monotonic()
        sessions: dict[int, list[SessionReport]] = {queue_id: [] for queue_id in self._known_members}
        live = [node for node in self._membership.nodes if node.is_live]
        for node in live:
            for session_id, role, queue_id in node.report.get("sessions", ()):
                if queue_id in sessions:
                    sessions[queue_id].append(SessionReport(session_id, Role(role), entry=node.id))
        for node in live:
            for text, told in node.report.get("members", {}).items():
                queue_id = int(text)
                if queue_id in self._known_members:
                    self.manager.report(
                        queue_id,
                        now_s,
                        ready=told["ready"],
                        unacked=told["unacked"],
                        idle=told["idle"],
                        sessions=sessions[queue_id],
                        epoch=node.epoch,
                    )

    def all_queues(self) -> list[tuple[Queue, int]]:
        """Return every queue of the domain with the node that serves it."""
        own = [(working.queue, self._membership.node_id) for working in self._engine.queues]
        return [*own, *((remote.queue, remote.owner) for remote in self._directory.all())]

    # The dead

    async def _bury_the_dead(self) -> None:
        """Take the place of nodes whose leases are over, and finish what an earlier leader has begun."""
        for node in self._membership.nodes:
            if node.id == self._membership.node_id or node.is_live:
                continue
            if node.state is not NodeState.DEAD and not await self._registry.declare_dead(node.id, node.epoch):
                continue
            left_behind = self._directory.of_node(node.id)
            if left_behind or node.id in self._known_nodes:
                log.warning("node '%s' is dead: %d queues have to be served by others", node.name, len(left_behind))
                self._known_nodes.pop(node.id, None)
                self._node.peers.lost(node.id)
                await self._replace(node, left_behind)

    async def _replace(self, node: NodeRecord, left_behind: Sequence[RemoteQueue]) -> None:
        ordinary = [
            QueueLoad(remote.queue.id, node.id)
            for remote in left_behind
            if remote.is_stored and not remote.queue.member
        ]
        # A leader who has just begun may not know the members of the dead yet.
        self._tell_clusters()
        now_s = time.monotonic()
        for remote in left_behind:
            if remote.queue.member and remote.queue.id not in self._known_members:
                self._known_members[remote.queue.id] = cluster_key(remote.queue.vhost, remote.queue.name)
                self.manager.member_added(self._known_members[remote.queue.id], remote.queue.id, node.id, now_s)
        self.manager.node_gone(node.id, now_s, ordinary)
        await self._carry_out(self.manager.take_decisions())

    # Doing what was decided

    async def _carry_out(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            log.info("%s: %s", type(decision).__name__, decision.reason)
            match decision:
                case TakeOver():
                    await self._take_over(decision)
                case Mark():
                    await self._put_cluster(decision.cluster, marked=decision.member)
                case Unmark():
                    await self._put_cluster(decision.cluster, unmarked=decision.member)
                case AddMember():
                    self._spawn(("add", decision.cluster, decision.node), partial(self._add_member, decision))
                case RemoveMember():
                    self._spawn(("remove", decision.member), partial(self._remove_member, decision))
                case Move():
                    self._spawn(("move", decision.session), partial(self._move, decision))
                case Provision():
                    self._spawn(("provision", decision.request), partial(self._provision, decision))
                case Release():
                    self._spawn(("release", decision.node), partial(self._release, decision))
                case HandOver():
                    log.warning("%s: %s", decision.cluster, decision.reason)

    async def _take_over(self, decision: TakeOver) -> None:
        for source, destination in decision.merges.items():
            await self._registry.merge_member(source, destination)
        await self._registry.take_over(decision.node, decision.assignments)
        await self._membership.catch_up()

    async def _put_cluster(self, cluster: str, *, marked: int = 0, unmarked: int = 0) -> None:
        """Let all nodes know which members are marked."""
        value = dict(self._definitions.of("cluster").get(cluster, {}))
        if not value:
            return
        now_marked = [member for member in value.get("marked", ()) if member not in (marked, unmarked)]
        value["marked"] = [*now_marked, *([marked] if marked else [])]
        await self.put("cluster", cluster, value)

    async def put(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Keep a definition, for all nodes. Raises StoreError."""
        await outcome(lambda done: self._definitions.put(Definition(kind, key, value), done))

    async def delete(self, kind: str, key: str) -> None:
        """Forget a definition on all nodes. Raises StoreError."""
        await outcome(lambda done: self._definitions.delete(kind, key, done))

    async def _add_member(self, decision: AddMember) -> None:
        await self.add_member(decision.cluster, decision.node)

    async def add_member(self, cluster: str, node_id: int) -> int:
        """Let a node serve a member of a clustered queue; return the member's id. Raises FlyballError."""
        vhost, name = split_key(cluster)
        value = self._definitions.of("cluster")[cluster]
        queue_id: int = await self._agent.ask(
            node_id, "member.add", vhost=vhost, name=name, arguments=value.get("arguments", {})
        )
        await self._membership.catch_up()
        return queue_id

    async def _remove_member(self, decision: RemoveMember) -> None:
        """Remove a member once nobody can send it anything any more."""
        for node in self._membership.nodes:
            if node.is_live and decision.member in node.report.get("handing", ()):
                return
        if await self._agent.ask(decision.node, "member.remove", queue_id=decision.member):
            value = dict(self._definitions.of("cluster").get(decision.cluster, {}))
            if value:
                for mark in ("marked", "fixed"):
                    value[mark] = [member for member in value.get(mark, ()) if member != decision.member]
                await self.put("cluster", decision.cluster, value)
            await self._membership.catch_up()

    async def _move(self, decision: Move) -> None:
        entry = self._entry_of(decision.session)
        target = self._membership.node(decision.to_node)
        why = "its node or the new one is gone"
        try:
            if entry is not None and target is not None:
                addresses = dict(target.addresses)
                if await self._agent.ask(
                    entry,
                    "session.move",
                    session_id=decision.session,
                    queue_id=decision.to_member,
                    node=target.name,
                    addresses=addresses,
                ):
                    return
                why = "it was not at a safe point in time"
        except FlyballError as error:
            why = str(error)
        self.manager.move_failed(decision.session, time.monotonic(), why)

    def _entry_of(self, session_id: str) -> int | None:
        for node in self._membership.nodes:
            if node.is_live and any(found[0] == session_id for found in node.report.get("sessions", ())):
                return node.id
        return None

    # Nodes

    async def _provision(self, decision: Provision) -> None:
        try:
            await self.provision(decision.request, decision.provisioner, decision.cluster, decision.request)
        except FlyballError as error:
            self.manager.provision_failed(decision.request, time.monotonic(), str(error))

    async def provision(self, name: str, provisioner: str, cluster: str, request: str | None) -> None:
        """Start a node. It joins by itself. Raises ClusterError."""
        found = self._provisioners.get(provisioner)
        if found is None:
            known = ", ".join(sorted(self._provisioners)) or "none"
            raise ClusterError(f"there is no provisioner '{provisioner}' on the node that leads; it has {known}")
        handle = await found.start(name)
        origin = {"provisioner": provisioner, "handle": handle, "cluster": cluster, "request": request}
        await self.put("node", name, origin)

    async def _release(self, decision: Release) -> None:
        node = self._membership.node(decision.node)
        if node is not None:
            await self.empty(node.id)
            await self.stop(node.name)
            await self._registry.remove_node(node.id)

    async def empty(self, node_id: int) -> None:
        """Let other nodes serve the ordinary queues of a node. Raises FlyballError."""
        for move in self.owner_moves(without=node_id):
            if move.from_node == node_id:
                await self.move_queue(move)

    async def stop(self, name: str) -> None:
        """Stop a node that was provisioned. Raises ClusterError."""
        origin = self._definitions.of("node").get(name)
        if origin is None:
            return
        provisioner = self._provisioners.get(origin["provisioner"])
        if provisioner is not None:
            await provisioner.stop(origin["handle"])
        await self.delete("node", name)

    def owner_moves(self, *, without: int = 0) -> list[OwnerMove]:
        """Return the moves that spread the ordinary queues over the nodes, but for one that is to be emptied."""
        queues = [
            QueueLoad(queue.id, owner, self._ready(queue.id, owner) / 1000)
            for queue, owner in self.all_queues()
            if queue.durable and not queue.exclusive and not queue.member
        ]
        live = [node for node in self._membership.nodes if node.is_live and node.state is NodeState.UP]
        nodes = [NodeLoad(node.id, node.report.get("capacity", 1.0)) for node in live if node.id != without]
        return rebalance_owners(queues, nodes)

    def _ready(self, queue_id: int, owner: int) -> int:
        node = self._membership.node(owner)
        told = None if node is None else node.report.get("queues", {}).get(str(queue_id))
        return 0 if told is None else int(told[0])

    async def move_queue(self, move: OwnerMove) -> None:
        """Let another node serve an ordinary queue. Raises FlyballError."""
        await self._agent.ask(move.from_node, "queue.release", queue_id=move.queue, owner=move.to_node)

    # What people ask for

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
        if cluster not in self._known_clusters:
            return {}
        snapshot = self.manager.snapshot(cluster, time.monotonic())
        return {str(member["member"]): member["load"] * member["capacity"] for member in snapshot["members"]}

    def has_ordinary_queue(self, vhost: str, name: str) -> bool:
        return any((queue.vhost, queue.name) == (vhost, name) and not queue.member for queue, _ in self.all_queues())

    def least_loaded(self, count: int) -> list[NodeRecord]:
        """Return nodes that serve the fewest queues."""
        served: dict[int, int] = {}
        for _, owner in self.all_queues():
            served[owner] = served.get(owner, 0) + 1
        up = [node for node in self._membership.nodes if node.is_live and node.state is NodeState.UP]
        return sorted(up, key=lambda node: (served.get(node.id, 0), node.id))[:count]

    async def delete_members(self, vhost: str, name: str) -> None:
        """Delete all members of a clustered queue with everything in them. Raises FlyballError."""
        for queue, owner in self.all_queues():
            if queue.member and (queue.vhost, queue.name) == (vhost, name):
                await self._agent.ask(owner, "member.delete", queue_id=queue.id)

    async def mark_member(self, cluster: str, node: NodeRecord) -> None:
        """Let the member on a node be drained and removed. Raises ClusterError."""
        self._tell_manager()
        for queue, owner in self.all_queues():
            if queue.member and owner == node.id and cluster_key(queue.vhost, queue.name) == cluster:
                self.manager.mark(cluster, queue.id, time.monotonic(), "somebody asked for it")
                await self._carry_out(self.manager.take_decisions())
                return
        raise ClusterError(f"node '{node.name}' has no member of that clustered queue")

    async def begin_removal(self, node: NodeRecord) -> None:
        """Drain a node: its members are marked, its queues move away, then it is stopped if it was provisioned."""
        self._tell_manager()
        self._leaving.add(node.id)
        self.manager.node_leaves(node.id, time.monotonic())
        await self._carry_out(self.manager.take_decisions())

    async def _let_go(self) -> None:
        """Go on with nodes that are to leave: move their ordinary queues, and stop those that serve nothing more."""
        for node_id in list(self._leaving):
            node = self._membership.node(node_id)
            if node is None or not node.is_live:
                self._leaving.discard(node_id)
                continue
            served = [queue for queue, owner in self.all_queues() if owner == node_id]
            if any(not queue.member and queue.durable and not queue.exclusive for queue in served):
                self._spawn(("empty", node_id), partial(self.empty, node_id))
            elif not any(queue.member for queue in served):
                self._leaving.discard(node_id)
                self._spawn(("stop", node_id), partial(self._stop_node, node))

    async def _stop_node(self, node: NodeRecord) -> None:
        """Stop a node through whoever started it, or by asking it."""
        if node.name in self._definitions.of("node"):
            await self.stop(node.name)
        else:
            await self._agent.ask(node.id, "node.stop")

    async def forget_node(self, node: NodeRecord) -> None:
        """Remove a dead node from the registry. Raises FlyballError."""
        await self._bury_the_dead()
        await self.stop(node.name)
        await self._registry.remove_node(node.id)

    async def rebalance(self, *, dry_run: bool) -> list[dict[str, Any]]:
        """Spread the ordinary queues over the nodes; return the moves. Raises FlyballError."""
        moves = self.owner_moves()
        names = {queue.id: queue for queue, _ in self.all_queues()}
        if not dry_run:
            for move in moves:
                await self.move_queue(move)
        return [
            {
                "what": "queue",
                "vhost": names[move.queue].vhost,
                "name": names[move.queue].name,
                "source": self._name_of(move.from_node),
                "destination": self._name_of(move.to_node),
                "reason": move.reason,
            }
            for move in moves
        ]

    def _name_of(self, node_id: int) -> str:
        node = self._membership.node(node_id)
        return str(node_id) if node is None else node.name

    # Inside

    def _spawn(self, about: object, work: Callable[[], Awaitable[None]]) -> None:
        """Do what may take long beside the rest, unless it is under way already."""
        if about not in self._under_way:
            self._under_way.add(about)
            self._tasks.create_task(self._guarded(about, work))

    async def _guarded(self, about: object, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (FlyballError, StoreError) as error:
            log.warning("%s: %s", about, error)
        finally:
            self._under_way.discard(about)
