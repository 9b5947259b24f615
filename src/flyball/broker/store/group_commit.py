"""Group commit: a single writer collects operations into a batch while the previous transaction is in flight.

Uses the store's interface and a clock; independent of SQL, sockets and the engine. Runs in the event loop's thread.

Invariants, with their tests (tests/broker/store/test_group_commit.py):

- One commit is in flight at a time, and batches are committed in the order of submission
  (`test_operations_submitted_during_a_commit_go_into_the_next`).
- An operation completes once: `committed` when it is durable, `failed` if the timeout passed first. A failed
  operation is undone, so that for the caller it was never submitted: before it is sent it is withdrawn
  (`test_operations_that_were_not_sent_are_withdrawn_after_the_time_limit`); after that its outcome is unknown, and
  the next attempt contains its inverse, the append for a failed remove or the remove for a failed append
  (`test_a_remove_that_failed_in_flight_is_undone_by_the_next_attempt`); if the attempt in flight succeeds after all,
  the next batch contains it (`test_failed_remove_that_succeeds_after_all_is_undone_at_once`). Only a change of a
  queue, client or definition that was already sent stays in its batch: it fails with OutcomeUnknown
  (`test_a_change_that_failed_in_flight_may_yet_be_done_and_says_so`).
- A message that is removed before it is sent is never written: the remove cancels the append
  (`test_an_append_and_its_remove_cancel_out_before_they_are_sent`). Therefore its publisher is confirmed by its
  receipt, not by the mark of the batch, which no longer contains the message.
- `stored` is set before any waiter is called (`test_message_is_marked_stored_before_its_waiter_is_called`): a waiter
  may remove the message, and the remove must not look for an append to cancel.

There are three ways to wait for a commit, from the most to the least expensive:

- a waiter per operation: the response to a request, which has a timeout;
- a mark at the end of the batch, one for all operations of its owner, such as the publisher confirms of a channel. It
  has no timeout while the store is unavailable, unless it `is_limited`; `flush` awaits a limited one;
- the receipt of a message (`Message.receipt`), if a mark does not cover it: the append was cancelled by a remove and
  will never be written, or it was refused.

A transfer is never withdrawn and has no timeout. After the node is fenced, everything fails permanently.

A batch that the store refuses permanently is bisected: its parts are committed one after the other, in the same
order, until each refused operation is isolated. That operation fails and is undone; all others are committed. If the
creation of a queue is refused, its messages fail as well; messages of a queue that an earlier part deleted are not
written. Marks of the batch move to its last part.
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
from flyball.broker.store.interface import Batch, Transfer
from flyball.broker.store.pending_batch import (
    OPERATION_BYTES,
    Group,
    OperationsRefused,
    OutcomeUnknown,
    PendingBatch,
    Split,
    Waiter,
)
from flyball.errors import Fenced, FlyballError, InvalidArgument, StoreError, StoreUnavailable
from flyball.events import Event
from flyball.faults import Faults
from flyball.model import MESSAGE_OVERHEAD_BYTES, Message

log = logging.getLogger(__name__)

# The part of a message's footprint that is not written, and therefore not part of the cost of a batch.
_SPARED_BYTES = MESSAGE_OVERHEAD_BYTES - OPERATION_BYTES

# Maximum cost of a batch; later operations are put into the next one. The cost per row is as low for thousands of
# rows as for tens of thousands, and flow control needs the queue to drain in small steps.
MAX_BATCH_BYTES = 2 * 1024 * 1024

# Delay of a batch while consumers ack most messages before they are written: more appends are cancelled in this time.
LINGER_S = 0.001

# Fraction of cancelled appends above which the delay pays off.
LINGER_FROM_RATIO = 0.5

# Weight of one batch in the moving average of that fraction.
SPARED_WEIGHT = 0.2

RETRIES = Backoff(first_s=0.05, max_s=1.0, jitter_ratio=0.0)

# Maximum number of operations of a batch that are refused one by one while none is committed; then the rest fails at
# once. With a store that refuses everything there would be ten thousand attempts, each with a new connection.
MAX_CULPRITS = 100


class Journal(Protocol):
    """The part of a store that the writer uses."""

    async def commit(self, batch: Batch, *, again: bool = False) -> None: ...


class Undo(Protocol):
    """Reverts the engine to the stored state after an operation without a waiter was refused."""

    def append_refused(self, message: Message) -> None:
        """Revert an append: the message will never be stored."""
        ...

    def remove_refused(self, message: Message) -> None:
        """Revert a remove: the message is still stored."""
        ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds of a monotonic clock."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class GroupCommit:
    """Writes to a store in batches, one commit at a time, in the order of submission.

    `run` writes until `stop` is called; the node's TaskGroup owns it. Operations are accepted while the store is
    unavailable: the caller watches `pending_bytes` and stops reading from its clients.
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
        """`check` raises InvalidArgument for a change that cannot be stored."""
        self._store = store
        self._check = check
        self._undo = undo
        self._clock: Clock = MonotonicClock() if clock is None else clock
        self._time_limit_s = time_limit_s
        self._tick_s = time_limit_s / 20
        self._faults = Faults() if faults is None else faults
        # Fires when `pending_bytes` has decreased.
        self.flushed = Event[[]]()
        # Fires when a change is submitted.
        self.changed = Event[[Change]]()
        self._fenced: Fenced | None = None
        self._open: PendingBatch | None = None
        # Batches that were not sent yet, oldest first; the last one may be `_open`.
        self._waiting: deque[PendingBatch] = deque()
        self._flight: PendingBatch | None = None
        self._sent_at: float | None = None
        self._work = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._abandoning = False
        self._stopping = False
        self._give_up_at: float | None = None
        self._ended = asyncio.Event()
        self._ended.set()
        # Number of appends cancelled since the last batch.
        self._spared = 0
        self._spared_ratio = 0.0
        # The cost above which the open batch is sealed.
        self._limit_bytes = MAX_BATCH_BYTES
        # Number of the open batch: operations submitted under the same number are committed together.
        self.batch_number = 0
        self.commits = 0
        self.failures = 0
        self.rows_appended = 0
        self.rows_removed = 0
        self.last_commit_s = 0.0
        self.last_commit_bytes = 0
        # Counter of bytes that were removed from `pending_bytes` because they were written, or refused by the store.
        self.bytes_committed = 0
        # Time since which commits fail; None while they succeed.
        self.failing_since: float | None = None

    def append(self, message: Message, waiter: Waiter | None) -> None:
        """Store the message. Its `stored` is set just before the waiter is called."""
        pending = self._open or self._open_batch()
        pending.appends[message.id] = message
        if waiter is not None:
            pending.append_waiters[message.id] = waiter
        pending.cost_bytes = cost_bytes = pending.cost_bytes + message.footprint_bytes - _SPARED_BYTES
        if cost_bytes > self._limit_bytes:
            self._seal()

    def remove(self, message: Message, waiter: Waiter | None, *, spare: bool = True) -> bool:
        """Remove an appended message. With a waiter it must not be paged out: a failure writes it again.

        Return True if its append was not sent yet and is cancelled: it will never be written. Without `spare` the
        append is not cancelled: the message is written, and removed with the operations submitted now, which contain
        its successor.
        """
        if spare and not message.stored:
            message_id = message.id
            for pending in self._waiting:
                if message_id in pending.appends and not pending.again:
                    pending.cost_bytes -= pending.appends.pop(message_id).footprint_bytes - _SPARED_BYTES
                    if pending.append_waiters or waiter is not None:
                        pending.settle(message_id, waiter)
                    self._spared += 1
                    return True
        pending = self._open or self._open_batch()
        if waiter is not None:
            pending.remove_waiters[len(pending.removes)] = waiter
        pending.removes.append(message)
        pending.cost_bytes = cost_bytes = pending.cost_bytes + OPERATION_BYTES
        if cost_bytes > self._limit_bytes:
            self._seal()
        return False

    def change(self, change: Change, waiter: Waiter | None) -> None:
        """Store a change of a queue, a client or a definition, before the messages of the same batch.

        A change that cannot be stored fails at once, before it can fail a batch with other operations.
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
            # The inverses of failed removes must be in the store before another node reads the queue.
            self._seal()
        pending = self._open or self._open_batch()
        pending.changes.append(change)
        pending.change_waiters.append(waiter)
        pending.cost_bytes += OPERATION_BYTES
        if pending.cost_bytes > self._limit_bytes:
            self._seal()
        self.changed(change)

    def transfer(self, transfer: Transfer, waiter: Waiter | None) -> None:
        """Move stored messages to another queue, after all operations submitted before.

        It is not withdrawn and has no timeout: the waiter is called when it is done, or fails permanently because the
        store refuses it, its destination was deleted or the writer ends.
        """
        pending = self._open or self._open_batch()
        pending.transfers.append(transfer)
        pending.transfer_waiters.append(waiter)
        pending.cost_bytes += OPERATION_BYTES
        if pending.cost_bytes > self._limit_bytes:
            self._seal()

    @property
    def is_grouping(self) -> bool:
        """Whether operations submitted now are part of a group: see `together`."""
        return self._limit_bytes == sys.maxsize

    @contextmanager
    def together(self) -> Iterator[Group]:
        """Submit the operations within the context atomically, in one batch of any size.

        They are not separated if a refused batch is bisected.
        """
        group, opened = Group(), self._open
        last_id = next(reversed(opened.appends), 0) if opened is not None else 0
        removes = len(opened.removes) if opened is not None else 0
        self._limit_bytes = sys.maxsize
        try:
            yield group
        finally:
            self._limit_bytes = MAX_BATCH_BYTES
            pending = self._open
            if pending is not None:
                # Ids grow, and within this context appends are only added at the end of the open batch.
                for message_id in reversed(pending.appends):
                    if message_id <= last_id:
                        break
                    group.appended_ids.add(message_id)
                group.removed_ids.update([message.id for message in pending.removes[removes:]])
                if group.appended_ids or group.removed_ids:
                    pending.groups.append(group)
                if pending.cost_bytes > MAX_BATCH_BYTES:
                    self._seal()

    def fence(self, error: Fenced) -> None:
        """Fail all pending and future operations: the node's epoch has ended.

        The store itself refuses a commit in flight, since it fences sessions; this flag does not affect it. A node
        that rejoins needs a new writer.
        """
        if self._fenced is None:
            log.error("node fenced; commits stopped: %s", error)
            self._fenced = error

    def mark(self, waiter: Waiter, *, is_limited: bool = False) -> None:
        """Call the waiter when all operations submitted before have completed; at once if none is pending.

        It is called after the waiters of these operations. It fails with OperationsRefused, and if the node is fenced
        or the writer ends; a limited one also with StoreUnavailable, on a timeout. One mark covers all operations of
        a batch, even those submitted after it: see `batch_number`.
        """
        last = self._waiting[-1] if self._waiting else self._flight
        if last is None:
            waiter.committed()
        elif not is_limited:
            last.marks.append(waiter)
        elif last.expired:
            waiter.failed(StoreUnavailable("the store does not respond"))
        else:
            last.limited_marks.append(waiter)

    def removing_ids(self) -> set[int]:
        """Return the ids of messages that are removed here and may still be in the store.

        This includes failed appends until they are undone in the store, and messages being transferred to another
        queue, but not failed removes. Take care: a remove committed during a read is missing from both the result
        before and the result after the read.
        """
        removing: set[int] = set()
        flight = self._flight
        if flight is not None:
            removing.update([message.id for message in flight.removes])
            removing.difference_update([message.id for message in flight.undone_removes])
            removing.update([message.id for message in flight.undone_appends])
            for transfer in flight.transfers:
                removing.update(transfer.message_ids)
        for pending in self._waiting:
            removing.update([message.id for message in pending.removes])
            if pending.again:
                removing.difference_update([message.id for message in pending.undone_removes])
                removing.update([message.id for message in pending.undone_appends])
            for transfer in pending.transfers:
                removing.update(transfer.message_ids)
        return removing

    @property
    def pending_bytes(self) -> int:
        """Estimated memory of uncommitted operations."""
        total = 0 if self._flight is None else self._flight.cost_bytes
        for pending in self._waiting:
            total += pending.cost_bytes
        return total

    @property
    def pending_count(self) -> int:
        """Number of operations that have not completed."""
        flying = [] if self._flight is None else [self._flight]
        return sum([pending.count + len(pending.settled) for pending in (*flying, *self._waiting)])

    async def flush(self) -> None:
        """Wait until all operations submitted before are committed. Raises the errors of a limited mark."""
        flush = _Flush()
        self.mark(flush, is_limited=True)
        await flush.is_done

    async def run(self) -> None:
        """Write until `stop`. When it is cancelled, pending operations fail."""
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
        """Commit all pending operations, up to the timeout, and end `run`."""
        if self._writer is None:
            return
        self._stopping = True
        self._give_up_at = self._clock.now() + self._time_limit_s + 2 * self._tick_s
        self._work.set()
        await self._ended.wait()

    def _open_batch(self) -> PendingBatch:
        self._open = PendingBatch(self._clock.now())
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
        """Whether most appends are cancelled before they are written, and the next batch has no waiters."""
        first = self._waiting[0]
        return (
            self._spared_ratio > LINGER_FROM_RATIO
            and first is self._open
            and not self._stopping
            and not (first.changes or first.append_waiters or first.remove_waiters or first.transfers)
        )

    def _count_spared(self, written: int) -> None:
        """Update the moving average of the fraction of cancelled appends."""
        spared, self._spared = self._spared, 0
        if spared or written:
            self._spared_ratio += SPARED_WEIGHT * (spared / (spared + written) - self._spared_ratio)

    async def _commit(self, flight: PendingBatch) -> None:
        """Retry the commit until it succeeds, or until the store refuses it permanently."""
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
                    await asyncio.sleep(0)  # all operations cancelled each other out: only yield to other tasks
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
                # A bug triggered by an operation of the batch: bisect, so that only this operation fails.
                log.exception("batch cannot be committed operations=%d", flight.count)
                self._sent_at = None
                flight.again = True
                self._refuse(flight, StoreError(f"the operation cannot be committed: {error!r}"))
                return
            except asyncio.CancelledError:
                if not self._abandoning or self._writer is None or self._writer.uncancel() > 0:
                    raise
                self._abandoning = False
                problem = StoreUnavailable("the store does not respond")
            else:
                self._sent_at = None
                self._succeed(flight, batch, began)
                return
            self._sent_at = None
            self.failures += 1
            if self.failing_since is None:
                self.failing_since = began
                log.warning("commit failed; retrying: %s", problem)
            flight.again = True
            await self._clock.sleep(retries.next_delay_s())

    def _succeed(self, flight: PendingBatch, batch: Batch, began: float) -> None:
        now = self._clock.now()
        if batch:
            self.commits += 1
            self.rows_appended += len(batch.appended)
            self.rows_removed += len(batch.removed)
            self.last_commit_s = now - began
            self.last_commit_bytes = flight.cost_bytes
        if self.failing_since is not None:
            log.warning("commits succeed again after_s=%.1f", now - self.failing_since)
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
                # An exception in one callback must not prevent the others.
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

    def _answer_marks(self, pending: PendingBatch) -> None:
        """Complete the marks of a batch, after all of its operations have completed."""
        refused = None if pending.split is None else pending.split.refused
        if refused is not None:
            self._fail_marks(pending, refused)
            return
        for waiter in (*pending.marks, *pending.limited_marks):
            self._confirm(waiter)

    def _answer_transfers(self, flight: PendingBatch, batch: Batch) -> None:
        gone = StoreError("the destination queue was deleted: the messages stay in their queue")
        for transfer, waiter in zip(flight.transfers, flight.transfer_waiters, strict=True):
            if waiter is None:
                continue
            if any(transfer is refused for refused in batch.refused):
                self._fail(waiter, gone)
            else:
                self._confirm(waiter)

    def _take_back(self, flight: PendingBatch, now: float) -> None:
        """Undo operations in the next batch that were committed after they had been reported as failed."""
        pending = PendingBatch(now)
        pending.sealed_at = now
        pending.appends = {message.id: message for message in flight.undone_removes}
        pending.removes = [*flight.undone_appends]
        pending.count_cost()
        # At the front: later operations may remove these messages again.
        self._waiting.appendleft(pending)

    def _refuse(self, flight: PendingBatch, error: StoreError) -> None:
        """Bisect a batch that the store refused permanently; fail the operations of an indivisible one."""
        self.failures += 1
        self._flight = None
        split = flight.split
        gives_up = split is not None and not split.commits and split.culprits >= MAX_CULPRITS
        if not flight.is_indivisible and not gives_up:
            if split is None:
                log.warning("batch refused by the store; bisecting operations=%d", flight.count)
            first, second = flight.halves()
            self._waiting.extendleft((second, first))
            return
        log.error("operation refused by the store: %s: %s", _described(flight), error)
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
        # Removes that timed out in flight were undone: their messages are in the queues again.
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

    def _fail_change(self, flight: PendingBatch, change: Change, waiter: Waiter | None, error: StoreError) -> None:
        if waiter is None:
            self._note_refused(flight, error).changes.append(change)
        else:
            self._fail(waiter, error)
        if isinstance(change, QueueCreated):
            # Messages put into the queue in the meantime would be stored without it, and confirmed.
            for pending in list(self._waiting):
                for message in list(pending.appends.values()):
                    if message.queue_id == change.queue.id and message.id in pending.appends:
                        self._fail_with_group(pending, message, error)

    def _fail_with_group(self, pending: PendingBatch, message: Message, error: StoreError) -> None:
        """Fail an append that was not sent, with the rest of its group."""
        group = next((group for group in pending.groups if message.id in group.appended_ids), None)
        if group is None:
            self._fail_append(pending, message, error)
            return
        pending.groups.remove(group)
        self._note_refused(pending, error).groups.append(group)
        removed, waiters = pending.removes, pending.remove_waiters
        pending.removes, pending.remove_waiters = [], {}
        failing: list[tuple[Message, Waiter | None]] = []
        for place, one in enumerate(removed):
            waiter = waiters.get(place)
            if one.id in group.removed_ids:
                failing.append((one, waiter))
                continue
            if waiter is not None:
                pending.remove_waiters[len(pending.removes)] = waiter
            pending.removes.append(one)
        pending.cost_bytes -= OPERATION_BYTES * len(failing)
        for appended in [pending.appends[one] for one in group.appended_ids if one in pending.appends]:
            self._fail_append(pending, appended, error)
        for one, waiter in failing:
            self._fail_remove(pending, one, waiter, error)

    def _fail_append(self, pending: PendingBatch, message: Message, error: StoreError) -> None:
        """Remove a refused append from the batch and fail its waiter."""
        del pending.appends[message.id]
        pending.cost_bytes -= message.footprint_bytes - _SPARED_BYTES
        waiter = pending.append_waiters.pop(message.id, None)
        if waiter is not None:
            self._fail(waiter, error)
            return
        if message.receipt is None:
            self._note_refused(pending, error).appended_ids.add(message.id)
        if self._undo is not None:
            try:
                self._undo.append_refused(message)
            except Exception as fault:
                self._faults.note("undo of a refused append", fault)

    def _fail_remove(self, flight: PendingBatch, message: Message, waiter: Waiter | None, error: StoreError) -> None:
        if waiter is not None:
            self._fail(waiter, error)
            return
        self._note_refused(flight, error).removed_ids.add(message.id)
        if self._undo is not None:
            try:
                self._undo.remove_refused(message)
            except Exception as fault:
                self._faults.note("undo of a refused remove", fault)

    def _note_refused(self, pending: PendingBatch, error: StoreError) -> OperationsRefused:
        """Return the error that collects refused operations without a waiter, for the marks."""
        if pending.split is None:
            pending.split = Split()
        if pending.split.refused is None:
            pending.split.refused = OperationsRefused(str(error))
        return pending.split.refused

    def _fail_fenced(self, flight: PendingBatch, error: Fenced) -> None:
        """Fail a batch after the node was fenced."""
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
        """Enforce the timeout, even if the store hangs. Sleeps while nothing is pending."""
        while True:
            if self._flight is None and not self._waiting:
                await self._work.wait()
            await self._clock.sleep(self._tick_s)
            self._check_times(self._clock.now())

    def _check_times(self, now: float) -> None:
        if self._open is not None and now - self._open.opened_at >= self._tick_s:
            # Operations of one batch share their age, so the batch must not stay open for long.
            self._seal()
        failed_any = False
        too_old = now - self._time_limit_s
        flight = self._flight
        if flight is not None and not flight.expired and flight.sealed_at is not None and flight.sealed_at <= too_old:
            failed_any = True
            self._expire_flight(flight)
        while self._waiting:
            oldest = next((pending for pending in self._waiting if not pending.expired), None)
            if oldest is None or oldest.sealed_at is None or oldest.sealed_at > too_old:
                break
            failed_any = True
            self._expire_waiting(oldest)
        # A copy: callbacks may submit operations.
        for pending in list(self._waiting):
            if pending.expired:
                self._answer_settled(pending)
        if failed_any:
            self._report_flushed()
        hangs = self._sent_at is not None and now - self._sent_at >= 2 * self._time_limit_s
        gives_up = self._give_up_at is not None and now >= self._give_up_at
        if self._writer is not None and (hangs or gives_up):
            self._abandoning = not gives_up
            self._sent_at = None
            self._writer.cancel()

    def _expire_flight(self, flight: PendingBatch) -> None:
        flight.expired = True
        failing, unknown = flight.undo()
        error = StoreUnavailable(f"the store did not respond within {self._time_limit_s:g} s")
        for waiter in failing:
            self._fail(waiter, error)
        doubt = OutcomeUnknown(f"the store did not respond within {self._time_limit_s:g} s: it may still be done")
        for waiter in unknown:
            self._fail(waiter, doubt)
        self._answer_settled(flight)
        self._fail_limited_marks(flight, error)

    def _expire_waiting(self, pending: PendingBatch) -> None:
        if pending.again:
            # An attempt to commit it as part of another batch may have succeeded.
            self._expire_flight(pending)
            return
        pending.expired = True
        failing = pending.withdraw()
        error = StoreUnavailable(f"the store did not respond within {self._time_limit_s:g} s")
        if not pending.count and not pending.marks:
            self._waiting.remove(pending)
        for waiter in failing:
            self._fail(waiter, error)
        self._answer_settled(pending)
        self._fail_limited_marks(pending, error)

    def _answer_settled(self, pending: PendingBatch) -> None:
        """Complete appends and removes that cancelled each other out: nothing has to be written."""
        settled, pending.settled = pending.settled, []
        for waiter in settled:
            self._confirm(waiter)

    def _fail_transfers(self, pending: PendingBatch, error: StoreError) -> None:
        waiters, pending.transfer_waiters = pending.transfer_waiters, [None] * len(pending.transfers)
        for waiter in waiters:
            if waiter is not None:
                self._fail(waiter, error)

    def _fail_marks(self, pending: PendingBatch, error: StoreError) -> None:
        marks, pending.marks = pending.marks, []
        for waiter in marks:
            self._fail(waiter, error)
        self._fail_limited_marks(pending, error)

    def _fail_limited_marks(self, pending: PendingBatch, error: StoreError) -> None:
        marks, pending.limited_marks = pending.limited_marks, []
        for waiter in marks:
            self._fail(waiter, error)

    def _fail_the_rest(self) -> None:
        """Fail all pending operations after the writer has ended."""
        self._open = None
        rest = list(self._waiting)
        self._waiting.clear()
        flight, self._flight = self._flight, None
        error = StoreUnavailable("the broker is stopping")
        if flight is not None:
            self._expire_flight(flight)
            self._fail_transfers(flight, error)
            self._fail_marks(flight, error)
        for pending in rest:
            pending.expired = True
            for waiter in pending.withdraw():
                self._fail(waiter, error)
            self._fail_transfers(pending, error)
            self._answer_settled(pending)
            self._fail_marks(pending, error)
        lost = sum(pending.count for pending in rest) + (0 if flight is None else flight.count)
        self._report_flushed()
        if lost:
            log.error("writer ended with pending operations operations=%d", lost)


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


def _described(flight: PendingBatch) -> str:
    """Describe refused operations for the log, without values, which may be secret."""
    for change in flight.changes:
        return type(change).__name__ if flight.count == 1 else f"{flight.count} operations"
    return f"message {next(iter(flight.appends))}" if flight.appends else f"{flight.count} operations"
