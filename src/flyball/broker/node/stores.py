"""Creates and opens the store of a node, with the embedded server if its settings say so."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from flyball.backoff import Backoff, Retries
from flyball.broker.core.supervisor import Supervisor
from flyball.broker.node.disk import DiskReserve
from flyball.broker.node.name import node_name
from flyball.broker.settings import ServeSettings
from flyball.broker.store.interface import Store
from flyball.broker.store.memory import MemoryStore
from flyball.broker.store.null import NullStore
from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from flyball.broker.store.postgres.store import PostgresStore
from flyball.errors import StoreStarting, StoreUnavailable
from flyball.faults import Faults
from flyball.model import Snapshot

log = logging.getLogger(__name__)

# Timeout of a node's start for a database server that is starting, stopping or recovering.
STORE_START_LIMIT_S = 30.0


@contextlib.asynccontextmanager
async def open_store(
    settings: ServeSettings, faults: Faults, disk: DiskReserve | None
) -> AsyncIterator[tuple[Store, str]]:
    """Yield the store of the settings and its URL; with a `disk`, run the embedded server on it."""
    if disk is not None:
        postgres = EmbeddedPostgres(settings.data, max_wal_bytes=disk.wal_bytes, make_room=disk.make_room)
        await postgres.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                Supervisor(tasks, faults).keep("embedded PostgreSQL", postgres.supervise)
                store = PostgresStore(
                    postgres.dsn, node=node_name(settings), read_limit_s=settings.store_time_limit_s
                )
                try:
                    yield store, postgres.dsn
                finally:
                    await store.close()
                    await postgres.stop()
        finally:
            await postgres.stop()
        return
    store_of: dict[str, Callable[[], Store]] = {
        "postgresql": lambda: PostgresStore(
            settings.store.url, node=node_name(settings), read_limit_s=settings.store_time_limit_s
        ),
        "memory": MemoryStore,
        "null": NullStore,
    }
    other = store_of[settings.store.kind]()
    try:
        yield other, settings.store.url
    finally:
        await other.close()


async def open_when_ready(store: Store) -> Snapshot:
    """Open the store. Wait for a server that is starting or stopping; any other error is raised."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + STORE_START_LIMIT_S
    retries = Retries(Backoff(0.1, 2.0))
    is_starting = False
    while True:
        try:
            return await store.open()
        except StoreUnavailable as error:
            # A restarting server refuses connections for a moment: keep waiting after the first StoreStarting.
            is_starting = is_starting or isinstance(error, StoreStarting)
            if not is_starting or loop.time() > give_up_at:
                raise
            log.warning("waiting for the store: %s", error)
        await asyncio.sleep(retries.next_delay_s())
