"""The members of one clustered queue with their sessions and loads.

Loads are arrays indexed by the member's place, so that an election is one vectorized pass. Elections, marks and moves
are decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flyball.broker.cluster.options import ClusterOptions, Loads, Policy, Role

Floats = NDArray[np.float64]

ROW = {Role.PRODUCER: 0, Role.CONSUMER: 1}

# Weight of a member's total load against the load of one role: breaks ties only.
HAIR = 1e-7

# Minimum share of its role's weight that a session counts: idle sessions are spread as well.
IDLE_SHARE = 0.05

_FIRST_PLACES = 8


@dataclass(slots=True, eq=False)
class MemberSession:
    """A client's session on a member, in one role."""

    id: str
    role: Role
    member: Member
    load: float
    # Deadline for an expected session to arrive; None once it was seen.
    due: float | None = None
    # The member it is moving from.
    origin: int | None = None
    moved_at: float = -math.inf
    measured_at: float = -math.inf
    # The node that its client is connected to, if not the member's.
    entry: int | None = None
    # Whether any client of its role may fill this place, not only the one with its id.
    is_anonymous: bool = False


@dataclass(slots=True, eq=False)
class Member:
    """A queue on one node that belongs to the clustered queue."""

    id: int
    node: int
    capacity: float
    place: int = -1
    is_fixed: bool = False
    # Draining: accepts no new clients, and is removed when it is empty.
    is_marked: bool = False
    # An operator is removing it: a growing load does not unmark it.
    is_leaving: bool = False
    # Whether its node is alive.
    is_served: bool = True
    marked_at: float = -math.inf
    # When its removal was decided.
    removing_at: float | None = None
    ready: int = 0
    unacked: int = 0
    idle: int = 0
    # Whether it reported no messages, and has not changed since.
    is_known_empty: bool = False
    sessions: dict[str, MemberSession] = field(default_factory=dict)

    @property
    def is_usable(self) -> bool:
        """Whether it accepts new clients."""
        return self.is_served and not self.is_marked


class LoadTable:
    """Members with their capacities and loads.

    `load` covers all members; `usable_capacity` and `usable_count` those that accept clients.
    """

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        self.members: dict[int, Member] = {}
        self.marked: dict[int, Member] = {}
        # Sessions that were moved so far.
        self.moves = 0
        self.load = 0.0
        self.usable_capacity = 0.0
        self.usable_count = 0
        # The largest load of a session so far, by role.
        self.largest = [0.0, 0.0]
        self._places: list[Member | None] = []
        self._make_room(_FIRST_PLACES)

    def _make_room(self, places: int) -> None:
        more = places - len(self._places)
        before = len(self._places)
        self._free = [*range(places - 1, before - 1, -1)]
        self._places += [None] * more
        kept = before > 0
        self.loads: Floats = np.hstack([self.loads, np.zeros((2, more))]) if kept else np.zeros((2, more))
        self.counts: Floats = np.hstack([self.counts, np.zeros((2, more))]) if kept else np.zeros((2, more))
        self.capacities: Floats = np.hstack([self.capacities, np.ones(more)]) if kept else np.ones(more)
        self.scores: Floats = (
            np.hstack([self.scores, np.full((2, more), math.inf)]) if kept else np.full((2, more), math.inf)
        )

    def set_options(self, options: ClusterOptions) -> None:
        """Replace the options; sessions that count their role's weight count the new weight."""
        self.options = options
        for member in self.members.values():
            if options.loads == Loads.WEIGHTS:
                for session in member.sessions.values():
                    self.set_load(session, options.weight(session.role))
            self._rescore(member.place)

    def add(self, member: Member) -> None:
        """Add a member without sessions."""
        if not self._free:
            self._make_room(2 * len(self._places))
        place = self._free.pop()
        member.place = place
        self._places[place] = member
        self.members[member.id] = member
        if member.is_marked:
            self.marked[member.id] = member
        self.capacities[place] = member.capacity
        self.loads[:, place] = 0.0
        self.counts[:, place] = 0.0
        if member.is_usable:
            self._count_usable(member, 1)
        self._rescore(place)

    def remove(self, member: Member) -> list[MemberSession]:
        """Remove a member and return its sessions."""
        sessions = list(member.sessions.values())
        for session in sessions:
            self.drop(session)
        if member.is_usable:
            self._count_usable(member, -1)
        place = member.place
        self._places[place] = None
        self.scores[:, place] = math.inf
        self.capacities[place] = 1.0
        self._free.append(place)
        del self.members[member.id]
        self.marked.pop(member.id, None)
        return sessions

    def set_state(self, member: Member, *, is_marked: bool | None = None, is_served: bool | None = None) -> None:
        """Change whether a member accepts clients."""
        was_usable = member.is_usable
        if is_marked is not None:
            member.is_marked = is_marked
            self.marked.pop(member.id, None)
            if is_marked:
                self.marked[member.id] = member
        if is_served is not None:
            member.is_served = is_served
        if was_usable != member.is_usable:
            self._count_usable(member, 1 if member.is_usable else -1)
            self._rescore(member.place)

    def set_capacity(self, member: Member, capacity: float) -> None:
        """Change the capacity of a member."""
        if member.is_usable:
            self.usable_capacity += capacity - member.capacity
        member.capacity = capacity
        self.capacities[member.place] = capacity
        self._rescore(member.place)

    def put(self, session: MemberSession) -> None:
        """Count a session at its member."""
        member = session.member
        member.sessions[session.id] = session
        member.is_known_empty = False
        self.largest[ROW[session.role]] = max(self.largest[ROW[session.role]], session.load)
        self._change(member.place, ROW[session.role], session.load, 1)

    def drop(self, session: MemberSession) -> None:
        """Stop counting a session."""
        member = session.member
        del member.sessions[session.id]
        member.is_known_empty = False
        self._change(member.place, ROW[session.role], -session.load, -1)

    def move(self, session: MemberSession, member: Member) -> None:
        """Move a session to another member."""
        self.moves += 1
        self.drop(session)
        session.member = member
        self.put(session)

    def set_load(self, session: MemberSession, load: float) -> None:
        """Change the load of a session."""
        self._change(session.member.place, ROW[session.role], load - session.load, 0)
        session.load = load
        self.largest[ROW[session.role]] = max(self.largest[ROW[session.role]], load)

    def measure(self, session: MemberSession, rate_per_s: float | None, now: float) -> bool:
        """Update the load of a session from its measured rate, if loads are measured; return whether it changed."""
        options = self.options
        weight = options.weight(session.role)
        load = session.load
        if options.loads == Loads.WEIGHTS:
            load = weight
        elif rate_per_s is not None:
            passed_s = max(0.0, now - session.measured_at)
            share = 1 - math.exp(-passed_s / options.load_window_s)
            load = max(load + share * (rate_per_s * options.message_cost - load), IDLE_SHARE * weight)
        session.measured_at = now
        if load == session.load:
            return False
        self.set_load(session, load)
        return True

    def at(self, place: int) -> Member:
        """Return the member at that place in the arrays."""
        member = self._places[place]
        assert member is not None
        return member

    def load_of(self, member: Member, role: Role | None = None) -> float:
        """Return the load of a member, for one role or both."""
        loads = self.loads[:, member.place]
        return float(loads[0] + loads[1]) if role is None else float(loads[ROW[role]])

    def count(self, role: Role) -> int:
        """Return the number of sessions of the role."""
        return int(self.counts[ROW[role]].sum())

    def count_of(self, member: Member, role: Role) -> int:
        """Return the number of sessions of the role on a member."""
        return int(self.counts[ROW[role], member.place])

    def usable(self) -> Iterator[Member]:
        """Yield the members that accept new clients."""
        return (member for member in self.members.values() if member.is_usable)

    def is_usable(self) -> NDArray[np.bool_]:
        """Return by place which members accept new clients."""
        usable: NDArray[np.bool_] = np.isfinite(self.scores[0])
        return usable

    @property
    def usable_load(self) -> float:
        """The load of all sessions, to be compared with the usable capacity."""
        return math.inf if self.usable_count == 0 else self.load / self.usable_capacity

    def settle(self) -> None:
        """Recompute the sums, so that rounding errors do not add up over millions of changes."""
        self.load = float(self.loads.sum())
        self.usable_capacity = math.fsum(member.capacity for member in self.usable())

    def _count_usable(self, member: Member, sign: int) -> None:
        self.usable_count += sign
        self.usable_capacity = self.usable_capacity + sign * member.capacity if self.usable_count else 0.0

    def _change(self, place: int, row: int, load: float, count: int) -> None:
        counts = self.counts
        counts[row, place] += count
        # Without sessions, what remains of additions and subtractions is only rounding.
        before = float(self.loads[row, place])
        here = before + load if counts[row, place] else 0.0
        self.load += here - before
        self.loads[row, place] = here
        self._rescore(place)

    def _rescore(self, place: int) -> None:
        """Cost of one more session of each role there, without the terms that are equal for all members."""
        member = self._places[place]
        if member is None or not member.is_usable:
            self.scores[0, place] = self.scores[1, place] = math.inf
            return
        options = self.options
        if options.policy == Policy.PLAIN:
            self.scores[:, place] = self.counts[:, place]
            return
        capacity = member.capacity
        producers = float(self.loads[0, place])
        consumers = float(self.loads[1, place])
        tie = HAIR * (producers + consumers)
        self.scores[0, place] = (producers + options.producer_weight / 2 + tie) / capacity
        self.scores[1, place] = (consumers + options.consumer_weight / 2 + tie) / capacity
