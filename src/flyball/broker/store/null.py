"""A store that answers and keeps nothing: what a broker costs without its journal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Sequence

from flyball.broker.store.changes import Change
from flyball.broker.store.interface import NO_LIMIT, Arrived, Batch, IndexColumns, IndexPiece
from flyball.broker.store.memory_domain import MemoryDomain, MemoryRegistry
from flyball.model import Message, Queue, QueueSummary, Snapshot


class NullStore:
    """A Store without contents. Only message ids count up."""

    keeps_messages = False
    problem: str | None = None
    is_rewound = False
    pages = False

    def __init__(self) -> None:
        self.registry = MemoryRegistry(MemoryDomain(), "flyball", is_shared=False)
        self._next_message_id = 1

    async def open(self) -> Snapshot:
        await self.registry.join()
        return Snapshot()

    async def close(self) -> None:
        self.registry.let_go()

    def check(self, change: Change) -> None:
        """It holds everything."""

    async def commit(self, batch: Batch, *, again: bool = False) -> None:
        pass

    async def load(self, message_ids: Sequence[int], max_bytes: int = NO_LIMIT) -> list[Message]:
        return []

    async def page(self, queue_id: int, after_id: int, limit: int, max_bytes: int = NO_LIMIT) -> list[Message]:
        return []

    async def index(self, queue_id: int, columns: IndexColumns, up_to_id: int) -> AsyncIterator[IndexPiece]:
        yield IndexPiece([], up_to_id)

    async def body_bytes(self, queue_id: int, without: Sequence[int]) -> int:
        return 0

    async def expiring(self) -> list[tuple[int, int]]:
        return []

    async def delete_queue_messages(self, queue_id: int, up_to_id: int, keep: Container[int]) -> int:
        return 0

    async def sweep_orphans(self) -> int:
        return 0

    async def reclaim(self) -> None:
        """Nothing is on a disk."""

    async def write_again(self, queues: Sequence[Queue], messages: Sequence[Message]) -> int:
        """It does not go back in time."""
        return 0

    async def adopt(self, queue_ids: Sequence[int]) -> list[QueueSummary]:
        return []

    async def arrivals(self, queue_ids: Sequence[int]) -> list[Arrived]:
        return []

    async def received(self, taken: Sequence[Arrived]) -> None:
        pass

    async def reserve_queue_ids(self, count: int) -> int:
        return self.registry.domain.count("queue", count)

    async def reserve_client_ids(self, count: int) -> int:
        return self.registry.domain.count("client", count)

    async def reserve_message_ids(self, count: int) -> int:
        first = self._next_message_id
        self._next_message_id += count
        return first

    async def return_message_ids(self, next_id: int) -> None:
        self._next_message_id = min(self._next_message_id, next_id)
