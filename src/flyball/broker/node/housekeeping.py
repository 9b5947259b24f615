"""The periodic tasks of a node: expiry, control loops, memory, connections, and reclaiming space."""

from __future__ import annotations

import asyncio
import contextlib
import time

from flyball.broker.core.broker import Broker
from flyball.broker.models.registry import Models
from flyball.broker.transport.connection import Hub
from flyball.errors import StoreError

HOUSEKEEPING_S = 1.0


class Reclaimer:
    """Reclaims the space of removed messages, if any were removed since the last call."""

    def __init__(self, broker: Broker, was_low: bool) -> None:
        self._broker = broker
        # If space was low at the start, messages may have been removed before.
        self._removed = -1 if was_low else 0

    async def reclaim(self) -> None:
        removed = self._broker.journal.rows_removed
        if removed != self._removed:
            # Retried later if the store is unavailable.
            with contextlib.suppress(StoreError):
                await self._broker.store.reclaim()
                self._removed = removed


async def keep_house(hub: Hub, models: Models) -> None:
    """Delete the messages of deleted queues, then run the periodic tasks forever."""
    with contextlib.suppress(StoreError):
        await hub.broker.store.sweep_orphans()
    while True:
        await asyncio.sleep(HOUSEKEEPING_S)
        # Isolated: an error in one task must not prevent the others.
        for place, look in (
            ("expiry", hub.broker.retention.expire),
            ("loops", lambda: hub.loops.tick(time.time())),
            # Messages could not be evicted on arrival, when they were not stored yet, and later arrivals, which would
            # evict them, are missing while publishers are blocked.
            ("eviction", hub.broker.engine.evict),
            ("parked messages", hub.broker.dead_lettering.page_out_parked),
            ("memory", lambda: hub.broker.ledger.tick(_definitions_bytes(hub, models))),
            ("connections", lambda: hub.tick(time.monotonic())),
        ):
            try:
                look()
            except Exception as error:
                hub.faults.note(f"housekeeping: {place}", error)


def _definitions_bytes(hub: Hub, models: Models) -> int:
    return hub.queues.topology.definitions_bytes() + models.size_bytes
