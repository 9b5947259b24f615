"""Repairs a domain: assigns what a dead node served, and clients without a member, to others."""

from __future__ import annotations

from flyball.broker.cluster.decisions import TakeOver
from flyball.broker.cluster.load_table import Member
from flyball.broker.cluster.placement import NodeLoad, QueueLoad, assign, elect_for_load
from flyball.broker.cluster.scaling import Scaling
from flyball.broker.cluster.state import DomainState, KnownCluster


class Repair:
    """Finds replacements for what a dead node served."""

    def __init__(self, state: DomainState, scaling: Scaling) -> None:
        self._state = state
        self._scaling = scaling
        # Queues of dead nodes that no node could take.
        self._orphans: dict[int, list[QueueLoad]] = {}

    def node_up(self, node: int, now: float) -> None:
        """A node has joined: it keeps its own queues, and gets those that no node could take."""
        self._orphans.pop(node, None)
        for gone in list(self._orphans):
            self.take_over(gone, self._orphans.pop(gone), now)

    def take_over(self, node: int, queues: list[QueueLoad], now: float, *, replaces: int | None = None) -> None:
        """Reassign what a dead node served; wait if there is no node.

        `replaces` is the id of that node if one that is started now may take its name.
        """
        nodes = self._node_loads()
        dead = self._state.members_on(node)
        if not nodes:
            self._orphans[node] = queues
            self._state.unserve(node)
            return
        assignments, merges = assign(queues, nodes), {}
        last: dict[str, int] = {}
        for cluster, member in dead:
            heir = self._heir(cluster, member) or last.get(cluster.key)
            if heir is not None:
                merges[member.id] = heir
            else:
                # The last member is moved to another node instead of being merged.
                last[cluster.key] = member.id
                free = [known for known in nodes if known.node not in cluster.provisioning.coming]
                assignments |= assign([QueueLoad(member.id, load=1.0)], free or nodes)
        if assignments or merges:
            reason = f"node {node} is dead: its queues are assigned to the least loaded nodes"
            self._state.decide(
                now, TakeOver(cluster="", node=node, assignments=assignments, merges=merges, reason=reason)
            )
        for cluster, _ in dead:
            self._scaling.grow(cluster, now, replaces=replaces)
        self.house(now)

    def _node_loads(self) -> list[NodeLoad]:
        useful = [node for node in self._state.nodes.values() if not node.is_leaving and not node.is_released]
        return [
            NodeLoad(node.id, node.capacity, self._state.fullness(node)[0] * node.capacity)
            for node in useful or self._state.nodes.values()
        ]

    def _heir(self, cluster: KnownCluster, dead: Member) -> int | None:
        """Return the member that gets the messages: the least loaded, preferably one that accepts clients."""
        others = [
            member
            for member in cluster.table.members.values()
            if member is not dead and member.node in self._state.nodes
        ]
        best = min(
            others, key=lambda member: (not member.is_usable, member.ready / member.capacity, member.id), default=None
        )
        return None if best is None else best.id

    def house(self, now: float) -> None:
        """Place sessions whose clients are still connected while their member is dead."""
        for cluster, session in list(self._state.homeless.values()):
            to = elect_for_load(cluster.table, session.role, session.load)
            if to is not None:
                reason = f"the node of member {session.member.id} is dead"
                self._state.decide_move(cluster, session, to, now, reason)
