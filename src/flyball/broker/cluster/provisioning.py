"""Decides when clustered queues grow and shrink: algorithms 1 and 2 of the JORAM paper (Selfware), with hysteresis.

The load of all sessions is compared with the capacity of the members that accept clients. The queue grows when the
load would exceed θ_up, and unmarks draining members first. It shrinks when the other members would bear at most
θ_down, and this has held for a dwell time. The distance between the two exceeds the load of any session, so that one
client that leaves and reconnects cannot trigger both. This module is independent of nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from flyball.broker.cluster.load_table import LoadTable, Member
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.broker.cluster.placement import ROUNDING

# Key of a pending member: the node that it is created on, or the request for a node.
Coming = int | str

# Delay before another node is requested after one failed to start.
RETRY_S = 10.0

# Interval between searches for a node that can take a member.
LOOK_AGAIN_S = 1.0


@dataclass(slots=True, frozen=True)
class TakeBack:
    """Unmark a member."""

    member: Member
    reason: str


@dataclass(slots=True, frozen=True)
class Grow:
    """Add a member."""

    reason: str


class PeakLoad:
    """The largest load of a session within the last one to two windows."""

    def __init__(self) -> None:
        self._now = self._before = 0.0
        self._until = -math.inf

    def note(self, load: float) -> None:
        if load > self._now:
            self._now = load

    def turn(self, now: float, window_s: float) -> None:
        """Drop values older than a window, once per window."""
        if now >= self._until:
            self._before, self._now = self._now, 0.0
            self._until = now + window_s

    @property
    def value(self) -> float:
        return max(self._now, self._before)


@dataclass(slots=True)
class Provisioning:
    """Pending growth of one clustered queue, and since when its load has been low."""

    # Members that were decided and do not exist yet: time of the decision, and capacity.
    coming: dict[Coming, tuple[float, float]] = field(default_factory=dict)
    grown_at: float = -math.inf
    removed_at: float = -math.inf
    retry_at: float = -math.inf
    low_since: float | None = None
    # Growing waits until this time, since a member was just removed.
    held_until: float | None = None
    largest: PeakLoad = field(default_factory=PeakLoad)
    _low_bound: float = -math.inf

    @property
    def capacity_to_come(self) -> float:
        return sum(capacity for _, capacity in self.coming.values())

    def expect(self, key: Coming, capacity: float, now: float) -> None:
        """A member was requested."""
        self.coming[key] = (now, capacity)
        self.has_grown(now)

    def has_grown(self, now: float) -> None:
        """Capacity was added or unmarked: nothing is removed for a dwell time."""
        self.grown_at = now
        self.low_since = None
        self.held_until = None

    def has_failed(self, key: Coming, now: float) -> None:
        """A requested member failed."""
        if self.coming.pop(key, None) is not None:
            self.retry_at = now + RETRY_S

    def look_again(self, now: float) -> None:
        """No node can take a further member now: search again after LOOK_AGAIN_S."""
        self.retry_at = now + LOOK_AGAIN_S

    def overdue(self, options: ClusterOptions, now: float) -> list[Coming]:
        """Return the requested members that were not created in time."""
        return [key for key, (since, _) in self.coming.items() if now - since > options.start_s]

    def load_has_risen(self, load: float) -> None:
        """The dwell time restarts whenever the load is above the limit, however briefly."""
        if load > self._low_bound:
            self.low_since = None

    def next_growth(self, table: LoadTable, now: float, extra: float = 0.0) -> TakeBack | Grow | None:
        """Return the next step that keeps the usable load with `extra` below θ_up; None if none is needed or
        possible.

        Call again until it returns None: one step may not be enough.
        """
        options = table.options
        load = table.load + extra
        self.held_until = None
        has_enough = table.usable_count >= options.min_members
        if has_enough and load <= options.theta_up * table.usable_capacity * (1 + ROUNDING):
            return None
        why = _why_more(table, load, has_enough)
        marked = self.fullest_marked(table)
        if marked is not None:
            return TakeBack(marked, f"{why}; it is still draining")
        if self._is_enough_coming(table, load) or now < self.retry_at:
            return None
        leaving = sum(member.is_leaving for member in table.marked.values())
        if len(table.members) - leaving + len(self.coming) >= options.max_members:
            return None
        if has_enough and self._must_hold(table, load, now):
            return None
        return Grow(why)

    def _is_enough_coming(self, table: LoadTable, load: float) -> bool:
        options = table.options
        capacity = table.usable_capacity + self.capacity_to_come
        return (
            table.usable_count + len(self.coming) >= options.min_members
            and load <= options.theta_up * capacity * (1 + ROUNDING)
            and table.usable_count + len(self.coming) > 0
        )

    def _must_hold(self, table: LoadTable, load: float, now: float) -> bool:
        """Right after a removal, growing would revert it: wait unless the overload is severe."""
        options = table.options
        due = self.removed_at + options.dwell_s
        if now >= due or load > options.theta_hold * table.usable_capacity:
            return False
        self.held_until = due
        return True

    @staticmethod
    def fullest_marked(table: LoadTable) -> Member | None:
        """Return the marked member that would finish draining last, and so is the cheapest to keep.

        A member that an operator is removing is unmarked only if no other member accepts clients, and drained again
        once one does.
        """
        marked = [
            member
            for member in table.marked.values()
            if member.is_served and member.removing_at is None and (not member.is_leaving or table.usable_count == 0)
        ]
        return max(marked, key=lambda member: (table.load_of(member), -member.id), default=None)

    def next_mark(self, table: LoadTable, now: float, is_provisioned: frozenset[int]) -> tuple[Member, str] | None:
        """Return the member to mark for removal and the reason, if the load has been low long enough."""
        options = table.options
        self.largest.turn(now, max(options.dwell_s, options.period_s))
        member = None if self.coming else _most_dispensable(table, is_provisioned)
        if member is None:
            self.low_since = None
            self._low_bound = -math.inf
            return None
        left = table.usable_capacity - member.capacity
        largest = max(self.largest.value, options.producer_weight, options.consumer_weight)
        self._low_bound = min(options.theta_down * left, options.theta_up * left - largest)
        if table.load > self._low_bound:
            self.low_since = None
            return None
        if self.low_since is None:
            self.low_since = now
        if now - max(self.low_since, self.grown_at) < options.dwell_s:
            return None
        self.low_since = None
        reason = (
            f"load {table.load:g} has been low for {options.dwell_s:g} s: "
            f"the other members have capacity {left:g} and would be at {_percent(table.load / left)}"
        )
        return member, reason

    @staticmethod
    def removable(table: LoadTable, now: float) -> Iterator[tuple[Member, str]]:
        """Yield the marked members that are empty, regardless of why they were marked.

        A member that was marked for low load stays for a dwell time even if empty: unmarking it costs nothing.
        """
        options = table.options
        for member in list(table.marked.values()):
            if not member.is_served or table.usable_count == 0:
                continue
            if member.sessions or not member.is_known_empty:
                continue
            if not member.is_leaving and now - member.marked_at < options.dwell_s:
                continue
            if member.removing_at is None or now - member.removing_at > options.start_s:
                yield member, "it is drained: no clients, no messages"


def _why_more(table: LoadTable, load: float, has_enough: bool) -> str:
    options = table.options
    if table.usable_count == 0:
        return "no member takes clients"
    if not has_enough:
        return f"{table.usable_count} members, fewer than min_members {options.min_members}"
    share = _percent(load / table.usable_capacity)
    return f"load {load:g} would be {share} of the members' capacity {table.usable_capacity:g}"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def _most_dispensable(table: LoadTable, is_provisioned: frozenset[int]) -> Member | None:
    """Return the member that is cheapest to remove: never the last, nor a fixed one, nor one that has all producers
    or all consumers, as these would be separated from the others.
    """
    options = table.options
    if table.usable_count <= max(1, options.min_members):
        return None
    producers, consumers = table.count(Role.PRODUCER), table.count(Role.CONSUMER)

    def is_dispensable(member: Member) -> bool:
        has_all = (0 < producers == table.count_of(member, Role.PRODUCER)) or (
            0 < consumers == table.count_of(member, Role.CONSUMER)
        )
        return not member.is_fixed and not has_all

    return min(
        (member for member in table.usable() if is_dispensable(member)),
        key=lambda member: (member.node not in is_provisioned, table.load_of(member), member.ready, -member.id),
        default=None,
    )
