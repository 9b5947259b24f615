"""A store that lasts as long as its object: for the lab, and for tests that need no PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from flyball.model import Client, Definition, Message, Queue, QueueSummary, Snapshot
from flyball.store.changes import (
    ClientCreated,
    ClientDeleted,
    DefinitionDeleted,
    DefinitionPut,
    QueueCreated,
    QueueDeleted,
)
from flyball.store.interface import NO_LIMIT, Batch, IndexColumns, IndexKeys, IndexPiece


class MemoryStore:
    """A Store in dictionaries. What it keeps survives `close` and `open`, and nothing else."""

    keeps_messages = True
    pages = False

    def __init__(self) -> None:
        self._clients: dict[int, Client] = {}
        self._queues: dict[int, Queue] = {}
        self._definitions: dict[tuple[str, str], Definition] = {}
        self._messages: dict[int, Message] = {}
        self._next_client_id = 1
        self._next_queue_id = 1
        self._next_message_id = 1
        self._reserved_up_to: int | None = None

    async def open(self) -> Snapshot:
        self._messages = {
            message.id: message
            for message in self._messages.values()
            if message.persistent and message.queue_id in self._queues
        }
        summaries = {queue.id: QueueSummary(queue) for queue in self._queues.values()}
        for message in self._messages.values():
            summary = summaries[message.queue_id]
            summary.message_count += 1
            summary.last_message_id = max(summary.last_message_id, message.id)
            if message.receiver is not None:
                summary.addressed[message.receiver] = summary.addressed.get(message.receiver, 0) + 1
            if message.sender is not None:
                summary.sent[message.sender] = summary.sent.get(message.sender, 0) + 1
        return Snapshot(
            clients=list(self._clients.values()),
            queues=list(summaries.values()),
            next_client_id=self._next_client_id,
            next_queue_id=self._next_queue_id,
            definitions=list(self._definitions.values()),
        )

    async def close(self) -> None:
        self._reserved_up_to = None

    async def commit(self, batch: Batch, *, again: bool = False) -> None:
        deleted: set[int] = set()
        for change in batch.changes:
            match change:
                case QueueCreated(queue):
                    self._queues[queue.id] = queue
                    self._next_queue_id = max(self._next_queue_id, queue.id + 1)
                case QueueDeleted(queue_id):
                    self._queues.pop(queue_id, None)
                    deleted.add(queue_id)
                case ClientCreated(client):
                    self._clients[client.id] = client
                    self._next_client_id = max(self._next_client_id, client.id + 1)
                case ClientDeleted(client_id):
                    self._clients.pop(client_id, None)
                case DefinitionPut(definition):
                    self._definitions[definition.kind, definition.key] = definition
                case DefinitionDeleted(kind, key):
                    self._definitions.pop((kind, key), None)
        for message in batch.appended:
            if message.queue_id not in deleted:
                self._messages[message.id] = message
        for message_id in batch.removed:
            self._messages.pop(message_id, None)

    async def load(self, message_ids: Sequence[int], max_bytes: int = NO_LIMIT) -> list[Message]:
        found = [self._messages[message_id] for message_id in message_ids if message_id in self._messages]
        return sorted(_within(found, max_bytes), key=lambda message: message.id)

    async def page(self, queue_id: int, after_id: int, limit: int, max_bytes: int = NO_LIMIT) -> list[Message]:
        found = [message for message in self._in_queue(queue_id) if message.id > after_id]
        return _within(found[:limit], max_bytes)

    async def index(self, queue_id: int, columns: IndexColumns, up_to_id: int) -> AsyncIterator[IndexPiece]:
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
        left_out = frozenset(without)
        return sum(len(message.body) for message in self._in_queue(queue_id) if message.id not in left_out)

    async def expiring(self) -> list[tuple[int, int, int]]:
        return [
            (message.expires_us, message.queue_id, message.id)
            for message in self._messages.values()
            if message.expires_us is not None and message.queue_id in self._queues
        ]

    async def delete_queue_messages(self, queue_id: int, up_to_id: int, keep: Sequence[int]) -> int:
        kept = frozenset(keep)
        doomed = [
            message.id for message in self._in_queue(queue_id) if message.id <= up_to_id and message.id not in kept
        ]
        for message_id in doomed:
            del self._messages[message_id]
        return len(doomed)

    async def sweep_orphans(self) -> int:
        return 0

    async def reserve_message_ids(self, count: int) -> int:
        first = self._next_message_id
        self._next_message_id = self._reserved_up_to = first + count
        return first

    async def return_message_ids(self, next_id: int) -> None:
        if self._reserved_up_to == self._next_message_id:
            self._next_message_id = min(self._next_message_id, next_id)
        self._reserved_up_to = None

    def _in_queue(self, queue_id: int) -> list[Message]:
        found = [message for message in self._messages.values() if message.queue_id == queue_id]
        found.sort(key=lambda message: message.id)
        return found


def _within(messages: Sequence[Message], max_bytes: int) -> list[Message]:
    """The first messages that together hold no more than that, and at least one."""
    taken: list[Message] = []
    for message in messages:
        max_bytes -= len(message.body) + len(message.properties) + len(message.origin)
        if max_bytes < 0 and taken:
            break
        taken.append(message)
    return taken
