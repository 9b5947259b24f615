"""What is on its way to the store, and whom to tell when it has arrived.

The journal calls back once for each message or change; these turn that into the answer of a request, and undo in the
engine what could not be made durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from flyball.broker.engine.engine import Engine
from flyball.broker.store.changes import Change
from flyball.broker.store.gathering import Group, OperationsRefused, OutcomeUnknown
from flyball.broker.store.group_commit import GroupCommit
from flyball.errors import FlyballError
from flyball.model import Message

PutDone = Callable[[Sequence[Message], FlyballError | None], None]
TakeDone = Callable[[Message | None, FlyballError | None], None]
Done = Callable[[FlyballError | None], None]

T = TypeVar("T")

# Called once with the result of an operation, which means nothing if there is an error.
Answer = Callable[[T, FlyballError | None], None]


class PendingPut:
    """A message on its way to the store; it is taken back if that fails."""

    __slots__ = ("_done", "_engine", "_message")

    def __init__(self, engine: Engine, message: Message, done: TakeDone) -> None:
        self._engine = engine
        self._message = message
        self._done = done

    def committed(self) -> None:
        self._done(self._message, None)

    def failed(self, error: FlyballError) -> None:
        # Unless somebody has it already, whose removal of it fails as well.
        self._engine.withdraw(self._message)
        self._done(self._message, error)


class PendingDelete:
    """A removal on its way to the store; the message comes back if it fails."""

    __slots__ = ("_done", "_engine", "_message", "_requeue")

    def __init__(self, engine: Engine, message: Message, done: TakeDone, requeue: Callable[[Message], None]) -> None:
        self._engine = engine
        self._message = message
        self._done = done
        self._requeue = requeue

    def committed(self) -> None:
        self._engine.settle(self._message)
        self._done(self._message, None)

    def failed(self, error: FlyballError) -> None:
        self._requeue(self._message)
        self._done(None, error)


class Countdown:
    """Counts several messages whose puts or removals are answered as one."""

    __slots__ = ("_done", "_error", "_left")

    def __init__(self, left: int, done: Done) -> None:
        self._left = left
        self._done = done
        self._error: FlyballError | None = None

    def one_done(self, message: Message | None, error: FlyballError | None) -> None:
        self._error = self._error or error
        self._left -= 1
        if self._left == 0:
            self._done(self._error)


class PendingChange:
    """A change on its way to the store; it is undone if it fails, where it can be.

    While its outcome is unknown it stays; if it is refused after all it is undone then.
    """

    __slots__ = ("_done", "_undo")

    def __init__(self, done: Done, undo: Callable[[], object] = lambda: None) -> None:
        self._done = done
        self._undo = undo

    def committed(self) -> None:
        self._done(None)

    def failed(self, error: FlyballError) -> None:
        done, self._done = self._done, _ignore
        if not isinstance(error, OutcomeUnknown):
            self._undo()
        done(error)


class PendingMark:
    """Waits at a mark for changes and messages of its own; others of the batch that were refused do not matter."""

    __slots__ = ("_acks", "_changes", "_done", "_end_id", "_first_id", "_group")

    def __init__(
        self,
        done: Done,
        changes: Sequence[Change] = (),
        first_id: int = 0,
        end_id: int = 0,
        group: Group | None = None,
        acks: bool = False,
    ) -> None:
        """With `acks` refused removals matter, whose they ever are: nobody else is told of a refused ack."""
        self._done = done
        self._acks = acks
        self._group = group
        self._changes = changes
        self._first_id = first_id
        self._end_id = end_id

    def committed(self) -> None:
        self._done(None)

    def failed(self, error: FlyballError) -> None:
        self._done(error if self._concerns(error) else None)

    def _concerns(self, error: FlyballError) -> bool:
        if not isinstance(error, OperationsRefused):
            return True
        return (
            self._group in error.groups
            or (self._acks and bool(error.removed_ids))
            or any(change is refused for change in self._changes for refused in error.changes)
            or error.concerns(self._first_id, self._end_id)
        )


def change_for_good(journal: GroupCommit, changes: Sequence[Change], done: Done) -> None:
    """Make changes durable that cannot be undone: if the time limit passes they are done later."""
    for change in changes:
        journal.change(change, None)
    journal.mark(PendingMark(done, changes), is_limited=True)


def _ignore(error: FlyballError | None) -> None:
    """Who asked was told before that the outcome is unknown."""


async def outcome(operation: Callable[[Done], object]) -> None:
    """Begin something that calls back when it is done, and wait for that. Raises the error that is told."""
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: FlyballError | None) -> None:
        # Nobody waits any more if the one who did was cancelled.
        if answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

    operation(done)
    await answer


async def result(operation: Callable[[Answer[T]], object]) -> T:
    """Begin something that calls back with its result, and wait for that. Raises the error that is told."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T, error: FlyballError | None) -> None:
        # Nobody waits any more if the one who did was cancelled.
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    operation(done)
    return await answer
