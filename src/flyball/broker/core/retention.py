"""Expiry of messages and enforcement of length limits of queues.

`dead_lettering` decides whether removed messages are dead-lettered, dropped or parked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from flyball.broker.core.dead_lettering import CONGESTED_S, DeadLettering, Keeper
from flyball.broker.core.store_reader import StoreReader
from flyball.broker.engine.backlog import Build, Load
from flyball.broker.engine.queue import QueueState
from flyball.broker.store.interface import Store
from flyball.errors import FlyballError, StoreError
from flyball.model import Message

# Messages removed per turn of the event loop, by length limits and by expiry.
DROPPED_AT_ONCE = 1000
EXPIRED_AT_ONCE = 1000

# Delay of a retry after a failed read of expired messages.
RETRY_S = 1.0


class Retention:
    """Removes expired messages, and those that exceed the length limits of their queues."""

    def __init__(
        self,
        broker: Keeper,
        store: Store,
        reader: StoreReader,
        dead_lettering: DeadLettering,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._broker = broker
        self._engine = broker.engine
        self._faults = broker.faults
        self._store = store
        self._reader = reader
        self._dead_lettering = dead_lettering
        self._spawn = spawn
        # Queues over their limits that continue to drop messages in the next turn.
        self._shrinking: dict[int, asyncio.TimerHandle] = {}
        # Queues over their limits that wait for a read from the store, or for an index.
        self._reading: set[int] = set()
        self._is_quiescent = False
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._expiry_due_us: int | None = None

    def quiesce(self) -> None:
        """Stop expiring messages; the next start continues."""
        self._is_quiescent = True
        for timer in (self._expiry_timer, *self._shrinking.values()):
            if timer is not None:
                timer.cancel()

    def expire(self) -> None:
        """Remove expired messages."""
        for message in self._engine.expire(self._broker.now_us(), EXPIRED_AT_ONCE):
            state = self._engine.find_queue_by_id(message.queue_id)
            if state is None:
                continue
            if state.original is None and state.traits.dead_letter_exchange is not None:
                self._dead_lettering.dead_letter_later(state, message, "expired")
            else:
                # Without a dead letter the removal does not wait for a slow or unavailable store. All messages of the
                # batch are unacked already: a failure of one must not prevent the removal of the others.
                self._faults.guard("expiry", self._dead_lettering.dead_letter, state, message, "expired")
        self._dead_lettering.go_on()
        for queue_id in self._engine.overdue_queue_ids():
            self._faults.guard("expiry in the store", self._expire_absent, queue_id)

    def _expire_absent(self, queue_id: int) -> None:
        """Load and remove expired, paged-out messages at the head of a queue."""
        state = self._engine.find_queue_by_id(queue_id)
        if state is None:
            return
        if self._broker.is_congested:
            # Their dead letters would fill the commit queue.
            asyncio.get_running_loop().call_later(CONGESTED_S, self._expire_absent, queue_id)
            return
        found = self._engine.peek(queue_id, state.traits.selector, self._broker.now_us())
        if self._engine.has_expired:
            self.expire()
        if isinstance(found, Load | Build):
            again = partial(self._expire_absent, queue_id)

            def failed(error: FlyballError) -> None:
                asyncio.get_running_loop().call_later(RETRY_S, again)

            self._reader.fetch(queue_id, found, again, failed)

    def enforce_limits(self, state: QueueState) -> None:
        """Drop messages from the head while the queue exceeds its limits, in batches."""
        queue_id = state.queue.id
        if queue_id in self._shrinking:
            # The next batch is scheduled already: do not start another one per arrival.
            return
        dropped = 0
        while state.is_too_long and not state.traits.rejects:
            if dropped == DROPPED_AT_ONCE:
                again = partial(self._faults.guard, "limits of a queue", self._go_on_shrinking, state)
                self._shrinking[queue_id] = asyncio.get_running_loop().call_later(0, again)
                break
            dropped += 1
            found = self._engine.take(queue_id, state.traits.selector, self._broker.now_us())
            if isinstance(found, Message):
                self._dead_lettering.dead_letter(state, found, "maxlen")
            elif found is None:
                break
            else:
                if queue_id not in self._reading:
                    # A single read, not one per arrival.
                    self._reading.add(queue_id)
                    again = partial(self._read, state)
                    self._reader.fetch(queue_id, found, again, lambda error: self._reading.discard(queue_id))
                break

    def _read(self, state: QueueState) -> None:
        self._reading.discard(state.queue.id)
        if self._engine.find_queue_by_id(state.queue.id) is state:
            self.enforce_limits(state)

    def _go_on_shrinking(self, state: QueueState) -> None:
        del self._shrinking[state.queue.id]
        if self._engine.find_queue_by_id(state.queue.id) is state:
            self.enforce_limits(state)

    def enforce_new_limits(self, state: QueueState) -> None:
        """Enforce changed limits, after measuring the queue if necessary."""
        if state.is_unmeasured:
            self._spawn(self._measure_and_enforce(state))
        elif not state.traits.rejects:
            self.enforce_limits(state)

    async def measure(self, state: QueueState) -> None:
        """Read the size of a queue's stored messages. Raises StoreError.

        Exact if the queue is idle; messages that arrive or leave during the read may be counted twice, until the
        queue is empty.
        """
        leaving = [*state.unacked, *self._broker.journal.removing_ids()]
        generation, before, unstored = state.generation, state.ready_bytes, state.unstored_bytes
        stored = await self._reader.until_available(lambda: self._store.body_bytes(state.queue.id, leaving))
        if state.generation == generation and not state.knows_bytes:
            state.learn_bytes(stored + unstored + state.ready_bytes - before)

    async def _measure_and_enforce(self, state: QueueState) -> None:
        with contextlib.suppress(StoreError):
            await self.measure(state)
        if not state.traits.rejects:
            self.enforce_limits(state)

    def look_after(self, state: QueueState) -> None:
        """Enforce limits and schedule expiries after a message became ready in a queue with limits."""
        if state.is_too_long and not state.traits.rejects:
            self.enforce_limits(state)
        self.watch_expiries()

    def watch_expiries(self) -> None:
        """Schedule the removal of the next message to expire: it must not stay until a read."""
        if self._engine.has_expired:
            self.expire()
        next_us = self._engine.next_expiry_us
        if next_us is None or self._is_quiescent:
            return
        if self._expiry_due_us is not None and self._expiry_due_us <= next_us:
            return
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        self._expiry_due_us = next_us
        delay_s = max(0, next_us - self._broker.now_us()) / 1e6
        self._expiry_timer = asyncio.get_running_loop().call_later(delay_s, self._expire_now)

    def _expire_now(self) -> None:
        self._expiry_timer = None
        self._expiry_due_us = None
        try:
            self.expire()
        finally:
            self.watch_expiries()
