"""The manager of a domain: receives events and returns decisions with their reasons.

It does no I/O and has no clock: `now` is in seconds of any monotonic clock. Its owner calls `tick` about every
second, carries out `take_decisions` in order, and reports the outcome. A new leader starts with a new manager; nodes,
members and sessions are all the input it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flyball.broker.cluster.decisions import HandOver, MemberPlacement, Record, Wait
from flyball.broker.cluster.load_table import Member
from flyball.broker.cluster.names import title
from flyball.broker.cluster.options import Role
from flyball.broker.cluster.placement import QueueLoad, elect
from flyball.broker.cluster.rebalancing import best_move, drains
from flyball.broker.cluster.repair import Repair
from flyball.broker.cluster.scaling import Scaling
from flyball.broker.cluster.state import DomainState, KnownCluster, KnownNode
from flyball.errors import ClusterError

# Retry delay of a client that found no room.
RETRY_AFTER_S = 1.0


class Manager(DomainState):
    """Manages all clustered queues of a domain."""

    def __init__(
        self, *, history_length: int = 1000, name: str = "", on_record: Callable[[Record], None] | None = None
    ) -> None:
        super().__init__(history_length=history_length, name=name, on_record=on_record)
        self._scaling = Scaling(self)
        self._repair = Repair(self, self._scaling)

    # Topology of the domain

    def node_up(
        self,
        node: int,
        now: float,
        *,
        epoch: int = 0,
        capacity: float = 1.0,
        provisioned_for: str | None = None,
        request: str | None = None,
    ) -> None:
        """A node has joined. `capacity` is its size, 1 for an ordinary one.

        `provisioned_for` is the clustered queue that it was started for, if any; `request` that of the decision to
        start it.
        """
        known = KnownNode(node, epoch, capacity, provisioned_for)
        if not self.note_node(known):
            return
        self._repair.node_up(node, now)
        for cluster in self.clusters.values():
            was_asked_for = request is not None and cluster.provisioning.coming.pop(request, None) is not None
            if was_asked_for and known in self._scaling.free_nodes(cluster):
                self._scaling.add_member(cluster, known, now, "it was started for this")

    def node_leaves(self, node: int, now: float) -> None:
        """A node is leaving: drain its members as soon as others can accept their clients."""
        known = self.nodes.get(node)
        if known is None:
            raise ClusterError(f"unknown node {node}: see `flyball domain show`")
        known.is_leaving = True
        for cluster, member in self.members_on(node):
            self._scaling.retire(cluster, member, now, f"node {node} is to stop")

    def node_gone(self, node: int, now: float, queues: Sequence[QueueLoad] = ()) -> None:
        """A node is dead: reassign what it served. `queues` are its ordinary queues."""
        known = self.forget_node(node)
        if known is not None and known.is_released and not queues and not self.members_on(node):
            return
        wanted = [
            (cluster, cluster.table.usable_count + len(cluster.provisioning.coming))
            for cluster, member in self.members_on(node)
            if member.is_usable
        ]
        is_missed = known is not None and bool(known.provisioned_for) and not (known.is_leaving or known.is_released)
        self._repair.take_over(node, list(queues), now, replaces=node if is_missed else None)
        for cluster, count in wanted if is_missed else ():
            self._scaling.replace(cluster, node, count, now)

    def member_added(
        self,
        cluster: str,
        member: int,
        node: int,
        now: float,
        *,
        is_marked: bool = False,
        is_fixed: bool = False,
    ) -> None:
        """A member exists. `is_fixed`: an operator placed it, and the manager never removes it on its own."""
        found = self.cluster(cluster)
        before = self.members.get(member)
        if before is not None and is_fixed and not before[1].is_fixed:
            self._scaling.keep(found, before[1], now)
        capacity = self.capacity_on(found, node)
        self.put_member(found, Member(member, node, capacity, is_fixed=is_fixed, is_marked=is_marked), now)

    def member_removed(self, member: int, now: float) -> None:
        """A member was removed; sessions that it still had are placed again if their clients are connected
        elsewhere.
        """
        known = self.members.get(member)
        if known is not None:
            self.drop_member(*known, now)
            node = self.nodes.get(known[1].node)
            if node is not None:
                self._scaling.release(node, now)

    def mark(self, cluster: str, member: int, now: float, reason: str = "its removal was requested") -> None:
        """Drain a member for an operator, as soon as another one can accept its clients. Raises ClusterError."""
        found = self.cluster(cluster)
        known = self.members.get(member)
        if known is None or known[0] is not found:
            raise ClusterError(f"{title(cluster)!r} has no member {member}: see `flyball domain show`")
        self._scaling.retire(found, known[1], now, reason)

    # Events

    def join(
        self,
        cluster: str,
        role: Role,
        now: float,
        *,
        session: str | None = None,
        arrives: bool = True,
        waited_s: float = 0.0,
        avoid: int | None = None,
    ) -> MemberPlacement | Wait:
        """Place a client. It counts from now on, and for a grace period even if it does not arrive.

        Without a `session` id, or unless it `arrives` with that id, the first new session of that role in the
        member's report takes its place. `avoid` is a node that the client could not reach. Raises ClusterError for an
        unknown clustered queue.
        """
        found = self.cluster(cluster)
        if session is not None and session in self.sessions:
            self.drop_session(session)
        table = found.table
        load = found.options.weight(role)
        if table.load + load > found.options.theta_up * table.usable_capacity:
            self._scaling.grow(found, now, load)
            if found.provisioning.coming and waited_s < found.options.wait_s:
                return Wait(cluster, RETRY_AFTER_S, "all members are full: another one is being added")
        member = elect(table, role, avoid=avoid)
        if member is None:
            return Wait(cluster, RETRY_AFTER_S, "no member takes clients: one is being added or repaired")
        placed = self.place(found, role, member, now, session, is_anonymous=session is None or not arrives)
        return MemberPlacement(cluster, member.id, member.node, role, placed.id)

    def tick(self, now: float) -> None:
        """Do periodic work: expire expected sessions, grow, shrink, remove, rebalance."""
        self.expire(now)
        for cluster in self.clusters.values():
            cluster.table.settle()
            for key in cluster.provisioning.overdue(cluster.options, now):
                self.not_coming(cluster, key, now, f"no member came within {cluster.options.start_s:g} s")
            self._scaling.grow(cluster, now)
            self._scaling.shrink(cluster, now)
            if now >= cluster.next_round_at:
                cluster.next_round_at = now + cluster.options.period_s
                self._rebalance(cluster, now)
            verdict = cluster.ratio.look(cluster.table, now)
            if verdict is not None:
                self.decide(now, HandOver(cluster=cluster.key, to=verdict[0], reason=verdict[1]))
        self._repair.house(now)
        for node in list(self.nodes.values()):
            self._scaling.release(node, now)

    def _rebalance(self, cluster: KnownCluster, now: float) -> None:
        left = cluster.options.most_moves
        for move in drains(cluster.table, now, left):
            self.decide_move(cluster, move.session, move.to, now, move.reason)
            left -= 1
        while left > 0 and (best := best_move(cluster.table, now)) is not None:
            self.decide_move(cluster, best.session, best.to, now, best.reason)
            left -= 1
