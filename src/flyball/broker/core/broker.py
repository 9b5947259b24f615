"""The engine with durability: every change is journaled, and confirmed when it is committed.

Protocol sessions call the broker, and it calls them back. This module is independent of sockets and protocols.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from flyball.broker.core import clock
from flyball.broker.core.dead_lettering import DeadLettering
from flyball.broker.core.listing_limiter import CHEAP_MESSAGES, ListingLimiter
from flyball.broker.core.memory import Ledger
from flyball.broker.core.pending import (
    Countdown,
    Done,
    PendingChange,
    PendingDelete,
    PendingMark,
    PendingPut,
    PutDone,
    TakeDone,
    change_for_good,
)
from flyball.broker.core.retention import Retention
from flyball.broker.core.store_reader import StoreReader
from flyball.broker.core.supervisor import Supervisor
from flyball.broker.engine.backlog import Build, Load
from flyball.broker.engine.consumer import SLOW_PEER, Consumer, Receiver, SharedWindow
from flyball.broker.engine.counts import Meters
from flyball.broker.engine.credit import SLOT_US
from flyball.broker.engine.engine import Engine
from flyball.broker.engine.queue import Delivery, QueueState
from flyball.broker.store.changes import ClientCreated, ClientDeleted
from flyball.broker.store.group_commit import GroupCommit
from flyball.broker.store.interface import Arrived, Store
from flyball.errors import (
    FlyballError,
    InvalidBody,
    LeaseNotFound,
    QueueFull,
    StoreError,
    StoreUnavailable,
)
from flyball.faults import Faults
from flyball.model import CLIENT_BYTES, MAX_COPIES, Client, ClientMode, Draft, Message, Selector, Snapshot

log = logging.getLogger(__name__)

# Message ids reserved from the store per block.
ID_BLOCK = 1_000_000

NO_IDS = "no message ids available: the store has not reserved a block yet; publish the message again"

# Size of the commit queue above which publishers are throttled. A change counts as its body plus 200 bytes. A longer
# queue would only delay commits, without raising their rate.
CONGESTED_BYTES = 8 * 1024 * 1024

# Messages of a backlog handed to one consumer before others get a turn.
FEED_AT_ONCE = 1000

# The same in bytes. Small enough that backpressure of a consumer that does not read can pause it in between.
FEED_BYTES = 256 * 1024

# A larger purge deletes stored messages by a range in the store instead of one by one: half a million would block the
# event loop for seconds.
PURGED_ONE_BY_ONE = 1000

# All messages, oldest first.
_EVERYTHING = Selector()

Accepts = Callable[[Message], bool]


class Broker:
    """Executes puts, reads, acks and changes of clients in the engine, and makes them durable."""

    def __init__(
        self,
        store: Store,
        snapshot: Snapshot,
        *,
        time_limit_s: float,
        resident_limit_bytes: int,
        max_message_bytes: int,
        tasks: asyncio.TaskGroup,
        faults: Faults | None = None,
        memory_limit_bytes: int = 1024**3,
    ) -> None:
        self.store = store
        self.faults = Faults() if faults is None else faults
        self.engine = Engine(
            snapshot,
            keeps_messages=store.keeps_messages,
            resident_limit_bytes=resident_limit_bytes if store.pages else None,
            page_out_unacked=lambda wanted_bytes: self.ledger.page_out(wanted_bytes),
        )
        self.ledger = Ledger(self.engine, memory_limit_bytes)
        self.meters = Meters()
        # Time of messages; tests replace it.
        self.now_us: Callable[[], int] = clock.now_us
        self.listing_limiter = ListingLimiter(time_limit_s)
        self.reader = StoreReader(
            store,
            self.engine,
            self.listing_limiter,
            time_limit_s=time_limit_s,
            now_us=lambda: self.now_us(),
            spawn=self.spawn,
            dispatch=self._dispatch,
            removing_ids=lambda: self.journal.removing_ids(),
            faults=self.faults,
        )
        self.journal = GroupCommit(
            store,
            time_limit_s=time_limit_s,
            faults=self.faults,
            check=store.check,
            undo=self,
        )
        self.max_message_bytes = max_message_bytes
        # Whether the store's disk is nearly full: publishers are blocked or refused, consumers are not.
        self.is_low_on_disk = False
        # Whether other nodes use the same store: every queue is recorded then, even a transient one.
        self.is_clustered = False
        self._time_limit_s = time_limit_s
        self._supervisor = Supervisor(tasks, self.faults)
        self._is_reserving = False
        # Whether the node is stopping.
        self._is_quiescent = False
        # Hand-overs from other nodes that were accepted and not yet confirmed to the store.
        self._arrived: list[Arrived] = []
        self._taking_in = asyncio.Lock()
        self.dead_lettering = DeadLettering(self, self.reader, self.spawn)
        self.retention = Retention(self, store, self.reader, self.dead_lettering, self.spawn)
        self._ticking: asyncio.TimerHandle | None = None

    @property
    def is_congested(self) -> bool:
        """Whether the commit queue exceeds `CONGESTED_BYTES`."""
        return self.journal.pending_bytes > CONGESTED_BYTES

    @property
    def has_message_ids(self) -> bool:
        """Whether enough message ids are reserved; requests a block before they run out."""
        # One message may be routed to all queues, and so may the dead letter of a message that it displaces.
        maximum = 2 * self.engine.max_copies
        left = self.engine.message_ids_left
        if left < max(ID_BLOCK // 2, 2 * maximum):
            self._reserve_ids(2 * maximum)
        return left > max(ID_BLOCK // 10, maximum)

    def has_ids_for(self, count: int) -> bool:
        """Whether ids for `count` new messages are reserved; requests a block if few are left."""
        left = self.engine.message_ids_left
        if left - count < ID_BLOCK // 2:
            self._reserve_ids(count)
        return left >= count

    def when_numbered(self, count: int, work: Callable[[], None]) -> None:
        """Call `work`, which creates up to `count` messages, as soon as ids for them are reserved."""
        if self.has_ids_for(count):
            work()
        elif self.dead_lettering.is_publishing:
            # Deferred, the dead letter would be put after its message is removed: the message is parked instead.
            raise StoreUnavailable(NO_IDS)
        else:
            self.spawn(self._do_when_numbered(count, work))

    async def _do_when_numbered(self, count: int, work: Callable[[], None]) -> None:
        with contextlib.suppress(StoreError):
            await self.obtain_ids(count)
            work()
            self.dead_lettering.go_on()

    async def obtain_ids(self, count: int) -> None:
        """Wait until ids for `count` new messages are reserved. Raises StoreError."""
        while self.engine.message_ids_left < count:
            await self._reserve(count)

    async def start(self) -> None:
        """Reserve message ids and read the expiry times of stored messages."""
        self.engine.grant_message_ids(await self.store.reserve_message_ids(ID_BLOCK), ID_BLOCK)
        self.engine.expect_expiries(await self.store.expiring())

    def quiesce(self) -> None:
        """Stop expiring, dead-lettering and requeuing messages; the next start continues."""
        self._is_quiescent = True
        self.dead_lettering.quiesce()
        self.retention.quiesce()

    async def stop(self) -> None:
        """Stop all tasks and return unused message ids. The journal must be closed already."""
        self.listing_limiter.stop()
        self.ledger.stop()
        self.quiesce()
        if self._ticking is not None:
            self._ticking.cancel()
        self._supervisor.cancel()
        # Ids that are not returned are only skipped, so an error need not fail the stop.
        with contextlib.suppress(StoreError):
            await self.store.return_message_ids(self.engine.first_spare_message_id)

    # Clients and arrivals

    async def take_arrivals(self) -> None:
        """Accept messages that other members of clustered queues handed over. Raises StoreError."""
        # Serialized: a concurrent call may have read hand-overs that this one confirms, and accept them again.
        async with self._taking_in:
            # The last confirmation may have failed: the store would list those hand-overs again.
            await self._confirm_arrived()
            while self.engine.members:
                for arrived in await self.store.arrivals(list(self.engine.members)):
                    # The queue may have been deleted or moved in the meantime.
                    if self.engine.has_queue(arrived.queue_id):
                        self._take_in(arrived)
                if not self._arrived:
                    return
                await self._confirm_arrived()

    async def _confirm_arrived(self) -> None:
        """Confirm accepted hand-overs to the store; idempotent."""
        self._arrived = [arrived for arrived in self._arrived if self.engine.has_queue(arrived.queue_id)]
        if self._arrived:
            await self.store.received(self._arrived)
            for arrived in self._arrived:
                for message in arrived.messages:
                    message.stored = True
            self._arrived = []

    def _take_in(self, arrived: Arrived) -> None:
        self._arrived.append(arrived)
        state = self.engine.queue(arrived.queue_id)
        for message in arrived.messages:
            # The store assigns the message to this queue only when the hand-over is confirmed.
            message.stored = False
            former = state.unacked.get(message.id)
            if former is not None:
                # This node handed the message over, and receives it back before it has seen the commit of that.
                self.engine.settle(former)
            delivery = self.engine.accept(state, message, self.now_us())
            if delivery is not None:
                self._dispatch([delivery])

    def create_client(self, name: str, mode: ClientMode, done: Done) -> Client:
        self.ledger.charge_definition(CLIENT_BYTES)
        self.store.check(ClientCreated(Client(0, name, mode)))
        client = self.engine.create_client(name, mode)

        def undo() -> None:
            if self.engine.has_client(client.id):
                self.engine.delete_client(client.id)

        self.journal.change(ClientCreated(client), PendingChange(done, undo))
        return client

    def delete_client(self, client_id: int, done: Done, *, only_unused: bool = False) -> None:
        self.engine.delete_client(client_id, only_unused=only_unused)
        change_for_good(self.journal, [ClientDeleted(client_id)], done)

    def purge(self, queue_id: int, done: Callable[[int, FlyballError | None], None]) -> None:
        """Remove all ready messages and report their number."""
        state = self.engine.queue(queue_id)
        up_to_id = state.last_message_id
        gone, in_store = self.engine.purge(queue_id)
        # Transient messages need no removal from the store.
        doomed = [message for message in gone if message.persistent]
        if len(doomed) > PURGED_ONE_BY_ONE:
            unstored = [message for message in doomed if not message.stored]
            in_store += len(doomed) - len(unstored)
            already = len(gone) - len(doomed) + len(unstored)
            doomed = unstored
        else:
            already = len(gone)

        def removed(error: FlyballError | None) -> None:
            if error is None and in_store:
                self.spawn(self._purge_in_store(state, up_to_id, already, done))
            else:
                done(already, error)

        self.remove_all(doomed, removed)

    # Messages

    def put(self, draft: Draft, queue_ids: Sequence[int], done: PutDone, *, is_forwarded: bool = False) -> list[int]:
        """Put a message into the queues that exist; return those that do not.

        A forwarded put was checked against the limits by the node that forwards it.
        """
        if self.is_low_on_disk and not is_forwarded:
            done([], StoreUnavailable("low on disk: publish again after messages were consumed"))
            return []
        if self.ledger.is_full and not is_forwarded:
            # Refused, not delayed: connections of the research protocols are serial, so a waiting put would block
            # the reads behind it.
            done([], StoreUnavailable("low on memory: publish again after messages were consumed"))
            return []
        self.check_size(len(draft.body) + len(draft.properties))
        if not self.has_ids_for(len(queue_ids)):
            done([], StoreUnavailable(NO_IDS))
            return []
        for queue_id in queue_ids:
            state = self.engine.find_queue_by_id(queue_id)
            if state is not None and state.traits.rejects and state.is_full_for(len(draft.body)):
                done([], QueueFull(state.queue.name, state.queue.vhost))
                return []
        self.meters.put += 1
        arrival = self.engine.put(draft, queue_ids, self.now_us())
        messages = arrival.messages
        if draft.persistent and messages and self.engine.keeps_messages:
            countdown = Countdown(len(messages), partial(done, messages))
            for message in messages:
                self.journal.append(message, PendingPut(self.engine, message, countdown.one_done))
            self._dispatch(arrival.deliveries)
        else:
            self._dispatch(arrival.deliveries)
            done(messages, None)
        for queue_id in queue_ids:
            state = self.engine.find_queue_by_id(queue_id)
            if state is not None and not state.traits.is_plain:
                self.retention.look_after(state)
        if draft.expires_us is not None:
            self.retention.watch_expiries()
        return arrival.missing

    def check_copies(self, count: int) -> None:
        """Raise InvalidBody if a request stores too many messages."""
        if count > MAX_COPIES:
            raise InvalidBody(f"the request stores more than {MAX_COPIES} messages: split it")

    def check_size(self, size_bytes: int) -> None:
        """Raise InvalidBody if body and properties exceed the maximum message size."""
        if size_bytes > self.max_message_bytes:
            raise InvalidBody(f"message of {size_bytes} bytes exceeds the maximum of {self.max_message_bytes}")

    def accept(self, state: QueueState, message: Message) -> None:
        """Add a message to its queue, journal it if it is persistent, and deliver it if a consumer waits.

        It is appended before it is delivered: an ack must find the unwritten insert in the journal, to cancel it
        (`test_an_append_and_its_remove_cancel_out_before_they_are_sent`).
        """
        delivery = self.engine.accept(state, message, message.arrived_us)
        if message.persistent:
            self.journal.append(message, None)
        if delivery is not None:
            owner = delivery.consumer.owner
            try:
                owner.deliver(delivery.consumer, message)
            except Exception as error:
                self._delivery_failed(delivery, error)
        elif not state.traits.is_plain:
            self.retention.look_after(state)

    def settle(self, message: Message, is_acknowledged: bool = False) -> bool:
        """Remove an unacked message from the engine and from the store.

        Return False without effect if the queue was deleted, or moved to another node, which redelivers the message.
        """
        if not self.engine.settle(message, is_acknowledged) and message.persistent:
            return False
        # An ack cancels an insert that is not written yet: nothing reaches the store, and the publisher is
        # confirmed now. A transient message has a receipt only if another node waits for its outcome.
        if (not message.persistent or self.journal.remove(message, None)) and message.receipt is not None:
            notify, number = message.receipt
            notify(number, False)
        return True

    def settle_written(self, message: Message, is_acknowledged: bool = False) -> bool:
        """Settle a message whose removal must be committed with another change: a transaction, a dead letter.

        An unwritten insert stays in its batch, and its publisher is confirmed with that batch. Cancelling it would
        confirm the publisher now, and a crash before the next commit would lose a confirmed message together with its
        successor.
        """
        if not message.persistent:
            return self.settle(message, is_acknowledged)
        if not self.engine.settle(message, is_acknowledged):
            return False
        self.journal.remove(message, None, spare=False)
        return True

    def append_refused(self, message: Message) -> None:
        """Remove a message that the store refused, and report the failure to its publisher."""
        if not self.engine.withdraw(message):
            # It is delivered. If requeued, it must not count as persistent: it would not survive a restart.
            message.persistent = False
        if message.receipt is not None:
            (notify, number), message.receipt = message.receipt, None
            notify(number, True)

    def remove_refused(self, message: Message) -> None:
        """Requeue a message whose removal the store refused."""
        if message.is_paged:
            self.spawn(self._read_refused(message.id))
        else:
            self._take_back(message)

    async def _read_refused(self, message_id: int) -> None:
        with contextlib.suppress(StoreError):
            for message in await self.reader.until_available(
                lambda: self.store.load([message_id]), without_limit=True
            ):
                self._take_back(message)

    def _take_back(self, message: Message) -> None:
        state = self.engine.find_queue_by_id(message.queue_id)
        if state is None:
            return
        message.stored = True
        message.delivery_count += 1
        delivery = self.engine.accept(state, message, self.now_us())
        if delivery is not None:
            self._dispatch([delivery])

    def requeue(self, messages: Sequence[Message]) -> None:
        """Requeue messages whose leases have ended; dead-letter those that were requeued too often."""
        if self._is_quiescent:
            # Connections close one after the other: a requeued message would be delivered to each of the remaining
            # ones, until its delivery limit drops it. It is still in the store, for the next start.
            return
        purged = [message for message in messages if self.engine.must_be_whole(message)]
        if purged:
            self.reader.make_whole(purged, self.requeue)
            messages = [message for message in messages if not self.engine.must_be_whole(message)]
        back: list[Message] = []
        for message in messages:
            state = self.engine.find_queue_by_id(message.queue_id)
            if state is None:
                continue
            if state.original is not None:
                self.engine.settle(message)
                state.original.requeue(message)
                continue
            limit = state.traits.delivery_limit
            if limit is not None and message.delivery_count >= limit:
                self.dead_lettering.dead_letter(state, message, "delivery_limit")
            else:
                back.append(message)
        self._bring_back(back)
        if self.engine.has_expired:
            self.retention.expire()
        for queue_id in {message.queue_id for message in back}:
            state = self.engine.find_queue_by_id(queue_id)
            if state is not None:
                if not state.traits.is_plain and not state.traits.rejects:
                    self.retention.look_after(state)
                self.reader.serve(queue_id)

    def feed(self, consumer: Consumer) -> None:
        """Deliver to the consumer what its credit allows. Skip a waiting one: no ready message matches it."""
        if not consumer.turn:
            self._feed(consumer)

    def take(self, queue_id: int, selector: Selector, done: TakeDone, accepts: Accepts | None = None) -> None:
        """Remove and return the first match, unless the reader's protocol cannot represent it."""
        if accepts is not None:
            found = self.engine.peek(queue_id, selector, self.now_us())
            if isinstance(found, Message) and not accepts(found):
                done(None, InvalidBody(f"message {found.id} of {len(found.body)} bytes does not fit this protocol"))
                return
        message = self.engine.take(queue_id, selector, self.now_us())
        if message is None:
            self.meters.get_empty += 1
            done(None, None)
        elif isinstance(message, Message):
            self.engine.queue(queue_id).count_get(message, is_gone=True)
            self.remove(message, done)
        else:
            self.reader.fetch(
                queue_id, message, partial(self.take, queue_id, selector, done, accepts), partial(done, None)
            )

    def take_out(self, queue_id: int, selector: Selector, done: TakeDone) -> None:
        """Make the first match unacked and return it; `settle` or `requeue` must follow."""
        message = self.engine.take(queue_id, selector, self.now_us())
        if message is None or isinstance(message, Message):
            if self.engine.has_expired:
                self.retention.expire()
            done(message, None)
        else:
            self.reader.fetch(
                queue_id, message, partial(self.take_out, queue_id, selector, done), partial(done, None)
            )

    def peek(self, queue_id: int, selector: Selector, done: TakeDone) -> None:
        message = self.engine.peek(queue_id, selector, self.now_us())
        if message is None or isinstance(message, Message):
            done(message, None)
        else:
            self.reader.fetch(queue_id, message, partial(self.peek, queue_id, selector, done), partial(done, None))

    def remove(self, message: Message, done: TakeDone) -> None:
        """Remove an unacked message; call back when the removal is durable."""
        if message.persistent:
            self.journal.remove(message, PendingDelete(self.engine, message, done, self.requeue_undelivered))
        else:
            self.engine.settle(message)
            done(message, None)

    def remove_all(self, messages: Sequence[Message], done: Done) -> None:
        """Remove unacked messages; call back when the removal is durable."""
        if not messages:
            done(None)
            return
        countdown = Countdown(len(messages), done)
        for message in messages:
            self.remove(message, countdown.one_done)

    def remove_oldest(
        self, queue_id: int, up_to_id: int, maximum: int, done: Callable[[int, FlyballError | None], None]
    ) -> None:
        """Remove at most `maximum` ready messages up to an id, oldest first; report their number.

        Fewer than `maximum` means that none is left. Unacked messages stay.
        """
        self.engine.queue(queue_id)
        _Removal(self, self.reader, queue_id, up_to_id, maximum, done).go_on()

    def requeue_undelivered(self, message: Message) -> None:
        """Requeue an unacked message that could not be delivered, at its original position."""
        state = self.engine.find_queue_by_id(message.queue_id)
        if state is not None and state.original is not None:
            self.requeue([message])
            return
        if self.engine.must_be_whole(message):
            self.reader.make_whole([message], lambda whole: self.requeue_undelivered(whole[0]))
            return
        was_paged = message.is_paged
        delivery = self.engine.requeue_undelivered(message, self.now_us())
        if delivery is not None:
            self._dispatch([delivery])
        if was_paged:
            self.reader.serve(message.queue_id)

    def browse(
        self, queue_id: int, after_id: int, limit: int, done: Callable[[list[Message], FlyballError | None], None]
    ) -> None:
        """Report ready messages with ids above `after_id`, oldest first; they stay ready."""
        state = self.engine.queue(queue_id)
        if state.absent or limit > CHEAP_MESSAGES:
            self.spawn(self.reader.list_ready(state, after_id, limit, done))
        else:
            done(state.oldest(after_id, limit), None)

    # Consumers

    def consume(
        self,
        queue_id: int,
        selector: Selector,
        prefetch: float,
        owner: Receiver,
        begun: Callable[[Consumer], None],
        *,
        no_ack: bool = False,
        priority: int = 0,
        shared: SharedWindow | None = None,
    ) -> None:
        """Add a consumer for `owner`; call `begun` with it before the first delivery."""
        consumer = self.engine.consume(
            queue_id, selector, prefetch, owner, no_ack=no_ack, priority=priority, shared=shared
        )
        begun(consumer)
        self._feed(consumer)
        self._tick_if_needed()

    def set_prefetch(self, consumer: Consumer, prefetch: float) -> None:
        state = self.engine.find_queue_by_id(consumer.queue_id)
        if state is not None and state.original is not None:
            state.original.set_prefetch(prefetch)
            return
        self.engine.set_prefetch(consumer, prefetch)
        self._feed(consumer)
        self._tick_if_needed()

    def shared_window_changed(self, consumer: Consumer, prefetch: float) -> None:
        """Forward a change of a consumer's shared window to the node that serves its queue, if another one does."""
        state = self.engine.find_queue_by_id(consumer.queue_id)
        if state is not None and state.original is not None:
            state.original.set_prefetch(prefetch)

    def cancel(self, consumer: Consumer) -> None:
        """Stop deliveries to the consumer, which may still ack its unacked messages."""
        state = self.engine.find_queue_by_id(consumer.queue_id)
        successor = self.engine.cancel(consumer)
        if state is not None and state.original is not None:
            state.original.cancel()
        if successor is not None:
            self._feed(successor)

    def pause(self, consumer: Consumer, reason: int = SLOW_PEER) -> None:
        """Stop deliveries to the consumer until `resume` with the same reason."""
        self.engine.pause(consumer, reason)

    def resume(self, consumer: Consumer, reason: int = SLOW_PEER) -> None:
        consumer.paused_for &= ~reason
        self._feed(consumer)

    def acknowledge(self, consumer: Consumer, message_ids: Sequence[int], done: Done) -> None:
        """Remove acked messages and deliver what the consumer's credit then allows.

        Raises LeaseNotFound, or passes it to `done` if the queue has moved to another node, which redelivers them.
        """
        messages = self.engine.acknowledge(consumer, message_ids)
        state = self.engine.find_queue_by_id(consumer.queue_id)
        out = () if state is None else state.unacked
        lost = next((message.id for message in messages if message.id not in out), None)
        if lost is not None:
            done(LeaseNotFound(lost))
            return
        if state is not None:
            state.acknowledged += len(messages)
            if state.begun:
                for message in messages:
                    state.end_service(message.id)
        self.remove_all(messages, done)
        self._feed(consumer)

    def end(self, consumer: Consumer) -> None:
        """Cancel the consumer of a closed session and requeue its unacked messages."""
        self.cancel(consumer)
        messages = self.engine.acknowledge(consumer, list(consumer.leases))
        if self._is_quiescent:
            return
        self._bring_back(messages)
        self.reader.serve(consumer.queue_id)

    def when_durable(self, done: Done) -> None:
        """Call back when all earlier changes are committed."""
        if self.journal.pending_count == 0:
            done(None)
        else:
            self.journal.mark(PendingMark(done, acks=True), is_limited=True)

    # Internals

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a background task, which is cancelled when the broker stops."""
        self._supervisor.spawn(work)

    def _dispatch(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            owner = delivery.consumer.owner
            try:
                owner.deliver(delivery.consumer, delivery.message)
            except Exception as error:
                self._delivery_failed(delivery, error)

    def _delivery_failed(self, delivery: Delivery, error: Exception) -> None:
        """Close a session that failed to deliver a message, and requeue the message."""
        consumer, message = delivery.consumer, delivery.message
        consumer.owner.crash(error)
        self.cancel(consumer)
        # The session has requeued the messages that it recorded. If this one is still leased, it failed before that.
        if message.id in consumer.leases:
            consumer.release(message.id)
        elif not consumer.no_ack:
            return
        self.requeue([message])

    def _bring_back(self, messages: Sequence[Message]) -> None:
        """Requeue messages and deliver one batch to waiting consumers; feed the rest in later event loop turns."""
        self._dispatch(self.engine.requeue(messages, self.now_us(), FEED_AT_ONCE, FEED_BYTES))
        for consumers in self.engine.take_interrupted():
            asyncio.get_running_loop().call_soon(self._feed_all, deque(consumers))

    def _feed_all(self, consumers: deque[Consumer]) -> None:
        """Feed one batch per event loop turn: consumers of equal priority alternate, higher priorities first."""
        consumer = consumers.popleft()
        if self._feed_part(consumer):
            place = sum([other.priority == consumer.priority for other in consumers])
            consumers.insert(place, consumer)
        if consumers:
            asyncio.get_running_loop().call_soon(self._feed_all, consumers)

    def _feed(self, consumer: Consumer) -> None:
        """Deliver to the consumer in batches, one per turn of the event loop."""
        if self._feed_part(consumer):
            asyncio.get_running_loop().call_soon(self._feed, consumer)

    def _feed_part(self, consumer: Consumer) -> bool:
        """Deliver one batch to the consumer; return whether there may be more."""
        deliveries = self.engine.feed(consumer, self.now_us(), FEED_AT_ONCE, FEED_BYTES)
        self._dispatch(deliveries)
        if self.engine.has_expired:
            self.retention.expire()
        if len(deliveries) == FEED_AT_ONCE or _body_bytes(deliveries) >= FEED_BYTES:
            return True
        self.reader.serve(consumer.queue_id)
        return False

    def _tick_if_needed(self) -> None:
        if self._ticking is None and self.engine.has_fractional_consumers:
            self._ticking = asyncio.get_running_loop().call_later(SLOT_US / 1e6, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        try:
            self._dispatch(self.engine.tick(self.now_us()))
            for queue_id in self.engine.fractional_queue_ids:
                self.reader.serve(queue_id)
        finally:
            self._tick_if_needed()

    def _reserve_ids(self, count: int = 0) -> None:
        """Start to reserve a block of at least `count` ids."""
        if not self._is_reserving:
            self._is_reserving = True
            self.spawn(self._reserve(count))

    async def _reserve(self, count: int) -> None:
        block = max(ID_BLOCK, count)
        try:
            first = await self.reader.until_available(
                lambda: self.store.reserve_message_ids(block), without_limit=True
            )
            self.engine.grant_message_ids(first, block)
        finally:
            # Also after a permanent failure: the next request for ids retries.
            self._is_reserving = False

    async def _purge_in_store(
        self,
        state: QueueState,
        up_to_id: int,
        already: int,
        done: Callable[[int, FlyballError | None], None],
    ) -> None:
        kept = _InUse(self.engine, state)
        try:
            count = await self.reader.until_available(
                lambda: self.store.delete_queue_messages(state.queue.id, up_to_id, kept)
            )
        except StoreError as error:
            done(already, error)
        else:
            done(already + count, None)


class _InUse:
    """The ids of messages that a purge in the store must keep: unacked ones, and those that arrived later.

    New ids are not always above those of purged messages, which may be from another node's range. After the queue has
    moved, all messages are kept.
    """

    __slots__ = ("_engine", "_state")

    def __init__(self, engine: Engine, state: QueueState) -> None:
        self._engine = engine
        self._state = state

    def __contains__(self, message_id: object) -> bool:
        state = self._state
        if self._engine.find_queue_by_id(state.queue.id) is not state:
            return True
        return isinstance(message_id, int) and (message_id in state.unacked or state.get(message_id) is not None)


class _Removal:
    """Removes the oldest messages of a queue, and loads paged-out ones from the store."""

    __slots__ = ("_broker", "_done", "_maximum", "_queue_id", "_reader", "_taken", "_up_to_id")

    def __init__(
        self,
        broker: Broker,
        reader: StoreReader,
        queue_id: int,
        up_to_id: int,
        maximum: int,
        done: Callable[[int, FlyballError | None], None],
    ) -> None:
        self._broker = broker
        self._reader = reader
        self._queue_id = queue_id
        self._up_to_id = up_to_id
        self._maximum = maximum
        self._done = done
        self._taken: list[Message] = []

    def go_on(self) -> None:
        engine, now_us = self._broker.engine, self._broker.now_us()
        while len(self._taken) < self._maximum:
            found = engine.peek(self._queue_id, _EVERYTHING, now_us)
            if isinstance(found, Load | Build):
                self._reader.fetch(self._queue_id, found, self.go_on, self._end)
                return
            if found is None or found.id > self._up_to_id:
                break
            engine.take(self._queue_id, _EVERYTHING, now_us)
            self._taken.append(found)
        self._end(None)

    def _end(self, error: FlyballError | None) -> None:
        if self._broker.engine.has_expired:
            self._broker.retention.expire()
        self._broker.remove_all(self._taken, lambda failed: self._done(len(self._taken), error or failed))


def _body_bytes(deliveries: Sequence[Delivery]) -> int:
    return sum([len(delivery.message.body) for delivery in deliveries])
