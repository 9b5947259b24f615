"""The interface of a store.

A store is the journal of the engine: written on every durable change, and read at recovery and when a long backlog is
paged in. One conformance suite (tests/broker/store/) runs against every store that keeps messages.
"""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flyball.broker.store.changes import Change
from flyball.broker.store.registry import Registry
from flyball.model import Message, Queue, QueueSummary, Snapshot

# Unlimited number of bytes.
NO_LIMIT = 2**62


# Delivery count of a message that was recovered and may have been delivered before.
RECOVERED = -1


@dataclass(slots=True, frozen=True)
class Transfer:
    """A move of messages from one queue to another, which may be on another node. They keep their ids."""

    message_ids: Sequence[int]
    source: int
    destination: int
    # Number of requeues by message id; 0 for missing ids. RECOVERED: not since this node started, but maybe earlier.
    delivery_counts: Mapping[int, int] = field(default_factory=dict)


def is_same(transfers: Sequence[Transfer], others: Sequence[Transfer]) -> bool:
    """Whether these are the same transfer objects, not merely equal ones."""
    return len(transfers) == len(others) and all(map(operator.is_, transfers, others))


@dataclass(slots=True, frozen=True)
class Arrived:
    """The messages that a Transfer moved to a queue of this node. `Store.received` confirms them."""

    transfer_id: int
    queue_id: int
    messages: Sequence[Message]


@dataclass(slots=True)
class Batch:
    """The operations of one commit: `changes` in order, then `appended`, then `removed`, then `transfers`.

    A message that is both appended and removed is not stored. Messages of a queue that `changes` delete are not
    appended. Only messages in the source are transferred. `changes` are announced to the other nodes, if any; maybe
    twice, if the commit was retried.
    """

    changes: list[Change] = field(default_factory=list)
    appended: list[Message] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    # Set by the commit: `transfers` that were not done because their destination was deleted.
    refused: list[Transfer] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.changes or self.appended or self.removed or self.transfers)


@dataclass(slots=True, frozen=True)
class IndexKeys:
    """The values of an index's columns, and the messages that share them.

    A column that was not requested is None. `message_ids` are sorted.
    """

    receiver: int | None
    sender: int | None
    context: int | None
    priority: int | None
    message_ids: Sequence[int]


@dataclass(slots=True, frozen=True)
class IndexPiece:
    """The keys of a queue's stored messages from the previous piece up to an id; each combination once."""

    keys: Sequence[IndexKeys]
    up_to_id: int


@dataclass(slots=True, frozen=True)
class IndexColumns:
    """The columns that an index filters or orders by."""

    receiver: bool = False
    sender: bool = False
    context: bool = False
    priority: bool = False


class Store(Protocol):
    """Stores clients, queues, definitions and messages."""

    # False if messages are confirmed and discarded.
    keeps_messages: bool

    # True if messages may be evicted from memory and read back later.
    pages: bool

    @property
    def registry(self) -> Registry:
        """The registry of the nodes that share the store."""
        ...

    @property
    def is_rewound(self) -> bool:
        """Whether the store was restored to an earlier state, which fails all operations with StoreRewound."""
        ...

    @property
    def problem(self) -> str | None:
        """The reason of a known outage, with the next step for an operator; None without one."""
        ...

    async def open(self) -> Snapshot:
        """Prepare the store, join the registry, and return the stored state.

        Waits until all live nodes know this one. Transient messages are dropped; messages of deleted queues are not
        counted. Raises StoreUnavailable, StoreMismatch, or StoreInUse if a broker with the same name uses the store.
        """
        ...

    async def close(self) -> None:
        """Close the store. May be called twice, and before `open`."""
        ...

    def check(self, change: Change) -> None:
        """Raise InvalidArgument if the change cannot be stored: it must not be part of a batch."""
        ...

    async def commit(self, batch: Batch, *, again: bool = False) -> None:
        """Make the batch durable, all or nothing.

        On return the batch survives a crash of this node and of the store. Ids in `removed` that are not stored are
        ignored. Raises StoreUnavailable if the outcome is unknown: commit the same batch with `again`, which is
        idempotent. After a cancellation the outcome is unknown as well. In both cases the attempt has ended,
        committed or not, before a later commit starts. Any other StoreError means that nothing was committed and a
        retry cannot succeed.
        """
        ...

    async def load(self, message_ids: Sequence[int], max_bytes: int = NO_LIMIT) -> list[Message]:
        """Return the stored ones among these messages, oldest first.

        The result is truncated, in the order of the request, at `max_bytes`, but has at least one message.
        """
        ...

    async def page(self, queue_id: int, after_id: int, limit: int, max_bytes: int = NO_LIMIT) -> list[Message]:
        """Return up to `limit` stored messages of the queue with an id above `after_id`, oldest first.

        Their size is at most `max_bytes`, except for a single message. An empty list means the end of the queue.
        """
        ...

    def index(self, queue_id: int, columns: IndexColumns, up_to_id: int) -> AsyncIterator[IndexPiece]:
        """Yield the keys of every stored message of the queue up to the id, in bounded pieces.

        Pieces are in the order of message ids; the last one reaches `up_to_id`, even if it is empty.
        """
        ...

    async def body_bytes(self, queue_id: int, without: Sequence[int]) -> int:
        """Return the total size of the bodies of the queue's stored messages, except the ids `without`."""
        ...

    async def expiring(self) -> list[tuple[int, int]]:
        """Return (queue_id, expires_us) of the first message to expire, for each queue with such messages."""
        ...

    async def delete_queue_messages(self, queue_id: int, up_to_id: int, keep: Container[int]) -> int:
        """Delete the queue's messages up to the id except `keep`, in small transactions; return their number.

        `keep` is evaluated for each message just before its deletion, and may change in between.
        """
        ...

    async def sweep_orphans(self) -> int:
        """Delete the messages of deleted queues that `open` found, in small transactions; return their number."""
        ...

    async def reclaim(self) -> None:
        """Return the space of removed messages to the volume, where possible. Raises StoreError."""
        ...

    async def write_again(self, queues: Sequence[Queue], messages: Sequence[Message]) -> int:
        """Write formerly stored queues and messages to a rewound store that lacks them.

        Return the number of messages that were missing. Raises StoreError.
        """
        ...

    async def adopt(self, queue_ids: Sequence[int]) -> list[QueueSummary]:
        """Return the stored state of queues that the registry has assigned to this node."""
        ...

    async def arrivals(self, queue_ids: Sequence[int]) -> list[Arrived]:
        """Return unconfirmed transfers to these queues, which this node serves.

        Until `received` confirms them, only `load` returns their messages.

        Only the oldest of many are returned: call again after `received`, until the result is empty. Messages that
        were in a queue when it was opened or adopted are in its summary and do not arrive.
        """
        ...

    async def received(self, taken: Sequence[Arrived]) -> None:
        """Confirm arrivals; idempotent. Messages since transferred to another queue still arrive there."""
        ...

    async def reserve_queue_ids(self, count: int) -> int:
        """Reserve `count` queue ids for this node, durably, and return the first. Needed with other nodes."""
        ...

    async def reserve_client_ids(self, count: int) -> int:
        """Reserve `count` client ids for this node, durably, and return the first. Needed with other nodes."""
        ...

    async def reserve_message_ids(self, count: int) -> int:
        """Reserve `count` message ids for this node, durably, and return the first."""
        ...

    async def return_message_ids(self, next_id: int) -> None:
        """Return unused reserved ids from `next_id` on, at a clean stop. Ignored if more ids have been reserved."""
        ...
