"""Carries out the manager's decisions, and reports failures back to it."""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Sequence
from functools import partial

from flyball.broker.cluster.agent import Agent
from flyball.broker.cluster.clusters import Clusters
from flyball.broker.cluster.decisions import (
    AddMember,
    Decision,
    HandOver,
    Mark,
    Move,
    Provision,
    Release,
    RemoveMember,
    TakeOver,
    Unmark,
)
from flyball.broker.cluster.jobs import Jobs
from flyball.broker.cluster.manager import Manager
from flyball.broker.cluster.names import split_key
from flyball.broker.cluster.nodes import Nodes
from flyball.broker.cluster.overview import Overview
from flyball.broker.cluster.session_reports import SessionReports
from flyball.broker.cluster.sessions import MOVE_S
from flyball.errors import FlyballError

log = logging.getLogger(__name__)

# Time limit of a move in addition to the client's time to reach a safe point.
ANSWER_S = 5.0


class Executor:
    """Carries out the decisions of one manager."""

    def __init__(
        self,
        agent: Agent,
        overview: Overview,
        session_reports: SessionReports,
        manager: Manager,
        clusters: Clusters,
        nodes: Nodes,
        jobs: Jobs,
    ) -> None:
        self._agent = agent
        self._overview = overview
        self._session_reports = session_reports
        self._manager = manager
        self._clusters = clusters
        self._nodes = nodes
        self._jobs = jobs
        self._membership = agent.node.membership

    async def carry_out(self, decisions: Sequence[Decision]) -> None:
        """Do quick, ordered work now; start jobs for the rest. Raises StoreError."""
        for decision in decisions:
            log.info("%s: %s", type(decision).__name__, decision.reason)
            match decision:
                case TakeOver():
                    await self._take_over(decision)
                case Mark():
                    await self._clusters.mark(decision.cluster, decision.member)
                case Unmark():
                    await self._clusters.unmark(decision.cluster, decision.member)
                case AddMember(cluster=cluster, node=node):
                    add = partial(self._clusters.add_member, cluster, node)
                    self._jobs.spawn(("add a member", cluster, node), add)
                case RemoveMember(cluster=cluster, member=member, node=node):
                    remove = partial(self._clusters.remove_member, cluster, member, node)
                    self._jobs.spawn(("remove member", member), remove)
                case Move():
                    self._jobs.spawn(("move", decision.session), partial(self._move, decision))
                case Provision():
                    self._jobs.spawn(("provision", decision.request), partial(self._provision, decision))
                case Release():
                    await self._release(decision)
                case HandOver():
                    log.warning("%s: %s", decision.cluster, decision.reason)

    async def _take_over(self, decision: TakeOver) -> None:
        for source, destination in decision.merges.items():
            await self._membership.registry.merge_member(source, destination)
        await self._membership.registry.take_over(decision.node, decision.assignments)
        await self._membership.catch_up()

    async def _move(self, decision: Move) -> None:
        entry, target = self._session_reports.entry_of(decision.session), self._overview.node(decision.to_node)
        why = "its node or the new one is down"
        try:
            if entry is not None and target is not None:
                has_begun = await self._agent.ask(
                    entry,
                    "session.move",
                    session_id=decision.session,
                    queue_id=decision.to_member,
                    node=target.name,
                    addresses=dict(target.addresses),
                    time_limit_s=MOVE_S + ANSWER_S,
                )
                if has_begun:
                    return
                why = "its node refused"
        except FlyballError as error:
            why = str(error)
        self._manager.move_failed(decision.session, time.monotonic(), why)

    async def _provision(self, decision: Provision) -> None:
        name = self._name_for(decision)
        try:
            await self._nodes.start(name, decision.provisioner, decision.cluster, decision.request)
        except FlyballError as error:
            self._manager.provision_failed(decision.request, time.monotonic(), str(error))
            log.warning("starting node '%s' failed: %s", name, error)

    def _name_for(self, decision: Provision) -> str:
        """Return the name of the node that is replaced, or an unused one."""
        replaced = None if decision.replaces is None else self._overview.node(decision.replaces)
        if replaced is not None and replaced.name not in self._nodes.being_started:
            return replaced.name
        stem = re.sub(r"[^A-Za-z0-9_]+", "-", split_key(decision.cluster)[1]).strip("-")[:40] or "node"
        taken = {node.name for node in self._overview.nodes} | self._nodes.being_started
        return next(
            name
            for name in (f"{stem}-{number}" for number in itertools.count(1))
            if name not in taken and not self._overview.origin(name).get("handle")
        )

    async def _release(self, decision: Release) -> None:
        """Mark the node as leaving; the leader drains and stops such nodes until they are gone."""
        node = self._overview.node(decision.node)
        if node is not None:
            await self._nodes.begin_removal(node)
