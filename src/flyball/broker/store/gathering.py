"""A batch while it is gathered: its operations, who waits for each, and how it is bisected when the store refuses it.

Decides nothing about time and writes nothing: `group_commit` does.
"""

from __future__ import annotations

from typing import Protocol

from flyball.broker.store.changes import Change
from flyball.broker.store.interface import Batch, Transfer
from flyball.errors import Fenced, FlyballError, StoreError, StoreUnavailable
from flyball.model import MESSAGE_OVERHEAD_BYTES, Message

# What an operation counts beside its content: a guess at its memory, and a bound to the rows of a batch.
OPERATION_BYTES = 200


class OutcomeUnknown(StoreUnavailable):
    """The change was on its way when the time limit passed, and may yet be done."""


class Group:
    """Appends and removes that are committed together or not at all: see `GroupCommit.together`."""

    __slots__ = ("appended_ids", "removed_ids")

    def __init__(self) -> None:
        self.appended_ids: set[int] = set()
        self.removed_ids: set[int] = set()


class OperationsRefused(StoreError):
    """The store has refused operations of a batch for good, and has committed the others.

    A mark fails with it if one of them has neither a waiter nor a receipt: what it waits for may be among
    these, or not.
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
    """Somebody who wants to know. Called once for each operation submitted with it.

    Only after OutcomeUnknown it may hear once more that the change was refused after all.
    """

    def committed(self) -> None: ...

    def failed(self, error: FlyballError) -> None:
        """It is not done: a StoreError, or InvalidArgument for a change that the store cannot hold."""
        ...


class _Doubtful:
    """Stands in for the waiter of a change that was told OutcomeUnknown: it hears only of a refusal."""

    __slots__ = ("_waiter",)

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter

    def committed(self) -> None:
        pass

    def failed(self, error: FlyballError) -> None:
        if not isinstance(error, StoreUnavailable | Fenced):
            self._waiter.failed(error)


class Split:
    """What the parts of a bisected batch know of each other."""

    __slots__ = ("commits", "culprits", "deleted_queue_ids", "refused")

    def __init__(self) -> None:
        # What was refused and has nobody else to be told.
        self.refused: OperationsRefused | None = None
        self.culprits = 0
        self.commits = 0
        self.deleted_queue_ids: set[int] = set()


# The places of changes, the ids of appends, the places of removes and of transfers that are not cut apart.
_Unit = tuple[list[int], list[int], list[int], list[int]]


class Gathering:
    """What one commit will carry. It is on the path of every message: what nobody waits for costs one entry."""

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
        # By the message's id.
        self.append_waiters: dict[int, Waiter] = {}
        self.removes: list[Message] = []
        # By the place in `removes`.
        self.remove_waiters: dict[int, Waiter] = {}
        self.transfers: list[Transfer] = []
        self.transfer_waiters: list[Waiter | None] = []
        # Who waits for an append and a remove that cancelled out.
        self.settled: list[Waiter] = []
        self.groups: list[Group] = []
        self.marks: list[Waiter] = []
        # Those to which the time limit applies.
        self.limited_marks: list[Waiter] = []
        self.cost_bytes = 0
        self.expired = False
        # Whether an attempt to commit it may have gone through.
        self.again = False
        # Set once something was refused: shared with the other parts of the batch.
        self.split: Split | None = None
        self.undone_appends: list[Message] = []
        self.undone_removes: list[Message] = []

    @property
    def count(self) -> int:
        return len(self.changes) + len(self.appends) + len(self.removes) + len(self.transfers)

    def settle(self, message_id: int, waiter: Waiter | None) -> None:
        """Keep who waits for an append that was taken out before it was sent, and for the remove that did it."""
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

    def halves(self) -> tuple[Gathering, Gathering]:
        """Cut it in two, in the order in which the store takes its operations: the second comes after the first."""
        if self.undone_appends or self.undone_removes:
            self.turn_undone()
            # What is written again is stored already.
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
        """Return what can be committed by itself, in the order in which the store takes it.

        What a group removes goes with what it appends: it was appended before the group, if in this batch at all.
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
            # A transfer that may have been done is recognised by those that were sent with it.
            units.append(([], [], [], places))
        else:
            units += [([], [], [], [place]) for place in places]
        return units

    def _part(self) -> Gathering:
        part = Gathering(self.opened_at)
        part.sealed_at, part.expired, part.again, part.split = self.sealed_at, self.expired, self.again, self.split
        return part

    def turn_undone(self) -> None:
        """Before the next attempt: put the opposite in the place of what has failed meanwhile.

        Nobody waits for a message any more: where one failed, all have.
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
        """Before it is sent: take out every operation that somebody waits for, and return those waiters."""
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
        """While it is in flight: mark as undone what somebody waits for; return waiters and those of changes.

        A message whose remove is undone is not known to be stored until the next commit.
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
        """Everybody who waits for an operation that is still here, but for transfers."""
        changing = [waiter for waiter in self.change_waiters if waiter is not None]
        return [*changing, *self.append_waiters.values(), *self.remove_waiters.values()]
