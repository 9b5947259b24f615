"""The leader of the domain: feeds the nodes' reports to the manager and carries out its decisions.

Any node can lead. State that must outlive a leader is in the registry; the next leader's manager learns the rest from
reports.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from flyball.broker.cluster.agent import Agent
from flyball.broker.cluster.clusters import Clusters
from flyball.broker.cluster.decision_log import DecisionLog
from flyball.broker.cluster.decisions import Decision, Failure, Provision, Record, TakeOver, Wait
from flyball.broker.cluster.executor import Executor
from flyball.broker.cluster.facts import MoveFacts
from flyball.broker.cluster.jobs import Jobs
from flyball.broker.cluster.manager import Manager
from flyball.broker.cluster.names import cluster_key, split_key
from flyball.broker.cluster.nodes import Nodes
from flyball.broker.cluster.observer import Observer
from flyball.broker.cluster.options import Role
from flyball.broker.cluster.overview import is_lasting
from flyball.broker.cluster.provisioners import Provisioner
from flyball.broker.cluster.provisioning_loops import ProvisioningLoops
from flyball.broker.cluster.session_reports import SessionReports
from flyball.broker.cluster.sessions import is_session_of, new_session_id, read_session_id
from flyball.broker.store.registry import NodeRecord, NodeState
from flyball.errors import ClusterError, Fenced, FlyballError

log = logging.getLogger(__name__)

PERIOD_S = 1.0

# Retry delay for a client when the only member is on the node it cannot reach.
ELSEWHERE_S = 0.5

_numbers = itertools.count(1)


class Leader:
    """Leads the domain while this node holds the leader lease."""

    def __init__(self, agent: Agent, provisioners: Mapping[str, Provisioner], tasks: asyncio.TaskGroup) -> None:
        self._agent = agent
        self._membership = agent.node.membership
        self._registry = agent.node.membership.registry
        self.overview = agent.overview
        self.clusters = Clusters(agent, self.overview)
        self.nodes = Nodes(agent, self.overview, provisioners)
        self._session_reports = SessionReports(agent)
        self._jobs = Jobs(tasks, agent.node.hub.faults)
        self._carrying_out = asyncio.Lock()
        self.decision_log = DecisionLog(self.overview, f"{self._registry.node_id}.{self._registry.epoch}")
        activity = agent.node.activity
        self._loops = ProvisioningLoops(agent.node.hub.loops, None if activity is None else activity.record)
        self._begin()
        agent.answer_while_leading({"cluster.place": self.place, "cluster.left": self.left})

    async def run(self) -> None:
        """Try to become leader, and lead, until cancelled. Raises Fenced."""
        try:
            while True:
                try:
                    await self.step()
                except Fenced:
                    raise
                except FlyballError as error:
                    # The store is unavailable, or a dead node has just rejoined: start over from the registry.
                    self._stand_down()
                    log.info("leader step failed; retrying: %s", error)
                await asyncio.sleep(PERIOD_S)
        finally:
            self._jobs.cancel()

    async def step(self) -> None:
        """Run one leader step, about once a second; does nothing if another node leads."""
        leads = await self._registry.lead()
        if leads != self._agent.leads:
            log.info("this node %s the domain", "leads" if leads else "no longer leads")
            self._jobs.cancel()
            self._begin()
            if leads:
                await self._membership.catch_up()
                self.clusters.begin()
                self._session_reports.forget()
                await self._session_reports.ask_all()
                # Before the first placement: a manager without members would create some.
                self._observer.observe_all(time.monotonic())
                self.decision_log.begin(self.overview.name_of(self.overview.own_id))
            self._agent.leads = leads
        if not leads:
            self._loops.hide_all()
            return
        if self._membership.may_judge:
            await self._remove_dead_nodes()
        await self._session_reports.ask_all()
        await self.decide()
        self._loops.show(self.manager, self.overview.trials())
        if self._agent.leads:
            self._finish_what_was_begun()
            await self._trim_changes()

    async def decide(self) -> None:
        """Pass what has changed to the manager and carry out its decisions. Raises StoreError."""
        if not self._agent.leads:
            # This node led when the request was made, but no longer does. Requests are stored as definitions, so the
            # next leader continues with them.
            return
        now_s = time.monotonic()
        self._observer.observe_all(now_s)
        self.manager.tick(now_s)
        await self._carry_out()

    # Clients

    async def place(
        self,
        vhost: str,
        name: str,
        role: str,
        session_id: str = "",
        avoid: str = "",
        arrives: bool = True,
        user: str = "",
    ) -> dict[str, Any]:
        """Choose a member for a client; return its node, or how long to wait. Raises ClusterError.

        A client that `arrives` presents its session id on that node; otherwise the first new session of its role
        counts.
        """
        now_s = time.monotonic()
        cluster = cluster_key(vhost, name)
        if cluster not in self.manager.clusters:
            self._observer.observe_all(now_s)
        wanted = self._role_of(role, cluster)
        known = read_session_id(session_id)
        # A session id is only valid for its own user and clustered queue.
        is_own = known is not None and known[1] == cluster and is_session_of(session_id, user)
        known_as = session_id if is_own else new_session_id(wanted, cluster, user)
        avoided = next((node.id for node in self.overview.nodes if node.name == avoid), None)
        # A retry cannot be linked to its first attempt, so it counts from when the member was requested.
        waited_s = self.manager.waiting_s(cluster, now_s)
        decided = self.manager.decided
        answer = self.manager.join(
            cluster, wanted, now_s, session=known_as, arrives=arrives, waited_s=waited_s, avoid=avoided
        )
        if self.manager.decided != decided:
            self._jobs.spawn(("decided", next(_numbers)), self._carry_out)
        if isinstance(answer, Wait):
            return {"retry_s": answer.retry_after_s, "reason": answer.reason}
        node = self.overview.node(answer.node)
        if node is None or (avoid and node.name == avoid):
            self.manager.leave(answer.session, now_s)
            return {"retry_s": ELSEWHERE_S, "reason": f"'{avoid}' is currently the only node"}
        return {
            "node": node.name,
            "addresses": dict(node.addresses),
            "queue_id": answer.member,
            "session_id": answer.session,
        }

    async def left(self, session_id: str) -> None:
        """A placed client announced its end. Only nodes report the end of others, since session ids can be
        guessed.
        """
        if read_session_id(session_id) is not None:
            self.manager.leave(session_id, time.monotonic())

    def _role_of(self, role: str, cluster: str) -> Role:
        """Return the role of a client; one that may be either takes the role in shorter supply."""
        if role != "client":
            return Role(role)
        table = self.manager.cluster(cluster).table
        producers, consumers = (table.count(known) for known in (Role.PRODUCER, Role.CONSUMER))
        return Role.PRODUCER if producers <= consumers else Role.CONSUMER

    # Requests of operators

    async def forget_node(self, node: NodeRecord) -> None:
        """Remove a dead node from the domain. Raises FlyballError."""
        if node.state is not NodeState.DEAD and not self._membership.may_judge:
            raise ClusterError(f"the lease of node '{node.name}' has not expired yet: retry in a few seconds")
        if not await self._remove_dead_node(node):
            raise ClusterError(f"node '{node.name}' is alive again: remove it without --force")
        await self.nodes.forget(node)

    def rebalance(self, *, dry_run: bool) -> list[MoveFacts]:
        """Start spreading the ordinary queues over the nodes; return the moves, with `dry_run` without making
        them.
        """
        moves = self.nodes.owner_moves()
        queues = {queue.id: queue for queue, _ in self.overview.ordinary()}
        described: list[MoveFacts] = [
            {
                "what": "queue",
                "vhost": queues[move.queue].vhost,
                "name": queues[move.queue].name,
                "source": self.overview.name_of(move.from_node),
                "destination": self.overview.name_of(move.to_node),
                "reason": self.decision_log.named(move.reason),
            }
            for move in moves
        ]
        if not dry_run:
            for move, facts in zip(moves, described, strict=True):
                self.decision_log.note_queue_move(facts)
                self._jobs.spawn(("move queue", move.queue), partial(self.nodes.move, move))
        return described

    async def details(self) -> dict[str, Any]:
        """Return what only the leader knows of clustered queues: loads of members, by id, and the decision log."""
        return {
            "loads": {
                str(member.id): found.table.load_of(member)
                for found in self.manager.clusters.values()
                for member in found.table.members.values()
            },
            "decisions": {key: self.decision_log.facts_of(key) for key in self.overview.clusters},
        }

    def report(self) -> dict[str, Any]:
        """Return the leader's part of this node's report, and the load of members against their capacity."""
        members: list[dict[str, Any]] = []
        for key, found in self.manager.clusters.items() if self._agent.leads else ():
            vhost, name = split_key(key)
            for _, member in sorted(found.table.members.items()):
                node, load = self.overview.name_of(member.node), found.table.load_of(member) / member.capacity
                members.append({"vhost": vhost, "name": name, "node": node, "load": load})
        return {"leads": self._agent.leads, "decisions": dict(self.decision_log.counts), "members": members}

    # Internals

    def _begin(self) -> None:
        """Start a term with a new manager."""
        registry = self._registry
        name = f"{registry.node_id}.{registry.epoch}.{next(_numbers)}-"
        self.manager = Manager(name=name, on_record=self.decision_log.note)
        self._loops.hide_all()
        self._observer = Observer(self.manager, self.overview, self._session_reports, self.clusters.unready)
        self._executor = Executor(
            self._agent, self.overview, self._session_reports, self.manager, self.clusters, self.nodes, self._jobs
        )

    def _stand_down(self) -> None:
        """Stop leading and cancel all jobs of this term: the next leader may decide otherwise."""
        self._agent.leads = False
        self._jobs.cancel()

    async def _carry_out(self) -> None:
        """Carry out the manager's decisions in order. Raises FlyballError."""
        async with self._carrying_out:
            if not self._agent.leads:
                return
            try:
                await self._executor.carry_out(self.manager.take_decisions())
            except FlyballError:
                # The manager assumes that its decisions were carried out: a new one has to read the actual state.
                self._stand_down()
                raise

    async def _remove_dead_nodes(self) -> None:
        """Replace nodes whose leases have expired, and continue what an earlier leader started."""
        for node in self.overview.nodes:
            if node.id != self.overview.own_id and not node.is_live:
                await self._remove_dead_node(node)
        for node_id in self.overview.forgotten_owners():
            await self._replace(node_id)

    async def _remove_dead_node(self, node: NodeRecord) -> bool:
        """Replace a node whose lease has expired; return False if it was renewed meanwhile. Raises StoreError."""
        if node.state is not NodeState.DEAD and not await self._registry.declare_dead(node.id, node.epoch):
            return False
        await self._replace(node.id)
        return True

    async def _replace(self, node_id: int) -> None:
        """Assign the queues of a dead node to others."""
        left_behind = self.overview.left_behind(node_id)
        if not left_behind and node_id not in self.manager.nodes:
            return
        name = self.overview.name_of(node_id)
        log.warning("node '%s' is dead; reassigning %d queues", name, len(left_behind))
        self._agent.node.peers.lost(node_id)
        self._observer.report_death(node_id, time.monotonic())
        await self._carry_out()
        if left_behind and not any(is_lasting(queue) for queue in left_behind):
            # All its queues were transient: there is nothing to decide.
            reason = f"transient queues of node {node_id} were lost with it"
            await self._executor.carry_out([TakeOver(cluster="", node=node_id, reason=reason)])

    def _finish_what_was_begun(self) -> None:
        """Continue requested work that is not finished, including requests to earlier leaders."""
        for key, node in self.overview.missing():
            if key not in self.clusters.unready:
                self._jobs.keep_trying(
                    ("add a member", key, node.id), partial(self.clusters.add_member, key, node.id)
                )
        for node in self.overview.leaving:
            self._jobs.keep_trying(("remove node", node.id), partial(self._finish_removal, node))
        for name in self.nodes.lost():
            self._jobs.keep_trying(("start node again", name), partial(self._start_again, name))
        for name in self.nodes.overdue(time.monotonic()):
            self._jobs.keep_trying(("give up node", name), partial(self.nodes.give_up, name))
        for key, value in self.overview.clusters.items():
            if value.get("deleted"):
                self._jobs.keep_trying(("delete clustered queue", key), partial(self.clusters.finish_deletion, key))

    async def _finish_removal(self, node: NodeRecord) -> None:
        is_dead = node.state is NodeState.DEAD
        if node.is_live or (is_dead and not self.overview.left_behind(node.id)):
            await self.nodes.finish_removal(node)

    async def _start_again(self, name: str) -> None:
        """Restart a dead node that an operator had added: the manager does not know such nodes."""
        node_id, provisioner = self.overview.named(name).id, self.overview.origin(name)["provisioner"]
        reason = f"node {node_id}, added by an operator, is dead"
        self._note(Provision(cluster="", request="", provisioner=provisioner, replaces=node_id, reason=reason))
        try:
            await self.nodes.start_again(name)
        except FlyballError as error:
            self._note(Failure(cluster="", reason=f"node {node_id} did not rejoin: {error}"))
            raise

    def _note(self, decision: Decision) -> None:
        self.decision_log.note(Record(time.monotonic(), decision))

    async def _trim_changes(self) -> None:
        """Delete change records that every node has applied."""
        seen = [node.seen_version for node in self.overview.nodes if not node.is_gone]
        await self._registry.trim_changes(min(seen, default=0))
