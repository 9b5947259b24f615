"""The single writer: gathers what the broker wants durable while one transaction is in flight.

Knows the store's interface and a clock; no SQL, no socket, no engine. Everything runs in the loop's thread.

An operation is answered once: `committed` when it is durable, `failed` when the time limit passed first. What
failed is undone as far as it had gone, so that the caller may act as if it had never been asked for:

- not yet sent: it is withdrawn;
- sent, outcome unknown: the next attempt carries its opposite (the append of a failed remove, the remove of a
  failed append), and so does the next batch if the attempt succeeds after all.

Only a change of a queue or client that was already sent stays in its batch: its failure says OutcomeUnknown.

There are three ways to learn of a commit, from the dearest to the cheapest:

- a waiter of the operation itself, an entry for each: the answer of a request, which has a time limit;
- a mark at the end of the batch, one for everything that its owner has in it, such as the publisher confirms of a
  channel. It waits however long the store is unavailable, unless it `is_limited`; `flush` awaits a limited one;
- the receipt of a message (`Message.receipt`), where a mark would be too late: its append was cancelled by its
  removal and will never be written, or it was refused.

A transfer is never withdrawn and has no time limit. Once the node is fenced, everything fails for good.

A batch that the store refuses for good is bisected: its parts are committed one after the other, in the same order,
until each refused operation stands alone. That one fails and is undone; all others are committed. The messages of a
queue whose creation is refused fail with it, and those of a queue that an earlier part has deleted are not written.
Marks of the batch move to its last part.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from flyball.backoff import Backoff, Retries
from flyball.broker.store.changes import Change, QueueCreated, QueueDeleted, QueueMoved
from flyball.broker.store.gathering import (
    OPERATION_BYTES,
    Gathering,
    Group,
    OperationsRefused,
    OutcomeUnknown,
    Split,
    Waiter,
)
from flyball.broker.store.interface import Batch, Transfer
from flyball.errors import Fenced, FlyballError, InvalidArgument, StoreError, StoreUnavailable
from flyball.events import Event
from flyball.faults import Faults
from flyball.model import MESSAGE_OVERHEAD_BYTES, Message

log = logging.getLogger(__name__)

# What a message takes in memory beyond its content is counted there, and is not written.
_SPARED_BYTES = MESSAGE_OVERHEAD_BYTES - OPERATION_BYTES

# A batch that counts so much takes no more: the next ones go into another. Thousands of rows at once are not dearer
# than tens of thousands, and a store that is behind drains in small steps, so that who waits for it can be steered.
MAX_BATCH_BYTES = 2 * 1024 * 1024

# While consumers deal with most messages before they are written, a batch waits so long: more of them will be.
LINGER_S = 0.001

# The part of the messages from which on that is worth it.
LINGER_FROM_RATIO = 0.5

# How much one batch counts in that part.
SPARED_WEIGHT = 0.2

RETRIES = Backoff(first_s=0.05, max_s=1.0, jitter_ratio=0.0)

# So many operations of one batch are refused one by one while none is committed; then the rest fails at once. A store
# that refuses everything must not be asked ten thousand times, each time over a new connection.
MAX_CULPRITS = 100


class Journal(Protocol):
    """The part of a store that the writer needs."""

    async def commit(self, batch: Batch, *, again: bool = False) -> None: ...


class Undo(Protocol):
    """Brings the engine back to what is stored, where an operation without a waiter was refused."""

    def append_refused(self, message: Message) -> None:
        """The message is not stored and never will be."""
        ...

    def remove_refused(self, message: Message) -> None:
        """The message is still stored."""
        ...


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
        faults: Faults | None = None,
        check: Callable[[Change], None] = lambda change: None,
        undo: Undo | None = None,
    ) -> None:
        """`check` raises InvalidArgument for a change that the store cannot hold."""
        self._store = store
        self._check = check
        self._undo = undo
        self._clock: Clock = MonotonicClock() if clock is None else clock
        self._time_limit_s = time_limit_s
        self._tick_s = time_limit_s / 20
        self._faults = Faults() if faults is None else faults
        # Less waits for the store than before.
        self.flushed = Event[[]]()
        # A change was submitted.
        self.changed = Event[[Change]]()
        self._fenced: Fenced | None = None
        self._open: Gathering | None = None
        # Everything that was not sent yet, oldest first; the last one may be `_open`.
        self._waiting: deque[Gathering] = deque()
        self._flight: Gathering | None = None
        self._sent_at: float | None = None
        self._work = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._abandoning = False
        self._stopping = False
        self._give_up_at: float | None = None
        self._ended = asyncio.Event()
        self._ended.set()
        # How many messages were removed before they were sent, since the last batch.
        self._spared = 0
        self._spared_ratio = 0.0
        # The size from which on a batch takes no more.
        self._limit_bytes = MAX_BATCH_BYTES
        # Another one whenever a new batch opens: what is submitted under one number is committed together.
        self.batch_number = 0
        self.commits = 0
        self.failures = 0
        self.rows_appended = 0
        self.rows_removed = 0
        self.last_commit_s = 0.0
        self.last_commit_bytes = 0
        # How much of `pending_bytes` was ever written, or refused by the store.
        self.bytes_committed = 0
        # When the store stopped answering, by the clock; None while all is well.
        self.failing_since: float | None = None

    def append(self, message: Message, waiter: Waiter | None) -> None:
        """Store the message. Its `stored` becomes true just before the waiter hears of it."""
        gathering = self._open or self._gather()
        gathering.appends[message.id] = message
        if waiter is not None:
            gathering.append_waiters[message.id] = waiter
        gathering.cost_bytes = cost_bytes = gathering.cost_bytes + message.footprint_bytes - _SPARED_BYTES
        if cost_bytes > self._limit_bytes:
            self._seal()

    def remove(self, message: Message, waiter: Waiter | None, *, spare: bool = True) -> bool:
        """Drop a message that was appended. With a waiter it must be whole: a failure writes it again.

        Return True if it was not sent to the store yet, and so never will be. Without `spare` it is written all the
        same, and removed together with what is submitted now: something takes its place.
        """
        if spare and not message.stored:
            message_id = message.id
            for gathering in self._waiting:
                if message_id in gathering.appends and not gathering.again:
                    gathering.cost_bytes -= gathering.appends.pop(message_id).footprint_bytes - _SPARED_BYTES
                    if gathering.append_waiters or waiter is not None:
                        gathering.settle(message_id, waiter)
                    self._spared += 1
                    return True
        gathering = self._open or self._gather()
        if waiter is not None:
            gathering.remove_waiters[len(gathering.removes)] = waiter
        gathering.removes.append(message)
        gathering.cost_bytes = cost_bytes = gathering.cost_bytes + OPERATION_BYTES
        if cost_bytes > self._limit_bytes:
            self._seal()
        return False

    def change(self, change: Change, waiter: Waiter | None) -> None:
        """Store a change of a queue, a client or a definition, before the messages submitted with it.

        What the store cannot hold fails at once: it must not be in a batch with what others have submitted.
        """
        try:
            self._check(change)
        except InvalidArgument as error:
            if waiter is None:
                log.error("%s cannot be stored: %s", type(change).__name__, error)
            else:
                waiter.failed(error)
            return
        if isinstance(change, QueueMoved):
            # What is taken back of earlier removals must be in the store before another node reads the queue.
            self._seal()
        gathering = self._open or self._gather()
        gathering.changes.append(change)
        gathering.change_waiters.append(waiter)
        gathering.cost_bytes += OPERATION_BYTES
        if gathering.cost_bytes > self._limit_bytes:
            self._seal()
        self.changed(change)

    def transfer(self, transfer: Transfer, waiter: Waiter | None) -> None:
        """Move stored messages to another queue, after everything that was submitted before.

        It is not withdrawn and has no time limit: the waiter hears of it when it is done, or when it never will be,
        since the store refuses it, its destination is gone or the writer ends.
        """
        gathering = self._open or self._gather()
        gathering.transfers.append(transfer)
        gathering.transfer_waiters.append(waiter)
        gathering.cost_bytes += OPERATION_BYTES
        if gathering.cost_bytes > self._limit_bytes:
            self._seal()

    @property
    def is_grouping(self) -> bool:
        """Whether what is submitted now is part of a group: see `together`."""
        return self._limit_bytes == sys.maxsize

    @contextmanager
    def together(self) -> Iterator[Group]:
        """Submit what follows in one batch, however large it becomes: a crash leaves all of it or nothing.

        Nor is it cut apart if the store refuses the batch.
        """
        group, opened = Group(), self._open
        last_id = next(reversed(opened.appends), 0) if opened is not None else 0
        removes = len(opened.removes) if opened is not None else 0
        self._limit_bytes = sys.maxsize
        try:
            yield group
        finally:
            self._limit_bytes = MAX_BATCH_BYTES
            gathering = self._open
            if gathering is not None:
                # Ids count up, and nothing leaves the end of a batch while it is open but what is submitted here.
                for message_id in reversed(gathering.appends):
                    if message_id <= last_id:
                        break
                    group.appended_ids.add(message_id)
                group.removed_ids.update([message.id for message in gathering.removes[removes:]])
                if group.appended_ids or group.removed_ids:
                    gathering.groups.append(group)
                if gathering.cost_bytes > MAX_BATCH_BYTES:
                    self._seal()

    def fence(self, error: Fenced) -> None:
        """The node's epoch is over: fail everything that is pending, and whatever comes.

        What the store is asked to do now it refuses itself. A node that joins again needs another writer.
        """
        if self._fenced is None:
            log.error("nothing more is committed: %s", error)
            self._fenced = error

    def mark(self, waiter: Waiter, *, is_limited: bool = False) -> None:
        """Call the waiter when everything submitted before is committed or has failed; at once if nothing is pending.

        It is called after the waiters of the operations themselves. It fails with OperationsRefused, if the node is
        fenced or the writer ends; a limited one also with StoreUnavailable, on the time limit. One mark serves all
        operations of a batch, also those that come after it: see `batch_number`.
        """
        last = self._waiting[-1] if self._waiting else self._flight
        if last is None:
            waiter.committed()
        elif not is_limited:
            last.marks.append(waiter)
        elif last.expired:
            waiter.failed(StoreUnavailable("the store does not answer"))
        else:
            last.limited_marks.append(waiter)

    def removing_ids(self) -> set[int]:
        """Return the ids of the messages that may still be in the store though they are removed here.

        A remove that failed is none of them, an append that failed is, until it is undone in the store. What is
        removed and committed while somebody reads from the store is in neither answer, before and after the read.
        What is on its way to another queue is one of them.
        """
        removing: set[int] = set()
        flight = self._flight
        if flight is not None:
            removing.update([message.id for message in flight.removes])
            removing.difference_update([message.id for message in flight.undone_removes])
            removing.update([message.id for message in flight.undone_appends])
            for transfer in flight.transfers:
                removing.update(transfer.message_ids)
        for gathering in self._waiting:
            removing.update([message.id for message in gathering.removes])
            if gathering.again:
                removing.difference_update([message.id for message in gathering.undone_removes])
                removing.update([message.id for message in gathering.undone_appends])
            for transfer in gathering.transfers:
                removing.update(transfer.message_ids)
        return removing

    @property
    def pending_bytes(self) -> int:
        """How much memory everything that is not committed takes, roughly."""
        total = 0 if self._flight is None else self._flight.cost_bytes
        for gathering in self._waiting:
            total += gathering.cost_bytes
        return total

    @property
    def pending_count(self) -> int:
        """How many operations are not committed, or not yet answered."""
        flying = [] if self._flight is None else [self._flight]
        return sum([gathering.count + len(gathering.settled) for gathering in (*flying, *self._waiting)])

    async def flush(self) -> None:
        """Wait until everything submitted before is committed. Raises what a limited mark fails with."""
        flush = _Flush()
        self.mark(flush, is_limited=True)
        await flush.is_done

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

    def _gather(self) -> Gathering:
        self._open = Gathering(self._clock.now())
        self.batch_number += 1
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
            if self._is_worth_lingering():
                await self._clock.sleep(LINGER_S)
            flight = self._waiting.popleft()
            if flight is self._open:
                self._seal()
            self._count_spared(len(flight.appends))
            self._flight = flight
            await self._commit(flight)
            self._flight = None

    def _is_worth_lingering(self) -> bool:
        """Whether most messages are dealt with before they are written, and nobody waits for this batch himself."""
        first = self._waiting[0]
        return (
            self._spared_ratio > LINGER_FROM_RATIO
            and first is self._open
            and not self._stopping
            and not (first.changes or first.append_waiters or first.remove_waiters or first.transfers)
        )

    def _count_spared(self, written: int) -> None:
        """Note how many messages need not be written any more, beside those of the batch that goes now."""
        spared, self._spared = self._spared, 0
        if spared or written:
            self._spared_ratio += SPARED_WEIGHT * (spared / (spared + written) - self._spared_ratio)

    async def _commit(self, flight: Gathering) -> None:
        """Commit until it succeeds, or until the store says that it never will."""
        retries = Retries(RETRIES)
        while True:
            if self._fenced is not None:
                self._fail_fenced(flight, self._fenced)
                return
            flight.turn_undone()
            batch = flight.batch()
            self._sent_at = began = self._clock.now()
            try:
                if batch:
                    await self._store.commit(batch, again=flight.again)
                else:
                    await asyncio.sleep(0)  # everything cancelled out; others want their turn
            except StoreUnavailable as error:
                problem: StoreError = error
            except Fenced as error:
                self._sent_at = None
                self.fence(error)
                continue
            except StoreError as error:
                self._sent_at = None
                self._refuse(flight, error)
                return
            except Exception as error:
                # A mistake of ours, for something in the batch: the others in it must not suffer, nor later ones.
                log.exception("a batch of %d operations cannot be committed", flight.count)
                self._sent_at = None
                flight.again = True
                self._refuse(flight, StoreError(f"it cannot be committed: {error!r}"))
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
            flight.again = True
            await self._clock.sleep(retries.next_delay_s())

    def _succeed(self, flight: Gathering, batch: Batch, began: float) -> None:
        now = self._clock.now()
        if batch:
            self.commits += 1
            self.rows_appended += len(batch.appended)
            self.rows_removed += len(batch.removed)
            self.last_commit_s = now - began
            self.last_commit_bytes = flight.cost_bytes
        if self.failing_since is not None:
            log.warning("commits work again after %.1f s", now - self.failing_since)
            self.failing_since = None
        for message in batch.appended:
            message.stored = True
            message.receipt = None
        self._flight = None
        self.bytes_committed += flight.cost_bytes
        if flight.undone_appends or flight.undone_removes:
            self._take_back(flight, now)
        if flight.transfers:
            self._answer_transfers(flight, batch)
        if flight.split is not None:
            flight.split.commits += 1
            flight.split.deleted_queue_ids.update(
                [change.queue_id for change in flight.changes if isinstance(change, QueueDeleted)]
            )
        for waiters in (flight.waiters(), flight.settled):
            for waiter in waiters:
                # One who cannot take the answer must not keep it from the others.
                try:
                    waiter.committed()
                except Exception as error:
                    self._faults.note("answer to a commit", error)
        self._answer_marks(flight)
        self._report_flushed()

    def _confirm(self, waiter: Waiter) -> None:
        try:
            waiter.committed()
        except Exception as error:
            self._faults.note("answer to a commit", error)

    def _fail(self, waiter: Waiter, error: FlyballError) -> None:
        try:
            waiter.failed(error)
        except Exception as fault:
            self._faults.note("answer to a failed commit", fault)

    def _report_flushed(self) -> None:
        try:
            self.flushed()
        except Exception as error:
            self._faults.note("flushed", error)

    def _answer_marks(self, gathering: Gathering) -> None:
        """All operations up to the end of the gathering are answered: those who wait for that hear how they went."""
        refused = None if gathering.split is None else gathering.split.refused
        if refused is not None:
            self._fail_marks(gathering, refused)
            return
        for waiter in (*gathering.marks, *gathering.limited_marks):
            self._confirm(waiter)

    def _answer_transfers(self, flight: Gathering, batch: Batch) -> None:
        gone = StoreError("the queue that messages were to go to is gone: they are where they were")
        for transfer, waiter in zip(flight.transfers, flight.transfer_waiters, strict=True):
            if waiter is None:
                continue
            if any(transfer is refused for refused in batch.refused):
                self._fail(waiter, gone)
            else:
                self._confirm(waiter)

    def _take_back(self, flight: Gathering, now: float) -> None:
        """It worked though somebody has been told otherwise: the very next batch carries the opposite."""
        gathering = Gathering(now)
        gathering.sealed_at = now
        gathering.appends = {message.id: message for message in flight.undone_removes}
        gathering.removes = [*flight.undone_appends]
        gathering.count_cost()
        # In front: what was submitted meanwhile may remove these messages again.
        self._waiting.appendleft(gathering)

    def _refuse(self, flight: Gathering, error: StoreError) -> None:
        """The store has not committed the batch and never will: find out which of its operations it refuses."""
        self.failures += 1
        self._flight = None
        split = flight.split
        gives_up = split is not None and not split.commits and split.culprits >= MAX_CULPRITS
        if not flight.is_indivisible and not gives_up:
            if split is None:
                log.warning("the store refuses a batch of %d operations; looking for the culprit", flight.count)
            first, second = flight.halves()
            self._waiting.extendleft((second, first))
            return
        log.error("the store refuses %s: %s", _described(flight), error)
        if split is None:
            split = flight.split = Split()
        split.culprits += 1
        self.bytes_committed += flight.cost_bytes
        for change, waiter in zip(flight.changes, flight.change_waiters, strict=True):
            self._fail_change(flight, change, waiter, error)
        if flight.groups:
            self._note_refused(flight, error).groups += flight.groups
        for message in list(flight.appends.values()):
            self._fail_append(flight, message, error)
        # Those that were given up in flight are in their queues again, since their time was up.
        undone = {message.id for message in flight.undone_removes}
        for place, message in enumerate(flight.removes):
            if message.id not in undone:
                self._fail_remove(flight, message, flight.remove_waiters.get(place), error)
            elif not flight.again:
                message.stored = True
        self._fail_transfers(flight, error)
        self._answer_settled(flight)
        self._answer_marks(flight)
        self._report_flushed()

    def _fail_change(self, flight: Gathering, change: Change, waiter: Waiter | None, error: StoreError) -> None:
        if waiter is None:
            self._note_refused(flight, error).changes.append(change)
        else:
            self._fail(waiter, error)
        if isinstance(change, QueueCreated):
            # What was put into the queue meanwhile would be stored without it, and confirmed.
            for gathering in list(self._waiting):
                for message in list(gathering.appends.values()):
                    if message.queue_id == change.queue.id and message.id in gathering.appends:
                        self._fail_with_group(gathering, message, error)

    def _fail_with_group(self, gathering: Gathering, message: Message, error: StoreError) -> None:
        """Take out an append that was not sent, and what is to be committed only together with it."""
        group = next((group for group in gathering.groups if message.id in group.appended_ids), None)
        if group is None:
            self._fail_append(gathering, message, error)
            return
        gathering.groups.remove(group)
        self._note_refused(gathering, error).groups.append(group)
        removed, waiters = gathering.removes, gathering.remove_waiters
        gathering.removes, gathering.remove_waiters = [], {}
        failing: list[tuple[Message, Waiter | None]] = []
        for place, one in enumerate(removed):
            waiter = waiters.get(place)
            if one.id in group.removed_ids:
                failing.append((one, waiter))
                continue
            if waiter is not None:
                gathering.remove_waiters[len(gathering.removes)] = waiter
            gathering.removes.append(one)
        gathering.cost_bytes -= OPERATION_BYTES * len(failing)
        for appended in [gathering.appends[one] for one in group.appended_ids if one in gathering.appends]:
            self._fail_append(gathering, appended, error)
        for one, waiter in failing:
            self._fail_remove(gathering, one, waiter, error)

    def _fail_append(self, gathering: Gathering, message: Message, error: StoreError) -> None:
        """Take an append out that is refused, and answer its waiter."""
        del gathering.appends[message.id]
        gathering.cost_bytes -= message.footprint_bytes - _SPARED_BYTES
        waiter = gathering.append_waiters.pop(message.id, None)
        if waiter is not None:
            self._fail(waiter, error)
            return
        if message.receipt is None:
            self._note_refused(gathering, error).appended_ids.add(message.id)
        if self._undo is not None:
            try:
                self._undo.append_refused(message)
            except Exception as fault:
                self._faults.note("undo of a refused append", fault)

    def _fail_remove(self, flight: Gathering, message: Message, waiter: Waiter | None, error: StoreError) -> None:
        if waiter is not None:
            self._fail(waiter, error)
            return
        self._note_refused(flight, error).removed_ids.add(message.id)
        if self._undo is not None:
            try:
                self._undo.remove_refused(message)
            except Exception as fault:
                self._faults.note("undo of a refused remove", fault)

    def _note_refused(self, gathering: Gathering, error: StoreError) -> OperationsRefused:
        """Return where to note an operation that was refused and has no waiter, for marks to see."""
        if gathering.split is None:
            gathering.split = Split()
        if gathering.split.refused is None:
            gathering.split.refused = OperationsRefused(str(error))
        return gathering.split.refused

    def _fail_fenced(self, flight: Gathering, error: Fenced) -> None:
        """Nothing of the batch will be committed, nor of any other: everything that waits hears that."""
        self.failures += 1
        self._flight = None
        self.bytes_committed += flight.cost_bytes
        for waiter in flight.waiters():
            self._fail(waiter, error)
        self._fail_transfers(flight, error)
        self._answer_settled(flight)
        self._fail_marks(flight, error)
        self._report_flushed()

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
        # Those who are answered may submit something.
        for gathering in list(self._waiting):
            if gathering.expired:
                self._answer_settled(gathering)
        if failed_any:
            self._report_flushed()
        hangs = self._sent_at is not None and now - self._sent_at >= 2 * self._time_limit_s
        gives_up = self._give_up_at is not None and now >= self._give_up_at
        if self._writer is not None and (hangs or gives_up):
            self._abandoning = not gives_up
            self._sent_at = None
            self._writer.cancel()

    def _expire_flight(self, flight: Gathering) -> None:
        flight.expired = True
        failing, unknown = flight.undo()
        error = StoreUnavailable(f"the store did not answer within {self._time_limit_s:g} s")
        for waiter in failing:
            self._fail(waiter, error)
        doubt = OutcomeUnknown(f"the store did not answer within {self._time_limit_s:g} s; it may be done later")
        for waiter in unknown:
            self._fail(waiter, doubt)
        self._answer_settled(flight)
        self._fail_limited_marks(flight, error)

    def _expire_waiting(self, gathering: Gathering) -> None:
        if gathering.again:
            # Part of a batch of which an attempt may have gone through.
            self._expire_flight(gathering)
            return
        gathering.expired = True
        failing = gathering.withdraw()
        error = StoreUnavailable(f"the store did not answer within {self._time_limit_s:g} s")
        if not gathering.count and not gathering.marks:
            self._waiting.remove(gathering)
        for waiter in failing:
            self._fail(waiter, error)
        self._answer_settled(gathering)
        self._fail_limited_marks(gathering, error)

    def _answer_settled(self, gathering: Gathering) -> None:
        """An append and a remove that cancelled out need no store."""
        settled, gathering.settled = gathering.settled, []
        for waiter in settled:
            self._confirm(waiter)

    def _fail_transfers(self, gathering: Gathering, error: StoreError) -> None:
        waiters, gathering.transfer_waiters = gathering.transfer_waiters, [None] * len(gathering.transfers)
        for waiter in waiters:
            if waiter is not None:
                self._fail(waiter, error)

    def _fail_marks(self, gathering: Gathering, error: StoreError) -> None:
        marks, gathering.marks = gathering.marks, []
        for waiter in marks:
            self._fail(waiter, error)
        self._fail_limited_marks(gathering, error)

    def _fail_limited_marks(self, gathering: Gathering, error: StoreError) -> None:
        marks, gathering.limited_marks = gathering.limited_marks, []
        for waiter in marks:
            self._fail(waiter, error)

    def _fail_the_rest(self) -> None:
        """The writer has ended: nothing that is still here will be written."""
        self._open = None
        rest = list(self._waiting)
        self._waiting.clear()
        flight, self._flight = self._flight, None
        error = StoreUnavailable("the broker stops")
        if flight is not None:
            self._expire_flight(flight)
            self._fail_transfers(flight, error)
            self._fail_marks(flight, error)
        for gathering in rest:
            gathering.expired = True
            for waiter in gathering.withdraw():
                self._fail(waiter, error)
            self._fail_transfers(gathering, error)
            self._answer_settled(gathering)
            self._fail_marks(gathering, error)
        lost = sum(gathering.count for gathering in rest) + (0 if flight is None else flight.count)
        self._report_flushed()
        if lost:
            log.error("%d operations were still pending when the writer ended", lost)


class _Flush:
    """A mark that is awaited."""

    def __init__(self) -> None:
        self.is_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self) -> None:
        if not self.is_done.done():
            self.is_done.set_result(None)

    def failed(self, error: FlyballError) -> None:
        if not self.is_done.done():
            self.is_done.set_exception(error)


def _described(flight: Gathering) -> str:
    """Say for the log what was refused; values may hold secrets."""
    for change in flight.changes:
        return type(change).__name__ if flight.count == 1 else f"{flight.count} operations"
    return f"message {next(iter(flight.appends))}" if flight.appends else f"{flight.count} operations"
