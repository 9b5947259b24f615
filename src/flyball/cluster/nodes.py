"""The nodes of a domain as the leader starts, empties and stops them, and the ordinary queues that they serve.

What is known of a node beside the registry is a definition: who started it, how to find it, whether it is to leave.
It is written before anything is done, so that whoever leads next can go on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flyball.cluster.agent import Agent
from flyball.cluster.members import outcome
from flyball.cluster.overview import Overview
from flyball.cluster.placement import NodeLoad, QueueLoad
from flyball.cluster.provisioners import Provisioner
from flyball.cluster.rebalancing import OwnerMove, rebalance_owners
from flyball.errors import ClusterError, FlyballError
from flyball.model import Definition
from flyball.store.registry import NodeRecord

log = logging.getLogger(__name__)

MESSAGES_LIKE_A_QUEUE = 1000
"""So many ready messages weigh as much as an idle queue, where queues are spread over nodes."""

RELEASE_S = 30.0
"""So long a node may take to leave a queue to another."""


class Nodes:
    """Changes which nodes there are, and who serves which ordinary queue. All may raise FlyballError."""

    def __init__(self, agent: Agent, overview: Overview, provisioners: Mapping[str, Provisioner]) -> None:
        self._agent = agent
        self._overview = overview
        self._definitions = agent.node.definitions
        self._registry = agent.node.membership.registry
        self._provisioners = provisioners

    # Starting and stopping

    async def start(self, name: str, provisioner: str, cluster: str, request: str | None) -> None:
        """Have a node started, for a clustered queue or ("") because a person wants it. It joins by itself."""
        found = self._provisioner(provisioner)
        origin = {"provisioner": provisioner, "handle": None, "cluster": cluster, "request": request}
        await self._put(name, origin)
        try:
            handle = await found.start(name)
        except FlyballError:
            await self._delete(name)
            raise
        await self._put(name, {**origin, "handle": handle})

    async def begin_removal(self, node: NodeRecord) -> None:
        """Let a node be drained and stopped."""
        nothing_known = {"provisioner": None, "handle": None, "cluster": None, "request": None}
        origin = self._overview.origin(node.name) or nothing_known
        await self._put(node.name, {**origin, "leaving": True})

    async def let_go(self, node: NodeRecord) -> None:
        """Go on with a node that is to leave: move its queues away; stop and forget it when it serves nothing."""
        if not node.is_live:
            await self.forget(node)
            return
        await self.empty(node)
        if not self._serves_anything(node.id):
            await self._stop(node)

    async def release(self, node: NodeRecord) -> None:
        """Stop a node that is not needed any more; it has no members."""
        await self.begin_removal(node)
        await self.let_go(node)

    async def forget(self, node: NodeRecord) -> None:
        """Forget a node that is gone, and end what may be left of it."""
        await self._end(node.name)
        await self._registry.remove_node(node.id)
        await self._delete(node.name)

    async def end_remains(self, name: str) -> None:
        """See to it that nothing is left of a provisioned node that is dead, before another one has its name."""
        try:
            await self._end(name)
        except ClusterError as error:
            log.warning("what is left of node '%s' could not be ended: %s", name, error)

    # Ordinary queues

    async def rebalance(self, *, dry_run: bool) -> list[dict[str, Any]]:
        """Spread the ordinary queues over the nodes; return the moves."""
        moves = self._owner_moves()
        queues = {queue.id: queue for queue, _ in self._overview.ordinary()}
        if not dry_run:
            for move in moves:
                await self._move(move)
        return [
            {
                "what": "queue",
                "vhost": queues[move.queue].vhost,
                "name": queues[move.queue].name,
                "source": self._overview.name_of(move.from_node),
                "destination": self._overview.name_of(move.to_node),
                "reason": move.reason,
            }
            for move in moves
        ]

    async def empty(self, node: NodeRecord) -> None:
        """Let other nodes serve the ordinary queues of a node."""
        for move in self._owner_moves(without=node.id):
            if move.from_node == node.id:
                await self._move(move)

    # Inside

    def _provisioner(self, name: str) -> Provisioner:
        found = self._provisioners.get(name)
        if found is None:
            known = ", ".join(sorted(self._provisioners)) or "none"
            raise ClusterError(f"there is no provisioner '{name}' on the node that leads; it has {known}")
        return found

    async def _stop(self, node: NodeRecord) -> None:
        """Stop a node through whoever started it, or by asking it."""
        if self._overview.origin(node.name).get("handle"):
            await self._end(node.name)
        else:
            await self._agent.ask(node.id, "node.stop")

    async def _end(self, name: str) -> None:
        origin = self._overview.origin(name)
        if origin.get("handle"):
            await self._provisioner(origin["provisioner"]).stop(origin["handle"])

    def _serves_anything(self, node_id: int) -> bool:
        """Tell whether others would miss a queue if the node stopped."""
        return any(
            owner == node_id and queue.durable and not queue.exclusive for queue, owner in self._overview.queues()
        )

    def _owner_moves(self, *, without: int = 0) -> list[OwnerMove]:
        """Return the moves that spread the ordinary queues over the nodes, but for one that is to be emptied."""
        queues = [
            QueueLoad(queue.id, owner, 1 + self._overview.ready(queue.id, owner) / MESSAGES_LIKE_A_QUEUE)
            for queue, owner in self._overview.ordinary()
        ]
        staying = [node for node in self._overview.staying if node.id != without]
        return rebalance_owners(queues, [NodeLoad(node.id, self._overview.capacity_of(node.id)) for node in staying])

    async def _move(self, move: OwnerMove) -> None:
        await self._agent.ask(
            move.from_node, "queue.release", queue_id=move.queue, owner=move.to_node, time_limit_s=RELEASE_S
        )

    async def _put(self, name: str, value: Mapping[str, Any]) -> None:
        await outcome(lambda done: self._definitions.put(Definition("node", name, value), done))

    async def _delete(self, name: str) -> None:
        await outcome(lambda done: self._definitions.delete("node", name, done))
