"""Reads messages and keys that the engine does not have in memory from the store, in the background."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from flyball.backoff import Backoff, Retries
from flyball.broker.core.listing_limiter import ListingLimiter
from flyball.broker.engine.backlog import LOAD_AT_ONCE, Build, Load, Need
from flyball.broker.engine.engine import Engine
from flyball.broker.engine.index import Shape
from flyball.broker.engine.queue import Delivery, QueueState
from flyball.broker.store.interface import IndexColumns, Store
from flyball.errors import FlyballError, StoreError, StoreUnavailable
from flyball.faults import Faults
from flyball.model import Message, Order

# Maximum size of a read from the store, and of a listing.
LOAD_BYTES = 16 * 1024 * 1024
# Size of the pages in which a listing is read: other requests get a turn in between.
PAGE_BYTES = 1024 * 1024
PAGE_MESSAGES = 1000

_RETRIES = Backoff(first_s=0.05, max_s=1.0, jitter_ratio=0.0)

T = TypeVar("T")


class StoreReader:
    """Loads messages and builds indexes, with one read per queue; retries while the store is unavailable."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        listing_limiter: ListingLimiter,
        *,
        time_limit_s: float,
        now_us: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        dispatch: Callable[[Sequence[Delivery]], None],
        removing_ids: Callable[[], set[int]],
        faults: Faults,
    ) -> None:
        """`spawn` starts a task; `dispatch` sends deliveries that result from a read.

        `removing_ids` returns the ids of removed messages whose deletion from the store is pending.
        """
        self._store = store
        self._faults = faults
        self._engine = engine
        self._time_limit_s = time_limit_s
        self._now_us = now_us
        self._spawn = spawn
        self._dispatch = dispatch
        self._removing_ids = removing_ids
        self._listing_limiter = listing_limiter
        # Held while a batch of messages in memory is indexed.
        self._filling = asyncio.Lock()
        # Requests that wait for the read in progress, by queue.
        self._fetching: dict[int, list[_Waiting]] = {}

    def serve(self, queue_id: int) -> None:
        """Start the read that consumers of the queue wait for, if any."""
        if self._engine.has_queue(queue_id):
            need = self._engine.queue(queue_id).need
            if need is not None and queue_id not in self._fetching:
                self._fetching[queue_id] = []
                self._spawn(self._fetch_now(queue_id, need))

    def fetch(
        self, queue_id: int, need: Need, retry: Callable[[], None], fail: Callable[[FlyballError], None]
    ) -> None:
        """Read what the queue needs from the store, then call `retry`; call `fail` on an error or timeout.

        If a read for the queue is in progress, wait for it instead of starting another one.
        """
        waiting = self._fetching.get(queue_id)
        if waiting is None:
            waiting = self._fetching[queue_id] = []
            self._spawn(self._fetch_now(queue_id, need))
        waiting.append(_Waiting(retry, fail, self._time_limit_s))

    async def _fetch_now(self, queue_id: int, need: Need) -> None:
        error: FlyballError | None = None
        try:
            if isinstance(need, Load):
                await self._load(queue_id, need)
            else:
                await self._build(queue_id, need)
        except StoreError as caught:
            error = caught
        except Exception as fault:
            self._faults.note("reading a queue from the store", fault)
            error = StoreError(f"queue {queue_id} cannot be read from the store: {type(fault).__name__}: {fault}")
        for waiting in self._fetching.pop(queue_id):
            try:
                waiting.end(error)
            except Exception as fault:
                self._faults.note("answer to a read", fault)
        if error is None:
            self.serve(queue_id)
        else:
            # Consumers keep waiting: retry for them after a pause.
            asyncio.get_running_loop().call_later(_RETRIES.max_s, self.serve, queue_id)

    def make_whole(self, messages: Sequence[Message], done: Callable[[Sequence[Message]], None]) -> None:
        """Page in unacked messages in batches, and call `done` with each batch; drop lost messages."""
        self._spawn(self._make_whole(list(messages), done))

    async def page_in(self, messages: Sequence[Message]) -> None:
        """Page in unacked messages: the first, and as many more as fit into `LOAD_BYTES`. Raises StoreError."""
        wanted = {message.id: message for message in messages}
        if not wanted:
            return
        found = await self.until_available(partial(self._store.load, list(wanted), LOAD_BYTES), without_limit=True)
        for stored in found:
            self._engine.page_in(wanted.pop(stored.id), stored)
        if not found:
            for message in messages:
                self._engine.lose(message)

    async def _make_whole(self, messages: list[Message], done: Callable[[Sequence[Message]], None]) -> None:
        while messages:
            try:
                await self.page_in(messages[:LOAD_AT_ONCE])
            except StoreError:
                # The node lost its queues; the nodes that serve them now have the messages.
                return
            whole = [message for message in messages if not message.is_paged]
            messages = [message for message in messages if message.is_paged]
            done(whole)

    async def _load(self, queue_id: int, load: Load) -> None:
        generation = self._generation(queue_id)
        messages = await self.until_available(lambda: self._store.load(load.message_ids, LOAD_BYTES))
        if self._generation(queue_id) == generation:
            self._dispatch(self._engine.loaded(queue_id, load, messages, self._now_us()))

    async def _build(self, queue_id: int, build: Build) -> None:
        """Build an index of messages in memory and in the store, in batches, while the queue is in use."""
        state = self._engine.find_queue_by_id(queue_id)
        if state is None:
            return
        generation, shape = state.generation, build.shape
        self._engine.begin_index(state, shape, self._removing_ids())
        is_filled = False
        while not is_filled:
            # One batch per turn of the event loop for all queues that need an index.
            async with self._filling:
                await asyncio.sleep(0)
                if self._generation(queue_id) != generation:
                    return
                before_bytes = state.absent_bytes
                is_filled = not state.indexed.fill_from_memory(shape)
                self._engine.charge_indexes(state, before_bytes)
        try:
            if state.indexed.needs_store(shape):
                async for piece in self._store.index(queue_id, _columns(shape), state.last_message_id):
                    if self._generation(queue_id) != generation:
                        return
                    before_bytes = state.absent_bytes
                    keys = (((k.receiver, k.sender, k.context), k.priority or 0, k.message_ids) for k in piece.keys)
                    state.indexed.fill_index(shape, keys, piece.up_to_id)
                    self._engine.charge_indexes(state, before_bytes)
        except StoreError:
            if self._generation(queue_id) == generation:
                state.indexed.abandon_index(shape)
            raise
        if self._generation(queue_id) == generation:
            state.indexed.finish_index(shape)
            self._dispatch(self._engine.wake(queue_id, self._now_us()))

    def _generation(self, queue_id: int) -> int | None:
        return self._engine.queue(queue_id).generation if self._engine.has_queue(queue_id) else None

    async def list_ready(
        self,
        state: QueueState,
        after_id: int,
        limit: int,
        done: Callable[[list[Message], FlyballError | None], None],
    ) -> None:
        """List a queue's ready messages, subject to the listing limiter."""
        try:
            found = None if state.absent else await self._list_resident(state, after_id, limit)
            done(await self._list_stored(state, after_id, limit) if found is None else found, None)
        except StoreError as error:
            done([], error)

    async def _list_resident(self, state: QueueState, after_id: int, limit: int) -> list[Message] | None:
        """List a queue that is in memory; None if some messages were evicted while the listing waited."""
        async with self._listing_limiter.turn(limit):
            return None if state.absent else state.oldest(after_id, limit)

    async def _list_stored(self, state: QueueState, after_id: int, limit: int) -> list[Message]:
        """List a queue that is partly in the store: stored messages merged with those not stored yet."""
        unstored = [message for message in state.oldest(after_id, limit) if not message.stored]
        found: list[Message] = []
        size_bytes = 0
        while len(found) < limit and size_bytes < LOAD_BYTES:
            wanted = min(limit - len(found), PAGE_MESSAGES)
            room_bytes = min(LOAD_BYTES - size_bytes, PAGE_BYTES)
            async with self._listing_limiter.turn(wanted):
                removing = self._removing_ids()
                page = await self.until_available(
                    partial(self._store.page, state.queue.id, after_id, wanted, room_bytes)
                )
            if not page:
                after_id = state.last_message_id
                break
            ready = [message for message in page if message.id not in state.unacked and message.id not in removing]
            found += ready
            size_bytes += sum(message.footprint_bytes for message in ready)
            after_id = page[-1].id
        known = {message.id for message in found}
        # Only up to the last id read from the store: the next page starts there.
        found += [message for message in unstored if message.id not in known and message.id <= after_id]
        found.sort(key=lambda message: message.id)
        return found[:limit]

    async def until_available(self, read: Callable[[], Awaitable[T]], *, without_limit: bool = False) -> T:
        """Read from the store; retry while it is unavailable, up to the time limit unless `without_limit`."""
        retries = Retries(_RETRIES)
        give_up_at = time.monotonic() + self._time_limit_s
        while True:
            try:
                return await read()
            except StoreUnavailable:
                delay_s = retries.next_delay_s()
                if not without_limit and time.monotonic() + delay_s > give_up_at:
                    raise
            await asyncio.sleep(delay_s)


class _Waiting:
    """A request that waits for a read, with a timeout."""

    __slots__ = ("_fail", "_retry", "_timer")

    def __init__(self, retry: Callable[[], None], fail: Callable[[FlyballError], None], limit_s: float) -> None:
        self._retry = retry
        self._fail = fail
        late = StoreUnavailable(f"the store did not respond within {limit_s:g} s")
        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(limit_s, self.end, late)

    def end(self, error: FlyballError | None) -> None:
        """Complete the request: the read succeeded or failed, or timed out, whichever comes first."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        if error is None:
            self._retry()
        else:
            self._fail(error)


def _columns(shape: Shape) -> IndexColumns:
    return IndexColumns(shape.by_receiver, shape.by_sender, shape.by_context, shape.order == Order.PRIORITY)
