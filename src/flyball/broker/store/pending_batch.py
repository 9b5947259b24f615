"""An uncommitted batch: its operations, their waiters, and its bisection if the store refuses it.

Independent of time and of the store: `group_commit` schedules the commit.
"""

from __future__ import annotations

from typing import Protocol

from flyball.broker.store.changes import Change
from flyball.broker.store.interface import Batch, Transfer
from flyball.errors import Fenced, FlyballError, StoreError, StoreUnavailable
from flyball.model import MESSAGE_OVERHEAD_BYTES, Message

# The cost of an operation in addition to its content: an estimate of its memory, and a bound on the rows of a batch.
OPERATION_BYTES = 200


class OutcomeUnknown(StoreUnavailable):
    """The timeout passed while the change was being written: it may still succeed."""


class Group:
    """Appends and removes that are committed atomically: see `GroupCommit.together`."""

    __slots__ = ("appended_ids", "removed_ids")

    def __init__(self) -> None:
        self.appended_ids: set[int] = set()
        self.removed_ids: set[int] = set()


class OperationsRefused(StoreError):
    """The store refused operations of a batch permanently, and committed the others.

    A mark fails with it if a refused operation has neither a waiter nor a receipt; the mark may or may not concern
    it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.changes: list[Change] = []
        self.appended_ids: set[int] = set()
        self.removed_ids: set[int] = set()
        self.groups: list[Group] = []

    def concerns(self, first_id: int, end_id: int) -> bool:
        """Whether the append of a message with an id from `first_id` to below `end_id` was refused."""
        return any(first_id <= message_id < end_id for message_id in self.appended_ids)


class Waiter(Protocol):
    """The callbacks of a submitted operation. Exactly one of them is called per operation.

    Only after OutcomeUnknown may `failed` be called a second time, if the change was refused after all.
    """

    def committed(self) -> None: ...

    def failed(self, error: FlyballError) -> None:
        """The operation failed: a StoreError, or InvalidArgument for a change that cannot be stored."""
        ...


class _Doubtful:
    """Replaces the waiter of a change that failed with OutcomeUnknown; forwards only a refusal."""

    __slots__ = ("_waiter",)

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter

    def committed(self) -> None:
        pass

    def failed(self, error: FlyballError) -> None:
        if not isinstance(error, StoreUnavailable | Fenced):
            self._waiter.failed(error)


class Split:
    """The state shared by the parts of a bisected batch."""

    __slots__ = ("commits", "culprits", "deleted_queue_ids", "refused")

    def __init__(self) -> None:
        # Refused operations without a waiter, which fail the marks.
        self.refused: OperationsRefused | None = None
        self.culprits = 0
        self.commits = 0
        self.deleted_queue_ids: set[int] = set()


# Operations that stay together: positions of changes, ids of appends, positions of removes and of transfers.
_Unit = tuple[list[int], list[int], list[int], list[int]]


class PendingBatch:
    """The operations of one commit. On the path of every message: an append without a waiter is one dict entry."""

    __slots__ = (
        "again",
        "append_waiters",
        "appends",
        "change_waiters",
        "changes",
        "cost_bytes",
        "expired",
        "groups",
        "limited_marks",
        "marks",
        "opened_at",
        "remove_waiters",
        "removes",
        "sealed_at",
        "settled",
        "split",
        "transfer_waiters",
        "transfers",
        "undone_appends",
        "undone_removes",
    )

    def __init__(self, opened_at: float) -> None:
        self.opened_at = opened_at
        self.sealed_at: float | None = None
        self.changes: list[Change] = []
        self.change_waiters: list[Waiter | None] = []
        # By id, in the order of submission.
        self.appends: dict[int, Message] = {}
        # By the id of the message.
        self.append_waiters: dict[int, Waiter] = {}
        self.removes: list[Message] = []
        # By the position in `removes`.
        self.remove_waiters: dict[int, Waiter] = {}
        self.transfers: list[Transfer] = []
        self.transfer_waiters: list[Waiter | None] = []
        # Waiters of appends and removes that cancelled each other out.
        self.settled: list[Waiter] = []
        self.groups: list[Group] = []
        self.marks: list[Waiter] = []
        # Marks with a timeout.
        self.limited_marks: list[Waiter] = []
        self.cost_bytes = 0
        self.expired = False
        # Whether an earlier commit attempt may have succeeded.
        self.again = False
        # Set when an operation was refused, and shared with the other parts of the batch.
        self.split: Split | None = None
        self.undone_appends: list[Message] = []
        self.undone_removes: list[Message] = []

    @property
    def count(self) -> int:
        return len(self.changes) + len(self.appends) + len(self.removes) + len(self.transfers)

    def settle(self, message_id: int, waiter: Waiter | None) -> None:
        """Keep the waiters of an unsent append and of the remove that cancelled it."""
        for answered in (self.append_waiters.pop(message_id, None), waiter):
            if answered is not None:
                self.settled.append(answered)
                self.cost_bytes += OPERATION_BYTES

    def batch(self) -> Batch:
        removed = [message.id for message in self.removes]
        appended = list(self.appends.values())
        if self.split is not None and self.split.deleted_queue_ids:
            gone = self.split.deleted_queue_ids
            appended = [message for message in appended if message.queue_id not in gone]
        return Batch(self.changes, appended, removed, self.transfers)

    def halves(self) -> tuple[PendingBatch, PendingBatch]:
        """Bisect it in the order in which the store applies operations: the first half must be committed first."""
        if self.undone_appends or self.undone_removes:
            self.turn_undone()
            # Messages that are written again may be stored already.
            self.again = True
        if self.split is None:
            self.split = Split()
        parts = self._part(), self._part()
        units = self._units()
        for number, (changes, appends, removes, transfers) in enumerate(units):
            part = parts[0 if number < len(units) // 2 else 1]
            for place in changes:
                part.changes.append(self.changes[place])
                part.change_waiters.append(self.change_waiters[place])
            for message_id in appends:
                part.appends[message_id] = self.appends[message_id]
                if message_id in self.append_waiters:
                    part.append_waiters[message_id] = self.append_waiters[message_id]
            for place in removes:
                if place in self.remove_waiters:
                    part.remove_waiters[len(part.removes)] = self.remove_waiters[place]
                part.removes.append(self.removes[place])
            for place in transfers:
                part.transfers.append(self.transfers[place])
                part.transfer_waiters.append(self.transfer_waiters[place])
        first, second = parts
        for group in self.groups:
            is_first = not group.appended_ids.isdisjoint(first.appends) or any(
                message.id in group.removed_ids for message in first.removes
            )
            (first if is_first else second).groups.append(group)
        second.settled, second.marks, second.limited_marks = self.settled, self.marks, self.limited_marks
        first.count_cost()
        second.count_cost()
        return first, second

    @property
    def is_indivisible(self) -> bool:
        return len(self._units()) < 2

    def _units(self) -> list[_Unit]:
        """Return the units that can be committed separately, in the order in which the store applies them.

        The removes of a group stay with its appends: the removed messages were appended before the group, if in this
        batch at all.
        """
        units: list[_Unit] = [([place], [], [], []) for place in range(len(self.changes))]
        of_group: dict[Group, _Unit] = {group: ([], [], [], []) for group in self.groups}
        appending = {message_id: group for group in self.groups for message_id in group.appended_ids}
        removing = {message_id: group for group in self.groups for message_id in group.removed_ids}
        for message_id in self.appends:
            group = appending.get(message_id)
            unit: _Unit = ([], [], [], []) if group is None else of_group[group]
            unit[1].append(message_id)
            if group is None or len(unit[1]) == 1:
                units.append(unit)
        for place, message in enumerate(self.removes):
            group = removing.get(message.id)
            unit = ([], [], [], []) if group is None else of_group[group]
            unit[2].append(place)
            if group is None or (not unit[1] and len(unit[2]) == 1):
                units.append(unit)
        places = list(range(len(self.transfers)))
        if self.again and places:
            # Repeated transfers are recognised as the same list, so they have to stay together.
            units.append(([], [], [], places))
        else:
            units += [([], [], [], [place]) for place in places]
        return units

    def _part(self) -> PendingBatch:
        part = PendingBatch(self.opened_at)
        part.sealed_at, part.expired, part.again, part.split = self.sealed_at, self.expired, self.again, self.split
        return part

    def turn_undone(self) -> None:
        """Replace operations that failed since the last attempt by their inverses, before the next attempt.

        No message has a waiter left then: all failed together.
        """
        if not (self.undone_appends or self.undone_removes):
            return
        appends, removes = self.undone_appends, self.undone_removes
        self.undone_appends, self.undone_removes = [], []
        for message in appends:
            del self.appends[message.id]
        restored = {message.id: message for message in removes}
        self.removes = [*(message for message in self.removes if message.id not in restored), *appends]
        self.appends.update(restored)

    def withdraw(self) -> list[Waiter]:
        """Remove every operation with a waiter, before the batch is sent; return the waiters."""
        failing = self.waiters()
        changes = zip(self.changes, self.change_waiters, strict=True)
        self.changes = [change for change, waiter in changes if waiter is None]
        self.change_waiters = [None] * len(self.changes)
        for message_id in self.append_waiters:
            del self.appends[message_id]
        self.removes = [message for place, message in enumerate(self.removes) if place not in self.remove_waiters]
        self.append_waiters = {}
        self.remove_waiters = {}
        self.count_cost()
        return failing

    def count_cost(self) -> None:
        contents_bytes = sum([message.footprint_bytes - MESSAGE_OVERHEAD_BYTES for message in self.appends.values()])
        self.cost_bytes = contents_bytes + OPERATION_BYTES * (self.count + len(self.settled))

    def undo(self) -> tuple[list[Waiter], list[Waiter]]:
        """Mark operations with waiters as undone, in flight; return the waiters, and separately those of changes.

        A message whose remove is undone counts as not stored until the next commit.
        """
        failing = [*self.append_waiters.values(), *self.remove_waiters.values()]
        self.undone_appends += [self.appends[message_id] for message_id in self.append_waiters]
        for place in self.remove_waiters:
            self.removes[place].stored = False
            self.undone_removes.append(self.removes[place])
        unknown = [waiter for waiter in self.change_waiters if waiter is not None]
        self.append_waiters = {}
        self.remove_waiters = {}
        self.change_waiters = [None if waiter is None else _Doubtful(waiter) for waiter in self.change_waiters]
        return failing, unknown

    def waiters(self) -> list[Waiter]:
        """The waiters of all remaining operations except transfers."""
        changing = [waiter for waiter in self.change_waiters if waiter is not None]
        return [*changing, *self.append_waiters.values(), *self.remove_waiters.values()]
