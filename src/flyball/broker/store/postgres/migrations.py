"""Migrates the tables of a database to the version of this program."""

from __future__ import annotations

from importlib import resources

from flyball.broker.store.postgres import registry_statements, statements
from flyball.broker.store.postgres.session import Connection
from flyball.broker.store.postgres.values import from_text, to_text
from flyball.errors import StoreError, StoreMismatch

# The migrations from each version to the next, starting with an empty schema.
MIGRATIONS = ("schema.sql", "schema_2.sql", "schema_3.sql", "schema_4.sql")

LOCK_CLASS = 0x666C7902

OLD_WRITER_LOCK_CLASS = 0x666C7901
LAST_VERSION_FOR_ONE_NODE = 2


async def migrate(connection: Connection, schema: str, node: str) -> None:
    """Create or migrate the tables in one transaction, for the named node.

    Raises StoreMismatch for tables of a newer version, and if they are in use by nodes of an older version, which
    could not read the new ones.
    """
    async with connection.transaction():
        await connection.execute(statements.MIGRATION_LOCK, LOCK_CLASS, schema)
        if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema):
            await connection.execute(f"CREATE SCHEMA {quoted(schema)}")
        await connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version integer NOT NULL)")
        found = await connection.fetchval("SELECT version FROM schema_version")
        if found is None:
            found = 0
            await connection.execute("INSERT INTO schema_version (version) VALUES (0)")
        must_be_known(found)
        if found == len(MIGRATIONS):
            return
        if 0 < found <= LAST_VERSION_FOR_ONE_NODE and not await connection.fetchval(
            statements.TRY_OLD_WRITER_LOCK, OLD_WRITER_LOCK_CLASS, schema
        ):
            raise StoreError(
                "another broker uses this database: one of an older version that does not support domains; stop it"
                " first"
            )
        if found > LAST_VERSION_FOR_ONE_NODE:
            await _end_older_nodes(connection, schema, node)
        for name in MIGRATIONS[found:]:
            await connection.execute(resources.files(__package__).joinpath(name).read_text())
        await connection.execute("UPDATE schema_version SET version = $1", len(MIGRATIONS))


def must_be_known(version: int) -> None:
    """Raise StoreMismatch for tables of a newer version than this program's."""
    if version > len(MIGRATIONS):
        raise StoreMismatch(
            f"the database has version {version} of Flyball's tables, this program supports up to"
            f" {len(MIGRATIONS)}: upgrade it"
        )


async def _end_older_nodes(connection: Connection, schema: str, node: str) -> None:
    """Ensure that no other node uses the tables: refuse if one has a lease, terminate the sessions of others."""
    live = await connection.fetch(registry_statements.LIVE_NODES, to_text(node))
    if live:
        names = ", ".join(from_text(row["name"]) for row in live)
        raise StoreMismatch(
            f"nodes of an older version use this database: {names}; stop all of them, then start the newer version"
        )
    # A disconnected node may return. Its epoch has ended by then, so it rejoins and finds the newer tables.
    await connection.execute(registry_statements.END_EPOCHS, to_text(node))
    await connection.execute(registry_statements.END_SESSIONS_OF_SCHEMA, schema)


def quoted(name: str) -> str:
    """Return an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
