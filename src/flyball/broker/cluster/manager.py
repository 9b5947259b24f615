"""The manager of a domain: hears what happens, decides what is to be done, and says why.

It does no I/O and keeps no clock: `now` is seconds of any clock that does not go back. Whoever runs it calls it about
every second (`tick`), carries out what `take_decisions` returns, in order, and tells it what became of that. A new
leader begins with a new one: what it hears of nodes, members and sessions is all it needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from flyball.broker.cluster.decisions import Decision, HandOver, Placement, Record, SessionReport, Wait
from flyball.broker.cluster.names import title
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.broker.cluster.placement import QueueLoad, elect
from flyball.broker.cluster.rebalancing import best_move, drains
from flyball.broker.cluster.repair import Repair
from flyball.broker.cluster.roster import Member, Roster, Session
from flyball.broker.cluster.scaling import Scaling
from flyball.broker.cluster.state import DomainState, KnownCluster, KnownNode
from flyball.errors import ClusterError

RETRY_AFTER_S = 1.0
"""When a client that found no place may ask again."""


class Manager:
    """Governs all clustered queues of a domain."""

    def __init__(
        self, *, history_length: int = 1000, name: str = "", on_record: Callable[[Record], None] | None = None
    ) -> None:
        """`on_record` is told of each decision, and of each that did not come about."""
        self._state = DomainState(history_length, name, on_record)
        self._scaling = Scaling(self._state)
        self._repair = Repair(self._state, self._scaling)

    # What came of it

    def take_decisions(self) -> list[Decision]:
        """Return what has been decided since the last call, in the order in which it is to be done."""
        return self._state.take_decisions()

    @property
    def history(self) -> list[Record]:
        """The last decisions with their reasons, newest last."""
        return self._state.history

    @property
    def decided(self) -> int:
        """How many decisions there were."""
        return self._state.decided

    # The shape of the domain

    def set_cluster(
        self, cluster: str, options: ClusterOptions, now: float, *, unwanted: Collection[int] = ()
    ) -> None:
        """Govern a clustered queue, or otherwise than before.

        The `unwanted` nodes get no member by the manager's own will: somebody had theirs removed.
        """
        found = self._state.clusters.get(cluster)
        if found is None:
            self._state.clusters[cluster] = KnownCluster(cluster, Roster(options), frozenset(unwanted))
            return
        found.unwanted = frozenset(unwanted)
        found.roster.set_options(options)
        for member in found.roster.members.values():
            found.roster.set_capacity(member, self._state.capacity_on(found, member.node))

    def drop_cluster(self, cluster: str) -> None:
        """Forget a clustered queue with its members and sessions."""
        found = self._state.clusters.pop(cluster, None)
        if found is not None:
            for member in list(found.roster.members.values()):
                self._state.forget_member(found, member)
            for session in [session for session, (owner, _) in self._state.homeless.items() if owner is found]:
                del self._state.homeless[session]

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
        """A node is there. `capacity` is its size, 1 for an ordinary one.

        `provisioned_for` is the clustered queue that it was started for, if any; `request` is that of the decision to
        start it.
        """
        known = self._state.nodes.get(node)
        if known is not None and known.epoch == epoch:
            known.capacity = capacity
            return
        self._state.nodes[node] = KnownNode(node, epoch, capacity, provisioned_for)
        self._scaling.look_for_nodes_again()
        self._repair.node_up(node, now)
        for cluster in self._state.clusters.values():
            was_asked_for = request is not None and cluster.provisioning.coming.pop(request, None) is not None
            if was_asked_for and self._state.nodes[node] in self._scaling.free_nodes(cluster):
                self._scaling.add_member(cluster, self._state.nodes[node], now, "it was started for this")

    def node_leaves(self, node: int, now: float) -> None:
        """A node is to stop in good order: its members are drained, as soon as others are there."""
        known = self._state.nodes.get(node)
        if known is None:
            raise ClusterError(f"there is no node {node}: look at `flyball domain show`")
        known.is_leaving = True
        for cluster, member in self._state.members_on(node):
            member.is_leaving = True
            self._scaling.retire(cluster, member, now, f"node {node} is to stop")

    def node_gone(self, node: int, now: float, queues: Sequence[QueueLoad] = ()) -> None:
        """A node is dead: others get what it served. `queues` are its ordinary queues."""
        known = self._state.nodes.pop(node, None)
        for cluster in self._state.clusters.values():
            cluster.provisioning.coming.pop(node, None)
        if known is not None and known.is_released and not queues and not self._state.members_on(node):
            return
        wanted = [
            (cluster, cluster.roster.usable_count + len(cluster.provisioning.coming))
            for cluster, member in self._state.members_on(node)
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
        """A member is there. `is_fixed`: a person asked for it, and the manager never removes it by itself."""
        found = self._state.cluster(cluster)
        found.provisioning.coming.pop(node, None)
        known = self._state.nodes.get(node)
        capacity = self._state.capacity_on(found, node)
        if member in self._state.members:
            old = self._state.members[member][1]
            found.roster.set_capacity(old, capacity)
            if is_fixed and not old.is_fixed:
                self._scaling.keep(found, old, now)
            old.is_fixed = is_fixed
            return
        added = Member(member, node, capacity, is_fixed=is_fixed, is_marked=is_marked)
        added.is_served = known is not None
        added.marked_at = now if is_marked else -math.inf
        found.roster.add(added)
        self._state.settle_member(found, added)
        found.provisioning.low_since = None
        if known is not None:
            known.unused_since = None
            if known.is_leaving:
                added.is_leaving = True

    def member_removed(self, cluster: str, member: int, now: float) -> None:
        """A member is gone in good order; sessions that it still had are re-placed if their clients are elsewhere."""
        known = self._state.members.get(member)
        if known is None:
            return
        found, removed = known
        node = self._state.nodes.get(removed.node)
        self._state.forget_member(found, removed)
        found.provisioning.removed_at = now
        found.provisioning.low_since = None
        found.provisioning.retry_at = -math.inf
        if node is not None and not self._state.members_on(node.id):
            node.unused_since = now
            self._scaling.release(node, now)

    def mark(self, cluster: str, member: int, now: float, reason: str = "somebody wants it removed") -> None:
        """A person wants a member removed: it is drained as soon as another one is there. Raises ClusterError."""
        found = self._state.cluster(cluster)
        known = self._state.members.get(member)
        if known is None or known[0] is not found:
            raise ClusterError(f"{title(cluster)!r} has no member {member}: look at `flyball domain show`")
        known[1].is_leaving = True
        self._scaling.retire(found, known[1], now, reason)

    def provision_failed(self, request: str, now: float, why: str = "unknown") -> None:
        """A node could not be started. It is tried again after a while if it is still needed."""
        for cluster in self._state.clusters.values():
            if request in cluster.provisioning.coming:
                cluster.provisioning.has_failed(request, now)
                self._state.note_failure(cluster, now, f"no node could be started: {why}")

    # What happens

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
    ) -> Placement | Wait:
        """Place a client; it counts from now on, for a while even if it does not come.

        Without a `session` id, or if it never `arrives` under that, the first new session of that role that the
        member reports takes its place. `avoid` is a node that the client could not reach. Raises ClusterError for a
        clustered queue that is not there.
        """
        found = self._state.cluster(cluster)
        if session is not None and session in self._state.sessions:
            self._state.drop_session(session)
        roster = found.roster
        load = found.options.weight(role)
        if roster.load + load > found.options.theta_up * roster.usable_capacity:
            self._scaling.grow(found, now, load)
            if found.provisioning.coming and waited_s < found.options.wait_s:
                return Wait(cluster, RETRY_AFTER_S, "there is no room: a further member is being made")
        member = elect(roster, role, avoid=avoid)
        if member is None:
            return Wait(cluster, RETRY_AFTER_S, "no member can take clients yet: one is being made or repaired")
        placed = Session(session or f"#{self._state.new_name()}", role, member, load)
        placed.is_anonymous = session is None or not arrives
        placed.measured_at = now
        self._state.count_session(found, placed)
        self._state.expect(placed, None, now)
        return Placement(cluster, member.id, member.node, role, placed.id)

    def arrived(self, session: str, now: float, *, entry: int | None = None) -> None:
        """A session was seen where it was expected. `entry` is the node of its connection, None for the member's."""
        known = self._state.sessions.get(session)
        if known is not None:
            known[1].due = known[1].origin = None
            known[1].entry = entry

    def leave(self, session: str, now: float) -> None:
        """A session has ended. One that is not known is no mistake: it may have been given up already."""
        if session in self._state.sessions:
            self._state.drop_session(session)
        self._state.homeless.pop(session, None)

    def move_failed(self, session: str, now: float, why: str = "unknown") -> None:
        """A session did not move: it is where it was, and is not asked again before its cool-down."""
        known = self._state.sessions.get(session)
        if known is not None:
            self._state.send_back(*known)
            self._state.note_failure(known[0], now, f"session {session} did not move: {why}")

    def report(
        self,
        member: int,
        now: float,
        *,
        ready: int,
        unacked: int,
        sessions: Sequence[SessionReport] | None = None,
        idle: int = 0,
        epoch: int | None = None,
    ) -> None:
        """A member says what it has. `sessions` are all of its, None if only what joined and left is told.

        `idle` counts consumers that wait at an empty queue. What comes from an epoch of its node that is over, or
        from a member that is not known any more, is ignored.
        """
        known = self._state.members.get(member)
        if known is None:
            return
        cluster, reported = known
        node = self._state.nodes.get(reported.node)
        if node is None or (epoch is not None and epoch != node.epoch):
            return
        if sessions is not None:
            self._state.compare(cluster, reported, sessions, now)
        reported.ready, reported.unacked, reported.idle = ready, unacked, idle
        reported.is_known_empty = ready == 0 and unacked == 0
        if not reported.is_known_empty or reported.sessions:
            reported.removing_at = None
        cluster.provisioning.load_has_risen(cluster.roster.load)

    def tick(self, now: float) -> None:
        """Do what is due: forget who did not come, grow, shrink, remove, rebalance."""
        self._state.expire(now)
        for cluster in self._state.clusters.values():
            cluster.roster.settle()
            for key in cluster.provisioning.overdue(cluster.options, now):
                cluster.provisioning.has_failed(key, now)
                self._state.note_failure(cluster, now, f"no member came within {cluster.options.start_s:g} s")
            self._scaling.grow(cluster, now)
            self._scaling.shrink(cluster, now)
            if now >= cluster.next_round_at:
                cluster.next_round_at = now + cluster.options.period_s
                self._rebalance(cluster, now)
            verdict = cluster.ratio.look(cluster.roster, now)
            if verdict is not None:
                self._state.decide(now, HandOver(cluster=cluster.key, to=verdict[0], reason=verdict[1]))
        self._repair.house(now)
        for node in list(self._state.nodes.values()):
            self._scaling.release(node, now)

    # Rebalancing

    def _rebalance(self, cluster: KnownCluster, now: float) -> None:
        left = cluster.options.most_moves
        for wish in drains(cluster.roster, now, left):
            self._move(cluster, wish.session, wish.to, now, wish.reason)
            left -= 1
        while left > 0 and (best := best_move(cluster.roster, now)) is not None:
            self._move(cluster, best.session, best.to, now, best.reason)
            left -= 1

    def _move(self, cluster: KnownCluster, session: Session, to: Member, now: float, reason: str) -> None:
        origin = session.member.id
        cluster.roster.move(session, to)
        self._state.decide_move(cluster, session, origin, now, reason, may_return=True)

    # Looking up

    def waiting_s(self, cluster: str, now: float) -> float:
        """Return for how long a clustered queue has been waiting for a further member, 0 if it is not."""
        coming = self._state.cluster(cluster).provisioning.coming.values()
        return max((now - since for since, _ in coming), default=0.0)

    def member_of(self, session: str) -> int | None:
        """Return the member that a session counts at, None if it is not known."""
        return self._state.member_of(session)

    def standing(self, cluster: str) -> tuple[float, float | None, int] | None:
        """Return the load at which a clustered queue grows, its load and its usable members; see `DomainState`."""
        return self._state.standing(cluster)

    def count(self, cluster: str, role: Role) -> int:
        """Return how many sessions of a role a clustered queue has."""
        return self._state.cluster(cluster).roster.count(role)

    def snapshot(self, cluster: str, now: float) -> dict[str, Any]:
        """Return what the manager knows of a clustered queue, as what JSON can say."""
        return self._state.snapshot(cluster, now)
