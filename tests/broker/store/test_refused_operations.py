"""A batch that the store refuses: only the culprits fail, everything else is committed in its order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.backoff import Backoff
from flyball.broker.store import group_commit
from flyball.broker.store.changes import (
    Change,
    ClientCreated,
    ClientDeleted,
    DefinitionDeleted,
    DefinitionPut,
    QueueCreated,
    QueueDeleted,
    QueueMoved,
)
from flyball.broker.store.group_commit import GroupCommit
from flyball.broker.store.interface import Batch, Transfer
from flyball.broker.store.pending_batch import Group, OperationsRefused, OutcomeUnknown
from flyball.errors import FlyballError, InvalidArgument, StoreError, StoreUnavailable
from flyball.model import Client, ClientMode, Definition, Message, Queue

# Messages that were stored before; they can be removed and transferred.
OLD_IDS = range(1, 21)

FIRST_NEW_ID = 100


@dataclass(eq=False)
class Operation:
    kind: str
    is_poisoned: bool
    has_waiter: bool
    subject: Change | Message | Transfer
    told: list[FlyballError | None] = field(default_factory=list)
    undone: bool = False
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    def committed(self) -> None:
        self.told.append(None)

    def failed(self, error: FlyballError) -> None:
        self.told.append(error)
        self.heard.set()


def is_same(subject: object, other: object) -> bool:
    """Whether these are the same operation, and not two that look alike; removes are ids."""
    return subject == other if isinstance(subject, int) else subject is other


class PickyJournal:
    """Commits all of a batch or, if anything in it is poisoned, nothing. Sometimes it does not say which."""

    def __init__(self, poisoned: list[object], doubts: list[str]) -> None:
        self.poisoned = poisoned
        self.doubts = doubts
        self.contents: dict[int, Message] = {number: Message(number, 1, b"", stored=True) for number in OLD_IDS}
        # Changes, messages, ids of removed ones and transfers, as they were committed.
        self.committed: list[object] = []
        self.commits = 0

    async def commit(self, batch: Batch, *, again: bool = False) -> None:
        await asyncio.sleep(0)
        doubt = self.doubts.pop() if self.doubts else ""
        if doubt == "lost":
            raise StoreUnavailable("gone")
        subjects: list[object] = [*batch.changes, *batch.appended, *batch.removed, *batch.transfers]
        if any(is_same(subject, bad) for subject in subjects for bad in self.poisoned):
            raise StoreError("poison")
        self.commits += 1
        deleted = {change.queue_id for change in batch.changes if isinstance(change, QueueDeleted)}
        for message in batch.appended:
            assert again or message.id not in self.contents
            if message.queue_id not in deleted:
                self.contents[message.id] = message
        for message_id in batch.removed:
            self.contents.pop(message_id, None)
        if again:
            subjects = [one for one in subjects if not any(is_same(one, done) for done in self.committed)]
        self.committed += subjects
        if doubt == "done":
            raise StoreUnavailable("gone, but done")


def change_of(kind: str, number: int) -> Change:
    match kind:
        case "QueueCreated":
            return QueueCreated(Queue(1000 + number, f"q{number}"))
        case "QueueDeleted":
            return QueueDeleted(2000 + number % 3)
        case "QueueMoved":
            return QueueMoved(Queue(3000 + number, f"q{number}"), 2)
        case "ClientCreated":
            return ClientCreated(Client(number, f"c{number}", ClientMode.FULL))
        case "ClientDeleted":
            return ClientDeleted(number)
        case "DefinitionPut":
            return DefinitionPut(Definition("exchange", f"e{number}", {"number": number}))
    return DefinitionDeleted("exchange", f"e{number}")


CHANGES = (
    "QueueCreated",
    "QueueDeleted",
    "QueueMoved",
    "ClientCreated",
    "ClientDeleted",
    "DefinitionPut",
    "DefinitionDeleted",
)
KINDS = (
    *CHANGES,
    "append",
    "append",
    "append",
    "append to a new queue",
    "append to a deleted queue",
    "remove",
    "transfer",
)


def operations_of(plan: list[tuple[str, bool, bool]]) -> list[Operation]:
    operations: list[Operation] = []
    old_ids = list(OLD_IDS)
    for number, (kind, is_poisoned, has_waiter) in enumerate(plan):
        subject: Change | Message | Transfer
        if kind.startswith("append"):
            created = [
                operation.subject.queue.id for operation in operations if isinstance(operation.subject, QueueCreated)
            ]
            queue_id = {"append to a deleted queue": 2000 + number % 3}.get(kind, 1)
            if kind == "append to a new queue" and created:
                queue_id = created[-1]
            subject = Message(FIRST_NEW_ID + number, queue_id, b"body")
        elif kind in ("remove", "transfer"):
            if not old_ids:
                continue
            taken = old_ids.pop()
            subject = Transfer([taken], 1, 2) if kind == "transfer" else Message(taken, 1, b"", stored=True)
        else:
            subject = change_of(kind, number)
        operations.append(Operation(kind, is_poisoned, has_waiter, subject))
    return operations


class Undone:
    def __init__(self, operations: list[Operation]) -> None:
        self._operations = operations

    def append_refused(self, message: Message) -> None:
        self._note(message)

    def remove_refused(self, message: Message) -> None:
        self._note(message)

    def _note(self, message: Message) -> None:
        for operation in self._operations:
            if operation.subject is message:
                assert not operation.undone
                operation.undone = True


@dataclass(eq=False)
class Mark:
    after: int
    told: list[FlyballError | None] = field(default_factory=list)

    def committed(self) -> None:
        self.told.append(None)

    def failed(self, error: FlyballError) -> None:
        self.told.append(error)


def submit(writer: GroupCommit, operation: Operation) -> None:
    subject, waiter = operation.subject, operation if operation.has_waiter else None
    if isinstance(subject, Message):
        if operation.kind == "remove":
            writer.remove(subject, waiter)
        else:
            writer.append(subject, waiter)
    elif isinstance(subject, Transfer):
        writer.transfer(subject, waiter)
    else:
        writer.change(subject, waiter)


async def carry_out(
    operations: list[Operation], doubts: list[str], pause_every: int
) -> tuple[PickyJournal, list[Mark]]:
    poisoned: list[object] = []
    for operation in operations:
        if operation.is_poisoned:
            subject = operation.subject
            is_removal = isinstance(subject, Message) and operation.kind == "remove"
            poisoned.append(subject.id if is_removal and isinstance(subject, Message) else subject)
    journal = PickyJournal(poisoned, doubts)
    writer = GroupCommit(journal, undo=Undone(operations))
    marks: list[Mark] = []
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(writer.run())
        await asyncio.sleep(0)
        for number, operation in enumerate(operations):
            submit(writer, operation)
            if number % 3 == 2:
                marks.append(Mark(number))
                writer.mark(marks[-1])
            if pause_every and number % pause_every == 0:
                await asyncio.sleep(0)
        await writer.stop()
    return journal, marks


def fails(operation: Operation, operations: list[Operation]) -> bool:
    """Whether the operation is a culprit, or puts a message into a queue whose creation is one."""
    if operation.is_poisoned:
        return True
    subject = operation.subject
    return isinstance(subject, Message) and any(
        other.is_poisoned and isinstance(other.subject, QueueCreated) and other.subject.queue.id == subject.queue_id
        for other in operations
    )


@pytest.fixture(autouse=True)
def _quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "RETRIES", Backoff(first_s=0.0, max_s=0.0))


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 5).map(lambda n: n == 0), st.booleans()), max_size=40),
    st.lists(st.sampled_from(["", "", "", "lost", "done"]), max_size=12),
    st.sampled_from([0, 1, 2, 5]),
)
def test_only_culprits_of_a_refused_batch_fail(
    plan: list[tuple[str, bool, bool]], doubts: list[str], pause_every: int
) -> None:
    operations = operations_of(plan)
    journal, marks = asyncio.run(carry_out(operations, doubts, pause_every))
    deleted_at: dict[int, int] = {}
    for number, operation in enumerate(operations):
        if isinstance(operation.subject, QueueDeleted) and not operation.is_poisoned:
            deleted_at[operation.subject.queue_id] = number
    for operation in operations:
        subject, is_refused = operation.subject, fails(operation, operations)
        if operation.has_waiter:
            assert [told is not None for told in operation.told] == [is_refused], operation
        else:
            assert operation.undone == (is_refused and isinstance(subject, Message)), operation
        if isinstance(subject, Message) and operation.kind == "remove":
            assert (subject.id in journal.contents) == is_refused
        elif isinstance(subject, Message) and subject.queue_id not in deleted_at:
            assert (subject.id in journal.contents) == (not is_refused), operation
            assert subject.stored == (not is_refused)
        elif not isinstance(subject, Message):
            assert sum(done is subject for done in journal.committed) == (not is_refused)
    for mark in marks:
        assert len(mark.told) == 1
        if isinstance(mark.told[0], OperationsRefused):
            unheard = [one for one in operations if fails(one, operations) and not one.has_waiter]
            assert unheard, "a mark failed though each culprit has a waiter of its own"
    for kind in (CHANGES, ("append",), ("transfer",)):
        submitted = [one.subject for one in operations if one.kind in kind]
        done = [subject for subject in journal.committed if any(subject is one for one in submitted)]
        assert done == [subject for subject in submitted if any(subject is one for one in done)]


async def run_with(journal: PickyJournal, work: Callable[[GroupCommit], None]) -> None:
    writer = GroupCommit(journal)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(writer.run())
        await asyncio.sleep(0)
        work(writer)
        await writer.stop()


async def test_batch_of_ten_thousand_finds_its_culprit_in_few_attempts() -> None:
    messages = [Message(FIRST_NEW_ID + number, 1, b"") for number in range(10_000)]
    journal = PickyJournal([messages[7777]], [])
    mark = Mark(0)

    def work(writer: GroupCommit) -> None:
        for message in messages:
            writer.append(message, None)
        writer.mark(mark)

    await run_with(journal, work)
    assert len(journal.contents) == len(OLD_IDS) + 9_999
    assert journal.commits < 40
    assert isinstance(mark.told[0], OperationsRefused)
    assert mark.told[0].appended_ids == {messages[7777].id}


async def test_store_that_refuses_everything_is_not_asked_for_each_operation() -> None:
    operations = [Operation("append", True, True, Message(FIRST_NEW_ID + number, 1, b"")) for number in range(2_000)]
    journal = PickyJournal([operation.subject for operation in operations], [])
    writer = GroupCommit(journal)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(writer.run())
        await asyncio.sleep(0)
        for operation in operations:
            submit(writer, operation)
        await writer.stop()
    assert all(len(operation.told) == 1 for operation in operations)
    assert writer.failures < 4 * group_commit.MAX_CULPRITS


async def test_unstorable_change_fails_at_submission_and_never_reaches_a_batch() -> None:
    bad = DefinitionPut(Definition("exchange", "bad", {}))
    good = DefinitionPut(Definition("exchange", "good", {}))
    journal = PickyJournal([bad], [])

    def check(change: Change) -> None:
        if change is bad:
            raise InvalidArgument("a Galaxy cannot be an argument")

    writer = GroupCommit(journal, check=check)
    culprit = Operation("DefinitionPut", True, True, bad)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(writer.run())
        await asyncio.sleep(0)
        writer.change(good, None)
        writer.change(bad, culprit)
        assert isinstance(culprit.told[0], InvalidArgument)
        writer.change(bad, None)
        await writer.stop()
    assert (journal.committed, writer.failures) == ([good], 0)


async def test_change_of_unknown_outcome_is_told_when_it_is_refused_after_all() -> None:
    class Clock:
        time_s = 0.0

        def now(self) -> float:
            return self.time_s

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(0)
            self.time_s += seconds

    class Hanging:
        def __init__(self) -> None:
            self.answer = asyncio.Event()

        async def commit(self, batch: Batch, *, again: bool = False) -> None:
            await self.answer.wait()
            raise StoreError("poison")

    journal = Hanging()
    writer = GroupCommit(journal, clock=Clock(), time_limit_s=1.0)
    culprit = Operation("DefinitionPut", True, True, DefinitionPut(Definition("exchange", "bad", {})))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(writer.run())
        await asyncio.sleep(0)
        submit(writer, culprit)
        await culprit.heard.wait()
        journal.answer.set()
        await writer.stop()
    assert [type(told) for told in culprit.told] == [OutcomeUnknown, StoreError]


@pytest.mark.parametrize("victim_id", [99, 101, 3], ids=["another message", "its put", "its ack"])
async def test_transaction_is_never_cut_apart(victim_id: int) -> None:
    messages = {number: Message(number, 1, b"") for number in (99, 101, 102, 111, 112, *range(200, 220))}
    journal = PickyJournal([messages.get(victim_id, victim_id)], [])
    carried: list[set[int]] = []
    commit = journal.commit

    async def watched(batch: Batch, *, again: bool = False) -> None:
        await commit(batch, again=again)
        carried.append({*(message.id for message in batch.appended), *batch.removed})

    journal.commit = watched  # type: ignore[method-assign]
    writer = GroupCommit(journal)
    marks = [Mark(0), Mark(1)]
    groups: list[Group] = []
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(writer.run())
        await asyncio.sleep(0)
        writer.append(messages[99], None)
        for mark, puts, acks in ((marks[0], (101, 102), (3, 4)), (marks[1], (111, 112), (13, 14))):
            with writer.together() as group:
                for number in puts:
                    writer.append(messages[number], None)
                for number in acks:
                    writer.remove(Message(number, 1, b"", stored=True), None, spare=False)
            groups.append(group)
            writer.mark(mark)
        for number in range(200, 220):
            writer.append(messages[number], None)
        await writer.stop()
    for number, (group, mark) in enumerate(zip(groups, marks, strict=True)):
        error, whole = mark.told[0], group.appended_ids | group.removed_ids
        assert isinstance(error, OperationsRefused)
        is_refused = number == 0 and victim_id != 99
        assert (group in error.groups, len(whole)) == (is_refused, 4)
        assert [found & whole for found in carried if found & whole] == ([] if is_refused else [whole])
    assert set(range(200, 220)) <= set(journal.contents)
