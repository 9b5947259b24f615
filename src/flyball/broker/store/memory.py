"""A store in memory with the lifetime of its object: for the lab, and for tests without PostgreSQL.

Several stores may share a domain, as nodes share a database.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Container, Sequence
from dataclasses import replace

from flyball.broker.store.changes import Change, QueueDeleted
from flyball.broker.store.interface import (
    NO_LIMIT,
    Arrived,
    Batch,
    IndexColumns,
    IndexKeys,
    IndexPiece,
    Transfer,
    is_same,
)
from flyball.broker.store.memory_domain import MemoryDomain as MemoryDomain
from flyball.broker.store.memory_domain import MemoryRegistry
from flyball.errors import StoreError
from flyball.model import Message, Queue, QueueSummary, Snapshot


class MemoryStore:
    """A Store in dictionaries. Its contents survive only `close` and `open`."""

    keeps_messages = True
    problem: str | None = None
    is_rewound = False
    pages = False

    def __init__(self, *, domain: MemoryDomain | None = None, node: str = "flyball") -> None:
        self._domain = MemoryDomain() if domain is None else domain
        self.registry = MemoryRegistry(self._domain, node, is_shared=domain is not None)
        self._reserved_up_to: int | None = None
        self._transferring: list[Transfer] = []

    @property
    def cut_off(self) -> bool:
        """Whether the store is unreachable, for simulations."""
        return self.registry.cut_off

    @cut_off.setter
    def cut_off(self, value: bool) -> None:
        self.registry.cut_off = value

    async def open(self) -> Snapshot:
        await self.registry.join()
        domain = self._domain
        mine = domain.queues_of(self.registry.node_id)
        for message in list(domain.messages.values()):
            if message.queue_id not in domain.queues:
                del domain.messages[message.id]
        return Snapshot(
            clients=list(domain.clients.values()),
            queues=self._summaries(mine),
            next_client_id=domain.counters["client"],
            next_queue_id=domain.counters["queue"],
            definitions=list(domain.definitions.values()),
            elsewhere=[placed for placed in domain.queues.values() if placed.owner != self.registry.node_id],
            version=domain.version,
        )

    async def close(self) -> None:
        self._reserved_up_to = None
        with contextlib.suppress(StoreError):
            if self.registry.epoch:
                await self.registry.leave()
        self.registry.let_go()

    def kill(self) -> None:
        """Simulate that the node's process is killed."""
        self._reserved_up_to = None
        self.registry.kill()

    def check(self, change: Change) -> None:
        """Accept every change."""

    async def commit(self, batch: Batch, *, again: bool = False) -> None:
        self.registry.check()
        domain, node_id = self._domain, self.registry.node_id
        deleted: set[int] = set()
        done: list[Change] = []
        for change in batch.changes:
            if domain.apply(change, node_id):
                done.append(change)
            if isinstance(change, QueueDeleted):
                deleted.add(change.queue_id)
        if done and self.registry.is_clustered:
            domain.announce(done, node_id)
        for message in batch.appended:
            if message.queue_id not in deleted and not (again and message.id in domain.messages):
                domain.messages[message.id] = message
        for message_id in batch.removed:
            domain.messages.pop(message_id, None)
        if batch.transfers:
            self._transfer(batch, again)

    def _transfer(self, batch: Batch, again: bool) -> None:
        """Move messages at most once: they may have returned after an attempt whose outcome was unknown."""
        if again and is_same(batch.transfers, self._transferring):
            return
        self._transferring = [*batch.transfers]
        batch.refused = [transfer for transfer in batch.transfers if not self._domain.transfer(transfer)]

    async def load(self, message_ids: Sequence[int], max_bytes: int = NO_LIMIT) -> list[Message]:
        self.registry.check()
        found = [
            self._domain.messages[message_id] for message_id in message_ids if message_id in self._domain.messages
        ]
        return sorted(_within(found, max_bytes), key=lambda message: message.id)

    async def page(self, queue_id: int, after_id: int, limit: int, max_bytes: int = NO_LIMIT) -> list[Message]:
        self.registry.check()
        found = [message for message in self._in_queue(queue_id) if message.id > after_id]
        return _within(found[:limit], max_bytes)

    async def index(self, queue_id: int, columns: IndexColumns, up_to_id: int) -> AsyncIterator[IndexPiece]:
        self.registry.check()
        groups: dict[tuple[int | None, int | None, int | None, int | None], list[int]] = {}
        for message in self._in_queue(queue_id):
            if message.id <= up_to_id:
                key = (
                    message.receiver if columns.receiver else None,
                    message.sender if columns.sender else None,
                    message.context if columns.context else None,
                    message.priority if columns.priority else None,
                )
                groups.setdefault(key, []).append(message.id)
        yield IndexPiece([IndexKeys(*key, message_ids) for key, message_ids in groups.items()], up_to_id)

    async def body_bytes(self, queue_id: int, without: Sequence[int]) -> int:
        self.registry.check()
        left_out = frozenset(without)
        return sum(len(message.body) for message in self._in_queue(queue_id) if message.id not in left_out)

    async def expiring(self) -> list[tuple[int, int]]:
        self.registry.check()
        mine = {queue.id for queue in self._domain.queues_of(self.registry.node_id)}
        first: dict[int, int] = {}
        for message in self._domain.messages.values():
            if message.expires_us is not None and message.queue_id in mine:
                first[message.queue_id] = min(message.expires_us, first.get(message.queue_id, message.expires_us))
        return list(first.items())

    async def delete_queue_messages(self, queue_id: int, up_to_id: int, keep: Container[int]) -> int:
        self.registry.check()
        doomed = [
            message.id for message in self._in_queue(queue_id) if message.id <= up_to_id and message.id not in keep
        ]
        for message_id in doomed:
            del self._domain.messages[message_id]
        return len(doomed)

    async def sweep_orphans(self) -> int:
        return 0

    async def reclaim(self) -> None:
        """Do nothing: the store uses no disk."""

    async def write_again(self, queues: Sequence[Queue], messages: Sequence[Message]) -> int:
        """Return 0: the store cannot be rewound."""
        return 0

    async def adopt(self, queue_ids: Sequence[int]) -> list[QueueSummary]:
        self.registry.check()
        wanted = frozenset(queue_ids)
        adopted = [queue for queue in self._domain.queues_of(self.registry.node_id) if queue.id in wanted]
        return self._summaries(adopted)

    async def arrivals(self, queue_ids: Sequence[int]) -> list[Arrived]:
        self.registry.check()
        wanted, stored = frozenset(queue_ids), self._domain.messages
        return [
            Arrived(
                number, queue_id, [stored[one] for one in ids if one in stored and stored[one].queue_id == queue_id]
            )
            for number, (queue_id, ids) in self._domain.transfers.items()
            if queue_id in wanted
        ]

    async def received(self, taken: Sequence[Arrived]) -> None:
        self.registry.check()
        transfers = self._domain.transfers
        for arrived in taken:
            if arrived.transfer_id in transfers and transfers[arrived.transfer_id][0] == arrived.queue_id:
                del transfers[arrived.transfer_id]

    async def reserve_queue_ids(self, count: int) -> int:
        self.registry.check()
        return self._domain.count("queue", count)

    async def reserve_client_ids(self, count: int) -> int:
        self.registry.check()
        return self._domain.count("client", count)

    async def reserve_message_ids(self, count: int) -> int:
        self.registry.check()
        first = self._domain.count("message", count)
        self._reserved_up_to = first + count
        return first

    async def return_message_ids(self, next_id: int) -> None:
        self.registry.check()
        counters = self._domain.counters
        if self._reserved_up_to == counters["message"]:
            counters["message"] = min(counters["message"], next_id)
        self._reserved_up_to = None

    def _summaries(self, queues: Sequence[Queue]) -> list[QueueSummary]:
        """Return the stored state of queues that this node starts to serve."""
        summaries = {queue.id: QueueSummary(queue) for queue in queues}
        stored = self._domain.messages
        for message in list(stored.values()):
            summary = summaries.get(message.queue_id)
            if summary is None:
                continue
            if not message.persistent:
                del stored[message.id]
                continue
            # A copy: the previous owner may still use its object, which holds its own delivery state.
            stored[message.id] = replace(message, stored=True, receipt=None, delivery_count=0)
            summary.message_count += 1
            summary.last_message_id = max(summary.last_message_id, message.id)
            if message.receiver is not None:
                summary.addressed[message.receiver] = summary.addressed.get(message.receiver, 0) + 1
            if message.sender is not None:
                summary.sent[message.sender] = summary.sent.get(message.sender, 0) + 1
        self._domain.forget_transfers(list(summaries))
        return list(summaries.values())

    def _in_queue(self, queue_id: int) -> list[Message]:
        """Return the messages of a queue, oldest first, without unconfirmed transfers."""
        coming = {
            message_id
            for destination, message_ids in self._domain.transfers.values()
            if destination == queue_id
            for message_id in message_ids
        }
        messages = self._domain.messages.values()
        found = [message for message in messages if message.queue_id == queue_id and message.id not in coming]
        found.sort(key=lambda message: message.id)
        return found


def _within(messages: Sequence[Message], max_bytes: int) -> list[Message]:
    """Return the first messages whose total size is at most `max_bytes`, but at least one."""
    taken: list[Message] = []
    for message in messages:
        max_bytes -= len(message.body) + len(message.properties) + len(message.origin)
        if max_bytes < 0 and taken:
            break
        taken.append(message)
    return taken
