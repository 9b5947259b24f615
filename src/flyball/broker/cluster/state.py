"""State of the manager: nodes, clustered queues, their members and sessions, and past decisions.

The only owner of this state. `manager`, `scaling` and `repair` read it and submit decisions, whose effects count from
then on. When to grow, or which session to move, is decided there.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from flyball.broker.cluster.decisions import (
    AddMember,
    Decision,
    Failure,
    Mark,
    Move,
    Provision,
    Record,
    Release,
    RemoveMember,
    SessionReport,
    TakeOver,
    Unmark,
)
from flyball.broker.cluster.load_table import LoadTable, Member, MemberSession
from flyball.broker.cluster.names import title
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.broker.cluster.provisioning import Coming, Provisioning
from flyball.broker.cluster.rebalancing import RatioWatch
from flyball.errors import ClusterError

# How long a placed or moved session counts before it was seen on its member.
EXPECTED_S = 10.0


@dataclass(slots=True)
class KnownNode:
    """A node as the manager knows it."""

    id: int
    epoch: int
    capacity: float
    provisioned_for: str | None
    is_leaving: bool = False
    is_released: bool = False
    unused_since: float | None = None


@dataclass(slots=True)
class KnownCluster:
    """A clustered queue with its members and pending changes."""

    key: str
    table: LoadTable
    # Nodes that an operator removed the member from: the manager creates none there.
    unwanted: frozenset[int] = frozenset()
    provisioning: Provisioning = field(default_factory=Provisioning)
    next_round_at: float = -math.inf
    ratio: RatioWatch = field(default_factory=RatioWatch)

    @property
    def options(self) -> ClusterOptions:
        return self.table.options


class DomainState:
    """The state and the decisions of one manager."""

    def __init__(
        self, *, history_length: int = 1000, name: str = "", on_record: Callable[[Record], None] | None = None
    ) -> None:
        """`name` prefixes generated names; `on_record` is called with each decision and failure."""
        self._on_record = on_record
        self.clusters: dict[str, KnownCluster] = {}
        self.nodes: dict[int, KnownNode] = {}
        self.members: dict[int, tuple[KnownCluster, Member]] = {}
        self.sessions: dict[str, tuple[KnownCluster, MemberSession]] = {}
        # Sessions whose clients are connected while their member is dead.
        self.homeless: dict[str, tuple[KnownCluster, MemberSession]] = {}
        # Number of decisions.
        self.decided = 0
        self._on_node: dict[int, dict[int, tuple[KnownCluster, Member]]] = {}
        self._expected: deque[tuple[float, MemberSession]] = deque()
        self._decisions: list[Decision] = []
        self._history: deque[Record] = deque(maxlen=history_length)
        self._name = name
        self._numbers = itertools.count(1)

    # Decisions

    def take_decisions(self) -> list[Decision]:
        """Return the decisions since the last call, in the order in which to carry them out."""
        decisions, self._decisions = self._decisions, []
        return decisions

    @property
    def history(self) -> list[Record]:
        """The latest decisions and failures, newest last."""
        return list(self._history)

    def decide(self, now: float, decision: Decision) -> None:
        """Submit a decision; its effects count from now on."""
        self._apply(decision, now)
        self._decisions.append(decision)
        self._record(Record(now, decision))
        self.decided += 1

    def decide_move(self, cluster: KnownCluster, session: MemberSession, to: Member, now: float, reason: str) -> None:
        """Ask a session to move to another member."""
        self.decide(
            now,
            Move(
                cluster=cluster.key,
                session=session.id,
                role=session.role,
                from_member=session.member.id,
                to_member=to.id,
                to_node=to.node,
                reason=reason,
            ),
        )

    def _apply(self, decision: Decision, now: float) -> None:
        match decision:
            case Move():
                self._apply_move(decision, now)
            case AddMember(node=node):
                cluster = self.clusters[decision.cluster]
                self.nodes[node].unused_since = None
                cluster.provisioning.expect(node, self.capacity_on(cluster, node), now)
            case Provision(request=request):
                cluster = self.clusters[decision.cluster]
                cluster.provisioning.expect(request, cluster.options.capacity, now)
            case Mark(member=member_id):
                cluster, member = self.members[member_id]
                cluster.table.set_state(member, is_marked=True)
                member.marked_at = now
                member.is_known_empty = False
            case Unmark(member=member_id):
                cluster, member = self.members[member_id]
                cluster.table.set_state(member, is_marked=False)
                cluster.provisioning.has_grown(now)
            case RemoveMember(member=member_id):
                self.members[member_id][1].removing_at = now
            case Release(node=node):
                self.nodes[node].is_released = True
            case TakeOver():
                self._apply_take_over(decision)

    def _apply_move(self, move: Move, now: float) -> None:
        """Count the session at the new member. If it does not arrive, it counts at the old one again."""
        to = self.members[move.to_member][1]
        known = self.sessions.get(move.session)
        if known is not None:
            cluster, session = known
            cluster.table.move(session, to)
        else:
            cluster, session = self.homeless[move.session]
            session.member = to
            self._count_session(cluster, session)
        session.moved_at = now
        self._expect(session, None if known is None else move.from_member, now)

    def _apply_take_over(self, decision: TakeOver) -> None:
        for member_id in decision.merges:
            cluster, member = self.members[member_id]
            self.homeless.update((session.id, (cluster, session)) for session in member.sessions.values())
            self._forget_member(cluster, member)
            cluster.provisioning.low_since = None
        for member_id, node in decision.assignments.items():
            if member_id in self.members:
                cluster, member = self.members[member_id]
                del self._on_node[member.node][member.id]
                member.node = node
                self._settle_member(cluster, member)
                member.removing_at = None
                member.is_leaving = False
                cluster.table.set_capacity(member, self.capacity_on(cluster, node))
                cluster.table.set_state(member, is_marked=False, is_served=True)
                cluster.provisioning.coming.pop(node, None)
                cluster.provisioning.low_since = None

    def provision_failed(self, request: str, now: float, why: str = "unknown") -> None:
        """A node failed to start. It is requested again after a delay if it is still needed."""
        for cluster in self.clusters.values():
            if request in cluster.provisioning.coming:
                self.not_coming(cluster, request, now, f"starting a node failed: {why}")

    def not_coming(self, cluster: KnownCluster, key: Coming, now: float, reason: str) -> None:
        """A requested member failed."""
        cluster.provisioning.has_failed(key, now)
        self._note_failure(cluster, now, reason)

    def _note_failure(self, cluster: KnownCluster, now: float, reason: str) -> None:
        self._record(Record(now, Failure(cluster=cluster.key, reason=reason)))

    def new_name(self) -> str:
        """Return a name that is unique among all managers."""
        return f"{self._name}{next(self._numbers)}"

    def _record(self, record: Record) -> None:
        self._history.append(record)
        if self._on_record is not None:
            self._on_record(record)

    # Lookups

    def cluster(self, cluster: str) -> KnownCluster:
        """Return a clustered queue. Raises ClusterError if it is unknown."""
        try:
            return self.clusters[cluster]
        except KeyError:
            raise ClusterError(f"no clustered queue {title(cluster)!r}: create it first") from None

    def capacity_on(self, cluster: KnownCluster, node: int) -> float:
        """Return the capacity of a member on a node."""
        known = self.nodes.get(node)
        return cluster.options.capacity * (1.0 if known is None else known.capacity)

    def members_on(self, node: int) -> list[tuple[KnownCluster, Member]]:
        """Return the members that a node serves."""
        return list(self._on_node.get(node, {}).values())

    def fullness(self, node: KnownNode) -> tuple[float, int]:
        """Return a sort key for nodes: the least loaded for its capacity first."""
        load = sum(cluster.table.load_of(member) / member.capacity for cluster, member in self.members_on(node.id))
        return load / node.capacity, node.id

    def waiting_s(self, cluster: str, now: float) -> float:
        """Return how long a clustered queue has been waiting for a further member; 0 if it is not."""
        coming = self.cluster(cluster).provisioning.coming.values()
        return max((now - since for since, _ in coming), default=0.0)

    # Clustered queues and nodes

    def set_cluster(
        self, cluster: str, options: ClusterOptions, now: float, *, unwanted: Collection[int] = ()
    ) -> None:
        """Add a clustered queue, or change its options.

        The manager creates no member on the `unwanted` nodes: an operator removed it there.
        """
        found = self.clusters.get(cluster)
        if found is None:
            self.clusters[cluster] = KnownCluster(cluster, LoadTable(options), frozenset(unwanted))
            return
        found.unwanted = frozenset(unwanted)
        found.table.set_options(options)
        for member in found.table.members.values():
            found.table.set_capacity(member, self.capacity_on(found, member.node))

    def drop_cluster(self, cluster: str) -> None:
        """Forget a clustered queue with its members and sessions."""
        found = self.clusters.pop(cluster, None)
        if found is not None:
            for member in list(found.table.members.values()):
                self._forget_member(found, member)
            for session in [session for session, (owner, _) in self.homeless.items() if owner is found]:
                del self.homeless[session]

    def note_node(self, known: KnownNode) -> bool:
        """Add or update a node; return whether it is new, or has a new epoch.

        It serves again the members that no other node has taken over; its clients have lost their connections.
        """
        before = self.nodes.get(known.id)
        if before is not None and before.epoch == known.epoch:
            before.capacity = known.capacity
            return False
        self.nodes[known.id] = known
        for cluster in self.clusters.values():
            # The new node may be the one that was missing.
            cluster.provisioning.retry_at = -math.inf
        for cluster, member in self.members_on(known.id):
            self._lose_sessions(member)
            member.is_known_empty = False
            cluster.table.set_state(member, is_served=True)
        return True

    def forget_node(self, node: int) -> KnownNode | None:
        """Forget a dead node and its clients' connections; return what was known of it."""
        known = self.nodes.pop(node, None)
        for cluster in self.clusters.values():
            cluster.provisioning.coming.pop(node, None)
        for _, member in self.members_on(node):
            self._lose_sessions(member)
        return known

    def unserve(self, node: int) -> None:
        """Mark the members of a dead node as unserved: no other node could take them over."""
        for cluster, member in self.members_on(node):
            cluster.table.set_state(member, is_served=False)

    def unused_s(self, node: KnownNode, now: float) -> float:
        """Return how long a node has had no members."""
        if node.unused_since is None:
            node.unused_since = now
        return now - node.unused_since

    # Members

    def put_member(self, cluster: KnownCluster, member: Member, now: float) -> None:
        """Add a member, or update its capacity; see `Manager.member_added`."""
        cluster.provisioning.coming.pop(member.node, None)
        if member.id in self.members:
            old = self.members[member.id][1]
            cluster.table.set_capacity(old, member.capacity)
            old.is_fixed = member.is_fixed
            return
        node = self.nodes.get(member.node)
        member.is_served = node is not None
        member.marked_at = now if member.is_marked else -math.inf
        cluster.table.add(member)
        self._settle_member(cluster, member)
        cluster.provisioning.low_since = None
        if node is not None:
            node.unused_since = None
            member.is_leaving = node.is_leaving

    def drop_member(self, cluster: KnownCluster, member: Member, now: float) -> None:
        """Remove a member that was drained."""
        self._forget_member(cluster, member)
        cluster.provisioning.removed_at = now
        cluster.provisioning.low_since = None
        cluster.provisioning.retry_at = -math.inf
        node = self.nodes.get(member.node)
        if node is not None and not self.members_on(node.id):
            node.unused_since = now

    def set_leaving(self, member: Member, is_leaving: bool) -> None:
        """Mark whether an operator is removing a member; keeping it cancels a pending removal."""
        member.is_leaving = is_leaving
        if not is_leaving:
            member.removing_at = None

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
        """Update a member from its report. `sessions` are all of its sessions; None if only joins and leaves are
        reported.

        `idle` counts consumers that wait at an empty queue. Reports from an older epoch of its node, or of an unknown
        member, are ignored.
        """
        known = self.members.get(member)
        if known is None:
            return
        cluster, reported = known
        node = self.nodes.get(reported.node)
        if node is None or (epoch is not None and epoch != node.epoch):
            return
        if sessions is not None:
            self._compare(cluster, reported, sessions, now)
        reported.ready, reported.unacked, reported.idle = ready, unacked, idle
        reported.is_known_empty = ready == 0 and unacked == 0
        if not reported.is_known_empty or reported.sessions:
            reported.removing_at = None
        cluster.provisioning.load_has_risen(cluster.table.load)

    def _settle_member(self, cluster: KnownCluster, member: Member) -> None:
        """Index a member by node."""
        self.members[member.id] = (cluster, member)
        self._on_node.setdefault(member.node, {})[member.id] = (cluster, member)

    def _forget_member(self, cluster: KnownCluster, member: Member) -> None:
        """Forget a member and its sessions."""
        for session in list(member.sessions.values()):
            self.drop_session(session.id)
        cluster.table.remove(member)
        del self.members[member.id]
        del self._on_node[member.node][member.id]

    def _lose_sessions(self, member: Member) -> None:
        """Drop the sessions of a dead member whose connections ended with its node."""
        for session in list(member.sessions.values()):
            if session.entry is None or session.entry == member.node or session.entry not in self.nodes:
                self.drop_session(session.id)

    # Sessions

    def place(
        self, cluster: KnownCluster, role: Role, member: Member, now: float, name: str | None, *, is_anonymous: bool
    ) -> MemberSession:
        """Count a client that is expected at a member. Without a name it gets a generated one."""
        session = MemberSession(name or f"#{self.new_name()}", role, member, cluster.options.weight(role))
        session.is_anonymous = is_anonymous
        session.measured_at = now
        self._count_session(cluster, session)
        self._expect(session, None, now)
        return session

    def arrived(self, session: str, now: float, *, entry: int | None = None) -> None:
        """A session was seen at its member. `entry` is the node of its connection, None for the member's."""
        known = self.sessions.get(session)
        if known is not None:
            known[1].due = known[1].origin = None
            known[1].entry = entry

    def leave(self, session: str, now: float) -> None:
        """A session has ended. It may have expired before: unknown ids are ignored."""
        if session in self.sessions:
            self.drop_session(session)
        self.homeless.pop(session, None)

    def move_failed(self, session: str, now: float, why: str = "unknown") -> None:
        """A session did not move: count it at its old member, with a cool-down."""
        known = self.sessions.get(session)
        if known is not None:
            self._send_back(*known)
            self._note_failure(known[0], now, f"session {session} did not move: {why}")

    def _count_session(self, cluster: KnownCluster, session: MemberSession) -> None:
        """Count a session at its member from now on."""
        cluster.table.put(session)
        cluster.provisioning.largest.note(session.load)
        cluster.provisioning.load_has_risen(cluster.table.load)
        self.sessions[session.id] = (cluster, session)
        self.homeless.pop(session.id, None)

    def drop_session(self, session_id: str) -> None:
        """Stop counting a session."""
        cluster, session = self.sessions.pop(session_id)
        cluster.provisioning.largest.note(session.load)
        cluster.table.drop(session)

    def _expect(self, session: MemberSession, origin: int | None, now: float) -> None:
        """Count a session for a grace period although it has not arrived; then it returns to `origin`, if any."""
        session.origin = origin
        session.due = now + EXPECTED_S
        self._expected.append((session.due, session))

    def expire(self, now: float) -> None:
        """Drop expected sessions that have not arrived, and undo moves that did not happen."""
        while self._expected and self._expected[0][0] <= now:
            _, session = self._expected.popleft()
            known = self.sessions.get(session.id)
            if known is None or known[1] is not session or session.due is None or session.due > now:
                continue
            if session.origin is None:
                self.drop_session(session.id)
            else:
                self._send_back(*known)

    def _send_back(self, cluster: KnownCluster, session: MemberSession) -> None:
        """Undo the move of a session."""
        origin = None if session.origin is None else cluster.table.members.get(session.origin)
        session.due = session.origin = None
        if origin is not None:
            cluster.table.move(session, origin)

    def _compare(self, cluster: KnownCluster, member: Member, reports: Sequence[SessionReport], now: float) -> None:
        """Update the sessions of a member from its report, except those in transit."""
        seen = set()
        for report in reports:
            seen.add(report.session)
            self._take_in(cluster, member, report, now)
        for session in [session for session in member.sessions.values() if session.id not in seen]:
            if session.due is None or session.due <= now:
                self.drop_session(session.id)

    def _take_in(self, cluster: KnownCluster, member: Member, report: SessionReport, now: float) -> None:
        known = self.sessions.get(report.session)
        if known is not None and (known[0] is not cluster or known[1].role is not report.role):
            self.drop_session(report.session)
            known = None
        if known is None:
            self._displace_anonymous(member, report.role)
            session = MemberSession(report.session, report.role, member, cluster.options.weight(report.role))
            session.measured_at = now
            self._count_session(cluster, session)
        else:
            session = known[1]
            if session.member is not member:
                if session.due is not None and session.due > now:
                    return
                cluster.table.move(session, member)
            session.due = session.origin = None
        session.entry = report.entry
        if cluster.table.measure(session, report.rate_per_s, now):
            cluster.provisioning.largest.note(session.load)

    def _displace_anonymous(self, member: Member, role: Role) -> None:
        """Drop an anonymous place: its client has arrived with its own id."""
        for session in member.sessions.values():
            if session.is_anonymous and session.due is not None and session.role is role:
                self.drop_session(session.id)
                return
