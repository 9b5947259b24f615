"""Mends a domain: what a dead node served, and the clients that are left without a member, go to others."""

from __future__ import annotations

from flyball.broker.cluster.decisions import TakeOver
from flyball.broker.cluster.placement import NodeLoad, QueueLoad, assign, elect_for_load
from flyball.broker.cluster.roster import Member
from flyball.broker.cluster.scaling import Scaling
from flyball.broker.cluster.state import DomainState, KnownCluster


class Repair:
    """Finds others for what a node has left behind."""

    def __init__(self, state: DomainState, scaling: Scaling) -> None:
        self._state = state
        self._scaling = scaling
        self._orphans: dict[int, list[QueueLoad]] = {}
        """The queues of dead nodes that nobody was there for."""

    def node_up(self, node: int, now: float) -> None:
        """There is a node again: it keeps what it served itself, and gets what nobody could take over."""
        self._revive(node)
        self._orphans.pop(node, None)
        for gone in list(self._orphans):
            self.take_over(gone, self._orphans.pop(gone), now)

    def take_over(self, node: int, queues: list[QueueLoad], now: float, *, replaces: int | None = None) -> None:
        """Give what a dead node had to others; it waits until there is anybody.

        `replaces` is that node again if one that is started now may have its name.
        """
        nodes = self._node_loads()
        dead = self._state.members_on(node)
        if not nodes:
            self._orphans[node] = queues
            for cluster, member in dead:
                self._lose_sessions(member)
                cluster.roster.set_state(member, is_served=False)
            return
        assignments = assign(queues, nodes)
        merges = {}
        for cluster, member in dead:
            self._lose_sessions(member)
            heir = self._heir(cluster, member)
            if heir is not None:
                merges[member.id] = heir.id
                self._state.homeless.update((session.id, (cluster, session)) for session in member.sessions.values())
                self._state.forget_member(cluster, member)
            else:
                assignments[member.id] = self._re_own(cluster, member, nodes)
            cluster.provisioning.low_since = None
        if assignments or merges:
            reason = f"node {node} is gone: what it served goes to others by their load"
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

    def _heir(self, cluster: KnownCluster, dead: Member) -> Member | None:
        """Return the member that gets the messages: one that gets clients if possible, the one with the least."""
        others = [
            member
            for member in cluster.roster.members.values()
            if member is not dead and member.node in self._state.nodes
        ]
        return min(
            others, key=lambda member: (not member.is_usable, member.ready / member.capacity, member.id), default=None
        )

    def _re_own(self, cluster: KnownCluster, member: Member, nodes: list[NodeLoad]) -> int:
        """The last member lives on at another node."""
        coming = cluster.provisioning.coming
        free = [node for node in nodes if node.node not in coming]
        node = assign([QueueLoad(member.id, load=1.0)], free or nodes)[member.id]
        self._state.resettle_member(cluster, member, node)
        member.removing_at = None
        member.is_leaving = False
        cluster.roster.set_capacity(member, self._state.capacity_on(cluster, member.node))
        cluster.roster.set_state(member, is_marked=False, is_served=True)
        coming.pop(member.node, None)
        return member.node

    def _revive(self, node: int) -> None:
        """A node is back before anybody took over what it served; its clients have lost their connections."""
        for cluster, member in self._state.members_on(node):
            self._lose_sessions(member)
            member.is_known_empty = False
            cluster.roster.set_state(member, is_served=True)

    def _lose_sessions(self, member: Member) -> None:
        """Count those at a dead member no more whose connections ended with its node."""
        for session in list(member.sessions.values()):
            if session.entry is None or session.entry == member.node or session.entry not in self._state.nodes:
                self._state.drop_session(session.id)

    def house(self, now: float) -> None:
        """Find a member for those whose clients are still connected somewhere, while their member is gone."""
        for cluster, session in list(self._state.homeless.values()):
            to = elect_for_load(cluster.roster, session.role, session.load)
            if to is None:
                continue
            origin, session.member = session.member, to
            self._state.count_session(cluster, session)
            reason = f"the node of member {origin.id} is gone"
            self._state.decide_move(cluster, session, origin.id, now, reason, may_return=False)
