"""When a clustered queue grows and shrinks: algorithms 1 and 2 of Selfware, without what was wrong with them.

It decides by the load of all sessions against the capacity of the members that get clients. It grows when that would
exceed θ_up, and first takes back what is marked for removal. It shrinks when the others would bear at most θ_down,
and that has been so for a dwell time. Between the two lies more than any one session counts: so nobody who leaves and
comes back can add and remove. It does not know nodes, nor who carries anything out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from flyball.broker.cluster.load_table import LoadTable, Member
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.broker.cluster.placement import ROUNDING

# What a member is awaited by: the node that it is made on, or the request for a node to be started.
Coming = int | str

# After a node could not be started, no other is asked for until this has passed.
RETRY_S = 10.0

# Where there is no node for a member, one is looked for again after this time.
LOOK_AGAIN_S = 1.0


@dataclass(slots=True, frozen=True)
class TakeBack:
    """Un-mark a member."""

    member: Member
    reason: str


@dataclass(slots=True, frozen=True)
class Grow:
    """Add a member."""

    reason: str


class PeakLoad:
    """The largest load of a session within the last one to two windows of time."""

    def __init__(self) -> None:
        self._now = self._before = 0.0
        self._until = -math.inf

    def note(self, load: float) -> None:
        if load > self._now:
            self._now = load

    def turn(self, now: float, window_s: float) -> None:
        """Forget what is older than a window, once in a window."""
        if now >= self._until:
            self._before, self._now = self._now, 0.0
            self._until = now + window_s

    @property
    def value(self) -> float:
        return max(self._now, self._before)


@dataclass(slots=True)
class Provisioning:
    """What is under way for one clustered queue, and since when the load is low."""

    # Members that were decided and are not there yet: since when, and their capacities.
    coming: dict[Coming, tuple[float, float]] = field(default_factory=dict)
    grown_at: float = -math.inf
    removed_at: float = -math.inf
    retry_at: float = -math.inf
    low_since: float | None = None
    # Until when an addition waits because something was just removed.
    held_until: float | None = None
    largest: PeakLoad = field(default_factory=PeakLoad)
    _low_bound: float = -math.inf

    @property
    def capacity_to_come(self) -> float:
        return sum(capacity for _, capacity in self.coming.values())

    def expect(self, key: Coming, capacity: float, now: float) -> None:
        """A member is on its way."""
        self.coming[key] = (now, capacity)
        self.has_grown(now)

    def has_grown(self, now: float) -> None:
        """Capacity was added, or taken back: nothing is removed for a dwell time."""
        self.grown_at = now
        self.low_since = None
        self.held_until = None

    def has_failed(self, key: Coming, now: float) -> None:
        """A member will not come."""
        if self.coming.pop(key, None) is not None:
            self.retry_at = now + RETRY_S

    def look_again(self, now: float) -> None:
        """There is no node for a further member now."""
        self.retry_at = now + LOOK_AGAIN_S

    def overdue(self, options: ClusterOptions, now: float) -> list[Coming]:
        """Return what has not come in time."""
        return [key for key, (since, _) in self.coming.items() if now - since > options.start_s]

    def load_has_risen(self, load: float) -> None:
        """The time of low load begins anew if the load was not low even for a moment."""
        if load > self._low_bound:
            self.low_since = None

    def next_growth(self, table: LoadTable, now: float, extra: float = 0.0) -> TakeBack | Grow | None:
        """Return what is needed so that the usable load with `extra` stays below θ_up, None if nothing is, or can be.

        Ask again until it is None: one step may not be enough.
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
            return TakeBack(marked, f"{why}, and it is not yet removed")
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
        """Right after a removal an addition would be a reversal: it waits unless the overload is grave."""
        options = table.options
        due = self.removed_at + options.dwell_s
        if now >= due or load > options.theta_hold * table.usable_capacity:
            return False
        self.held_until = due
        return True

    @staticmethod
    def fullest_marked(table: LoadTable) -> Member | None:
        """Return the one that would be drained last, and so is cheapest to keep.

        What somebody wants removed comes back only if nobody else takes clients, until somebody does.
        """
        marked = [
            member
            for member in table.marked.values()
            if member.is_served and member.removing_at is None and (not member.is_leaving or table.usable_count == 0)
        ]
        return max(marked, key=lambda member: (table.load_of(member), -member.id), default=None)

    def next_mark(self, table: LoadTable, now: float, is_provisioned: frozenset[int]) -> tuple[Member, str] | None:
        """Return the member to mark for removal, if the load has been low for long enough, and why."""
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
            f"the load of {table.load:g} has been low for {options.dwell_s:g} s: "
            f"the others can bear {left:g} and would be at {_percent(table.load / left)}"
        )
        return member, reason

    @staticmethod
    def removable(table: LoadTable, now: float) -> Iterator[tuple[Member, str]]:
        """Yield the marked members that nothing is left of, whenever and whyever they were marked.

        A member that the load made dispensable stays for a dwell time even if empty: taking it back costs nothing.
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
                yield member, "it is marked, and has no client and no message any more"


def _why_more(table: LoadTable, load: float, has_enough: bool) -> str:
    options = table.options
    if table.usable_count == 0:
        return "no member can take clients"
    if not has_enough:
        return f"there are {table.usable_count} members and there should be at least {options.min_members}"
    share = _percent(load / table.usable_capacity)
    return f"the load of {load:g} would be {share} of what the members can bear ({table.usable_capacity:g})"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def _most_dispensable(table: LoadTable, is_provisioned: frozenset[int]) -> Member | None:
    """Return the member that is cheapest to do without: never the last, nor one that a person asked for, nor one that
    has all producers or all consumers, since they would then be apart from the others."""
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
