"""Brings the tables of a database to the version that this program reads and writes."""

from __future__ import annotations

from importlib import resources

from flyball.errors import StoreError, StoreMismatch
from flyball.store.postgres import statements
from flyball.store.postgres.session import Connection

MIGRATIONS = ("schema.sql", "schema_2.sql", "schema_3.sql", "schema_4.sql")
"""What leads from each version to the next, beginning with an empty schema."""

LOCK_CLASS = 0x666C7902

OLD_WRITER_LOCK_CLASS = 0x666C7901
LAST_VERSION_FOR_ONE_NODE = 2


async def migrate(connection: Connection, schema: str) -> None:
    """Create or update the tables, all or nothing. Raises StoreMismatch for those of a newer version."""
    async with connection.transaction():
        await connection.execute(statements.MIGRATION_LOCK, LOCK_CLASS, schema)
        if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema):
            await connection.execute(f"CREATE SCHEMA {quoted(schema)}")
        await connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version integer NOT NULL)")
        found = await connection.fetchval("SELECT version FROM schema_version")
        if found is None:
            found = 0
            await connection.execute("INSERT INTO schema_version (version) VALUES (0)")
        if found > len(MIGRATIONS):
            raise StoreMismatch(
                f"the database has version {found} of Flyball's tables, this program knows {len(MIGRATIONS)}: "
                "use the newer program"
            )
        if found == len(MIGRATIONS):
            return
        if 0 < found <= LAST_VERSION_FOR_ONE_NODE and not await connection.fetchval(
            statements.TRY_OLD_WRITER_LOCK, OLD_WRITER_LOCK_CLASS, schema
        ):
            raise StoreError(
                "another broker uses this database: an older version, which knows no others; stop it first"
            )
        for name in MIGRATIONS[found:]:
            await connection.execute(resources.files(__package__).joinpath(name).read_text())
        await connection.execute("UPDATE schema_version SET version = $1", len(MIGRATIONS))


def quoted(name: str) -> str:
    """Return an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
