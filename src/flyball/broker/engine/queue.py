"""The state of one queue: its ready messages, its unacked messages and its consumers.

Assigns messages to consumers. Independent of other queues, of clients and of the store.

Dispatch order. Consumers are served by priority, then in the order in which they started to wait; after a delivery a
consumer waits again after those of equal priority (`test_consumers_are_served_in_the_order_they_joined`). Each
receives the first message that its selector matches. A message never overtakes an earlier one that is being loaded
from the store for a consumer: the consumer is blocked, not waiting, until the load is done
(`test_a_new_message_does_not_overtake_those_that_are_being_loaded`). Requeued messages return to their original
positions, a whole batch before any of it is delivered again
(`test_requeued_messages_are_delivered_in_the_order_of_the_consumer`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from flyball.broker.engine.backlog import MAX_INDEXES, IndexedBacklog, Load, Need, PlainBacklog, evictable
from flyball.broker.engine.consumer import Consumer, WaitingConsumers
from flyball.broker.engine.counts import Counts
from flyball.broker.engine.credit import UNLIMITED
from flyball.broker.engine.index import ARRIVAL, Shape
from flyball.broker.engine.message_times import NOTHING_BEGUN, MessageTimes
from flyball.broker.engine.traits import Traits
from flyball.model import Message, Queue, QueueSummary, Selector

_NOTHING_SEEN = (0, 0, 0, 0, 0)


@dataclass(slots=True)
class Delivery:
    """A message to be sent to a consumer."""

    consumer: Consumer
    message: Message


@dataclass(slots=True)
class Parked:
    """A message that could not be dead-lettered, kept for an operator."""

    message: Message
    # Reason for its removal: expired, rejected, maxlen or delivery_limit.
    reason: str
    # Error of the dead-lettering.
    problem: str
    at_us: int


class Original(Protocol):
    """The remote queue of a proxy queue: operations on its messages are forwarded to it."""

    def requeue(self, message: Message) -> None:
        """Requeue a delivered message."""
        ...

    def dead_letter(self, message: Message) -> None:
        """Dead-letter the message, or drop it."""
        ...

    def cancel(self) -> None:
        """Cancel the proxy queue's consumer."""
        ...

    def set_prefetch(self, prefetch: float) -> None:
        """Set the prefetch of the proxy queue's consumer."""
        ...


class QueueState(Counts):
    """A queue served from memory.

    Invariant: every stored message of the queue is either ready (in the backlog) or unacked (leased to a consumer,
    fetched by a reader, or expired) until the store has confirmed its removal.
    """

    __slots__ = (
        "_addressed_count",
        "_backlog",
        "_blocked",
        "_expired",
        "_purged_to",
        "_waiting",
        "active",
        "addressed",
        "begun",
        "consumers",
        "generation",
        "is_stored",
        "knows_bytes",
        "last_message_id",
        "original",
        "parked",
        "queue",
        "ready_bytes",
        "recovered_to",
        "seen",
        "sent",
        "timed_delivery",
        "timed_get",
        "timed_no_ack",
        "times",
        "traits",
        "unacked",
    )

    def __init__(self, summary: QueueSummary, expired: list[Message]) -> None:
        """Expired messages are appended to `expired`."""
        super().__init__()
        self._expired = expired
        self.queue: Queue = summary.queue
        # Whether the queue is stored, which is required to store its messages.
        self.is_stored = summary.queue.durable and not summary.queue.exclusive
        self._backlog: PlainBacklog | IndexedBacklog
        if summary.message_count:
            self._backlog = IndexedBacklog(absent=summary.message_count, recovered_to=summary.last_message_id)
        else:
            self._backlog = PlainBacklog()
        # Ready messages by receiver.
        self.addressed = dict(summary.addressed)
        self._addressed_count = sum(self.addressed.values())
        # Messages by sender, ready or unacked.
        self.sent = dict(summary.sent)
        self.last_message_id = summary.last_message_id
        # Messages up to this id were stored before the node served the queue, and may have been delivered before.
        self.recovered_to = summary.last_message_id
        self.traits = Traits()
        # The remote queue, if this is a proxy queue.
        self.original: Original | None = None
        # Total size of the bodies of the ready messages, valid if `knows_bytes`.
        self.ready_bytes = 0
        # Whether `ready_bytes` includes the recovered messages.
        self.knows_bytes = not summary.message_count
        # The consumer that receives all messages, if the queue has a single active consumer.
        self.active: Consumer | None = None
        self.unacked: dict[int, Message] = {}
        # The messages in `unacked` that could not be dead-lettered; not delivered to a consumer.
        self.parked: dict[int, Parked] = {}
        self.consumers: dict[int, Consumer] = {}
        # Consumers with room, without a matching message.
        self._waiting = WaitingConsumers()
        # Consumers with room whose next message must first be read from the store.
        self._blocked: dict[int, tuple[Consumer, Need]] = {}
        # Incremented by a purge, which invalidates reads from the store that are in progress.
        self.generation = 0
        self._purged_to = 0
        # Times some messages, and chooses the next ones; see `message_times`.
        self.times: MessageTimes | None = None
        self.timed_delivery = self.timed_no_ack = self.timed_get = 0
        # Timed unacked messages by id: time of delivery and weight.
        self.begun: dict[int, tuple[int, int]] = NOTHING_BEGUN
        # The values last seen by the node's recorder: events, ready messages, arrived, delivered, acknowledged.
        self.seen = _NOTHING_SEEN

    def __len__(self) -> int:
        """Number of ready messages."""
        return len(self._backlog)

    @property
    def unacked_count(self) -> int:
        """Number of unacked messages that are not parked."""
        return len(self.unacked) - len(self.parked)

    @property
    def need(self) -> Need | None:
        """The read from the store needed by the consumer that has been blocked longest."""
        for _, need in self._blocked.values():
            return need
        return None

    @property
    def idle_consumers(self) -> int:
        """Number of consumers that wait for a message."""
        return len(self._waiting)

    @property
    def absent(self) -> int:
        """Number of ready messages that are not in memory."""
        return 0 if isinstance(self._backlog, PlainBacklog) else self._backlog.absent

    @property
    def absent_bytes(self) -> int:
        """Memory of the index entries, except one for each message in memory."""
        return self._backlog.absent_bytes if isinstance(self._backlog, IndexedBacklog) else 0

    @property
    def indexed(self) -> IndexedBacklog:
        """The backlog with indexes; the first access converts a plain one."""
        if isinstance(self._backlog, PlainBacklog):
            self._backlog = IndexedBacklog(self._backlog, void_to=self._purged_to, recovered_to=self.recovered_to)
        return self._backlog

    def begin_index(self, shape: Shape, removing: set[int]) -> None:
        """Start an index, see `IndexedBacklog`, and drop the least recently used ones if there are too many.

        `removing` are ids whose deletion from the store is pending.
        """
        if self.indexed.index_count >= MAX_INDEXES:
            self._drop_indexes(MAX_INDEXES - 1)
        self.indexed.begin_index(shape, removing.union(self.unacked))

    def _drop_indexes(self, keep: int) -> None:
        # A consumer without its index would have to wait for a rebuild before its next message.
        needed = {Shape.of(consumer.selector) for consumer in self.consumers.values()}
        self.indexed.drop_indexes(needed, keep)

    def visible_to(self, reader: int) -> int:
        """Number of ready messages that are addressed to the reader or unaddressed."""
        return len(self._backlog) - self._addressed_count + self.addressed.get(reader, 0)

    def oldest(self, after_id: int, limit: int) -> list[Message]:
        """Return the first ready messages in memory with ids above `after_id`, oldest first."""
        if isinstance(self._backlog, PlainBacklog):
            return list(islice(self._backlog.after(after_id), limit))
        return self._backlog.oldest(after_id, limit)

    def get(self, message_id: int) -> Message | None:
        """Return the message if it is ready and in memory."""
        backlog = self._backlog
        if isinstance(backlog, PlainBacklog):
            first = backlog.first()
            if first is None or message_id < first.id:
                # The usual case of a removed message: needs no index.
                return None
        return self.indexed.get(message_id)

    def arrive(self, message: Message, now_us: int) -> Delivery | None:
        """Add a new message: deliver it to a waiting consumer or make it ready."""
        # A queue taken over from another node has ids of both nodes: the id may be below the last one.
        if message.id > self.last_message_id:
            self.last_message_id = message.id
        if message.sender is not None:
            self.sent[message.sender] = self.sent.get(message.sender, 0) + 1
        self.arrived += 1
        return self._offer(message, now_us)

    @property
    def is_too_long(self) -> bool:
        """Whether the ready messages exceed the length limits."""
        traits = self.traits
        return (traits.max_length is not None and len(self._backlog) > traits.max_length) or (
            traits.max_length_bytes is not None and self.ready_bytes > traits.max_length_bytes
        )

    def is_full_for(self, body_bytes: int) -> bool:
        """Whether one more message would exceed the length limits."""
        traits = self.traits
        return (traits.max_length is not None and len(self._backlog) >= traits.max_length) or (
            traits.max_length_bytes is not None and self.ready_bytes + body_bytes > traits.max_length_bytes
        )

    @property
    def is_unmeasured(self) -> bool:
        """Whether the queue has a size limit in bytes and the size of its ready messages is unknown."""
        return self.traits.max_length_bytes is not None and not self.knows_bytes

    @property
    def unstored_bytes(self) -> int:
        """Total size of the bodies of ready messages that are not stored."""
        return sum(len(message.body) for message in self._resident() if not message.stored)

    def learn_bytes(self, ready_bytes: int) -> None:
        """Set the size of the ready messages, recovered ones included."""
        self.ready_bytes = ready_bytes
        self.knows_bytes = True

    def admit(self, consumer: Consumer) -> None:
        """Add a consumer, as a standby if the queue already has its single active consumer."""
        self.consumers[consumer.id] = consumer
        if self.traits.single_active_consumer:
            if self.active is None:
                self.active = consumer
            else:
                consumer.is_standby = True

    def first(self, selector: Selector, now_us: int) -> Message | Need | None:
        """Return the first match, or the read from the store that is needed to find it."""
        while True:
            message = self._first(selector)
            if not isinstance(message, Message) or message.expires_us is None or message.expires_us > now_us:
                return message
            self.expire(message)

    def take_out(self, message: Message) -> None:
        """Make the message that `first` has just returned unacked."""
        backlog = self._backlog
        if isinstance(backlog, PlainBacklog):
            backlog.pop()
        else:
            backlog.remove(message)
            if not len(backlog) and backlog.is_plain:
                self._backlog = PlainBacklog()
        self.unacked[message.id] = message
        self.ready_bytes -= len(message.body)
        if not self.knows_bytes and not len(self._backlog):
            self.ready_bytes = 0
            self.knows_bytes = True
        if message.receiver is not None:
            self._addressed_count -= 1
            left = self.addressed[message.receiver] - 1
            if left:
                self.addressed[message.receiver] = left
            else:
                del self.addressed[message.receiver]

    def count_get(self, message: Message, *, is_gone: bool) -> None:
        """Count a message fetched by a reader; `is_gone` if it needs no acknowledgement."""
        if is_gone:
            self.got_no_ack += 1
        else:
            self.got += 1
        if message.delivery_count or message.recovered:
            self.redelivered += 1
        if self.times is not None and self.got + self.got_no_ack == self.timed_get:
            self.times.got(self, message, is_gone=is_gone)

    @property
    def head(self) -> Message | None:
        """The oldest ready message, if it is known without an index or a read."""
        return self._backlog.first() if isinstance(self._backlog, PlainBacklog) else None

    def take_anywhere(self, message: Message) -> None:
        """Make a ready message at any position unacked."""
        if not isinstance(self._backlog, PlainBacklog) or self._backlog.first() is not message:
            self._backlog = self.indexed
        self.take_out(message)

    def expire(self, message: Message) -> None:
        """Make an expired ready message unacked, to be settled by the caller of `Engine.expire`."""
        self.take_anywhere(message)
        self._expired.append(message)

    def end_service(self, message_id: int) -> None:
        """Record an acknowledgement; called only while `begun` is not empty."""
        if self.times is not None:
            self.times.acknowledged(self, message_id)

    def settle(self, message: Message) -> None:
        """Remove an unacked message."""
        del self.unacked[message.id]
        if self.begun:
            self.begun.pop(message.id, None)
        if self.parked:
            self.parked.pop(message.id, None)
        if message.sender is not None:
            left = self.sent[message.sender] - 1
            if left:
                self.sent[message.sender] = left
            else:
                del self.sent[message.sender]

    def requeue_undelivered(self, message: Message, now_us: int) -> Delivery | None:
        """Requeue a message that was not delivered, or deliver it to a waiting consumer."""
        del self.unacked[message.id]
        if self.begun:
            self.begun.pop(message.id, None)
        if not message.is_paged:
            return self._offer(message, now_us) if self._is_alive(message, now_us) else None
        self._add(message)
        consumer = self._waiting.match(message, now_us) if self._waiting else None
        return None if consumer is None else self._give(consumer, now_us)

    def requeue(
        self, messages: Sequence[Message], now_us: int, maximum: int = UNLIMITED, max_bytes: int = UNLIMITED
    ) -> tuple[list[Delivery], list[Consumer]]:
        """Requeue unacked messages, all before the first is delivered, so that each consumer gets its first match.

        After `maximum` deliveries, or bodies of `max_bytes`, stop and also return the consumers that still wait; they
        wait no longer, and the caller feeds them later. If they kept waiting, messages that arrive in between would
        be delivered to them before the requeued ones.
        """
        back: list[Message] = []
        self.requeued += len(messages)
        for message in messages:
            del self.unacked[message.id]
            if self.begun:
                self.begun.pop(message.id, None)
            # The expiry of a paged-out message is checked when it is read.
            if message.is_paged or self._is_alive(message, now_us):
                self._add(message)
                back.append(message)
        deliveries: list[Delivery] = []
        for message in back:
            while self._waiting and message.id not in self.unacked:
                if len(deliveries) >= maximum or max_bytes <= 0:
                    return deliveries, self._waiting.leave_all()
                consumer = self._waiting.match(message, now_us)
                if consumer is None:
                    break
                delivery = self._give(consumer, now_us)
                if delivery is not None:
                    deliveries.append(delivery)
                    max_bytes -= len(delivery.message.body)
                    if consumer.wants(now_us):
                        self._waiting.join(consumer)
        return deliveries, []

    def feed(
        self, consumer: Consumer, now_us: int, maximum: int = UNLIMITED, max_bytes: int = UNLIMITED
    ) -> list[Delivery]:
        """Deliver what the consumer's window allows: at most `maximum` messages and about `max_bytes` of bodies."""
        deliveries: list[Delivery] = []
        delivery = self._give(consumer, now_us)
        while delivery is not None:
            deliveries.append(delivery)
            max_bytes -= len(delivery.message.body)
            if len(deliveries) == maximum or max_bytes <= 0:
                break
            delivery = self._give(consumer, now_us)
        return deliveries

    def feed_blocked(self, now_us: int) -> list[Delivery]:
        """Deliver to the consumers that were blocked by the store, round-robin, after a read."""
        deliveries: list[Delivery] = []
        waiting = [consumer for consumer, _ in self._blocked.values()]
        while waiting:
            still: list[Consumer] = []
            for consumer in waiting:
                delivery = self._give(consumer, now_us)
                if delivery is not None:
                    deliveries.append(delivery)
                    still.append(consumer)
            waiting = still
        return deliveries

    def dismiss(self, consumer: Consumer) -> Consumer | None:
        """Remove a consumer; return the standby that becomes the single active one, if any."""
        self.stop_waiting(consumer)
        self.consumers.pop(consumer.id, None)
        if isinstance(self._backlog, IndexedBacklog) and self._backlog.index_count > MAX_INDEXES:
            self._drop_indexes(MAX_INDEXES)
        if self.active is not consumer:
            return None
        standing_by = [other for other in self.consumers.values() if other.is_standby]
        self.active = max(standing_by, key=lambda other: (other.priority, -other.id), default=None)
        if self.active is not None:
            self.active.is_standby = False
        return self.active

    def loaded(self, load: Load, messages: Sequence[Message]) -> list[Message]:
        """Add messages of a `Load`; return those new in memory. An empty `messages` means all are lost."""
        new = self.indexed.loaded(load, messages)
        if not len(self._backlog):
            # Sender and receiver of lost messages are unknown, but the counts of an empty queue must be zero.
            self.addressed.clear()
            self._addressed_count = 0
            self.sent = self._unacked_by_sender()
        return new

    def evict(self, wanted_bytes: int, keep_bytes: int) -> list[Message]:
        """Evict stored messages from memory; return them."""
        if not self.is_stored:
            return []
        chosen = evictable(self._backlog.newest_first(), wanted_bytes, keep_bytes, self._purged_to)
        if chosen:
            self.indexed.evict(chosen)
        return chosen

    def is_void(self, message: Message) -> bool:
        """Whether the queue was purged after the message arrived: the store no longer has it."""
        return message.id <= self._purged_to

    def purge(self) -> list[Message]:
        """Remove every ready message; return those that were in memory. Unacked messages stay."""
        gone = list(self._resident())
        self._backlog = PlainBacklog()
        self._purged_to = self.last_message_id
        self.ready_bytes = 0
        self.knows_bytes = True
        self.addressed = {}
        self._addressed_count = 0
        self.sent = self._unacked_by_sender()
        self.generation += 1
        for consumer, _ in self._blocked.values():
            self._waiting.join(consumer)
        self._blocked.clear()
        return gone

    def _unacked_by_sender(self) -> dict[int, int]:
        return dict(Counter(message.sender for message in self.unacked.values() if message.sender is not None))

    def _resident(self) -> Iterator[Message]:
        return iter(self._backlog) if isinstance(self._backlog, PlainBacklog) else self._backlog.resident()

    def _first(self, selector: Selector) -> Message | Need | None:
        backlog = self._backlog
        if isinstance(backlog, PlainBacklog):
            if not len(backlog):
                return None
            if Shape.of(selector) is ARRIVAL:
                return backlog.first()
            backlog = self.indexed
        return backlog.first(selector)

    def _is_alive(self, message: Message, now_us: int) -> bool:
        """Whether an arriving or requeued message has not expired; an expired one is made unacked."""
        if message.expires_us is None or message.expires_us > now_us:
            return True
        self._pass_by(message)
        self._expired.append(message)
        return False

    def _offer(self, message: Message, now_us: int) -> Delivery | None:
        if message.expires_us is not None and message.expires_us < now_us and not self._is_alive(message, now_us):
            return None
        sole = self._waiting.sole
        if sole is not None:
            if sole.wants(now_us):
                self._pass_by(message)
                delivery = self._hand_over(sole, message)
                # Without acknowledgement a delivery does not use the window.
                if not sole.no_ack and not sole.wants(now_us):
                    self._waiting.leave(sole)
                return delivery
            self._waiting.leave(sole)
        elif self._waiting:
            consumer = self._waiting.match(message, now_us)
            if consumer is not None:
                self._pass_by(message)
                delivery = self._hand_over(consumer, message)
                if consumer.wants(now_us):
                    self._waiting.join(consumer)
                return delivery
        # A message with a time to live of 0 may be delivered at once, but not become ready, as in RabbitMQ.
        if self._is_alive(message, now_us):
            self._add(message)
        return None

    def _pass_by(self, message: Message) -> None:
        """Make an arriving message unacked without making it ready."""
        self.unacked[message.id] = message
        backlog = self._backlog
        if isinstance(backlog, IndexedBacklog) and backlog.is_filling:
            backlog.pass_by(message.id)

    def _add(self, message: Message) -> None:
        if message.paged_bytes < 0:
            self._backlog.add(message)
            self.ready_bytes += len(message.body)
        else:
            self.indexed.add_absent(message)
            self.ready_bytes += message.paged_bytes
        if message.receiver is not None:
            self.addressed[message.receiver] = self.addressed.get(message.receiver, 0) + 1
            self._addressed_count += 1

    def _give(self, consumer: Consumer, now_us: int) -> Delivery | None:
        """Deliver one message to a consumer, or make it wait if none matches."""
        if not consumer.wants(now_us):
            self.stop_waiting(consumer)
            return None
        found = self.first(consumer.selector, now_us)
        if isinstance(found, Message):
            self.stop_waiting(consumer)
            self.take_out(found)
            return self._hand_over(consumer, found)
        if found is None:
            self._blocked.pop(consumer.id, None)
            self._waiting.join(consumer)
        else:
            self._waiting.leave(consumer)
            self._blocked[consumer.id] = (consumer, found)
        return None

    def stop_waiting(self, consumer: Consumer) -> None:
        """Remove the consumer from those that wait for a message or for the store."""
        self._waiting.leave(consumer)
        if self._blocked:
            self._blocked.pop(consumer.id, None)

    def _hand_over(self, consumer: Consumer, message: Message) -> Delivery:
        if message.delivery_count or message.recovered:
            self.redelivered += 1
        if consumer.no_ack:
            self.delivered_no_ack += 1
            if self.delivered_no_ack == self.timed_no_ack and self.times is not None:
                self.times.delivered_no_ack(self, message)
        else:
            self.delivered += 1
            if self.delivered == self.timed_delivery and self.times is not None:
                self.times.delivered(self, message)
            consumer.leases[message.id] = message
            consumer.leased_bytes += len(message.body)
            if consumer.shared is not None:
                consumer.shared.held += 1
        return Delivery(consumer, message)
