"""A store that discards everything, to measure the broker without its journal."""

from __future__ import annotations

from flyball.broker.store.interface import Batch
from flyball.broker.store.memory import MemoryStore


class NullStore(MemoryStore):
    """A Store that stays empty. Only its id counters advance."""

    keeps_messages = False

    async def commit(self, batch: Batch, *, again: bool = False) -> None:
        """Discard the batch."""
