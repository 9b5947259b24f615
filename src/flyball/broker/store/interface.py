"""What a store promises, in the words of the domain.

A store is the journal of the engine: it is written on every durable change and read at recovery and when a
long backlog is paged back in. One conformance suite (tests/broker/store/) runs over every store that keeps messages.
"""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flyball.broker.store.changes import Change
from flyball.broker.store.registry import Registry
from flyball.model import Message, Queue, QueueSummary, Snapshot

# For a number of bytes: as many as there are.
NO_LIMIT = 2**62


# In place of a count of deliveries: the message was recovered, and may have been delivered before.
RECOVERED = -1


@dataclass(slots=True, frozen=True)
class Transfer:
    """Messages go over from one queue to another, which the node need not serve. They keep their ids."""

    message_ids: Sequence[int]
    source: int
    destination: int
    # How often messages came back from a consumer, by id; those that are missing never did. RECOVERED stands for
    # never in the life of this node, but maybe before.
    delivery_counts: Mapping[int, int] = field(default_factory=dict)


def is_same(transfers: Sequence[Transfer], others: Sequence[Transfer]) -> bool:
    """Whether these are the very same transfers, and not others that look like them."""
    return len(transfers) == len(others) and all(map(operator.is_, transfers, others))


@dataclass(slots=True, frozen=True)
class Arrived:
    """What a Transfer has brought to a queue of this node: `received` tells the store that it was taken in."""

    transfer_id: int
    queue_id: int
    messages: Sequence[Message]


@dataclass(slots=True)
class Batch:
    """What one commit makes durable: `changes` in their order, then `appended`, then `removed`, then `transfers`.

    An id in both is not stored afterwards. Messages of a queue that `changes` delete are not appended. Only what is
    in its source is transferred. `changes` are told to the other nodes, if there are any: maybe twice, if the batch
    was committed again.
    """

    changes: list[Change] = field(default_factory=list)
    appended: list[Message] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    # Set by a commit: those of `transfers` that were not done because their destination is gone.
    refused: list[Transfer] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.changes or self.appended or self.removed or self.transfers)


@dataclass(slots=True, frozen=True)
class IndexKeys:
    """Where messages stand in an index: the columns an index may ask for, and the messages that share them.

    A column that was not asked for is None. `message_ids` count up.
    """

    receiver: int | None
    sender: int | None
    context: int | None
    priority: int | None
    message_ids: Sequence[int]


@dataclass(slots=True, frozen=True)
class IndexPiece:
    """All stored messages of a queue above the piece before and up to an id; each combination of keys once."""

    keys: Sequence[IndexKeys]
    up_to_id: int


@dataclass(slots=True, frozen=True)
class IndexColumns:
    """Which columns an index needs to tell messages apart."""

    receiver: bool = False
    sender: bool = False
    context: bool = False
    priority: bool = False


class Store(Protocol):
    """Keeps clients, queues, definitions and messages."""

    # False where messages are answered and forgotten.
    keeps_messages: bool

    # True where a message may leave the node's memory and be read back later.
    pages: bool

    @property
    def registry(self) -> Registry:
        """The nodes that use the same store."""
        ...

    @property
    def is_rewound(self) -> bool:
        """Whether the store has gone back in time: what the node does in it fails with StoreRewound."""
        ...

    @property
    def problem(self) -> str | None:
        """Why the store is unavailable, and what an operator can do; None while it works, as far as is known."""
        ...

    async def open(self) -> Snapshot:
        """Make the store ready, join the registry, and say what it holds for this node and of others.

        Waits until all nodes that are up know of this one. Messages that are not persistent are dropped, those of
        deleted queues not counted. Raises StoreUnavailable, StoreMismatch, or StoreInUse when a broker of the same
        name uses the same store.
        """
        ...

    async def close(self) -> None:
        """Let go of the store. May be called twice, and before `open`."""
        ...

    def check(self, change: Change) -> None:
        """Raise InvalidArgument if the store cannot hold what the change says: no batch may carry it."""
        ...

    async def commit(self, batch: Batch, *, again: bool = False) -> None:
        """Make the batch durable, all or nothing.

        On return the batch survives a crash of this node and of the store. An id in `removed` that is not
        stored is ignored. Raises StoreUnavailable when the outcome is unknown: commit the same batch with
        `again`, which is harmless if the first attempt went through after all. After a cancellation the outcome
        is unknown too. In both cases the attempt has ended, one way or the other, before a later commit begins.
        Any other StoreError means that nothing was committed and that trying again will not help.
        """
        ...

    async def load(self, message_ids: Sequence[int], max_bytes: int = NO_LIMIT) -> list[Message]:
        """Return those of the messages that are stored, oldest first.

        Where they hold more than `max_bytes` those asked for first are returned, and at least one.
        """
        ...

    async def page(self, queue_id: int, after_id: int, limit: int, max_bytes: int = NO_LIMIT) -> list[Message]:
        """Return up to `limit` stored messages of the queue with an id above `after_id`, oldest first.

        They hold no more than `max_bytes`, except a single one. None means that there are no more.
        """
        ...

    def index(self, queue_id: int, columns: IndexColumns, up_to_id: int) -> AsyncIterator[IndexPiece]:
        """Yield the keys of every stored message of the queue up to that id, in bounded pieces.

        Pieces come in the order of message ids; the last one reaches `up_to_id`, also when it holds nothing.
        """
        ...

    async def body_bytes(self, queue_id: int, without: Sequence[int]) -> int:
        """Return how much the bodies of the queue's stored messages hold, but for those with the ids `without`."""
        ...

    async def expiring(self) -> list[tuple[int, int]]:
        """Return (queue_id, expires_us) of the first message to expire of each queue that has one."""
        ...

    async def delete_queue_messages(self, queue_id: int, up_to_id: int, keep: Container[int]) -> int:
        """Delete the queue's messages up to that id except `keep`, in small transactions; say how many went.

        `keep` is asked about each message just before that is deleted: it may hold others than at the beginning.
        """
        ...

    async def sweep_orphans(self) -> int:
        """Delete the messages of deleted queues that `open` found, in small transactions; say how many went."""
        ...

    async def reclaim(self) -> None:
        """Give the space of removed messages back to the volume, as far as the store can. Raises StoreError."""
        ...

    async def write_again(self, queues: Sequence[Queue], messages: Sequence[Message]) -> int:
        """Write what the node knows to have been stored to a store that is rewound; return how many were missing.

        All is written that the store does not have. Raises StoreError.
        """
        ...

    async def adopt(self, queue_ids: Sequence[int]) -> list[QueueSummary]:
        """Return what there is of queues that this node serves from now on: the registry names it as their owner."""
        ...

    async def arrivals(self, queue_ids: Sequence[int]) -> list[Arrived]:
        """Return what was transferred to these queues, which this node serves, and not received yet.

        Until it is received no other method tells of it, but for `load`.

        Where that is much, the oldest of it: ask again after `received`, until there is no more. What was there when
        a queue was opened or adopted is in its summary and never arrives.
        """
        ...

    async def received(self, taken: Sequence[Arrived]) -> None:
        """Forget what was taken in, maybe once more. What went to another queue since is still to come there."""
        ...

    async def reserve_queue_ids(self, count: int) -> int:
        """Reserve `count` queue ids for this node, durably, and return the first: needed when it is not alone."""
        ...

    async def reserve_client_ids(self, count: int) -> int:
        """Reserve `count` client ids for this node, durably, and return the first: needed when it is not alone."""
        ...

    async def reserve_message_ids(self, count: int) -> int:
        """Reserve `count` message ids for this node, durably, and return the first."""
        ...

    async def return_message_ids(self, next_id: int) -> None:
        """At a clean stop: the reserved ids from `next_id` on were not used. Ignored where it cannot be known."""
        ...
