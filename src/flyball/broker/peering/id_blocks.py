"""Reserves ids of queues and clients in blocks, for a node in a domain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from flyball.broker.core.broker import Broker

# Ids per reservation.
QUEUE_ID_BLOCK = 10_000
CLIENT_ID_BLOCK = 100_000


class IdBlocks:
    """The blocks of ids reserved by this node."""

    def __init__(self, broker: Broker) -> None:
        self._store = broker.store
        self._engine = broker.engine

    async def reserve(self) -> None:
        """Reserve new blocks for the engine. Raises StoreError."""
        store, engine = self._store, self._engine
        engine.grant_queue_ids(*await _block(store.reserve_queue_ids, QUEUE_ID_BLOCK, lambda: engine.next_queue_id))
        engine.grant_client_ids(
            *await _block(store.reserve_client_ids, CLIENT_ID_BLOCK, lambda: engine.next_client_id)
        )

    async def top_up(self) -> None:
        """Reserve ids if few are left, unless this is a single node. Raises StoreError."""
        queue_ids, client_ids = self._engine.queue_ids_left, self._engine.client_ids_left
        if queue_ids is None or client_ids is None:
            return
        if queue_ids < QUEUE_ID_BLOCK // 2 or client_ids < CLIENT_ID_BLOCK // 2:
            await self.reserve()


async def _block(reserve: Callable[[int], Awaitable[int]], size: int, next_id: Callable[[], int]) -> tuple[int, int]:
    """Reserve ids; return the first one, which is `next_id` or above, and their number."""
    first = await reserve(size)
    # Queues and clients that are transient, or not stored yet, may have ids above the store's counter: see
    # `test_ids_unknown_to_the_store_are_not_reused_when_others_join`.
    while first + size <= next_id():
        first = await reserve(size)
    unused = max(first, next_id())
    return unused, first + size - unused
