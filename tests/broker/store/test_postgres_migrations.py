"""A newer version of the tables, while nodes of the older version use them or come back to them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Self

import asyncpg
import pytest

from flyball.broker.store.postgres import migrations
from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from flyball.broker.store.postgres.store import PostgresStore
from flyball.errors import StoreMismatch, StoreUnavailable

NEWER = "ALTER TABLE clients ADD COLUMN newer integer"
KNOWN = migrations.MIGRATIONS


@pytest.fixture
def newer_version(tmp_path: Path) -> tuple[str, ...]:
    """Migrations of a program that adds a column."""
    script = tmp_path / "newer.sql"
    script.write_text(NEWER)
    return (*KNOWN, str(script))


class Nodes:
    """Stores of nodes by name, closed after the test."""

    def __init__(self, postgres: EmbeddedPostgres, schema: str) -> None:
        self._postgres, self._schema = postgres, schema
        self._made: list[PostgresStore] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for store in self._made:
            await store.close()

    def node(self, name: str) -> PostgresStore:
        self._made.append(PostgresStore(self._postgres.dsn, schema=self._schema, node=name))
        return self._made[-1]

    async def fetch(self, statement: str) -> object:
        connection = await asyncpg.connect(self._postgres.dsn, server_settings={"search_path": self._schema})
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()


async def test_tables_are_not_changed_under_older_nodes_that_are_live(
    postgres: EmbeddedPostgres, schema: str, newer_version: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Nodes(postgres, schema) as nodes:
        older, newer = nodes.node("older"), nodes.node("newer")
        await older.open()
        monkeypatch.setattr(migrations, "MIGRATIONS", newer_version)
        with pytest.raises(StoreMismatch, match="an older version use this database: older; stop all of them"):
            await newer.open()
        assert await nodes.fetch("SELECT version FROM schema_version") == len(KNOWN)
        await older.reserve_message_ids(1)
        await older.close()
        await newer.open()
        assert await nodes.fetch("SELECT version FROM schema_version") == len(newer_version)


async def test_node_may_update_tables_that_only_its_own_earlier_life_has_used(
    postgres: EmbeddedPostgres, schema: str, newer_version: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Nodes(postgres, schema) as nodes:
        killed, newer = nodes.node("same"), nodes.node("same")
        await killed.open()
        for session in (killed._writer, killed._reader, killed.registry._session, killed.registry._worker):
            session.abandon()
        monkeypatch.setattr(migrations, "MIGRATIONS", newer_version)
        await newer.open()


async def test_older_node_that_comes_back_to_newer_tables_says_so(
    postgres: EmbeddedPostgres, schema: str, newer_version: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Nodes(postgres, schema) as nodes:
        older, newer = nodes.node("older"), nodes.node("newer")
        await older.open()
        await older.reserve_message_ids(1)
        await nodes.fetch("UPDATE nodes SET lease_until = now() - interval '1 s', lease_s = -1e6")
        monkeypatch.setattr(migrations, "MIGRATIONS", newer_version)
        await newer.open()
        monkeypatch.setattr(migrations, "MIGRATIONS", KNOWN)
        # Its sessions were ended, which it may have noticed or not.
        with contextlib.suppress(StoreUnavailable, StoreMismatch):
            await older.reserve_message_ids(1)
        with pytest.raises(StoreMismatch, match="upgrade it"):
            await older.reserve_message_ids(1)
        with pytest.raises(StoreMismatch, match="upgrade it"):
            await nodes.node("another").open()
