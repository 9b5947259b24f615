"""What a node looks after again and again: what is past its time, loops, memory, connections, free space."""

from __future__ import annotations

import asyncio
import contextlib
import time

from flyball.broker.core.broker import Broker
from flyball.broker.transport.connection import Hub
from flyball.errors import StoreError

HOUSEKEEPING_S = 1.0


class Reclaiming:
    """Gives the space of removed messages back, if any were removed since the last time."""

    def __init__(self, broker: Broker, was_low: bool) -> None:
        self._broker = broker
        # An earlier life of the node may have removed some.
        self._removed = -1 if was_low else 0

    async def reclaim(self) -> None:
        removed = self._broker.journal.rows_removed
        if removed != self._removed:
            # While the store is unavailable it is tried again later.
            with contextlib.suppress(StoreError):
                await self._broker.store.reclaim()
                self._removed = removed


async def keep_house(hub: Hub) -> None:
    """Remove what deleted queues have left, then what is past its time and look at the loops, again and again."""
    with contextlib.suppress(StoreError):
        await hub.broker.store.sweep_orphans()
    while True:
        await asyncio.sleep(HOUSEKEEPING_S)
        # Each by itself: what fails in one of them must not keep the others from their turn.
        for place, look in (
            ("expiry", hub.broker.retention.expire),
            ("loops", lambda: hub.loops.tick(time.time())),
            # Messages that were not stored when they came could not leave memory; if publishers wait, none follows.
            ("eviction", hub.broker.engine.evict),
            ("parked messages", hub.broker.dead_lettering.page_out_parked),
            ("memory", lambda: hub.broker.ledger.tick(hub.queues.topology.definitions_bytes())),
            ("connections", lambda: hub.tick(time.monotonic())),
        ):
            try:
                look()
            except Exception as error:
                hub.faults.note(f"housekeeping: {place}", error)
