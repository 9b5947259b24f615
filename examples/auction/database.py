"""The auction site's database: an embedded PostgreSQL in a folder, and a connection pool."""

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
    """Run PostgreSQL in a folder and yield its DSN. The data are kept for the next run."""
    server = EmbeddedPostgres(folder, connections=connections)
    await server.start()
    try:
        yield server.dsn
    finally:
        await server.stop()


def make_pool(dsn: str, size: int = 20, timeout_s: float = 5.0) -> Pool:
    """Return a pool of `size` connections, unopened. A request that waits too long gets psycopg_pool.PoolTimeout."""
    settings = {
        "autocommit": True,  # one query is one transaction; larger ones are explicit
        "row_factory": dict_row,
        # No parallel workers: a query uses only its own connection. No write waits for the disk: the last bids before
        # a crash may be lost, which does not matter here.
        "options": "-c max_parallel_workers_per_gather=0 -c synchronous_commit=off",
    }
    return AsyncConnectionPool(dsn, min_size=size, max_size=size, timeout=timeout_s, open=False, kwargs=settings)
