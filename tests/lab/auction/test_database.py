"""The auction site's own PostgreSQL."""

from __future__ import annotations

import asyncio
from pathlib import Path

from flyball.lab.auction.database import make_pool, running_database


def test_it_takes_as_many_connections_as_are_asked_for(tmp_path: Path) -> None:
    async def main() -> list[dict[str, object]]:
        async with running_database(tmp_path, connections=33) as dsn, make_pool(dsn, size=25) as pool:
            await pool.wait()
            assert pool.get_stats()["pool_size"] == 25
            async with pool.connection() as connection:
                return await (await connection.execute("SHOW max_connections")).fetchall()

    assert asyncio.run(main()) == [{"max_connections": "33"}]
