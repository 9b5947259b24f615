"""The auction site's database: a PostgreSQL of its own in a folder, and a pool of connections to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from flyball.broker.store.postgres.embedded import EmbeddedPostgres

Pool = AsyncConnectionPool[AsyncConnection[DictRow]]


@asynccontextmanager
async def running_database(folder: Path, connections: int = 60) -> AsyncIterator[str]:
    """Run PostgreSQL in a folder and yield where to connect. What is in it stays for the next time."""
    server = EmbeddedPostgres(folder, connections=connections)
    await server.start()
    try:
        yield server.dsn
    finally:
        await server.stop()


def make_pool(dsn: str, size: int = 20, timeout_s: float = 5.0) -> Pool:
    """Return a pool of `size` connections, unopened. A request that waits too long gets psycopg_pool.PoolTimeout."""
    settings = {
        "autocommit": True,  # one query is one transaction; those that need more say so
        "row_factory": dict_row,
        # A query costs what its own connection does, and no write waits for the disk: the last bids before a crash
        # may be lost, which does not matter here.
        "options": "-c max_parallel_workers_per_gather=0 -c synchronous_commit=off",
    }
    return AsyncConnectionPool(dsn, min_size=size, max_size=size, timeout=timeout_s, open=False, kwargs=settings)
