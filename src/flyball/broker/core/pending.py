"""Callbacks of the journal for messages and changes that are being made durable.

The journal calls back once for each message or change. These classes complete the request, or undo it in the engine
if it could not be made durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from flyball.broker.engine.engine import Engine
from flyball.broker.store.changes import Change
from flyball.broker.store.group_commit import GroupCommit
from flyball.broker.store.pending_batch import Group, OperationsRefused, OutcomeUnknown
from flyball.errors import FlyballError
from flyball.model import Message

PutDone = Callable[[Sequence[Message], FlyballError | None], None]
TakeDone = Callable[[Message | None, FlyballError | None], None]
Done = Callable[[FlyballError | None], None]

T = TypeVar("T")

# Called once with the result of an operation, which is undefined in case of an error.
Answer = Callable[[T, FlyballError | None], None]


class PendingPut:
    """A put that is not durable yet; if it fails, the message is withdrawn."""

    __slots__ = ("_done", "_engine", "_message")

    def __init__(self, engine: Engine, message: Message, done: TakeDone) -> None:
        self._engine = engine
        self._message = message
        self._done = done

    def committed(self) -> None:
        self._done(self._message, None)

    def failed(self, error: FlyballError) -> None:
        # No effect if the message was delivered: its removal then fails as well.
        self._engine.withdraw(self._message)
        self._done(self._message, error)


class PendingDelete:
    """A removal that is not durable yet; if it fails, the message is requeued."""

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
    """Completes one request when all of its puts or removals have completed."""

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
    """A change that is not durable yet; if it fails, it is undone.

    While its outcome is unknown it stays in effect; if it turns out to be refused, it is undone.
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
    """Waits at a mark for its own changes and messages; other refused operations of the batch are ignored."""

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
        """With `acks` any refused removal is an error: no other callback reports a refused ack."""
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
    """Make changes durable that cannot be undone: they are retried even after the timeout."""
    for change in changes:
        journal.change(change, None)
    journal.mark(PendingMark(done, changes), is_limited=True)


def _ignore(error: FlyballError | None) -> None:
    """Do nothing: the caller already received OutcomeUnknown."""


async def outcome(operation: Callable[[Done], object]) -> None:
    """Await an operation that calls back when it is done. Raises the error passed to the callback."""
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: FlyballError | None) -> None:
        # The waiting task may have been cancelled.
        if answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

    operation(done)
    await answer


async def result(operation: Callable[[Answer[T]], object]) -> T:
    """Await the result of an operation that calls back. Raises the error passed to the callback."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T, error: FlyballError | None) -> None:
        # The waiting task may have been cancelled.
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    operation(done)
    return await answer
