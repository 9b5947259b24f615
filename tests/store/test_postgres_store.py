"""What only the store in PostgreSQL does: versions, sessions, fencing, and batches of every size."""

from __future__ import annotations

import asyncio
import os
import signal

import asyncpg
import pytest

from flyball.errors import StoreError, StoreMismatch, StoreUnavailable
from flyball.model import Message, Queue
from flyball.store.interface import Batch, IndexColumns, QueueCreated
from flyball.store.postgres import store as store_module
from flyball.store.postgres.embedded import EmbeddedPostgres
from flyball.store.postgres.store import PostgresStore


def numbered(*message_ids: int) -> list[Message]:
    return [Message(number, 1, b"body") for number in message_ids]


async def ids_in(store: PostgresStore) -> list[int]:
    return [message.id for message in await store.page(1, 0, 10_000)]


async def ask(postgres: EmbeddedPostgres, statement: str, *arguments: object) -> object:
    connection = await asyncpg.connect(postgres.dsn)
    try:
        return await connection.fetchval(statement, *arguments)
    finally:
        await connection.close()


def writer_pid(store: PostgresStore) -> int:
    assert store._writer_pid is not None
    return store._writer_pid


async def test_tables_of_a_newer_version_are_refused(
    postgres: EmbeddedPostgres, postgres_store: PostgresStore, schema: str
) -> None:
    await postgres_store.open()
    await postgres_store.close()
    await ask(postgres, f"UPDATE {schema}.schema_version SET version = 99")
    with pytest.raises(StoreMismatch, match="version 99"):
        await postgres_store.open()


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    store = PostgresStore("postgresql://nobody@/none?host=/nonexistent")
    with pytest.raises(StoreUnavailable):
        await store.open()
    await store.close()


async def test_a_second_broker_on_the_database_is_refused(
    postgres: EmbeddedPostgres, postgres_store: PostgresStore, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "WRITER_LOCK_PATIENCE_S", 0.0)
    await postgres_store.open()
    second = PostgresStore(postgres.dsn, schema=schema)
    with pytest.raises(StoreError, match="another broker uses this database"):
        await second.open()
    await second.close()
    await postgres_store.commit(Batch(appended=numbered(1)))


async def test_ids_that_somebody_else_followed_are_not_returned(
    postgres: EmbeddedPostgres, postgres_store: PostgresStore, schema: str
) -> None:
    await postgres_store.open()
    await postgres_store.reserve_message_ids(100)
    other = PostgresStore(postgres.dsn, schema=schema)
    await other.reserve_message_ids(100)
    await postgres_store.return_message_ids(5)
    assert await other.reserve_message_ids(1) == 201
    await other.close()


async def test_a_connection_lost_while_idle_is_opened_again(
    postgres: EmbeddedPostgres, postgres_store: PostgresStore
) -> None:
    await postgres_store.open()
    await postgres_store.commit(Batch(appended=numbered(1)))
    await ask(postgres, "SELECT pg_terminate_backend($1, 5000)", writer_pid(postgres_store))
    await commit_until_it_works(postgres_store, Batch(appended=numbered(2)))
    assert await ids_in(postgres_store) == [1, 2]


async def test_what_cannot_be_stored_is_refused_for_good_and_the_next_commit_works(
    postgres_store: PostgresStore,
) -> None:
    await postgres_store.open()
    for count in (0, 200):
        poisoned = [*numbered(*range(1, count + 1)), Message(9999, 1, b"", priority=2**40)]
        with pytest.raises(StoreError) as refused:
            await postgres_store.commit(Batch(appended=poisoned))
        assert not isinstance(refused.value, StoreUnavailable)
    await postgres_store.commit(Batch(appended=numbered(1)))
    assert await ids_in(postgres_store) == [1]


async def test_a_connection_lost_during_a_commit_is_unavailable_and_then_opened_again(
    postgres: EmbeddedPostgres, postgres_store: PostgresStore, schema: str
) -> None:
    await postgres_store.open()
    blocker = await asyncpg.connect(postgres.dsn)
    async with asyncio.TaskGroup() as group, blocker.transaction():
        await blocker.execute(f"LOCK TABLE {schema}.messages")
        commit = group.create_task(fails_as_unavailable(postgres_store, Batch(appended=numbered(1))))
        await blocked(postgres, writer_pid(postgres_store))
        await ask(postgres, "SELECT pg_terminate_backend($1, 5000)", writer_pid(postgres_store))
        await commit
    await blocker.close()
    await postgres_store.commit(Batch(appended=numbered(1)), again=True)
    assert await ids_in(postgres_store) == [1]


async def fails_as_unavailable(store: PostgresStore, batch: Batch) -> None:
    with pytest.raises(StoreUnavailable):
        await store.commit(batch)


async def blocked(postgres: EmbeddedPostgres, pid: int) -> None:
    async with asyncio.timeout(10):
        while not await ask(postgres, "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)", pid):
            pass


async def test_a_cancelled_commit_leaves_the_store_usable(
    postgres: EmbeddedPostgres, postgres_store: PostgresStore, schema: str
) -> None:
    await postgres_store.open()
    blocker = await asyncpg.connect(postgres.dsn)
    async with blocker.transaction():
        await blocker.execute(f"LOCK TABLE {schema}.messages")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await postgres_store.commit(Batch(appended=numbered(1)))
    await blocker.close()
    await commit_until_it_works(postgres_store, Batch(appended=numbered(1, 2)))
    assert await ids_in(postgres_store) == [1, 2]


async def commit_until_it_works(store: PostgresStore, batch: Batch) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await store.commit(batch, again=True)
            except StoreUnavailable:
                continue
            return


async def test_nothing_is_written_while_an_abandoned_session_might_still_write(
    postgres_store: PostgresStore,
) -> None:
    await postgres_store.open()
    await postgres_store.commit(Batch(appended=numbered(1)))
    frozen = writer_pid(postgres_store)
    os.kill(frozen, signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await postgres_store.commit(Batch(appended=numbered(2), removed=[1]))
        # The frozen session has the commit in its socket. Undoing it now would be overtaken by it later.
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await postgres_store.commit(Batch(appended=numbered(1), removed=[2]), again=True)
    finally:
        os.kill(frozen, signal.SIGCONT)
    await commit_until_it_works(postgres_store, Batch(appended=numbered(1), removed=[2]))
    assert await ids_in(postgres_store) == [1]


async def test_an_index_comes_in_rounds_of_bounded_size(
    postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "INDEX_ROUND_ROWS", 10)
    await postgres_store.open()
    messages = [Message(number, 1, b"", receiver=number % 3) for number in range(1, 96)]
    await postgres_store.commit(Batch(appended=messages))
    pieces = [piece async for piece in postgres_store.index(1, IndexColumns(receiver=True), 90)]
    assert [piece.up_to_id for piece in pieces] == [*range(10, 91, 10), 90]
    rounds = [keys for piece in pieces for keys in piece.keys]
    assert max(len(keys.message_ids) for keys in rounds) < 10
    for receiver in range(3):
        found = [number for keys in rounds if keys.receiver == receiver for number in keys.message_ids]
        assert found == [number for number in range(1, 91) if number % 3 == receiver]


async def test_bodies_larger_than_one_statement_takes_are_stored_in_pieces(
    postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_ARRAY_BYTES", 300_000)
    await postgres_store.open()
    messages = [Message(number, 1, os.urandom(200_000)) for number in range(1, 6)]
    await postgres_store.commit(Batch(appended=messages[:4]))
    await postgres_store.commit(Batch(appended=messages), again=True)
    assert [found.body for found in await postgres_store.load([1, 2, 3, 4, 5])] == [sent.body for sent in messages]


async def test_two_schemas_share_a_database(postgres: EmbeddedPostgres, postgres_store: PostgresStore) -> None:
    other = PostgresStore(postgres.dsn, schema='odd "name"')
    await postgres_store.open()
    await other.open()
    await other.commit(Batch([QueueCreated(Queue(1, "theirs"))]))
    await other.close()
    await postgres_store.close()
    assert (await postgres_store.open()).queues == []
