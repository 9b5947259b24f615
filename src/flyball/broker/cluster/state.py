"""The state of a domain's manager: nodes, clustered queues, their members and sessions, and what was decided.

It says what is known and who counts where. Whether a queue grows, or a session moves, is decided elsewhere.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flyball.broker.cluster.decisions import Decision, Failure, Move, Record, SessionReport
from flyball.broker.cluster.names import title
from flyball.broker.cluster.options import ClusterOptions, Loads, Role
from flyball.broker.cluster.placement import potential
from flyball.broker.cluster.provisioning import Provisioning
from flyball.broker.cluster.rebalancing import RatioWatch
from flyball.broker.cluster.roster import Member, Roster, Session
from flyball.errors import ClusterError

EXPECTED_S = 10.0
"""How long a session counts that was placed, or asked to move, and has not been seen there."""

IDLE_SHARE = 0.05
"""A session counts at least this share of its role's weight: idle ones are to be spread as well."""


@dataclass(slots=True)
class KnownNode:
    """A node, as far as the manager knows it."""

    id: int
    epoch: int
    capacity: float
    provisioned_for: str | None
    is_leaving: bool = False
    is_released: bool = False
    unused_since: float | None = None


@dataclass(slots=True)
class KnownCluster:
    """A clustered queue with its members, and what is under way for it."""

    key: str
    roster: Roster
    unwanted: frozenset[int] = frozenset()
    """Nodes that somebody had the member removed from: they get none again by the manager's own will."""
    provisioning: Provisioning = field(default_factory=Provisioning)
    next_round_at: float = -math.inf
    ratio: RatioWatch = field(default_factory=RatioWatch)

    @property
    def options(self) -> ClusterOptions:
        return self.roster.options


class DomainState:
    """What one manager knows, and has decided."""

    def __init__(self, history_length: int, name: str, on_record: Callable[[Record], None] | None) -> None:
        """`name` begins the names of what the manager names; `on_record` is told of what goes into the history."""
        self._on_record = on_record
        self.clusters: dict[str, KnownCluster] = {}
        self.nodes: dict[int, KnownNode] = {}
        self.members: dict[int, tuple[KnownCluster, Member]] = {}
        self.sessions: dict[str, tuple[KnownCluster, Session]] = {}
        self.homeless: dict[str, tuple[KnownCluster, Session]] = {}
        """Sessions whose clients are connected somewhere, while their member is gone."""
        self.decided = 0
        """How many decisions there were."""
        self._on_node: dict[int, dict[int, tuple[KnownCluster, Member]]] = {}
        self._expected: deque[tuple[float, Session]] = deque()
        self._decisions: list[Decision] = []
        self._history: deque[Record] = deque(maxlen=history_length)
        self._name = name
        self._numbers = itertools.count(1)

    # What came of it

    def take_decisions(self) -> list[Decision]:
        """Return what has been decided since the last call, in the order in which it is to be done."""
        decisions, self._decisions = self._decisions, []
        return decisions

    @property
    def history(self) -> list[Record]:
        """The last decisions with their reasons, newest last."""
        return list(self._history)

    def decide(self, now: float, decision: Decision) -> None:
        """Have something done."""
        self._decisions.append(decision)
        self._record(Record(now, decision))
        self.decided += 1

    def note_failure(self, cluster: KnownCluster, now: float, reason: str) -> None:
        """Something that was decided did not come about."""
        self._record(Record(now, Failure(cluster=cluster.key, reason=reason)))

    def new_name(self) -> str:
        """Return a name that no other manager has given, nor this one before."""
        return f"{self._name}{next(self._numbers)}"

    def _record(self, record: Record) -> None:
        self._history.append(record)
        if self._on_record is not None:
            self._on_record(record)

    # Looking up

    def cluster(self, cluster: str) -> KnownCluster:
        """Raises ClusterError for one that is not there."""
        try:
            return self.clusters[cluster]
        except KeyError:
            raise ClusterError(f"there is no clustered queue {title(cluster)!r}: create it first") from None

    def capacity_on(self, cluster: KnownCluster, node: int) -> float:
        """Return what a member on a node can bear."""
        known = self.nodes.get(node)
        return cluster.options.capacity * (1.0 if known is None else known.capacity)

    def members_on(self, node: int) -> list[tuple[KnownCluster, Member]]:
        """Return the members that a node serves."""
        return list(self._on_node.get(node, {}).values())

    def fullness(self, node: KnownNode) -> tuple[float, int]:
        """Return what orders nodes: first those that bear the least for what they can."""
        load = sum(cluster.roster.load_of(member) / member.capacity for cluster, member in self.members_on(node.id))
        return load / node.capacity, node.id

    def settle_member(self, cluster: KnownCluster, member: Member) -> None:
        """Remember where a member is."""
        self.members[member.id] = (cluster, member)
        self._on_node.setdefault(member.node, {})[member.id] = (cluster, member)

    def resettle_member(self, cluster: KnownCluster, member: Member, node: int) -> None:
        """A member is at another node now."""
        del self._on_node[member.node][member.id]
        member.node = node
        self.settle_member(cluster, member)

    def forget_member(self, cluster: KnownCluster, member: Member) -> None:
        """Forget a member and the sessions that it had."""
        for session in list(member.sessions.values()):
            self.drop_session(session.id)
        cluster.roster.remove(member)
        del self.members[member.id]
        del self._on_node[member.node][member.id]

    def member_of(self, session: str) -> int | None:
        """Return the member that a session counts at, None if it is not known."""
        known = self.sessions.get(session)
        return None if known is None else known[1].member.id

    def standing(self, cluster: str) -> tuple[float, float | None, int] | None:
        """Return the load at which a clustered queue grows, its load and its usable members; None if it is not known.

        Loads are shares of what the usable members can bear.
        """
        found = self.clusters.get(cluster)
        if found is None:
            return None
        roster = found.roster
        return found.options.theta_up, roster.usable_load if roster.usable_count else None, roster.usable_count

    def snapshot(self, cluster: str, now: float) -> dict[str, Any]:
        """Return what the manager knows of a clustered queue, as what JSON can say."""
        found = self.cluster(cluster)
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
                    "is_served": member.is_served,
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

    # Sessions

    def count_session(self, cluster: KnownCluster, session: Session) -> None:
        """Count a session at its member from now on."""
        cluster.roster.put(session)
        cluster.provisioning.largest.note(session.load)
        cluster.provisioning.load_has_risen(cluster.roster.load)
        self.sessions[session.id] = (cluster, session)
        self.homeless.pop(session.id, None)

    def drop_session(self, session_id: str) -> None:
        """Count a session no more."""
        cluster, session = self.sessions.pop(session_id)
        cluster.provisioning.largest.note(session.load)
        cluster.roster.drop(session)

    def expect(self, session: Session, origin: int | None, now: float) -> None:
        """Let a session count for a while although it is not there; then it goes back to `origin`, if any."""
        session.origin = origin
        session.due = now + EXPECTED_S
        self._expected.append((session.due, session))

    def expire(self, now: float) -> None:
        """Whoever was only expected and has not come is forgotten; whoever should have moved has not."""
        while self._expected and self._expected[0][0] <= now:
            _, session = self._expected.popleft()
            known = self.sessions.get(session.id)
            if known is None or known[1] is not session or session.due is None or session.due > now:
                continue
            if session.origin is None:
                self.drop_session(session.id)
            else:
                self.send_back(*known)

    def send_back(self, cluster: KnownCluster, session: Session) -> None:
        """A session has not moved: it is where it was."""
        origin = None if session.origin is None else cluster.roster.members.get(session.origin)
        session.due = session.origin = None
        if origin is not None:
            cluster.roster.move(session, origin)

    def decide_move(
        self, cluster: KnownCluster, session: Session, origin: int, now: float, reason: str, *, may_return: bool
    ) -> None:
        """Ask a session to go from a member to the one that it counts at."""
        session.moved_at = now
        self.expect(session, origin if may_return else None, now)
        to = session.member
        self.decide(
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

    def compare(self, cluster: KnownCluster, member: Member, reports: Sequence[SessionReport], now: float) -> None:
        """Make the state say what the member says, but for who is on the way."""
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
            session = Session(report.session, report.role, member, cluster.options.weight(report.role))
            session.measured_at = now
            self.count_session(cluster, session)
        else:
            session = known[1]
            if session.member is not member:
                if session.due is not None and session.due > now:
                    return
                cluster.roster.move(session, member)
            session.due = session.origin = None
        session.entry = report.entry
        self._measure(cluster, session, report.rate_per_s, now)

    def _displace_anonymous(self, member: Member, role: Role) -> None:
        """The client that a place was kept for has come, under a name of its own."""
        for session in member.sessions.values():
            if session.is_anonymous and session.due is not None and session.role is role:
                self.drop_session(session.id)
                return

    @staticmethod
    def _measure(cluster: KnownCluster, session: Session, rate_per_s: float | None, now: float) -> None:
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
