"""The state machine of the broker: it assigns messages to consumers, and keeps or removes messages.

Synchronous and deterministic. Time is an argument, ids are granted by the caller, and sockets, SQL and protocols are
outside of it. The caller makes changes durable and reports the outcome to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flyball.broker.engine.backlog import Load, Need
from flyball.broker.engine.consumer import Consumer, Receiver, SharedWindow
from flyball.broker.engine.counts import Counts
from flyball.broker.engine.credit import UNLIMITED, Credit
from flyball.broker.engine.expiries import Expiries
from flyball.broker.engine.index import Shape
from flyball.broker.engine.queue import Delivery, Original, QueueState
from flyball.broker.engine.traits import Traits
from flyball.errors import (
    ClientInUse,
    ClientNameTaken,
    ClientNotFound,
    InvalidName,
    LeaseNotFound,
    QueueNameTaken,
    QueueNotEmpty,
    QueueNotFound,
)
from flyball.model import (
    CLIENT_BYTES,
    DEFAULT_VHOST,
    MAX_NAME_LENGTH,
    QUEUE_BYTES,
    Arguments,
    Client,
    ClientMode,
    Draft,
    Message,
    Queue,
    QueueSummary,
    Selector,
    Snapshot,
    size_of,
)

# Interval between checks of a queue's absent messages, after the first of them has expired.
_RECHECK_US = 1_000_000

# Minimum size of a message to be paged out: for less, reading it back costs more than paging it out frees.
WORTH_PAGING_BYTES = 256

# 1/n of the budget is reserved for messages in memory, independently of the size of the indexes.
_BODY_SHARE = 8

# 1/n of the budget is freed per eviction.
_EVICT_SHARE = 16


@dataclass(slots=True)
class Arrival:
    """The outcome of a put: the created messages, immediate deliveries, and the queues that do not exist."""

    messages: list[Message]
    deliveries: list[Delivery]
    missing: list[int]


class Engine:
    """All queues and clients of a node."""

    __slots__ = (
        "_body_limit_bytes",
        "_client_id_end",
        "_clients",
        "_clients_by_name",
        "_eviction_pause_bytes",
        "_expired",
        "_expiries",
        "_fractional",
        "_id_ranges",
        "_interrupted",
        "_name_counts",
        "_next_client_id",
        "_next_consumer_id",
        "_next_proxy_id",
        "_next_queue_id",
        "_overdue",
        "_page_out_unacked",
        "_queue_id_end",
        "_queues",
        "_queues_by_name",
        "absent_bytes",
        "gone",
        "keeps_messages",
        "members",
        "message_id_end",
        "next_message_id",
        "queues_bytes",
        "queues_created",
        "queues_deleted",
        "resident_bytes",
        "resident_limit_bytes",
        "twins",
    )

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        keeps_messages: bool = True,
        resident_limit_bytes: int | None = None,
        page_out_unacked: Callable[[int], int] | None = None,
    ) -> None:
        """`resident_limit_bytes` is the memory budget of messages; above it, stored ones are evicted.

        When evicting ready messages frees too little, `page_out_unacked` is called with the number of bytes to free:
        it calls `page_out` and returns the number of bytes freed.
        """
        self.keeps_messages = keeps_messages
        self.resident_limit_bytes = resident_limit_bytes
        self.resident_bytes = 0
        # Memory of the index entries of absent messages, as of the last check.
        self.absent_bytes = 0
        self._page_out_unacked = page_out_unacked
        # The part of the budget that these entries leave for messages in memory.
        self._body_limit_bytes = resident_limit_bytes
        self._clients = {client.id: client for client in snapshot.clients}
        self._clients_by_name = {client.name: client for client in snapshot.clients}
        self._expired: list[Message] = []
        self._queues = {summary.queue.id: QueueState(summary, self._expired) for summary in snapshot.queues}
        self._queues_by_name: dict[tuple[str, str], QueueState] = {}
        # Number of queue names by virtual host.
        self._name_counts: dict[str, int] = {}
        # Members of clustered queues that this node took over and whose name another member here already has.
        self.twins: dict[int, QueueState] = {}
        # All members of clustered queues, by id.
        self.members: dict[int, QueueState] = {}
        for state in self._queues.values():
            self._name(state)
        self._next_client_id = snapshot.next_client_id
        # End of the granted client ids; None while this engine alone assigns them.
        self._client_id_end: int | None = None
        self._next_queue_id = snapshot.next_queue_id
        self._next_proxy_id = -1
        self._queue_id_end: int | None = None
        self._next_consumer_id = 1
        self.next_message_id = 0
        # End of the current range of message ids: a plain integer, which is cheap to compare for each message.
        self.message_id_end = 0
        self._id_ranges: list[tuple[int, int]] = []
        self._fractional: dict[int, Consumer] = {}
        self._expiries = Expiries()
        self._overdue: set[int] = set()
        self._interrupted: list[list[Consumer]] = []
        # Number of bytes that may arrive before the next eviction attempt.
        self._eviction_pause_bytes = 0
        # Counts of queues that were deleted or moved to another node.
        self.gone = Counts()
        self.queues_created = 0
        self.queues_deleted = 0
        # Estimated memory of the queues without their messages.
        self.queues_bytes = sum([_queue_bytes(state.queue) for state in self._queues.values()])

    # Clients

    @property
    def clients(self) -> list[Client]:
        return list(self._clients.values())

    def client(self, client_id: int) -> Client:
        client = self._clients.get(client_id)
        if client is None:
            raise ClientNotFound(client_id)
        return client

    def has_client(self, client_id: int) -> bool:
        return client_id in self._clients

    def find_client(self, name: str) -> Client | None:
        return self._clients_by_name.get(name)

    @property
    def clients_bytes(self) -> int:
        """Estimated memory of the clients."""
        return CLIENT_BYTES * len(self._clients)

    @property
    def next_client_id(self) -> int:
        return self._next_client_id

    def create_client(self, name: str, mode: ClientMode) -> Client:
        """Register a client. A refused name uses up an id, as it does in the original systems."""
        client_id = self._next_client_id
        if client_id == self._client_id_end:
            raise RuntimeError("no client ids left: grant_client_ids was not called in time")
        self._next_client_id += 1
        _check_name(name)
        if name in self._clients_by_name:
            raise ClientNameTaken(name)
        client = Client(client_id, name, mode)
        self._clients[client_id] = client
        self._clients_by_name[name] = client
        return client

    @property
    def client_ids_left(self) -> int | None:
        """Number of granted and unused client ids; None while this engine alone assigns them."""
        return None if self._client_id_end is None else self._client_id_end - self._next_client_id

    def grant_client_ids(self, first: int, count: int) -> None:
        """Use only these ids for new clients from now on: other nodes assign ids as well."""
        self._next_client_id = first
        self._client_id_end = first + count

    def admit_client(self, client: Client) -> None:
        """Add a client that another node registered."""
        self._clients[client.id] = client
        self._clients_by_name[client.name] = client

    def delete_client(self, client_id: int, *, only_unused: bool = False) -> None:
        """Delete the client; its messages stay. With `only_unused`, raise ClientInUse if some are stored."""
        client = self.client(client_id)
        if only_unused and self.is_sender(client_id):
            raise ClientInUse(client_id)
        del self._clients[client_id]
        # Two nodes may register a name at the same time: it belongs to the client that was added last.
        if self._clients_by_name.get(client.name) is client:
            del self._clients_by_name[client.name]

    def is_sender(self, client_id: int) -> bool:
        """Whether a stored message was sent by the client."""
        return any(client_id in state.sent for state in self._queues.values())

    # Queues

    @property
    def queues(self) -> list[QueueState]:
        """All queues except proxies of remote queues."""
        return [state for state in self._queues.values() if state.original is None]

    def queue(self, queue_id: int) -> QueueState:
        state = self._queues.get(queue_id)
        if state is None:
            raise QueueNotFound(queue_id)
        return state

    def find_queue_by_id(self, queue_id: int) -> QueueState | None:
        return self._queues.get(queue_id)

    def has_queue(self, queue_id: int) -> bool:
        return queue_id in self._queues

    def find_queue(self, name: str, vhost: str = DEFAULT_VHOST) -> QueueState | None:
        return self._queues_by_name.get((vhost, name))

    @property
    def next_queue_id(self) -> int:
        return self._next_queue_id

    def queue_count(self, vhost: str) -> int:
        """Number of queues of a virtual host here; members of a clustered queue count as one."""
        return self._name_counts.get(vhost, 0)

    def create_queue(
        self,
        name: str,
        vhost: str = DEFAULT_VHOST,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
        member: bool = False,
        traits: Traits | None = None,
    ) -> Queue:
        """Create a queue. A refused name uses up an id, as it does in the original systems."""
        queue_id = self._next_queue_id
        if queue_id == self._queue_id_end:
            raise RuntimeError("no queue ids left: grant_queue_ids was not called in time")
        self._next_queue_id += 1
        _check_name(name)
        if (vhost, name) in self._queues_by_name:
            raise QueueNameTaken(name)
        queue = Queue(queue_id, name, vhost, durable, exclusive, auto_delete, arguments or {}, member)
        state = QueueState(QueueSummary(queue), self._expired)
        if traits is not None:
            state.traits = traits
        self._queues[queue_id] = state
        self.queues_bytes += _queue_bytes(queue)
        self._name(state)
        self.queues_created += 1
        return queue

    @property
    def queue_ids_left(self) -> int | None:
        """Number of granted and unused queue ids; None while this engine alone assigns them."""
        return None if self._queue_id_end is None else self._queue_id_end - self._next_queue_id

    def grant_queue_ids(self, first: int, count: int) -> None:
        """Use only these ids for new queues from now on: other nodes assign ids as well."""
        self._next_queue_id = first
        self._queue_id_end = first + count

    def adopt_queue(self, summary: QueueSummary) -> QueueState:
        """Serve a queue taken over from another node, with its stored messages."""
        state = QueueState(summary, self._expired)
        self._queues[summary.queue.id] = state
        self.queues_bytes += _queue_bytes(summary.queue)
        self._name(state)
        return state

    def _name(self, state: QueueState) -> None:
        """Register the queue under its name, or as a twin if the name is taken."""
        if state.queue.member:
            self.members[state.queue.id] = state
        place = (state.queue.vhost, state.queue.name)
        if self._queues_by_name.setdefault(place, state) is not state:
            self.twins[state.queue.id] = state
        else:
            self._name_counts[state.queue.vhost] = self._name_counts.get(state.queue.vhost, 0) + 1

    def _unname(self, state: QueueState) -> None:
        """Release the queue's name, or pass it to a twin."""
        self.members.pop(state.queue.id, None)
        place = (state.queue.vhost, state.queue.name)
        if self.twins.pop(state.queue.id, None) is not None:
            return
        del self._queues_by_name[place]
        self._name_counts[state.queue.vhost] -= 1
        for twin in list(self.twins.values()):
            if (twin.queue.vhost, twin.queue.name) == place:
                del self.twins[twin.queue.id]
                self._name(twin)
                return

    def delete_queue(self, queue_id: int, *, only_empty: bool = False) -> QueueState:
        """Delete the queue with its messages and cancel its consumers. Return its last state."""
        state = self.queue(queue_id)
        if only_empty and (len(state) or state.unacked):
            raise QueueNotEmpty(state.queue.name, state.queue.vhost)
        del self._queues[queue_id]
        self.queues_bytes -= _queue_bytes(state.queue)
        self._expiries.forget_absent(queue_id)
        if state.original is None:
            self._unname(state)
            self.gone.add(state)
            self.queues_deleted += 1
        for message in state.purge():
            self._release(message)
        for message in state.unacked.values():
            self._release(message)
        state.unacked.clear()
        state.parked.clear()
        for consumer in state.consumers.values():
            consumer.is_cancelled = True
            for message_id in list(consumer.leases):
                consumer.release(message_id)
            self._fractional.pop(consumer.id, None)
        return state

    def create_proxy_queue(self, name: str, vhost: str, original: Original) -> QueueState:
        """Create a local proxy for a remote queue, with a negative id and without an entry by name.

        `delete_queue` removes it.
        """
        queue = Queue(self._next_proxy_id, name, vhost, durable=False)
        self._next_proxy_id -= 1
        state = self._queues[queue.id] = QueueState(QueueSummary(queue), self._expired)
        state.original = original
        self.queues_bytes += _queue_bytes(queue)
        return state

    def hold(self, state: QueueState, message: Message) -> None:
        """Add an unacked message, delivered by another node to a proxy queue's consumer."""
        self.resident_bytes += message.footprint_bytes
        state.unacked[message.id] = message
        if self._body_limit_bytes is not None and self.resident_bytes > self._body_limit_bytes:
            self._evict_after(message)

    def active_queues(self, reader: int) -> list[tuple[Queue, int]]:
        """Return the queues with messages visible to the reader, and the number of these messages."""
        counted = ((state.queue, state.visible_to(reader)) for state in self.queues)
        return [(queue, count) for queue, count in counted if count]

    def purge(self, queue_id: int) -> tuple[list[Message], int]:
        """Remove the ready messages; return those that were in memory, and the number of absent ones."""
        state = self.queue(queue_id)
        absent = state.absent
        gone = state.purge()
        for message in gone:
            self._release(message)
        return gone, absent

    # Message ids

    @property
    def max_copies(self) -> int:
        """Maximum number of copies of a routed message: one in each queue."""
        return len(self._queues)

    @property
    def message_ids_left(self) -> int:
        return self.message_id_end - self.next_message_id + sum(end - first for first, end in self._id_ranges)

    @property
    def first_spare_message_id(self) -> int:
        """The start of the last range of unused ids, which ends at the last granted id."""
        return self._id_ranges[-1][0] if self._id_ranges else self.next_message_id

    def grant_message_ids(self, first: int, count: int) -> None:
        """Add these ids for new messages, after those granted before.

        Ids must grow, since a queue is ordered by id: a grant below the current ids arrived too late and is ignored.
        """
        if first < self.message_id_end:
            return
        if self.next_message_id == self.message_id_end:
            self.next_message_id = first
            self.message_id_end = first + count
        elif first == self.message_id_end:
            self.message_id_end += count
        else:
            self._id_ranges.append((first, first + count))

    def renew_message_ids(self, first: int, count: int) -> None:
        """Replace all granted ids: after a rejoin the earlier ones may belong to another epoch."""
        self._id_ranges.clear()
        self.next_message_id = first
        self.message_id_end = first + count

    def use_message_id(self) -> int:
        """Return the next message id. A refused message uses one up as well."""
        message_id = self.next_message_id
        if message_id == self.message_id_end:
            raise RuntimeError("no message ids left: grant_message_ids was not called in time")
        self.next_message_id += 1
        if self.next_message_id == self.message_id_end and self._id_ranges:
            self.next_message_id, self.message_id_end = self._id_ranges.pop(0)
        return message_id

    # Messages

    def put(self, draft: Draft, queue_ids: Sequence[int], now_us: int) -> Arrival:
        """Put a copy of a message into each existing queue, as often as the queue is listed.

        If one copy fails, none is put. The caller must have granted enough ids.
        """
        arrival = Arrival([], [], [])
        for queue_id in queue_ids:
            state = self._queues.get(queue_id)
            if state is None:
                arrival.missing.append(queue_id)
                continue
            traits = state.traits
            message = Message(
                self.use_message_id(),
                queue_id,
                draft.body,
                draft.sender,
                draft.receiver,
                draft.context,
                draft.priority if traits.is_plain else traits.priority_of(draft.priority),
                now_us,
                draft.expires_us if traits.is_plain else traits.expiry_of(draft.expires_us, now_us),
                draft.properties,
                draft.persistent and state.is_stored,
                draft.origin,
            )
            arrival.messages.append(message)
        if not self.keeps_messages:
            return arrival
        accepted = 0
        try:
            for message in arrival.messages:
                accepted += 1
                delivery = self.accept(self._queues[message.queue_id], message, now_us)
                if delivery is not None:
                    arrival.deliveries.append(delivery)
        except Exception:
            # No copy was sent to a consumer or to the store yet.
            for delivery in arrival.deliveries:
                delivery.consumer.release(delivery.message.id)
            for message in arrival.messages[:accepted]:
                self._revoke(message)
            raise
        return arrival

    def _revoke(self, message: Message) -> None:
        """Undo a complete or partial `accept`."""
        state = self._queues[message.queue_id]
        if state.get(message.id) is not None:
            state.take_anywhere(message)
        if message.id in state.unacked:
            state.settle(message)
        self._release(message)

    def accept(self, state: QueueState, message: Message, now_us: int) -> Delivery | None:
        """Add a new message to its queue; return a delivery if a consumer receives it at once."""
        self.resident_bytes += message.footprint_bytes
        if message.expires_us is not None:
            self._expiries.expect(message.expires_us, message.queue_id, message.id)
        delivery = state.arrive(message, now_us)
        if self._body_limit_bytes is not None and self.resident_bytes > self._body_limit_bytes:
            self._evict_after(message)
        return delivery

    def withdraw(self, message: Message) -> bool:
        """Remove a message that the store refused. False if it was stored or delivered already."""
        state = self._queues.get(message.queue_id)
        if state is None or message.stored or state.get(message.id) is None:
            return False
        state.take_anywhere(message)
        state.settle(message)
        self._release(message)
        return True

    def peek(self, queue_id: int, selector: Selector, now_us: int) -> Message | Need | None:
        """Return the first match and leave it ready."""
        state = self._queues.get(queue_id)
        return None if state is None else state.first(selector, now_us)

    def take(self, queue_id: int, selector: Selector, now_us: int) -> Message | Need | None:
        """Make the first match unacked. `settle` removes it, `requeue_undelivered` makes it ready again."""
        state = self._queues.get(queue_id)
        if state is None:
            return None
        message = state.first(selector, now_us)
        if isinstance(message, Message):
            state.take_out(message)
        return message

    def settle(self, message: Message, is_acknowledged: bool = False) -> bool:
        """Remove an unacked message. False if it does not exist: its queue was deleted or moved.

        Compares by identity, not by id: a message that one member of a clustered queue handed over may return and be
        delivered before that member is notified of the commit of the hand-over.
        """
        state = self._queues.get(message.queue_id)
        if state is None or state.unacked.get(message.id) is not message:
            return False
        if is_acknowledged:
            state.acknowledged += 1
            if state.begun:
                state.end_service(message.id)
        state.settle(message)
        self._release(message)
        return True

    def requeue_undelivered(self, message: Message, now_us: int) -> Delivery | None:
        """Requeue an unacked message that was not delivered, or deliver it to a waiting consumer."""
        state = self._queues.get(message.queue_id)
        if state is None or state.unacked.get(message.id) is not message:
            return None
        if message.is_paged:
            self._leave_to_store(message)
        return state.requeue_undelivered(message, now_us)

    def page_out(self, message: Message) -> int:
        """Drop body and properties of an unacked message of which the store, or the queue's node, has a copy.

        Return the number of bytes freed. The message can be requeued without them; `page_in` restores them.
        """
        state = self._queues.get(message.queue_id)
        if state is None or message.id not in state.unacked or message.is_paged:
            return 0
        freed = len(message.body) + len(message.properties)
        # A purged message is deleted from the store, so the only copy is in memory: see `IndexedBacklog`.
        is_stored = message.stored and state.is_stored and not state.is_void(message)
        if freed < WORTH_PAGING_BYTES or (state.original is None and not is_stored):
            return 0
        message.paged_bytes = len(message.body)
        message.body = message.properties = b""
        message.footprint_bytes -= freed
        self.resident_bytes -= freed
        return freed

    def page_in(self, message: Message, stored: Message) -> None:
        """Restore body and properties of a paged-out unacked message."""
        if not message.is_paged:
            return
        message.body = stored.body
        message.properties = stored.properties
        message.paged_bytes = -1
        state = self._queues.get(message.queue_id)
        # Its queue may have been deleted or moved during the read, which released its memory.
        if state is not None and state.unacked.get(message.id) is message:
            gained = len(message.body) + len(message.properties)
            message.footprint_bytes += gained
            self.resident_bytes += gained

    def lose(self, message: Message) -> None:
        """Remove a paged-out message that the store lost."""
        self.settle(message)
        message.paged_bytes = -1

    def must_be_whole(self, message: Message) -> bool:
        """Whether a message must be paged in before a requeue: its queue was purged while it was unacked."""
        state = self._queues.get(message.queue_id)
        return message.is_paged and state is not None and state.is_void(message)

    @property
    def next_expiry_us(self) -> int | None:
        """The time at which the next message may expire; None if no message has a time to live."""
        return self._expiries.next_us

    @property
    def has_expired(self) -> bool:
        """Whether reads found expired messages, which `expire` returns."""
        return bool(self._expired)

    def expire(self, now_us: int, maximum: int = UNLIMITED) -> list[Message]:
        """Return about `maximum` newly expired messages, which become unacked; `settle` removes each.

        Expired messages that are not in memory are found when they are read: `overdue_queue_ids` returns their
        queues.
        """
        while len(self._expired) < maximum and (due := self._expiries.take_due(now_us)) is not None:
            queue_id, message_id = due
            state = self._queues.get(queue_id)
            if state is None:
                continue
            if message_id == 0:
                if state.absent:
                    self._overdue.add(queue_id)
                    # A read covers only one batch; the expiries of the remaining messages are unknown.
                    self._expiries.expect_absent(queue_id, now_us + _RECHECK_US)
                continue
            message = state.get(message_id)
            if message is not None and self._expiries.expects_absent(queue_id):
                # Messages expire at the head. Earlier ones may be overdue and only in the store: they are read first,
                # and the read reaches this one later.
                self._overdue.add(queue_id)
                self._expiries.expect(now_us + _RECHECK_US, queue_id, message_id)
                continue
            if message is not None:
                state.expire(message)
            if state.absent:
                self._overdue.add(queue_id)
        expired = [message for message in self._expired if message.queue_id in self._queues]
        self._expired.clear()
        return expired

    def overdue_queue_ids(self) -> set[int]:
        """Return and clear the queues in which messages that are not in memory may have expired."""
        overdue, self._overdue = self._overdue, set()
        return overdue

    # Consumers

    def consume(
        self,
        queue_id: int,
        selector: Selector,
        prefetch: float,
        owner: Receiver,
        *,
        no_ack: bool = False,
        priority: int = 0,
        shared: SharedWindow | None = None,
    ) -> Consumer:
        """Add a consumer: `owner` receives messages, each leased until it is settled. Call `feed` afterwards.

        With `no_ack` messages are unacked without a lease, and the caller must settle them at once.
        """
        state = self.queue(queue_id)
        consumer = Consumer(
            self._next_consumer_id,
            queue_id,
            selector,
            Credit(prefetch),
            owner,
            no_ack=no_ack,
            priority=priority,
            shared=shared,
        )
        self._next_consumer_id += 1
        state.admit(consumer)
        if consumer.credit.is_fractional:
            self._fractional[consumer.id] = consumer
        return consumer

    def set_prefetch(self, consumer: Consumer, prefetch: float) -> None:
        """Change the consumer's credit at once; call `feed` afterwards. A smaller credit revokes no lease."""
        consumer.credit = Credit(prefetch)
        self._fractional.pop(consumer.id, None)
        if consumer.credit.is_fractional and not consumer.is_cancelled and consumer.queue_id in self._queues:
            self._fractional[consumer.id] = consumer

    def cancel(self, consumer: Consumer) -> Consumer | None:
        """Stop deliveries to the consumer, which may still ack messages. Return its successor, to be fed."""
        consumer.is_cancelled = True
        self._fractional.pop(consumer.id, None)
        state = self._queues.get(consumer.queue_id)
        return None if state is None else state.dismiss(consumer)

    def pause(self, consumer: Consumer, reason: int) -> None:
        """Stop deliveries to the consumer until every reason is cleared and `feed` is called."""
        consumer.paused_for |= reason
        state = self._queues.get(consumer.queue_id)
        if state is not None:
            state.stop_waiting(consumer)

    def acknowledge(self, consumer: Consumer, message_ids: Sequence[int]) -> list[Message]:
        """End all the leases or none; return the messages, to be passed to `settle` or `requeue_undelivered`."""
        for message_id in message_ids:
            if message_id not in consumer.leases:
                raise LeaseNotFound(message_id)
        messages = [consumer.leases[message_id] for message_id in dict.fromkeys(message_ids)]
        for message in messages:
            consumer.release(message.id)
        return messages

    def requeue(
        self, messages: Iterable[Message], now_us: int, maximum: int = UNLIMITED, max_bytes: int = UNLIMITED
    ) -> list[Delivery]:
        """Requeue messages whose leases ended, at their original positions; increment their delivery counts.

        Per queue at most `maximum` are delivered at once, up to `max_bytes`; then see `take_interrupted`.
        """
        by_queue: dict[int, list[Message]] = {}
        for message in messages:
            state = self._queues.get(message.queue_id)
            if state is not None and message.id in state.unacked:
                message.delivery_count += 1
                by_queue.setdefault(message.queue_id, []).append(message)
                if message.is_paged:
                    self._leave_to_store(message)
        deliveries: list[Delivery] = []
        for queue_id, returned in by_queue.items():
            given, interrupted = self._queues[queue_id].requeue(returned, now_us, maximum, max_bytes)
            deliveries += given
            if interrupted:
                self._interrupted.append(interrupted)
        return deliveries

    def take_interrupted(self) -> list[list[Consumer]]:
        """Return and clear the consumers that `requeue` did not finish feeding, by queue and in order."""
        interrupted, self._interrupted = self._interrupted, []
        return interrupted

    def feed(
        self, consumer: Consumer, now_us: int, maximum: int = UNLIMITED, max_bytes: int = UNLIMITED
    ) -> list[Delivery]:
        """Deliver what the consumer's credit allows, after it was added or has acked.

        Stop after `maximum` messages, or when their bodies reach `max_bytes`.
        """
        state = self._queues.get(consumer.queue_id)
        return [] if state is None or consumer.is_cancelled else state.feed(consumer, now_us, maximum, max_bytes)

    @property
    def has_fractional_consumers(self) -> bool:
        return bool(self._fractional)

    @property
    def fractional_queue_ids(self) -> set[int]:
        """The queues with consumers that have a fractional prefetch."""
        return {consumer.queue_id for consumer in self._fractional.values()}

    def tick(self, now_us: int) -> list[Delivery]:
        """Deliver to consumers with a fractional prefetch what the current slot allows."""
        return [delivery for consumer in list(self._fractional.values()) for delivery in self.feed(consumer, now_us)]

    # Reads from the store

    def loaded(self, queue_id: int, load: Load, messages: Sequence[Message], now_us: int) -> list[Delivery]:
        """Add messages that a `Load` requested, and deliver them to the consumers that wait for them."""
        state = self._queues.get(queue_id)
        if state is None:
            return []
        # Evict first: a later eviction could drop the messages that consumers wait for.
        self._evict_for(sum(message.footprint_bytes for message in messages))
        for message in state.loaded(load, messages):
            self.resident_bytes += message.footprint_bytes
            if message.expires_us is not None:
                self._expiries.expect(message.expires_us, queue_id, message.id)
        return state.feed_blocked(now_us)

    def begin_index(self, state: QueueState, shape: Shape, removing: set[int]) -> None:
        """Start an index of a queue, see `IndexedBacklog`, and make room for its entries."""
        before = state.absent_bytes
        state.begin_index(shape, removing)
        self.charge_indexes(state, before)
        if self.resident_limit_bytes is not None and (
            self.resident_bytes + self.absent_bytes > self.resident_limit_bytes
        ):
            self._evict_for(0)

    def charge_indexes(self, state: QueueState, before_bytes: int) -> None:
        """Account for a change in the memory of a queue's indexes, which was `before_bytes`."""
        self.absent_bytes += state.absent_bytes - before_bytes

    def wake(self, queue_id: int, now_us: int) -> list[Delivery]:
        """Deliver to the consumers that waited for an index, now complete."""
        state = self._queues.get(queue_id)
        self._evict_for(0)
        return [] if state is None else state.feed_blocked(now_us)

    def expect_expiries(self, expiries: Iterable[tuple[int, int]]) -> None:
        """Record (queue_id, expires_us) of the first stored message to expire in each recovered queue."""
        for queue_id, expires_us in expiries:
            self._expiries.expect_absent(queue_id, expires_us)

    # Memory

    def _leave_to_store(self, message: Message) -> None:
        """Account for a message that is now only in the store and the indexes."""
        self.resident_bytes -= message.footprint_bytes
        if message.expires_us is not None:
            self._expiries.forget(message.id)
            self._expiries.expect_absent(message.queue_id, message.expires_us)

    def _release(self, message: Message) -> None:
        self.resident_bytes -= message.footprint_bytes
        if message.expires_us is not None:
            self._expiries.forget(message.id)

    def _evict_after(self, message: Message) -> None:
        """Evict after an arrival that exceeded the budget, unless an attempt failed recently."""
        self._eviction_pause_bytes -= message.footprint_bytes
        if self._eviction_pause_bytes < 0:
            self._evict_for(0)

    def evict(self) -> None:
        """Evict messages stored since the last attempt, if the budget is exceeded. Called once a second."""
        # Consumers may have requested indexes even if no message arrived.
        self.absent_bytes = sum([state.absent_bytes for state in self._queues.values()])
        limit = self.resident_limit_bytes
        if limit is not None and self.resident_bytes + self.absent_bytes > limit:
            self._evict_for(0)

    def _evict_for(self, incoming_bytes: int) -> None:
        """Evict messages until those in memory and the incoming bytes fit into the budget."""
        if self.resident_limit_bytes is None:
            return
        self.absent_bytes = absent_bytes = sum(state.absent_bytes for state in self._queues.values())
        limit = max(self.resident_limit_bytes - absent_bytes, self.resident_limit_bytes // _BODY_SHARE)
        self._body_limit_bytes = limit
        if self.resident_bytes + incoming_bytes <= limit:
            return
        share = limit // _EVICT_SHARE
        wanted = self.resident_bytes + incoming_bytes - limit + share
        fullest = sorted(self._queues.values(), key=lambda state: len(state) - state.absent, reverse=True)
        for keep_bytes in (share, 0):
            for state in fullest:
                before = self.resident_bytes
                for message in state.evict(wanted, keep_bytes):
                    self._leave_to_store(message)
                wanted -= before - self.resident_bytes
                if wanted <= 0:
                    self._expiries.sweep()
                    return
        freed = 0 if self._page_out_unacked is None else self._page_out_unacked(wanted)
        if freed < wanted:
            # Little could be evicted: do not retry for every message.
            self._eviction_pause_bytes = share // 2


def _queue_bytes(queue: Queue) -> int:
    return QUEUE_BYTES + size_of(queue.arguments)


def _check_name(name: str) -> None:
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidName(f"name of {len(name)} characters exceeds the maximum of {MAX_NAME_LENGTH}")
