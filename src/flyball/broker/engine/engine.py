"""The broker's decisions: who gets which message, what is kept and what is gone.

Synchronous and deterministic. Time is an argument, ids are granted from outside, and nothing here knows a
socket, SQL or a protocol. Whoever calls makes the decisions durable and tells the engine how that went.
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

# How often a queue is looked at whose absent messages may expire, after the first of them has.
_LOOK_AGAIN_US = 1_000_000

# Less than this is not worth leaving to the store: reading it back would cost more than it takes.
WORTH_PAGING_BYTES = 256

# However large the indexes are, this fraction of the budget remains for messages in memory.
_BODY_SHARE = 8

# When memory runs short, this fraction of the budget is freed at once.
_EVICT_SHARE = 16


@dataclass(slots=True)
class Arrival:
    """What became of a put: the messages it made, who got some at once, and which queues do not exist."""

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
        "_next_queue_id",
        "_next_shadow_id",
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
        """`resident_limit_bytes` is the memory for messages above which stored ones are left to the store.

        When evicting ready messages frees too little `page_out_unacked` is called with the bytes that are wanted: it
        calls `page_out` and returns how much that freed.
        """
        self.keeps_messages = keeps_messages
        self.resident_limit_bytes = resident_limit_bytes
        self.resident_bytes = 0
        # What the indexes of messages take that are not in memory, as of the last time that memory ran short.
        self.absent_bytes = 0
        self._page_out_unacked = page_out_unacked
        # What remains for messages in memory beside the indexes of those that are not.
        self._body_limit_bytes = resident_limit_bytes
        self._clients = {client.id: client for client in snapshot.clients}
        self._clients_by_name = {client.name: client for client in snapshot.clients}
        self._expired: list[Message] = []
        self._queues = {summary.queue.id: QueueState(summary, self._expired) for summary in snapshot.queues}
        self._queues_by_name: dict[tuple[str, str], QueueState] = {}
        # How many names of queues there are, by virtual host.
        self._name_counts: dict[str, int] = {}
        # Members of clustered queues whose name means another one here, since this node has taken them over.
        self.twins: dict[int, QueueState] = {}
        # The members of clustered queues, by id.
        self.members: dict[int, QueueState] = {}
        for state in self._queues.values():
            self._name(state)
        self._next_client_id = snapshot.next_client_id
        # Up to where the ids of clients were granted; None while this engine alone gives them out.
        self._client_id_end: int | None = None
        self._next_queue_id = snapshot.next_queue_id
        self._next_shadow_id = -1
        self._queue_id_end: int | None = None
        self._next_consumer_id = 1
        self.next_message_id = 0
        # Where the ids end that follow each other: as a plain number cheap to ask for each message.
        self.message_id_end = 0
        self._id_ranges: list[tuple[int, int]] = []
        self._fractional: dict[int, Consumer] = {}
        self._expiries = Expiries()
        self._overdue: set[int] = set()
        self._interrupted: list[list[Consumer]] = []
        # How much more may come before it is worth trying to evict again.
        self._eviction_pause_bytes = 0
        # What happened in queues that are not here any more.
        self.gone = Counts()
        self.queues_created = 0
        self.queues_deleted = 0
        # What the queues take in memory without their messages, about.
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
        """What the clients take in memory, about."""
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
        """How many ids of clients were granted and not used; None while this engine alone gives them out."""
        return None if self._client_id_end is None else self._client_id_end - self._next_client_id

    def grant_client_ids(self, first: int, count: int) -> None:
        """Use these ids, and only these, for new clients from now on: others give out ids as well."""
        self._next_client_id = first
        self._client_id_end = first + count

    def admit_client(self, client: Client) -> None:
        """Know a client that another node has registered."""
        self._clients[client.id] = client
        self._clients_by_name[client.name] = client

    def delete_client(self, client_id: int, *, only_unused: bool = False) -> None:
        """Forget the client; its messages stay. With `only_unused`, not while it is the sender of stored ones."""
        client = self.client(client_id)
        if only_unused and self.is_sender(client_id):
            raise ClientInUse(client_id)
        del self._clients[client_id]
        # Two nodes may have registered a name at the same time: then it means the one that was heard of last.
        if self._clients_by_name.get(client.name) is client:
            del self._clients_by_name[client.name]

    def is_sender(self, client_id: int) -> bool:
        """Whether a message of the client's is stored."""
        return any(client_id in state.sent for state in self._queues.values())

    # Queues

    @property
    def queues(self) -> list[QueueState]:
        """All but the shadows of queues of other nodes."""
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
        """How many queues a virtual host has here, members of one clustered queue being one."""
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
        """How many ids of queues were granted and not used; None while this engine alone gives them out."""
        return None if self._queue_id_end is None else self._queue_id_end - self._next_queue_id

    def grant_queue_ids(self, first: int, count: int) -> None:
        """Use these ids, and only these, for new queues from now on: others give out ids as well."""
        self._next_queue_id = first
        self._queue_id_end = first + count

    def adopt_queue(self, summary: QueueSummary) -> QueueState:
        """Serve a queue that another node has served, with what the store has of it."""
        state = QueueState(summary, self._expired)
        self._queues[summary.queue.id] = state
        self.queues_bytes += _queue_bytes(summary.queue)
        self._name(state)
        return state

    def _name(self, state: QueueState) -> None:
        """Let its name mean the queue, unless it means another one."""
        if state.queue.member:
            self.members[state.queue.id] = state
        place = (state.queue.vhost, state.queue.name)
        if self._queues_by_name.setdefault(place, state) is not state:
            self.twins[state.queue.id] = state
        else:
            self._name_counts[state.queue.vhost] = self._name_counts.get(state.queue.vhost, 0) + 1

    def _unname(self, state: QueueState) -> None:
        """Let its name mean nothing any more, or a twin of the queue."""
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
        """Forget the queue with everything in it; its consumers get nothing more. Return what it was."""
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

    def create_shadow(self, name: str, vhost: str, original: Original) -> QueueState:
        """Create a queue that stands for one of another node. It has a negative id and is found by that only.

        `delete_queue` ends it.
        """
        queue = Queue(self._next_shadow_id, name, vhost, durable=False)
        self._next_shadow_id -= 1
        state = self._queues[queue.id] = QueueState(QueueSummary(queue), self._expired)
        state.original = original
        self.queues_bytes += _queue_bytes(queue)
        return state

    def hold(self, state: QueueState, message: Message) -> None:
        """Take in a message that is unacked already: it came from another node for one who has asked for it."""
        self.resident_bytes += message.footprint_bytes
        state.unacked[message.id] = message
        if self._body_limit_bytes is not None and self.resident_bytes > self._body_limit_bytes:
            self._evict_after(message)

    def active_queues(self, reader: int) -> list[tuple[Queue, int]]:
        """Return the queues with messages that the reader may see, and how many."""
        counted = ((state.queue, state.visible_to(reader)) for state in self.queues)
        return [(queue, count) for queue, count in counted if count]

    def purge(self, queue_id: int) -> tuple[list[Message], int]:
        """Forget the ready messages; return those that were in memory, and how many others there were."""
        state = self.queue(queue_id)
        absent = state.absent
        gone = state.purge()
        for message in gone:
            self._release(message)
        return gone, absent

    # Message ids

    @property
    def max_copies(self) -> int:
        """How many copies a routed message can have: one in each queue."""
        return len(self._queues)

    @property
    def message_ids_left(self) -> int:
        return self.message_id_end - self.next_message_id + sum(end - first for first, end in self._id_ranges)

    @property
    def first_spare_message_id(self) -> int:
        """From this one on all ids up to the last that was granted are unused, and nobody else's."""
        return self._id_ranges[-1][0] if self._id_ranges else self.next_message_id

    def grant_message_ids(self, first: int, count: int) -> None:
        """Allow the engine to use these ids for new messages, after those it may use already.

        Ids count up: those below are not used any more, if they come too late.
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
        """Use these ids for new messages from now on, and none that were granted before."""
        self._id_ranges.clear()
        self.next_message_id = first
        self.message_id_end = first + count

    def use_message_id(self) -> int:
        """Return the next id for a message. A refused message uses up one as well."""
        message_id = self.next_message_id
        if message_id == self.message_id_end:
            raise RuntimeError("no message ids left: grant_message_ids was not called in time")
        self.next_message_id += 1
        if self.next_message_id == self.message_id_end and self._id_ranges:
            self.next_message_id, self.message_id_end = self._id_ranges.pop(0)
        return message_id

    # Messages

    def put(self, draft: Draft, queue_ids: Sequence[int], now_us: int) -> Arrival:
        """Put a message into each of the queues that exist, a copy for each mention.

        All get it or, if something fails, none. The caller has seen to it that there are ids for all.
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
            # Nobody has seen them yet, and the store will not have them.
            for delivery in arrival.deliveries:
                delivery.consumer.release(delivery.message.id)
            for message in arrival.messages[:accepted]:
                self._revoke(message)
            raise
        return arrival

    def _revoke(self, message: Message) -> None:
        """Undo `accept`, however far it has come."""
        state = self._queues[message.queue_id]
        if state.get(message.id) is not None:
            state.take_anywhere(message)
        if message.id in state.unacked:
            state.settle(message)
        self._release(message)

    def accept(self, state: QueueState, message: Message, now_us: int) -> Delivery | None:
        """Take a new message into its queue; return to whom it goes at once, if to anybody."""
        self.resident_bytes += message.footprint_bytes
        if message.expires_us is not None:
            self._expiries.expect(message.expires_us, message.queue_id, message.id)
        delivery = state.arrive(message, now_us)
        if self._body_limit_bytes is not None and self.resident_bytes > self._body_limit_bytes:
            self._evict_after(message)
        return delivery

    def withdraw(self, message: Message) -> bool:
        """Take back a message that will not be stored. False if it is, or if somebody has it already."""
        state = self._queues.get(message.queue_id)
        if state is None or message.stored or state.get(message.id) is None:
            return False
        state.take_anywhere(message)
        state.settle(message)
        self._release(message)
        return True

    def peek(self, queue_id: int, selector: Selector, now_us: int) -> Message | Need | None:
        """Return the first message that fits without touching it."""
        state = self._queues.get(queue_id)
        return None if state is None else state.first(selector, now_us)

    def take(self, queue_id: int, selector: Selector, now_us: int) -> Message | Need | None:
        """Take out the first message that fits. `settle` removes it, `requeue_undelivered` puts it back."""
        state = self._queues.get(queue_id)
        if state is None:
            return None
        message = state.first(selector, now_us)
        if isinstance(message, Message):
            state.take_out(message)
        return message

    def settle(self, message: Message, is_acknowledged: bool = False) -> bool:
        """A message that was taken out is gone for good. False if it is not here: its queue is gone, or another's.

        By identity: a message of a clustered queue that is given away may be back, and delivered, before the one that
        gave it away hears that it has gone.
        """
        state = self._queues.get(message.queue_id)
        if state is None or state.unacked.get(message.id) is not message:
            return False
        if is_acknowledged:
            state.acknowledged += 1
        state.settle(message)
        self._release(message)
        return True

    def requeue_undelivered(self, message: Message, now_us: int) -> Delivery | None:
        """Requeue a message that was taken out and not delivered, or deliver it to a consumer that waits for one."""
        state = self._queues.get(message.queue_id)
        if state is None or state.unacked.get(message.id) is not message:
            return None
        if message.is_paged:
            self._leave_to_store(message)
        return state.requeue_undelivered(message, now_us)

    def page_out(self, message: Message) -> int:
        """Leave body and properties of an unacked message to who has them: the store, or the node of its queue.

        Return how much that freed. It is ready again without them; `page_in` gives them back where they are needed.
        """
        state = self._queues.get(message.queue_id)
        if state is None or message.id not in state.unacked or message.is_paged:
            return 0
        freed = len(message.body) + len(message.properties)
        # What was purged is kept in memory only: see `IndexedBacklog`.
        is_stored = message.stored and state.is_stored and not state.is_void(message)
        if freed < WORTH_PAGING_BYTES or (state.original is None and not is_stored):
            return 0
        message.paged_bytes = len(message.body)
        message.body = message.properties = b""
        message.footprint_bytes -= freed
        self.resident_bytes -= freed
        return freed

    def page_in(self, message: Message, stored: Message) -> None:
        """Give an unacked message what `page_out` has left to the store."""
        if not message.is_paged:
            return
        message.body = stored.body
        message.properties = stored.properties
        message.paged_bytes = -1
        state = self._queues.get(message.queue_id)
        # While it was read its queue may have been deleted, or moved, and what it took was released then.
        if state is not None and state.unacked.get(message.id) is message:
            gained = len(message.body) + len(message.properties)
            message.footprint_bytes += gained
            self.resident_bytes += gained

    def lose(self, message: Message) -> None:
        """An unacked message is no longer in the store, where `page_out` left it: it is gone."""
        self.settle(message)
        message.paged_bytes = -1

    def must_be_whole(self, message: Message) -> bool:
        """Whether a message has to be paged in before it goes back: its queue was purged while it was unacked."""
        state = self._queues.get(message.queue_id)
        return message.is_paged and state is not None and state.is_void(message)

    @property
    def next_expiry_us(self) -> int | None:
        """When the time of a message may be up next; None if none is to expire."""
        return self._expiries.next_us

    @property
    def has_expired(self) -> bool:
        """Whether a read has met messages whose time is up: `expire` returns them."""
        return bool(self._expired)

    def expire(self, now_us: int, maximum: int = UNLIMITED) -> list[Message]:
        """Return messages whose time is up and was not at the last call, about `maximum`. Each is gone with `settle`.

        Those in memory are taken out now, the others when they are read: `overdue_queue_ids` tells where.
        """
        while len(self._expired) < maximum and (due := self._expiries.take_due(now_us)) is not None:
            queue_id, message_id = due
            state = self._queues.get(queue_id)
            if state is None:
                continue
            if message_id == 0:
                if state.absent:
                    self._overdue.add(queue_id)
                    # Those that are not read because of it may expire any time.
                    self._expiries.expect_absent(queue_id, now_us + _LOOK_AGAIN_US)
                continue
            message = state.get(message_id)
            if message is not None and self._expiries.expects_absent(queue_id):
                # Messages expire from the head. Earlier ones may be overdue and only in the store: those are read
                # first, and the read meets this one in its turn.
                self._overdue.add(queue_id)
                self._expiries.expect(now_us + _LOOK_AGAIN_US, queue_id, message_id)
                continue
            if message is not None:
                state.expire(message)
            if state.absent:
                self._overdue.add(queue_id)
        expired = [message for message in self._expired if message.queue_id in self._queues]
        self._expired.clear()
        return expired

    def overdue_queue_ids(self) -> set[int]:
        """Return the queues where the time of messages that are not in memory is up since the last call."""
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
        """Let `owner` be sent messages as they come, each leased until it is settled. `feed` gives it the first.

        With `no_ack` each is unacked without a lease and must be settled at once.
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
        """Change the consumer's credit, at once: `feed` gives it what it may have now; what it has it keeps."""
        consumer.credit = Credit(prefetch)
        self._fractional.pop(consumer.id, None)
        if consumer.credit.is_fractional and not consumer.is_cancelled and consumer.queue_id in self._queues:
            self._fractional[consumer.id] = consumer

    def cancel(self, consumer: Consumer) -> Consumer | None:
        """Send the consumer no more; what it holds it may still settle. Return who is to be fed in its place."""
        consumer.is_cancelled = True
        self._fractional.pop(consumer.id, None)
        state = self._queues.get(consumer.queue_id)
        return None if state is None else state.dismiss(consumer)

    def pause(self, consumer: Consumer, reason: int) -> None:
        """Send the consumer no more, until it is no longer paused for any reason and `feed` is called."""
        consumer.paused_for |= reason
        state = self._queues.get(consumer.queue_id)
        if state is not None:
            state.stop_waiting(consumer)

    def acknowledge(self, consumer: Consumer, message_ids: Sequence[int]) -> list[Message]:
        """End the leases; return the messages, which `settle` or `requeue_undelivered` must follow. All or none."""
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
        """Bring messages whose leases ended back to their old places; each counts as delivered once more.

        Of each queue at most `maximum` are delivered at once, up to `max_bytes`; then see `take_interrupted`.
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
        """Return, by queue, the consumers that `requeue` has not given all they want: to be fed in this order."""
        interrupted, self._interrupted = self._interrupted, []
        return interrupted

    def feed(
        self, consumer: Consumer, now_us: int, maximum: int = UNLIMITED, max_bytes: int = UNLIMITED
    ) -> list[Delivery]:
        """Give the consumer what its credit allows, after it came or settled something.

        At most `maximum` messages, and until their bodies reach `max_bytes`.
        """
        state = self._queues.get(consumer.queue_id)
        return [] if state is None or consumer.is_cancelled else state.feed(consumer, now_us, maximum, max_bytes)

    @property
    def has_fractional_consumers(self) -> bool:
        return bool(self._fractional)

    @property
    def fractional_queue_ids(self) -> set[int]:
        """The queues that have consumers with a fractional prefetch."""
        return {consumer.queue_id for consumer in self._fractional.values()}

    def tick(self, now_us: int) -> list[Delivery]:
        """Let consumers with a fractional prefetch have what the present slot allows."""
        return [delivery for consumer in list(self._fractional.values()) for delivery in self.feed(consumer, now_us)]

    # What comes from the store

    def loaded(self, queue_id: int, load: Load, messages: Sequence[Message], now_us: int) -> list[Delivery]:
        """Take in messages that a `Load` asked for, and give them to who waits."""
        state = self._queues.get(queue_id)
        if state is None:
            return []
        # Make room before they are in: those who wait for them must find them.
        self._evict_for(sum(message.footprint_bytes for message in messages))
        for message in state.loaded(load, messages):
            self.resident_bytes += message.footprint_bytes
            if message.expires_us is not None:
                self._expiries.expect(message.expires_us, queue_id, message.id)
        return state.feed_blocked(now_us)

    def begin_index(self, state: QueueState, shape: Shape, removing: set[int]) -> None:
        """Start an index of a queue, see `IndexedBacklog`. There is room for its places before they are filled."""
        before = state.absent_bytes
        state.begin_index(shape, removing)
        self.charge_indexes(state, before)
        if self.resident_limit_bytes is not None and (
            self.resident_bytes + self.absent_bytes > self.resident_limit_bytes
        ):
            self._evict_for(0)

    def charge_indexes(self, state: QueueState, before_bytes: int) -> None:
        """Count what the indexes of a queue take now, which was `before_bytes`."""
        self.absent_bytes += state.absent_bytes - before_bytes

    def wake(self, queue_id: int, now_us: int) -> list[Delivery]:
        """Try again for all who wait for the store: an index that they need is there."""
        state = self._queues.get(queue_id)
        self._evict_for(0)
        return [] if state is None else state.feed_blocked(now_us)

    def expect_expiries(self, expiries: Iterable[tuple[int, int]]) -> None:
        """Remember (queue_id, expires_us) of the first messages to expire that recovery left in the store."""
        for queue_id, expires_us in expiries:
            self._expiries.expect_absent(queue_id, expires_us)

    # Inside

    def _leave_to_store(self, message: Message) -> None:
        """A message is not in memory any more, but for its place in its queue."""
        self.resident_bytes -= message.footprint_bytes
        if message.expires_us is not None:
            self._expiries.forget(message.id)
            self._expiries.expect_absent(message.queue_id, message.expires_us)

    def _release(self, message: Message) -> None:
        self.resident_bytes -= message.footprint_bytes
        if message.expires_us is not None:
            self._expiries.forget(message.id)

    def _evict_after(self, message: Message) -> None:
        """A message has come and there is more in memory than there may be."""
        self._eviction_pause_bytes -= message.footprint_bytes
        if self._eviction_pause_bytes < 0:
            self._evict_for(0)

    def evict(self) -> None:
        """Leave messages to the store that it has by now, if memory holds more than it may. Called once a second."""
        # Consumers may have asked for indexes although nothing has come since.
        self.absent_bytes = sum([state.absent_bytes for state in self._queues.values()])
        limit = self.resident_limit_bytes
        if limit is not None and self.resident_bytes + self.absent_bytes > limit:
            self._evict_for(0)

    def _evict_for(self, incoming_bytes: int) -> None:
        """Leave messages to the store until what is in memory and what comes keep within the limit."""
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
            # Little could be evicted: it is not worth trying again for every message.
            self._eviction_pause_bytes = share // 2


def _queue_bytes(queue: Queue) -> int:
    return QUEUE_BYTES + size_of(queue.arguments)


def _check_name(name: str) -> None:
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidName(f"a name of {len(name)} characters is longer than {MAX_NAME_LENGTH}")
