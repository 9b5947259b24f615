"""The manager of a domain: hears what happens, decides what is to be done, and says why.

It does no I/O and keeps no clock: `now` is seconds of any clock that does not go back. Whoever runs it calls it about
every second (`tick`), carries out what `take_decisions` returns, in order, and tells it what became of that. A new
leader begins with a new one: what it hears of nodes, members and sessions is all it needs.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flyball.cluster.decisions import (
    AddMember,
    Decision,
    Failure,
    HandOver,
    Mark,
    Move,
    Placement,
    Provision,
    Record,
    Release,
    RemoveMember,
    SessionReport,
    TakeOver,
    Unmark,
    Wait,
)
from flyball.cluster.domain import ClusterOptions, Loads, Role, title
from flyball.cluster.placement import NodeLoad, QueueLoad, assign, elect, elect_for_load, potential
from flyball.cluster.provisioning import Provisioning, TakeBack
from flyball.cluster.rebalancing import RatioWatch, best_move, drains
from flyball.cluster.roster import Member, Roster, Session
from flyball.errors import ClusterError

EXPECTED_S = 10.0
"""How long a session counts that was placed, or asked to move, and has not been seen there."""

IDLE_SHARE = 0.05
"""A session counts at least this share of its role's weight: idle ones are to be spread as well."""

RETRY_AFTER_S = 1.0
"""When a client that found no place may ask again."""


@dataclass(slots=True)
class _Node:
    id: int
    epoch: int
    capacity: float
    provisioned_for: str | None
    provisioner: str
    is_healthy: bool = True
    is_leaving: bool = False
    is_released: bool = False
    unused_since: float | None = None


@dataclass(slots=True)
class _Cluster:
    key: str
    roster: Roster
    provisioning: Provisioning = field(default_factory=Provisioning)
    unwanted: set[int] = field(default_factory=set)
    """Nodes that somebody had the member removed from: they get none again by the manager's own will."""
    next_round_at: float = -math.inf
    ratio: RatioWatch = field(default_factory=RatioWatch)

    @property
    def options(self) -> ClusterOptions:
        return self.roster.options


class Manager:
    """Governs all clustered queues of a domain."""

    def __init__(self, *, history_length: int = 1000, name: str = "") -> None:
        self._clusters: dict[str, _Cluster] = {}
        self._nodes: dict[int, _Node] = {}
        self._members: dict[int, tuple[_Cluster, Member]] = {}
        self._on_node: dict[int, dict[int, tuple[_Cluster, Member]]] = {}
        self._sessions: dict[str, tuple[_Cluster, Session]] = {}
        self._homeless: dict[str, tuple[_Cluster, Session]] = {}
        self._expected: deque[tuple[float, Session]] = deque()
        self._orphans: dict[int, list[QueueLoad]] = {}
        self._decisions: list[Decision] = []
        self._history: deque[Record] = deque(maxlen=history_length)
        self._numbers = itertools.count(1)
        self._name = name
        self.decided = 0

    # What came of it

    def take_decisions(self) -> list[Decision]:
        """Return what has been decided since the last call, in the order in which it is to be done."""
        decisions, self._decisions = self._decisions, []
        return decisions

    @property
    def history(self) -> list[Record]:
        """The last decisions with their reasons, newest last."""
        return list(self._history)

    def _decide(self, now: float, decision: Decision) -> None:
        self._decisions.append(decision)
        self._history.append(Record(now, decision))
        self.decided += 1

    def _note_failure(self, cluster: _Cluster, now: float, reason: str) -> None:
        self._history.append(Record(now, Failure(cluster=cluster.key, reason=reason)))

    # The shape of the domain

    def set_cluster(self, cluster: str, options: ClusterOptions, now: float) -> None:
        """Govern a clustered queue, or with other options than before."""
        found = self._clusters.get(cluster)
        if found is None:
            self._clusters[cluster] = _Cluster(cluster, Roster(options))
            return
        found.roster.set_options(options)
        for member in found.roster.members.values():
            if not member.has_own_capacity:
                found.roster.set_capacity(member, self._capacity_on(found, member.node))

    def drop_cluster(self, cluster: str) -> None:
        """Forget a clustered queue with its members and sessions."""
        found = self._clusters.pop(cluster, None)
        if found is not None:
            for member in list(found.roster.members.values()):
                self._forget_member(found, member)
            for session in [session for session, (owner, _) in self._homeless.items() if owner is found]:
                del self._homeless[session]

    def node_up(
        self,
        node: int,
        now: float,
        *,
        epoch: int = 0,
        capacity: float = 1.0,
        provisioned_for: str | None = None,
        provisioner: str = "",
        request: str | None = None,
    ) -> None:
        """A node is there. `capacity` is its size, 1 for an ordinary one.

        `provisioned_for` is the clustered queue that it was started for, "" if a person wanted it, None if nobody had
        it started; `request` is that of the decision to start it.
        """
        known = self._nodes.get(node)
        if known is not None and known.epoch == epoch:
            known.capacity = capacity
            return
        self._nodes[node] = _Node(node, epoch, capacity, provisioned_for, provisioner)
        self._revive(node)
        self._look_for_nodes_again()
        self._orphans.pop(node, None)
        for gone in list(self._orphans):
            self._take_over(gone, self._orphans.pop(gone), now)
        for cluster in self._clusters.values():
            was_asked_for = request is not None and cluster.provisioning.coming.pop(request, None) is not None
            if was_asked_for and self._nodes[node] in self._free_nodes(cluster):
                self._add_member(cluster, self._nodes[node], now, "it was started for this")

    def node_health(self, node: int, is_healthy: bool, now: float) -> None:
        """A node can, or cannot, take clients. Those that it has stay."""
        known = self._nodes.get(node)
        if known is None:
            return
        known.is_healthy = is_healthy
        for cluster, member in self._members_on(node):
            cluster.roster.set_state(member, is_healthy=is_healthy)
            cluster.provisioning.low_since = None
            self._grow(cluster, now)
        if is_healthy:
            self._look_for_nodes_again()

    def node_leaves(self, node: int, now: float) -> None:
        """A node is to stop in good order: its members are drained, as soon as others are there."""
        known = self._nodes.get(node)
        if known is None:
            raise ClusterError(f"there is no node {node}: look at `flyball domain show`")
        known.is_leaving = True
        for cluster, member in self._members_on(node):
            member.is_leaving = True
            self._retire(cluster, member, now, f"node {node} is to stop")

    def node_gone(self, node: int, now: float, queues: Sequence[QueueLoad] = ()) -> None:
        """A node is dead: others get what it served. `queues` are its ordinary queues."""
        known = self._nodes.pop(node, None)
        for cluster in self._clusters.values():
            cluster.provisioning.coming.pop(_coming_key(node), None)
        if known is not None and known.is_released and not queues and not self._members_on(node):
            return
        wanted = [
            (cluster, cluster.roster.usable_count + len(cluster.provisioning.coming))
            for cluster, member in self._members_on(node)
            if member.is_usable
        ]
        self._take_over(node, list(queues), now)
        if known is None or known.is_leaving or known.is_released:
            return
        if known.provisioned_for == "":
            self._provision(None, now, f"node {node}, which was started on request, is gone", known.provisioner, node)
        elif known.provisioned_for is not None:
            for cluster, count in wanted:
                self._replace(cluster, node, count, now)

    def member_added(
        self,
        cluster: str,
        member: int,
        node: int,
        now: float,
        *,
        capacity: float | None = None,
        is_marked: bool = False,
        is_fixed: bool = False,
    ) -> None:
        """A member is there. `is_fixed`: a person asked for it, and the manager never removes it by itself."""
        found = self._cluster(cluster)
        found.provisioning.coming.pop(_coming_key(node), None)
        found.unwanted.discard(node)
        known = self._nodes.get(node)
        has_own_capacity = capacity is not None
        if capacity is None:
            capacity = self._capacity_on(found, node)
        if member in self._members:
            old = self._members[member][1]
            old.has_own_capacity = has_own_capacity
            found.roster.set_capacity(old, capacity)
            if is_fixed and not old.is_fixed:
                self._keep(found, old, now)
            old.is_fixed = is_fixed
            return
        added = Member(member, node, capacity, is_fixed=is_fixed, is_marked=is_marked)
        added.has_own_capacity = has_own_capacity
        added.is_healthy = known is not None and known.is_healthy
        added.marked_at = now if is_marked else -math.inf
        found.roster.add(added)
        self._settle_member(found, added)
        found.provisioning.low_since = None
        if known is not None:
            known.unused_since = None
            if known.is_leaving:
                added.is_leaving = True

    def member_removed(self, cluster: str, member: int, now: float) -> None:
        """A member is gone in good order; sessions that it still had are re-placed if their clients are elsewhere."""
        known = self._members.get(member)
        if known is None:
            return
        found, removed = known
        node = self._nodes.get(removed.node)
        self._forget_member(found, removed)
        if removed.is_leaving:
            found.unwanted.add(removed.node)
        found.provisioning.removed_at = now
        found.provisioning.low_since = None
        found.provisioning.retry_at = -math.inf
        if node is not None and not self._members_on(node.id):
            node.unused_since = now
            self._release(node, now)

    def mark(self, cluster: str, member: int, now: float, reason: str = "somebody wants it removed") -> None:
        """A person wants a member removed: it is drained as soon as another one is there. Raises ClusterError."""
        found = self._cluster(cluster)
        known = self._members.get(member)
        if known is None or known[0] is not found:
            raise ClusterError(f"{title(cluster)!r} has no member {member}: look at `flyball domain show`")
        known[1].is_leaving = True
        self._retire(found, known[1], now, reason)

    def provision_failed(self, request: str, now: float, why: str = "unknown") -> None:
        """A node could not be started. It is tried again after a while if it is still needed."""
        for cluster in self._clusters.values():
            if request in cluster.provisioning.coming:
                cluster.provisioning.has_failed(request, now)
                self._note_failure(cluster, now, f"no node could be started: {why}")

    # What happens

    def join(
        self,
        cluster: str,
        role: Role,
        now: float,
        *,
        session: str | None = None,
        waited_s: float = 0.0,
        avoid: int | None = None,
    ) -> Placement | Wait:
        """Place a client; it counts from now on, for a while even if it does not come.

        Without a `session` id, the first new session of that role that the member reports takes its place. `avoid` is
        a node that the client could not reach. Raises ClusterError for a clustered queue that is not there.
        """
        found = self._cluster(cluster)
        if session is not None and session in self._sessions:
            self._drop_session(session)
        roster = found.roster
        load = found.options.weight(role)
        if roster.load + load > found.options.theta_up * roster.usable_capacity:
            self._grow(found, now, load)
            if found.provisioning.coming and waited_s < found.options.wait_s:
                return Wait(cluster, RETRY_AFTER_S, "there is no room: a further member is being made")
        member = elect(roster, role, avoid=avoid)
        if member is None:
            return Wait(cluster, RETRY_AFTER_S, "no member can take clients yet: one is being made or repaired")
        placed = Session(session or f"{self._name}#{next(self._numbers)}", role, member, load, now + EXPECTED_S)
        placed.is_anonymous = session is None
        placed.measured_at = now
        self._count_session(found, placed)
        self._expected.append((now + EXPECTED_S, placed))
        return Placement(cluster, member.id, member.node, role, placed.id)

    def arrived(self, session: str, now: float, *, entry: int | None = None) -> None:
        """A session was seen where it was expected. `entry` is the node of its connection, None for the member's."""
        known = self._sessions.get(session)
        if known is not None:
            known[1].due = known[1].origin = None
            known[1].entry = entry

    def leave(self, session: str, now: float) -> None:
        """A session has ended. One that is not known is no mistake: it may have been given up already."""
        if session in self._sessions:
            self._drop_session(session)
        self._homeless.pop(session, None)

    def move_failed(self, session: str, now: float, why: str = "unknown") -> None:
        """A session did not move: it is where it was, and is not asked again before its cool-down."""
        known = self._sessions.get(session)
        if known is not None:
            self._return(*known)
            self._note_failure(known[0], now, f"session {session} did not move: {why}")

    def report(
        self,
        member: int,
        now: float,
        *,
        ready: int,
        unacked: int,
        sessions: Sequence[SessionReport] | None = None,
        idle: int = 0,
        capacity: float | None = None,
        epoch: int | None = None,
    ) -> None:
        """A member says what it has. `sessions` are all of its, None if only what joined and left is told.

        `idle` counts consumers that wait at an empty queue. What comes from an epoch of its node that is over, or
        from a member that is not known any more, is ignored.
        """
        known = self._members.get(member)
        if known is None:
            return
        cluster, reported = known
        node = self._nodes.get(reported.node)
        if node is None or (epoch is not None and epoch != node.epoch):
            return
        if capacity is not None and capacity != reported.capacity:
            reported.has_own_capacity = True
            cluster.roster.set_capacity(reported, capacity)
        if sessions is not None:
            self._compare(cluster, reported, sessions, now)
        reported.ready, reported.unacked, reported.idle = ready, unacked, idle
        reported.is_known_empty = ready == 0 and unacked == 0
        if not reported.is_known_empty or reported.sessions:
            reported.removing_at = None
        cluster.provisioning.load_has_risen(cluster.roster.load)

    def tick(self, now: float) -> None:
        """Do what is due: forget who did not come, grow, shrink, remove, rebalance."""
        self._expire(now)
        for cluster in self._clusters.values():
            cluster.roster.settle()
            for key in cluster.provisioning.overdue(cluster.options, now):
                cluster.provisioning.has_failed(key, now)
                self._note_failure(cluster, now, f"no member came within {cluster.options.start_s:g} s")
            self._grow(cluster, now)
            self._shrink(cluster, now)
            if now >= cluster.next_round_at:
                cluster.next_round_at = now + cluster.options.period_s
                self._rebalance(cluster, now)
            verdict = cluster.ratio.look(cluster.roster, now)
            if verdict is not None:
                self._decide(now, HandOver(cluster=cluster.key, to=verdict[0], reason=verdict[1]))
        self._house(now)
        for node in list(self._nodes.values()):
            self._release(node, now)

    # Sessions

    def _count_session(self, cluster: _Cluster, session: Session) -> None:
        cluster.roster.put(session)
        cluster.provisioning.largest.note(session.load)
        cluster.provisioning.load_has_risen(cluster.roster.load)
        self._sessions[session.id] = (cluster, session)
        self._homeless.pop(session.id, None)

    def _drop_session(self, session_id: str) -> None:
        cluster, session = self._sessions.pop(session_id)
        cluster.provisioning.largest.note(session.load)
        cluster.roster.drop(session)

    def _expire(self, now: float) -> None:
        """Whoever was only expected and has not come is forgotten; whoever should have moved has not."""
        while self._expected and self._expected[0][0] <= now:
            _, session = self._expected.popleft()
            known = self._sessions.get(session.id)
            if known is None or known[1] is not session or session.due is None or session.due > now:
                continue
            if session.origin is None:
                self._drop_session(session.id)
            else:
                self._return(*known)

    def _return(self, cluster: _Cluster, session: Session) -> None:
        origin = None if session.origin is None else cluster.roster.members.get(session.origin)
        session.due = session.origin = None
        if origin is not None:
            cluster.roster.move(session, origin)

    def _compare(self, cluster: _Cluster, member: Member, reports: Sequence[SessionReport], now: float) -> None:
        """Make the books say what the member says, but for who is on the way."""
        seen = set()
        for report in reports:
            seen.add(report.session)
            self._take_in(cluster, member, report, now)
        for session in [session for session in member.sessions.values() if session.id not in seen]:
            if session.due is None or session.due <= now:
                self._drop_session(session.id)

    def _take_in(self, cluster: _Cluster, member: Member, report: SessionReport, now: float) -> None:
        known = self._sessions.get(report.session)
        if known is not None and (known[0] is not cluster or known[1].role is not report.role):
            self._drop_session(report.session)
            known = None
        if known is None:
            self._displace_anonymous(member, report.role)
            session = Session(report.session, report.role, member, cluster.options.weight(report.role))
            session.measured_at = now
            self._count_session(cluster, session)
        else:
            session = known[1]
            if session.member is not member:
                if session.due is not None and session.due > now:
                    return
                cluster.roster.move(session, member)
            session.due = session.origin = None
        session.entry, session.is_movable, session.cost = report.entry, report.is_movable, max(1.0, report.cost)
        self._measure(cluster, session, report.rate_per_s, now)

    def _displace_anonymous(self, member: Member, role: Role) -> None:
        """The client that a place was kept for has come, under a name of its own."""
        for session in member.sessions.values():
            if session.is_anonymous and session.due is not None and session.role is role:
                self._drop_session(session.id)
                return

    @staticmethod
    def _measure(cluster: _Cluster, session: Session, rate_per_s: float | None, now: float) -> None:
        options = cluster.options
        weight = options.weight(session.role)
        if options.loads == Loads.MEASURED and rate_per_s is not None:
            passed_s = max(0.0, now - session.measured_at)
            share = 1 - math.exp(-passed_s / options.load_window_s)
            load = session.load + share * (rate_per_s * options.message_cost - session.load)
            load = max(load, IDLE_SHARE * weight)
        elif options.loads == Loads.WEIGHTS:
            load = weight
        else:
            load = session.load
        session.measured_at = now
        if load != session.load:
            cluster.roster.set_load(session, load)
            cluster.provisioning.largest.note(load)

    # Growing

    def _grow(self, cluster: _Cluster, now: float, extra: float = 0.0) -> None:
        while (step := cluster.provisioning.next_growth(cluster.roster, now, extra)) is not None:
            if isinstance(step, TakeBack):
                self._unmark(cluster, step.member, now, step.reason)
            elif not self._extend(cluster, now, step.reason):
                return

    def _unmark(self, cluster: _Cluster, member: Member, now: float, reason: str) -> None:
        cluster.roster.set_state(member, is_marked=False)
        cluster.provisioning.has_grown(now)
        self._decide(now, Unmark(cluster=cluster.key, member=member.id, node=member.node, reason=reason))

    def _keep(self, cluster: _Cluster, member: Member, now: float) -> None:
        """A person wants the member: whatever was to become of it is void."""
        member.is_leaving = False
        member.removing_at = None
        if member.is_marked:
            self._unmark(cluster, member, now, "somebody wants it")

    def _extend(self, cluster: _Cluster, now: float, reason: str, replaces: int | None = None) -> bool:
        """Add a member on a node that is there, or have one started. False if neither can be."""
        free = self._free_nodes(cluster)
        if free:
            self._add_member(cluster, min(free, key=self._fullness), now, reason)
            return True
        provisioner = cluster.options.provisioner
        if not provisioner:
            cluster.provisioning.retry_at = now + RETRY_AFTER_S
            return False
        self._provision(cluster, now, reason, provisioner, replaces)
        return True

    def _free_nodes(self, cluster: _Cluster) -> list[_Node]:
        taken = {member.node for member in cluster.roster.members.values()}
        return [
            node
            for node in self._nodes.values()
            if node.id not in taken
            and node.id not in cluster.unwanted
            and node.is_healthy
            and not node.is_leaving
            and not node.is_released
            and _coming_key(node.id) not in cluster.provisioning.coming
        ]

    def _fullness(self, node: _Node) -> tuple[float, int]:
        load = sum(cluster.roster.load_of(member) / member.capacity for cluster, member in self._members_on(node.id))
        return load / node.capacity, node.id

    def _add_member(self, cluster: _Cluster, node: _Node, now: float, reason: str) -> None:
        capacity = self._capacity_on(cluster, node.id)
        node.unused_since = None
        cluster.provisioning.expect(_coming_key(node.id), capacity, now)
        self._decide(now, AddMember(cluster=cluster.key, node=node.id, reason=reason))

    def _provision(
        self, cluster: _Cluster | None, now: float, reason: str, provisioner: str, replaces: int | None
    ) -> None:
        request = f"{self._name}{next(self._numbers)}"
        key = ""
        if cluster is not None:
            key = cluster.key
            cluster.provisioning.expect(request, cluster.options.capacity, now)
        self._decide(
            now, Provision(cluster=key, request=request, provisioner=provisioner, replaces=replaces, reason=reason)
        )

    def _replace(self, cluster: _Cluster, node: int, count: int, now: float) -> None:
        """Restore what there was. Whether it is still needed is for the shrinking to say, with its dwell time."""
        if cluster.roster.usable_count + len(cluster.provisioning.coming) >= count:
            return
        reason = f"node {node}, which was started for it, is gone"
        marked = cluster.provisioning.fullest_marked(cluster.roster)
        if marked is not None:
            self._unmark(cluster, marked, now, reason)
        elif len(cluster.roster.members) + len(cluster.provisioning.coming) < cluster.options.max_members:
            self._extend(cluster, now, reason, replaces=node)

    # Shrinking

    def _shrink(self, cluster: _Cluster, now: float) -> None:
        for member in [member for member in cluster.roster.members.values() if member.is_leaving]:
            self._retire(cluster, member, now, "it is to be removed, and others are there now")
        provisioned = frozenset(node.id for node in self._nodes.values() if node.provisioned_for)
        found = cluster.provisioning.next_mark(cluster.roster, now, provisioned)
        if found is not None:
            self._mark(cluster, *found, now=now)
        for member, reason in cluster.provisioning.removable(cluster.roster, now):
            member.removing_at = now
            self._decide(now, RemoveMember(cluster=cluster.key, member=member.id, node=member.node, reason=reason))

    def _retire(self, cluster: _Cluster, member: Member, now: float, reason: str) -> None:
        """Mark a member that is to go, but only once another one can take its clients."""
        if member.is_marked:
            return
        if cluster.roster.usable_count == member.is_usable and not self._make_way(cluster, member, now):
            return
        self._mark(cluster, member, reason, now=now)
        self._grow(cluster, now)

    def _make_way(self, cluster: _Cluster, member: Member, now: float) -> bool:
        """See to it that another one takes clients, and return whether it does so already."""
        marked = cluster.provisioning.fullest_marked(cluster.roster)
        if marked is not None:
            self._unmark(cluster, marked, now, f"member {member.id} is to go")
            return True
        if not cluster.provisioning.coming:
            self._extend(cluster, now, f"member {member.id}, the only one, is to go")
        return False

    def _mark(self, cluster: _Cluster, member: Member, reason: str, *, now: float) -> None:
        cluster.roster.set_state(member, is_marked=True)
        member.marked_at = now
        member.is_known_empty = False
        self._decide(now, Mark(cluster=cluster.key, member=member.id, node=member.node, reason=reason))

    def _release(self, node: _Node, now: float) -> None:
        """Have a node stopped that was started for a clustered queue and has had no member for a dwell time."""
        if not node.provisioned_for or node.is_released or self._members_on(node.id):
            return
        if any(_coming_key(node.id) in cluster.provisioning.coming for cluster in self._clusters.values()):
            return
        if node.unused_since is None:
            node.unused_since = now
        owner = self._clusters.get(node.provisioned_for)
        if now - node.unused_since < (0.0 if owner is None else owner.options.dwell_s):
            return
        node.is_released = True
        self._decide(
            now,
            Release(
                cluster=node.provisioned_for,
                node=node.id,
                reason="it was started for this and is not needed any more",
            ),
        )

    # Repair

    def _take_over(self, node: int, queues: list[QueueLoad], now: float) -> None:
        """Give what a dead node had to others; it waits until there is anybody."""
        nodes = self._node_loads()
        dead = self._members_on(node)
        if not nodes:
            self._orphans[node] = queues
            for cluster, member in dead:
                self._lose_sessions(member)
                cluster.roster.set_state(member, is_healthy=False)
            return
        assignments = assign(queues, nodes)
        merges = {}
        for cluster, member in dead:
            self._lose_sessions(member)
            heir = self._heir(cluster, member)
            if heir is not None:
                merges[member.id] = heir.id
                self._homeless.update((session.id, (cluster, session)) for session in member.sessions.values())
                self._forget_member(cluster, member)
            else:
                assignments[member.id] = self._re_own(cluster, member, nodes)
            cluster.provisioning.low_since = None
        if assignments or merges:
            reason = f"node {node} is gone: what it served goes to others by their load"
            self._decide(now, TakeOver(cluster="", node=node, assignments=assignments, merges=merges, reason=reason))
        for cluster, _ in dead:
            self._grow(cluster, now)
        self._house(now)

    def _node_loads(self) -> list[NodeLoad]:
        useful = [node for node in self._nodes.values() if not node.is_leaving and not node.is_released]
        return [
            NodeLoad(node.id, node.capacity, self._fullness(node)[0] * node.capacity)
            for node in useful or self._nodes.values()
        ]

    def _heir(self, cluster: _Cluster, dead: Member) -> Member | None:
        """Return the member that gets the messages: one that gets clients if possible, the one with the least."""
        others = [
            member for member in cluster.roster.members.values() if member is not dead and member.node in self._nodes
        ]
        return min(
            others, key=lambda member: (not member.is_usable, member.ready / member.capacity, member.id), default=None
        )

    def _re_own(self, cluster: _Cluster, member: Member, nodes: list[NodeLoad]) -> int:
        """The last member lives on at another node."""
        del self._on_node[member.node][member.id]
        coming = cluster.provisioning.coming
        free = [node for node in nodes if _coming_key(node.node) not in coming]
        member.node = assign([QueueLoad(member.id, load=1.0)], free or nodes)[member.id]
        self._settle_member(cluster, member)
        member.removing_at = None
        member.is_leaving = False
        member.has_own_capacity = False
        cluster.roster.set_capacity(member, self._capacity_on(cluster, member.node))
        cluster.roster.set_state(member, is_marked=False, is_healthy=self._nodes[member.node].is_healthy)
        coming.pop(_coming_key(member.node), None)
        return member.node

    def _revive(self, node: int) -> None:
        """A node is back before anybody took over what it served; its clients have lost their connections."""
        for cluster, member in self._members_on(node):
            self._lose_sessions(member)
            member.is_known_empty = False
            cluster.roster.set_state(member, is_healthy=True)

    def _lose_sessions(self, member: Member) -> None:
        """Count those at a dead member no more whose connections ended with its node."""
        for session in list(member.sessions.values()):
            if session.entry is None or session.entry == member.node or session.entry not in self._nodes:
                self._drop_session(session.id)

    def _house(self, now: float) -> None:
        """Find a member for those whose clients are still connected somewhere, while their member is gone."""
        for cluster, session in list(self._homeless.values()):
            to = elect_for_load(cluster.roster, session.role, session.load)
            if to is None:
                continue
            origin, session.member = session.member, to
            self._count_session(cluster, session)
            session.moved_at = now
            self._await(session, None, now)
            self._decide_move(cluster, session, origin.id, now, f"the node of member {origin.id} is gone")

    # Rebalancing

    def _rebalance(self, cluster: _Cluster, now: float) -> None:
        left = cluster.options.most_moves
        for wish in drains(cluster.roster, now, left):
            self._move(cluster, wish.session, wish.to, now, wish.reason)
            left -= 1
        while left > 0 and (best := best_move(cluster.roster, now)) is not None:
            self._move(cluster, best.session, best.to, now, best.reason)
            left -= 1

    def _move(self, cluster: _Cluster, session: Session, to: Member, now: float, reason: str) -> None:
        origin = session.member.id
        cluster.roster.move(session, to)
        session.moved_at = now
        self._await(session, origin, now)
        self._decide_move(cluster, session, origin, now, reason)

    def _await(self, session: Session, origin: int | None, now: float) -> None:
        session.origin = origin
        session.due = now + EXPECTED_S
        self._expected.append((session.due, session))

    def _decide_move(self, cluster: _Cluster, session: Session, origin: int, now: float, reason: str) -> None:
        to = session.member
        self._decide(
            now,
            Move(
                cluster=cluster.key,
                session=session.id,
                role=session.role,
                from_member=origin,
                to_member=to.id,
                to_node=to.node,
                reason=reason,
            ),
        )

    def _look_for_nodes_again(self) -> None:
        for cluster in self._clusters.values():
            cluster.provisioning.retry_at = -math.inf

    # Looking up

    def _cluster(self, cluster: str) -> _Cluster:
        try:
            return self._clusters[cluster]
        except KeyError:
            raise ClusterError(f"there is no clustered queue {title(cluster)!r}: create it first") from None

    def _capacity_on(self, cluster: _Cluster, node: int) -> float:
        """Return what a member on a node can bear if it says nothing else."""
        known = self._nodes.get(node)
        return cluster.options.capacity * (1.0 if known is None else known.capacity)

    def _members_on(self, node: int) -> list[tuple[_Cluster, Member]]:
        return list(self._on_node.get(node, {}).values())

    def _settle_member(self, cluster: _Cluster, member: Member) -> None:
        """Remember where a member is."""
        self._members[member.id] = (cluster, member)
        self._on_node.setdefault(member.node, {})[member.id] = (cluster, member)

    def _forget_member(self, cluster: _Cluster, member: Member) -> None:
        for session in list(member.sessions.values()):
            self._drop_session(session.id)
        cluster.roster.remove(member)
        del self._members[member.id]
        del self._on_node[member.node][member.id]

    def waiting_s(self, cluster: str, now: float) -> float:
        """Return for how long a clustered queue has been waiting for a further member, 0 if it is not."""
        coming = self._cluster(cluster).provisioning.coming.values()
        return max((now - since for since, _ in coming), default=0.0)

    def member_of(self, session: str) -> int | None:
        """Return the member that a session counts at, None if it is not known."""
        known = self._sessions.get(session)
        return None if known is None else known[1].member.id

    def snapshot(self, cluster: str, now: float) -> dict[str, Any]:
        """Return what the manager knows of a clustered queue, as what JSON can say."""
        found = self._cluster(cluster)
        roster = found.roster
        producers, consumers = roster.count(Role.PRODUCER), roster.count(Role.CONSUMER)
        return {
            "producers": producers,
            "consumers": consumers,
            "load": roster.load,
            "usable_capacity": roster.usable_capacity,
            "usable_load": roster.usable_load if roster.usable_count else None,
            "potential": potential(roster),
            "coming": len(found.provisioning.coming),
            "retry_in_s": max(0.0, found.provisioning.retry_at - now),
            "held_for_s": None
            if found.provisioning.held_until is None
            else max(0.0, found.provisioning.held_until - now),
            "members": [
                {
                    "member": member.id,
                    "node": member.node,
                    "is_marked": member.is_marked,
                    "is_leaving": member.is_leaving,
                    "is_healthy": member.is_healthy,
                    "is_fixed": member.is_fixed,
                    "producers": roster.count_of(member, Role.PRODUCER),
                    "consumers": roster.count_of(member, Role.CONSUMER),
                    "producer_share": roster.count_of(member, Role.PRODUCER) / producers if producers else 0.0,
                    "consumer_share": roster.count_of(member, Role.CONSUMER) / consumers if consumers else 0.0,
                    "load": roster.load_of(member) / member.capacity,
                    "capacity": member.capacity,
                    "ready": member.ready,
                    "unacked": member.unacked,
                }
                for _, member in sorted(roster.members.items())
            ],
        }


def _coming_key(node: int) -> str:
    return f"node {node}"
