"""The single writer: gathers what the broker wants durable while one transaction is in flight.

Knows the store's interface and a clock; no SQL, no socket, no engine. Everything runs in the loop's thread.

An operation is answered once: `committed` when it is durable, `failed` when the time limit passed first. What
failed is undone as far as it had gone, so that the caller may act as if it had never been asked for:

- not yet sent: it is withdrawn;
- sent, outcome unknown: the next attempt carries its opposite (the append of a failed remove, the remove of a
  failed append), and so does the next batch if the attempt succeeds after all.

Only a change of a queue or client that was already sent stays in its batch: its failure says OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from flyball.errors import StoreError, StoreUnavailable
from flyball.model import Message
from flyball.store.interface import Batch, Change

log = logging.getLogger(__name__)

OPERATION_BYTES = 200
"""What an operation counts beside its body: a guess at its memory, and a bound to the rows of a batch."""

MAX_BATCH_BYTES = 16 * 1024 * 1024
"""A batch that counts so much takes no more: the next ones go into another."""

FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 1.0


class OutcomeUnknown(StoreUnavailable):
    """The change was on its way when the time limit passed, and may yet be done."""


class Journal(Protocol):
    """The part of a store that the writer needs."""

    async def commit(self, batch: Batch, *, again: bool = False) -> None: ...


class Waiter(Protocol):
    """Somebody who wants to know. Called once for each operation submitted with it."""

    def committed(self) -> None: ...

    def failed(self, error: StoreError) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds, counting up steadily."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class MonotonicClock:
    """The clock of the machine."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Gathering:
    """What one commit will carry, in parallel lists: it is on the path of every message."""

    __slots__ = (
        "append_waiters",
        "appends",
        "change_waiters",
        "changes",
        "cost_bytes",
        "expired",
        "flushes",
        "opened_at",
        "place",
        "remove_waiters",
        "removes",
        "sealed_at",
        "settled",
        "undone_appends",
        "undone_removes",
    )

    def __init__(self, opened_at: float) -> None:
        self.opened_at = opened_at
        self.sealed_at: float | None = None
        self.changes: list[Change] = []
        self.change_waiters: list[Waiter | None] = []
        self.appends: list[Message | None] = []
        """None where a remove came before the append was sent."""
        self.append_waiters: list[Waiter | None] = []
        self.place: dict[int, int] = {}
        """Where in `appends` a message is."""
        self.removes: list[Message] = []
        self.remove_waiters: list[Waiter | None] = []
        self.settled: list[Waiter] = []
        """Who waits for an append and a remove that cancelled out."""
        self.flushes: list[asyncio.Future[None]] = []
        self.cost_bytes = 0
        self.expired = False
        self.undone_appends: list[Message] = []
        self.undone_removes: list[Message] = []

    @property
    def count(self) -> int:
        return len(self.changes) + len(self.appends) + len(self.removes)

    def cancel_append(self, message_id: int, waiter: Waiter | None) -> bool:
        """Take out an append that was not sent yet; say whether it was here."""
        index = self.place.pop(message_id, None)
        if index is None:
            return False
        self.appends[index] = None
        for answered in (self.append_waiters[index], waiter):
            if answered is not None:
                self.settled.append(answered)
        self.append_waiters[index] = None
        return True

    def batch(self) -> Batch:
        appended = [message for message in self.appends if message is not None]
        return Batch(self.changes, appended, [message.id for message in self.removes])

    def turn_undone(self) -> None:
        """Before the next attempt: put the opposite in the place of what has failed meanwhile."""
        if not (self.undone_appends or self.undone_removes):
            return
        appends, removes = self.undone_appends, self.undone_removes
        self.undone_appends, self.undone_removes = [], []
        taken = {message.id for message in appends}
        kept = [
            (message, waiter)
            for message, waiter in zip(self.appends, self.append_waiters, strict=True)
            if message is not None and message.id not in taken
        ]
        self.appends = [*(message for message, _ in kept), *removes]
        self.append_waiters = [waiter for _, waiter in kept] + [None] * len(removes)
        taken = {message.id for message in removes}
        held = [
            (message, waiter)
            for message, waiter in zip(self.removes, self.remove_waiters, strict=True)
            if message.id not in taken
        ]
        self.removes = [*(message for message, _ in held), *appends]
        self.remove_waiters = [waiter for _, waiter in held] + [None] * len(appends)

    def withdraw(self) -> list[Waiter]:
        """Before it is sent: take out every operation that somebody waits for, and return those waiters."""
        failing = [
            waiter
            for waiters in (self.change_waiters, self.append_waiters, self.remove_waiters)
            for waiter in waiters
            if waiter is not None
        ]
        changes = zip(self.changes, self.change_waiters, strict=True)
        self.changes = [change for change, waiter in changes if waiter is None]
        appends = zip(self.appends, self.append_waiters, strict=True)
        self.appends = [message for message, waiter in appends if waiter is None and message is not None]
        removes = zip(self.removes, self.remove_waiters, strict=True)
        self.removes = [message for message, waiter in removes if waiter is None]
        self.change_waiters = [None] * len(self.changes)
        self.append_waiters = [None] * len(self.appends)
        self.remove_waiters = [None] * len(self.removes)
        self.place = {message.id: index for index, message in enumerate(self.appends) if message is not None}
        self.count_cost()
        return failing

    def count_cost(self) -> None:
        bodies_bytes = sum([len(message.body) for message in self.appends if message is not None])
        self.cost_bytes = bodies_bytes + OPERATION_BYTES * self.count

    def undo(self) -> tuple[list[Waiter], list[Waiter]]:
        """While it is in flight: mark as undone what somebody waits for; return waiters and those of changes.

        A message whose remove is undone is not known to be stored until the next commit.
        """
        failing: list[Waiter] = []
        for index, waiter in enumerate(self.append_waiters):
            message = self.appends[index]
            if waiter is not None and message is not None:
                self.append_waiters[index] = None
                self.undone_appends.append(message)
                failing.append(waiter)
        for index, waiter in enumerate(self.remove_waiters):
            if waiter is not None:
                self.remove_waiters[index] = None
                self.removes[index].stored = False
                self.undone_removes.append(self.removes[index])
                failing.append(waiter)
        unknown = [waiter for waiter in self.change_waiters if waiter is not None]
        self.change_waiters = [None] * len(self.changes)
        return failing, unknown


class GroupCommit:
    """Writes to a store in batches, one at a time, in the order of submission.

    `run` does the writing until `stop` is called; its owner is the node's TaskGroup. Nothing here refuses an
    operation when the store is away: the caller watches `pending_bytes` and stops reading from its clients.
    """

    def __init__(
        self,
        store: Journal,
        *,
        clock: Clock | None = None,
        time_limit_s: float = 10.0,
        on_flushed: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._clock: Clock = MonotonicClock() if clock is None else clock
        self._time_limit_s = time_limit_s
        self._tick_s = time_limit_s / 20
        self._on_flushed = on_flushed
        self._open: _Gathering | None = None
        self._waiting: deque[_Gathering] = deque()
        """Everything that was not sent yet, oldest first; the last one may be `_open`."""
        self._flight: _Gathering | None = None
        self._sent_at: float | None = None
        self._work = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._abandoning = False
        self._stopping = False
        self._give_up_at: float | None = None
        self._ended = asyncio.Event()
        self._ended.set()
        self.commits = 0
        self.failures = 0
        self.rows_appended = 0
        self.rows_removed = 0
        self.last_commit_s = 0.0
        self.failing_since: float | None = None
        """When the store stopped answering, by the clock; None while all is well."""

    def append(self, message: Message, waiter: Waiter | None) -> None:
        """Store the message. Its `stored` becomes true just before the waiter hears of it."""
        gathering = self._open or self._gather()
        gathering.place[message.id] = len(gathering.appends)
        gathering.appends.append(message)
        gathering.append_waiters.append(waiter)
        gathering.cost_bytes += OPERATION_BYTES + len(message.body)
        if gathering.cost_bytes > MAX_BATCH_BYTES:
            self._seal()

    def remove(self, message: Message, waiter: Waiter | None) -> None:
        """Drop a message that was appended. With a waiter it must be whole: a failure writes it again."""
        if not message.stored:
            for gathering in self._waiting:
                if gathering.cancel_append(message.id, waiter):
                    return
        gathering = self._open or self._gather()
        gathering.removes.append(message)
        gathering.remove_waiters.append(waiter)
        gathering.cost_bytes += OPERATION_BYTES
        if gathering.cost_bytes > MAX_BATCH_BYTES:
            self._seal()

    def change(self, change: Change, waiter: Waiter | None) -> None:
        """Store a change of a queue or a client, before the messages submitted with it."""
        gathering = self._open or self._gather()
        gathering.changes.append(change)
        gathering.change_waiters.append(waiter)
        gathering.cost_bytes += OPERATION_BYTES

    @property
    def pending_bytes(self) -> int:
        """How much memory everything that is not committed takes, roughly."""
        total = 0 if self._flight is None else self._flight.cost_bytes
        for gathering in self._waiting:
            total += gathering.cost_bytes
        return total

    @property
    def pending_count(self) -> int:
        """How many operations are not committed."""
        flying = 0 if self._flight is None else self._flight.count
        return flying + sum([gathering.count for gathering in self._waiting])

    async def flush(self) -> None:
        """Wait until everything submitted before is committed. Raises StoreUnavailable on the time limit."""
        last = self._waiting[-1] if self._waiting else self._flight
        if last is None:
            return
        if last.expired:
            raise StoreUnavailable("the store does not answer")
        flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        last.flushes.append(flushed)
        await flushed

    async def run(self) -> None:
        """Write until `stop`. What is pending when it ends otherwise fails."""
        self._ended.clear()
        self._stopping = False
        self._give_up_at = None
        try:
            async with asyncio.TaskGroup() as group:
                self._writer = group.create_task(self._write())
                watchdog = group.create_task(self._watch())
                self._writer.add_done_callback(lambda _: watchdog.cancel())
        finally:
            self._writer = None
            self._fail_the_rest()
            self._ended.set()

    async def stop(self) -> None:
        """Commit everything that is pending, for at most the time limit, and end `run`."""
        if self._writer is None:
            return
        self._stopping = True
        self._give_up_at = self._clock.now() + self._time_limit_s + 2 * self._tick_s
        self._work.set()
        await self._ended.wait()

    def _gather(self) -> _Gathering:
        self._open = _Gathering(self._clock.now())
        self._waiting.append(self._open)
        self._work.set()
        return self._open

    def _seal(self) -> None:
        if self._open is not None:
            self._open.sealed_at = self._clock.now()
            self._open = None

    async def _write(self) -> None:
        while True:
            while not self._waiting:
                if self._stopping:
                    return
                self._work.clear()
                await self._work.wait()
            flight = self._waiting.popleft()
            if flight is self._open:
                self._seal()
            self._flight = flight
            await self._commit(flight)
            self._flight = None

    async def _commit(self, flight: _Gathering) -> None:
        """Commit until it succeeds, or until the store says that it never will."""
        backoff_s = FIRST_BACKOFF_S
        again = False
        while True:
            flight.turn_undone()
            batch = flight.batch()
            self._sent_at = began = self._clock.now()
            try:
                if batch:
                    await self._store.commit(batch, again=again)
                else:
                    await asyncio.sleep(0)  # everything cancelled out; others want their turn
            except StoreUnavailable as error:
                problem: StoreError = error
            except StoreError as error:
                self._sent_at = None
                self._refuse(flight, error)
                return
            except asyncio.CancelledError:
                if not self._abandoning or self._writer is None or self._writer.uncancel() > 0:
                    raise
                self._abandoning = False
                problem = StoreUnavailable("the store hangs")
            else:
                self._sent_at = None
                self._succeed(flight, batch, began)
                return
            self._sent_at = None
            self.failures += 1
            if self.failing_since is None:
                self.failing_since = began
                log.warning("cannot commit, trying again until it works: %s", problem)
            again = True
            await self._clock.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    def _succeed(self, flight: _Gathering, batch: Batch, began: float) -> None:
        now = self._clock.now()
        if batch:
            self.commits += 1
            self.rows_appended += len(batch.appended)
            self.rows_removed += len(batch.removed)
            self.last_commit_s = now - began
        if self.failing_since is not None:
            log.warning("commits work again after %.1f s", now - self.failing_since)
            self.failing_since = None
        for message in batch.appended:
            message.stored = True
        self._flight = None
        if flight.undone_appends or flight.undone_removes:
            self._take_back(flight, now)
        for waiters in (flight.change_waiters, flight.append_waiters, flight.remove_waiters, flight.settled):
            for waiter in waiters:
                if waiter is not None:
                    waiter.committed()
        for flushed in flight.flushes:
            if not flushed.done():
                flushed.set_result(None)
        self._on_flushed()

    def _take_back(self, flight: _Gathering, now: float) -> None:
        """It worked though somebody has been told otherwise: the very next batch carries the opposite."""
        gathering = _Gathering(now)
        gathering.sealed_at = now
        gathering.appends = [*flight.undone_removes]
        gathering.append_waiters = [None] * len(gathering.appends)
        gathering.place = {message.id: index for index, message in enumerate(flight.undone_removes)}
        gathering.removes = [*flight.undone_appends]
        gathering.remove_waiters = [None] * len(gathering.removes)
        gathering.count_cost()
        # In front: what was submitted meanwhile may remove these messages again.
        self._waiting.appendleft(gathering)

    def _refuse(self, flight: _Gathering, error: StoreError) -> None:
        """The store has not committed the batch and never will: everybody hears that."""
        log.error("the store refuses a batch of %d operations: %s", flight.count, error)
        self.failures += 1
        self._flight = None
        for waiters in (flight.change_waiters, flight.append_waiters, flight.remove_waiters):
            for waiter in waiters:
                if waiter is not None:
                    waiter.failed(error)
        self._answer_settled(flight)
        self._fail_flushes(flight, error)
        self._on_flushed()

    async def _watch(self) -> None:
        """Enforce the time limit, also while the store hangs. Sleeps for good while nothing is pending."""
        while True:
            if self._flight is None and not self._waiting:
                await self._work.wait()
            await self._clock.sleep(self._tick_s)
            self._check_times(self._clock.now())

    def _check_times(self, now: float) -> None:
        if self._open is not None and now - self._open.opened_at >= self._tick_s:
            # Operations of one gathering share their age: it must not become too long a time.
            self._seal()
        failed_any = False
        too_old = now - self._time_limit_s
        flight = self._flight
        if flight is not None and not flight.expired and flight.sealed_at is not None and flight.sealed_at <= too_old:
            failed_any = True
            self._expire_flight(flight)
        while self._waiting:
            oldest = next((gathering for gathering in self._waiting if not gathering.expired), None)
            if oldest is None or oldest.sealed_at is None or oldest.sealed_at > too_old:
                break
            failed_any = True
            self._expire_waiting(oldest)
        for gathering in self._waiting:
            if gathering.expired:
                self._answer_settled(gathering)
        if failed_any:
            self._on_flushed()
        hangs = self._sent_at is not None and now - self._sent_at >= 2 * self._time_limit_s
        gives_up = self._give_up_at is not None and now >= self._give_up_at
        if self._writer is not None and (hangs or gives_up):
            self._abandoning = not gives_up
            self._sent_at = None
            self._writer.cancel()

    def _expire_flight(self, flight: _Gathering) -> None:
        flight.expired = True
        failing, unknown = flight.undo()
        error = StoreUnavailable(f"the store did not answer within {self._time_limit_s:g} s")
        for waiter in failing:
            waiter.failed(error)
        doubt = OutcomeUnknown(f"the store did not answer within {self._time_limit_s:g} s; it may be done later")
        for waiter in unknown:
            waiter.failed(doubt)
        self._answer_settled(flight)
        self._fail_flushes(flight, error)

    def _expire_waiting(self, gathering: _Gathering) -> None:
        gathering.expired = True
        failing = gathering.withdraw()
        error = StoreUnavailable(f"the store did not answer within {self._time_limit_s:g} s")
        if not gathering.count:
            self._waiting.remove(gathering)
        for waiter in failing:
            waiter.failed(error)
        self._answer_settled(gathering)
        self._fail_flushes(gathering, error)

    def _answer_settled(self, gathering: _Gathering) -> None:
        """An append and a remove that cancelled out need no store."""
        settled, gathering.settled = gathering.settled, []
        for waiter in settled:
            waiter.committed()

    def _fail_flushes(self, gathering: _Gathering, error: StoreError) -> None:
        for flushed in gathering.flushes:
            if not flushed.done():
                flushed.set_exception(error)
        gathering.flushes.clear()

    def _fail_the_rest(self) -> None:
        """The writer has ended: nothing that is still here will be written."""
        self._open = None
        rest = list(self._waiting)
        self._waiting.clear()
        flight, self._flight = self._flight, None
        if flight is not None:
            self._expire_flight(flight)
        for gathering in rest:
            gathering.expired = True
            for waiter in gathering.withdraw():
                waiter.failed(StoreUnavailable("the broker stops"))
            self._answer_settled(gathering)
            self._fail_flushes(gathering, StoreUnavailable("the broker stops"))
        lost = sum(gathering.count for gathering in rest) + (0 if flight is None else flight.count)
        self._on_flushed()
        if lost:
            log.error("%d operations were still pending when the writer ended", lost)
