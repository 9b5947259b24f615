"""What is on its way to the store, and whom to tell when it has arrived.

The journal calls back once for each message or change; these turn that into the answer of a request, and undo in the
engine what could not be made durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from flyball.engine.engine import Engine
from flyball.errors import FlyballError, StoreError
from flyball.model import Message
from flyball.store.group_commit import OutcomeUnknown

PutDone = Callable[[Sequence[Message], FlyballError | None], None]
TakeDone = Callable[[Message | None, FlyballError | None], None]
Done = Callable[[FlyballError | None], None]


class Putting:
    """A message on its way to the store; it is taken back if that fails."""

    __slots__ = ("_done", "_engine", "_message")

    def __init__(self, engine: Engine, message: Message, done: TakeDone) -> None:
        self._engine = engine
        self._message = message
        self._done = done

    def committed(self) -> None:
        self._done(self._message, None)

    def failed(self, error: StoreError) -> None:
        # Unless somebody has it already, whose removal of it fails as well.
        self._engine.withdraw(self._message)
        self._done(self._message, error)


class Taking:
    """A removal on its way to the store; the message comes back if it fails."""

    __slots__ = ("_bring_back", "_done", "_engine", "_message")

    def __init__(
        self, engine: Engine, message: Message, done: TakeDone, bring_back: Callable[[Message], None]
    ) -> None:
        self._engine = engine
        self._message = message
        self._done = done
        self._bring_back = bring_back

    def committed(self) -> None:
        self._engine.settle(self._message)
        self._done(self._message, None)

    def failed(self, error: StoreError) -> None:
        self._bring_back(self._message)
        self._done(None, error)


class Together:
    """Counts several messages whose puts or removals are answered as one."""

    __slots__ = ("_done", "_error", "_left")

    def __init__(self, left: int, done: Done) -> None:
        self._left = left
        self._done = done
        self._error: FlyballError | None = None

    def one(self, message: Message | None, error: FlyballError | None) -> None:
        self._error = self._error or error
        self._left -= 1
        if self._left == 0:
            self._done(self._error)


class Changing:
    """A change on its way to the store; it is undone if it fails, where it can be."""

    __slots__ = ("_done", "_undo")

    def __init__(self, done: Done, undo: Callable[[], object] = lambda: None) -> None:
        self._done = done
        self._undo = undo

    def committed(self) -> None:
        self._done(None)

    def failed(self, error: StoreError) -> None:
        if not isinstance(error, OutcomeUnknown):
            self._undo()
        self._done(error)


async def outcome(operation: Callable[[Done], object]) -> None:
    """Begin something that calls back when it is done, and wait for that. Raises the error that is told."""
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: FlyballError | None) -> None:
        # Nobody waits any more if the one who did was cancelled.
        if told.done():
            return
        if error is None:
            told.set_result(None)
        else:
            told.set_exception(error)

    operation(done)
    await told
