"""The store of a node, as its settings name it, with its server if that is ours."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from flyball.broker.core.supervisor import Supervisor
from flyball.broker.node.disk import DiskReserve
from flyball.broker.node.name import node_name
from flyball.broker.settings import ServeSettings
from flyball.broker.store.interface import Store
from flyball.broker.store.memory import MemoryStore
from flyball.broker.store.null import NullStore
from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from flyball.broker.store.postgres.store import PostgresStore
from flyball.faults import Faults


@contextlib.asynccontextmanager
async def open_store(
    settings: ServeSettings, faults: Faults, disk: DiskReserve | None
) -> AsyncIterator[tuple[Store, str]]:
    """Give out the store that the settings name and its URL, with its server if that is ours, on that disk."""
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
