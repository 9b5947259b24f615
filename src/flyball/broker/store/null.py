"""A store that answers and keeps nothing: what a broker costs without its journal."""

from __future__ import annotations

from flyball.broker.store.interface import Batch
from flyball.broker.store.memory import MemoryStore


class NullStore(MemoryStore):
    """A Store that stays empty. Only ids count up."""

    keeps_messages = False

    async def commit(self, batch: Batch, *, again: bool = False) -> None:
        """Forget the batch."""
