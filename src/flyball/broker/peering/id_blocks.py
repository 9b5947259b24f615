"""Ids of queues and clients, which a node reserves in blocks while others give out ids too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from flyball.broker.core.broker import Broker

# Ids that are reserved at once.
QUEUE_ID_BLOCK = 10_000
CLIENT_ID_BLOCK = 100_000


class IdBlocks:
    """The ids that are this node's to give out."""

    def __init__(self, broker: Broker) -> None:
        self._store = broker.store
        self._engine = broker.engine

    async def reserve(self) -> None:
        """Let the engine give out ids of new blocks from now on. Raises StoreError."""
        store, engine = self._store, self._engine
        engine.grant_queue_ids(*await _block(store.reserve_queue_ids, QUEUE_ID_BLOCK, lambda: engine.next_queue_id))
        engine.grant_client_ids(
            *await _block(store.reserve_client_ids, CLIENT_ID_BLOCK, lambda: engine.next_client_id)
        )

    async def top_up(self) -> None:
        """Reserve ids if few are left and others give out ids too. Raises StoreError."""
        queue_ids, client_ids = self._engine.queue_ids_left, self._engine.client_ids_left
        if queue_ids is None or client_ids is None:
            return
        if queue_ids < QUEUE_ID_BLOCK // 2 or client_ids < CLIENT_ID_BLOCK // 2:
            await self.reserve()


async def _block(reserve: Callable[[int], Awaitable[int]], size: int, next_id: Callable[[], int]) -> tuple[int, int]:
    """Reserve ids; return the first one and how many there are, but for those before `next_id`."""
    first = await reserve(size)
    # What is on its way to the store, or was never meant for it, may have ids of which the store does not know.
    while first + size <= next_id():
        first = await reserve(size)
    unused = max(first, next_id())
    return unused, first + size - unused
