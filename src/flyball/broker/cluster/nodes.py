"""The nodes of a domain as the leader starts, empties and stops them, and the ordinary queues that they serve.

What is known of a node beside the registry is a definition: who started it, how to find it, whether it is to leave.
It is written before anything is done, so that whoever leads next can go on.
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

# So many ready messages weigh as much as an idle queue, where queues are spread over nodes.
MESSAGES_LIKE_A_QUEUE = 1000

# So long a node that a person has asked for may take until it joins.
JOIN_S = 600.0

# So long a node may take to leave a queue to another.
RELEASE_S = 30.0


class Nodes:
    """Changes which nodes there are, and who serves which ordinary queue. All may raise FlyballError."""

    def __init__(self, agent: Agent, overview: Overview, provisioners: Mapping[str, Provisioner]) -> None:
        self._agent = agent
        self._overview = overview
        self._definitions = agent.node.definitions
        self._provisioners = provisioners
        # Names of nodes that are just being started.
        self.being_started: set[str] = set()
        # When nodes that should be there were first missed, by name and handle.
        self._missing_since_s: dict[tuple[str, str | None], float] = {}

    # Starting and stopping

    async def start(self, name: str, provisioner: str, cluster: str, request: str | None) -> None:
        """Have a node started, for a clustered queue or ("") because a person wants it. It joins by itself.

        What is left of an earlier one of that name is ended before.
        """
        found = self._provisioner(provisioner)
        if name in self.being_started:
            raise ClusterError(f"node '{name}' is just being started")
        before = self._overview.origin(name)
        origin = {"provisioner": provisioner, "handle": None, "cluster": cluster, "request": request}
        self.being_started.add(name)
        try:
            await self.end_remains(name)
            await self._put(name, origin)
            try:
                handle = await found.start(name)
            except FlyballError:
                # What had the name before may still run somewhere, and is found by its handle only.
                await (self._put(name, before) if before else self._delete(name))
                raise
            await self._put(name, {**origin, "handle": handle})
        finally:
            self.being_started.discard(name)

    def lost(self) -> list[str]:
        """Return the names of dead nodes that a person had started, and has not wished away: they are wanted back."""
        return [
            node.name
            for node in self._overview.nodes
            if node.state is NodeState.DEAD
            and self._is_for_a_person(node.name)
            and node.name not in self.being_started
        ]

    async def start_again(self, name: str) -> None:
        """Start a dead node once more, and wait until it is there."""
        log.info("node '%s', which somebody wants, is dead: it is started again", name)
        await self.start(name, self._overview.origin(name)["provisioner"], "", None)
        try:
            async with asyncio.timeout(JOIN_S):
                while not self._overview.named(name).is_live:
                    await self._agent.watch_nodes()
        except TimeoutError:
            raise ClusterError(f"node '{name}' was started again and has not joined") from None

    def overdue(self, now_s: float) -> list[str]:
        """Return the names of nodes that were started and have not been there for too long: they will not come.

        Who died after a person had it started is not given up, but started again.
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
        """Forget a node that was started and is not there, and see to it that it does not come later."""
        known = [node for node in self._overview.nodes if node.name == name]
        if not known:
            await self._end(name)
            await self._delete(name)
        elif not self._overview.left_behind(known[0].id):
            await self.forget(known[0])

    async def begin_removal(self, node: NodeRecord) -> None:
        """Let a node be drained and stopped."""
        nothing_known = {"provisioner": None, "handle": None, "cluster": None, "request": None}
        origin = self._overview.origin(node.name) or nothing_known
        await self._put(node.name, {**origin, "leaving": True})

    async def finish_removal(self, node: NodeRecord) -> None:
        """Go on with a node that is to leave: move its queues away; stop and forget it when it serves nothing."""
        if not node.is_live:
            await self.forget(node)
            return
        await self.empty(node)
        if not self._serves_anything(node.id):
            await self._stop(node)

    async def forget(self, node: NodeRecord) -> None:
        """Forget a node that is gone, and end what may be left of it."""
        await self.end_remains(node.name)
        await self._agent.node.membership.remove(node.id)
        await self._delete(node.name)

    async def end_remains(self, name: str) -> None:
        """See to it that nothing is left of a node that is dead: it may be as well that nobody reaches it."""
        try:
            await self._end(name)
        except ClusterError as error:
            log.warning("what is left of node '%s' could not be ended: %s", name, error)

    # Ordinary queues

    def owner_moves(self, *, without: int = 0) -> list[OwnerMove]:
        """Return the moves that spread the ordinary queues over the nodes, but for one that is to be emptied."""
        queues = [
            QueueLoad(queue.id, owner, 1 + self._overview.ready(queue.id, owner) / MESSAGES_LIKE_A_QUEUE)
            for queue, owner in self._overview.ordinary()
        ]
        staying = [node for node in self._overview.staying if node.id != without]
        return rebalance_owners(queues, [NodeLoad(node.id, self._overview.capacity_of(node.id)) for node in staying])

    async def move(self, move: OwnerMove) -> None:
        """Let another node serve an ordinary queue."""
        await self._agent.ask(
            move.from_node, "queue.release", queue_id=move.queue, owner=move.to_node, time_limit_s=RELEASE_S
        )

    async def empty(self, node: NodeRecord) -> None:
        """Let other nodes serve the ordinary queues of a node."""
        for move in self.owner_moves(without=node.id):
            if move.from_node == node.id:
                await self.move(move)

    # Inside

    def _provisioner(self, name: str) -> Provisioner:
        found = self._provisioners.get(name)
        if found is None:
            known = ", ".join(sorted(self._provisioners)) or "none"
            raise ClusterError(f"there is no provisioner '{name}' on the node that leads; it has {known}")
        return found

    async def _stop(self, node: NodeRecord) -> None:
        """Stop a node by asking it, as it may run where no provisioner of this node reaches; else through that."""
        try:
            await self._agent.ask(node.id, "node.stop")
        except ClusterError:
            if not self._overview.origin(node.name).get("handle"):
                raise
            await self._end(node.name)

    async def _end(self, name: str) -> None:
        """See to it that nothing runs of a node that was started. Raises ClusterError if nobody can tell."""
        origin = self._overview.origin(name)
        if not origin.get("handle"):
            return
        provisioner = self._provisioner(origin["provisioner"])
        try:
            await provisioner.stop(origin["handle"])
        except ClusterError:
            # What has ended by itself may be hard to stop, and need not be.
            if await provisioner.alive(origin["handle"]):
                raise

    def _is_for_a_person(self, name: str) -> bool:
        origin = self._overview.origin(name)
        is_started = origin.get("provisioner") is not None
        return is_started and not origin["cluster"] and not origin.get("leaving")

    def _timeout_s(self, cluster: str) -> float:
        """Return how long a node that was started for a clustered queue, or for a person (""), may take to join."""
        if not cluster:
            return JOIN_S
        is_there = cluster in self._overview.clusters
        return (self._overview.options(cluster) if is_there else ClusterOptions()).start_s

    def _serves_anything(self, node_id: int) -> bool:
        """Tell whether others would miss a queue if the node stopped."""
        return any(owner == node_id and is_lasting(queue) for queue, owner in self._overview.queues())

    async def _put(self, name: str, value: Mapping[str, Any]) -> None:
        await outcome(lambda done: self._definitions.put(Definition("node", name, value), done))

    async def _delete(self, name: str) -> None:
        await outcome(lambda done: self._definitions.delete("node", name, done))
