"""Starts, drains and stops the nodes of a domain, and moves ordinary queues between them. Runs on the leader.

Facts about a node that the registry does not hold are in a definition: its provisioner, its handle, and whether it is
leaving. The definition is written before each action, so that the next leader can continue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from flyball.broker.cluster.agent import Agent
from flyball.broker.cluster.options import ClusterOptions
from flyball.broker.cluster.overview import Overview, is_lasting
from flyball.broker.cluster.placement import NodeLoad, QueueLoad
from flyball.broker.cluster.provisioners import Provisioner
from flyball.broker.cluster.rebalancing import OwnerMove, rebalance_owners
from flyball.broker.core.pending import outcome
from flyball.broker.store.registry import NodeRecord, NodeState
from flyball.errors import ClusterError, FlyballError
from flyball.model import Definition

log = logging.getLogger(__name__)

# Ready messages that weigh as much as one idle queue when queues are spread over nodes.
MESSAGES_LIKE_A_QUEUE = 1000

# How long a node that an operator added has to join.
JOIN_S = 600.0

# Time limit of a node to release a queue.
RELEASE_S = 30.0


class Nodes:
    """Changes the set of nodes, and the owners of ordinary queues. All methods may raise FlyballError."""

    def __init__(self, agent: Agent, overview: Overview, provisioners: Mapping[str, Provisioner]) -> None:
        self._agent = agent
        self._overview = overview
        self._definitions = agent.node.definitions
        self._provisioners = provisioners
        # Names of nodes that are being started.
        self.being_started: set[str] = set()
        # When a node that should be up was first missed, by name and handle.
        self._missing_since_s: dict[tuple[str, str | None], float] = {}

    # Start and stop

    async def start(self, name: str, provisioner: str, cluster: str, request: str | None) -> None:
        """Start a node for a clustered queue, or for an operator (""); it then joins on its own.

        A process left over from an earlier node of that name is ended first.
        """
        found = self._provisioner(provisioner)
        if name in self.being_started:
            raise ClusterError(f"node '{name}' is already being started")
        before = self._overview.origin(name)
        origin = {"provisioner": provisioner, "handle": None, "cluster": cluster, "request": request}
        self.being_started.add(name)
        try:
            await self.end_remains(name)
            await self._put(name, origin)
            try:
                handle = await found.start(name)
            except FlyballError:
                # The earlier node of that name may still run, and only its handle finds it.
                await (self._put(name, before) if before else self._delete(name))
                raise
            await self._put(name, {**origin, "handle": handle})
        finally:
            self.being_started.discard(name)

    def lost(self) -> list[str]:
        """Return the names of dead nodes that an operator added and has not removed: they are restarted."""
        return [
            node.name
            for node in self._overview.nodes
            if node.state is NodeState.DEAD
            and self._is_for_a_person(node.name)
            and node.name not in self.being_started
        ]

    async def start_again(self, name: str) -> None:
        """Restart a dead node, and wait until it has joined."""
        log.info("node '%s', added by an operator, is dead; restarting it", name)
        await self.start(name, self._overview.origin(name)["provisioner"], "", None)
        try:
            async with asyncio.timeout(JOIN_S):
                while not self._overview.named(name).is_live:
                    await self._agent.watch_nodes()
        except TimeoutError:
            raise ClusterError(f"node '{name}' was restarted and has not joined") from None

    def overdue(self, now_s: float) -> list[str]:
        """Return the names of nodes that were started and have not joined in time.

        A node that an operator added and that died is restarted instead.
        """
        names = {node.name for node in self._overview.nodes}
        here = {node.name for node in self._overview.live} | self.being_started
        missing: dict[tuple[str, str | None], float] = {}
        overdue: list[str] = []
        for name, origin in self._definitions.of("node").items():
            is_wanted_back = name in names and not origin["cluster"]
            if name in here or origin["provisioner"] is None or origin.get("leaving") or is_wanted_back:
                continue
            about = (name, origin["handle"])
            missing[about] = self._missing_since_s.get(about, now_s)
            if now_s - missing[about] > self._timeout_s(origin["cluster"]):
                overdue.append(name)
        self._missing_since_s = missing
        return overdue

    async def give_up(self, name: str) -> None:
        """Forget a node that was started and is not up, and make sure that it does not join later."""
        known = [node for node in self._overview.nodes if node.name == name]
        if not known:
            await self._end(name)
            await self._delete(name)
        elif not self._overview.left_behind(known[0].id):
            await self.forget(known[0])

    async def begin_removal(self, node: NodeRecord) -> None:
        """Mark a node as leaving: it is drained and stopped."""
        nothing_known = {"provisioner": None, "handle": None, "cluster": None, "request": None}
        origin = self._overview.origin(node.name) or nothing_known
        await self._put(node.name, {**origin, "leaving": True})

    async def finish_removal(self, node: NodeRecord) -> None:
        """Continue the removal of a leaving node: move its queues away; stop and forget it once it serves nothing."""
        if not node.is_live:
            await self.forget(node)
            return
        await self.empty(node)
        if not self._serves_anything(node.id):
            await self._stop(node)

    async def forget(self, node: NodeRecord) -> None:
        """Forget a dead node, and end any process that is left of it."""
        await self.end_remains(node.name)
        await self._agent.node.membership.remove(node.id)
        await self._delete(node.name)

    async def end_remains(self, name: str) -> None:
        """End any process of a dead node: it may still run, but be unreachable."""
        try:
            await self._end(name)
        except ClusterError as error:
            log.warning("ending the process of dead node '%s' failed: %s", name, error)

    # Ordinary queues

    def owner_moves(self, *, without: int = 0) -> list[OwnerMove]:
        """Return the moves that spread the ordinary queues over the nodes, except one that is drained."""
        queues = [
            QueueLoad(queue.id, owner, 1 + self._overview.ready(queue.id, owner) / MESSAGES_LIKE_A_QUEUE)
            for queue, owner in self._overview.ordinary()
        ]
        staying = [node for node in self._overview.staying if node.id != without]
        return rebalance_owners(queues, [NodeLoad(node.id, self._overview.capacity_of(node.id)) for node in staying])

    async def move(self, move: OwnerMove) -> None:
        """Move an ordinary queue to another node."""
        await self._agent.ask(
            move.from_node, "queue.release", queue_id=move.queue, owner=move.to_node, time_limit_s=RELEASE_S
        )

    async def empty(self, node: NodeRecord) -> None:
        """Move the ordinary queues of a node to other nodes."""
        for move in self.owner_moves(without=node.id):
            if move.from_node == node.id:
                await self.move(move)

    # Internals

    def _provisioner(self, name: str) -> Provisioner:
        found = self._provisioners.get(name)
        if found is None:
            known = ", ".join(sorted(self._provisioners)) or "none"
            raise ClusterError(f"unknown provisioner '{name}' on the leader; available: {known}")
        return found

    async def _stop(self, node: NodeRecord) -> None:
        """Send a node the command to stop, since provisioners here may not reach it; else use its provisioner."""
        try:
            await self._agent.ask(node.id, "node.stop")
        except ClusterError:
            if not self._overview.origin(node.name).get("handle"):
                raise
            await self._end(node.name)

    async def _end(self, name: str) -> None:
        """End the process of a node that was started. Raises ClusterError if its state is unknown."""
        origin = self._overview.origin(name)
        if not origin.get("handle"):
            return
        provisioner = self._provisioner(origin["provisioner"])
        try:
            await provisioner.stop(origin["handle"])
        except ClusterError:
            # Stopping a process that has already ended may fail, and is not needed.
            if await provisioner.alive(origin["handle"]):
                raise

    def _is_for_a_person(self, name: str) -> bool:
        origin = self._overview.origin(name)
        is_started = origin.get("provisioner") is not None
        return is_started and not origin["cluster"] and not origin.get("leaving")

    def _timeout_s(self, cluster: str) -> float:
        """Return how long a node that was started for a clustered queue, or for an operator (""), has to join."""
        if not cluster:
            return JOIN_S
        is_there = cluster in self._overview.clusters
        return (self._overview.options(cluster) if is_there else ClusterOptions()).start_s

    def _serves_anything(self, node_id: int) -> bool:
        """Return whether the node serves a queue that is needed elsewhere."""
        return any(owner == node_id and is_lasting(queue) for queue, owner in self._overview.queues())

    async def _put(self, name: str, value: Mapping[str, Any]) -> None:
        await outcome(lambda done: self._definitions.put(Definition("node", name, value), done))

    async def _delete(self, name: str) -> None:
        await outcome(lambda done: self._definitions.delete("node", name, done))
