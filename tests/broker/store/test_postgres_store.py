"""Behaviour of the store in PostgreSQL only: versions, sessions, fencing, and batches of every size."""

from __future__ import annotations

import asyncio
import os
import signal

import asyncpg
import pytest

from flyball.broker.store.changes import QueueCreated
from flyball.broker.store.interface import Batch, IndexColumns, Transfer
from flyball.broker.store.postgres import rows, statements
from flyball.broker.store.postgres import store as store_module
from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from flyball.broker.store.postgres.store import PostgresStore
from flyball.errors import StoreError, StoreMismatch, StoreUnavailable
from flyball.model import Client, ClientMode, Message, Queue, QueueSummary, Snapshot


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


# The first version of the tables, with some rows.
VERSION_1 = """
CREATE SCHEMA {schema};
SET LOCAL search_path = {schema};
CREATE TABLE schema_version (version integer NOT NULL);
INSERT INTO schema_version (version) VALUES (1);
CREATE TABLE clients (id bigint PRIMARY KEY, name text NOT NULL, mode smallint NOT NULL);
CREATE TABLE queues (id integer PRIMARY KEY, name text NOT NULL);
CREATE TABLE counters (name text PRIMARY KEY, value bigint NOT NULL) WITH (fillfactor = 50);
INSERT INTO counters (name, value) VALUES ('client', 5), ('queue', 4), ('message', 5001);
CREATE TABLE messages (
    id         bigint NOT NULL,
    arrived_us bigint NOT NULL,
    sender     bigint,
    receiver   bigint,
    context    bigint,
    expires_us bigint,
    queue_id   integer NOT NULL,
    priority   integer NOT NULL,
    persistent boolean NOT NULL,
    properties bytea NOT NULL,
    body       bytea NOT NULL,
    CONSTRAINT messages_pkey PRIMARY KEY (id)
) WITH (fillfactor = 100, toast_tuple_target = 8160);
ALTER TABLE messages ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE messages ALTER COLUMN properties SET STORAGE EXTERNAL;
CREATE INDEX messages_in_queue ON messages (queue_id, id) INCLUDE (receiver, sender, context, priority);
CREATE INDEX messages_expiring ON messages (expires_us) INCLUDE (queue_id, id) WHERE expires_us IS NOT NULL;
CREATE INDEX messages_passing ON messages (id) WHERE NOT persistent;
INSERT INTO clients (id, name, mode) VALUES (4, 'ada', 2);
INSERT INTO queues (id, name) VALUES (1, 'first'), (3, 'C:\\005c');
INSERT INTO messages SELECT id, 17, 4, 5, 6, 7, 1, 8, true, 'properties', 'body' FROM generate_series(1, 2000) AS id;
"""


async def test_tables_of_the_first_version_are_brought_up_to_date_and_keep_everything(
    postgres: EmbeddedPostgres, postgres_store: PostgresStore, schema: str
) -> None:
    connection = await asyncpg.connect(postgres.dsn)
    await connection.execute(VERSION_1.format(schema=schema))
    file_before = await connection.fetchval("SELECT pg_relation_filenode($1::regclass)", f"{schema}.messages")
    snapshot = await postgres_store.open()
    file_after = await connection.fetchval("SELECT pg_relation_filenode($1::regclass)", f"{schema}.messages")
    await connection.close()
    assert file_after == file_before, "the messages were written anew: that takes long where there are many"
    assert snapshot == Snapshot(
        [Client(4, "ada", ClientMode.READ_ONLY)],
        [
            QueueSummary(Queue(1, "first"), 2000, 2000, addressed={5: 2000}, sent={4: 2000}),
            QueueSummary(Queue(3, "C:\\005c")),
        ],
        next_client_id=5,
        next_queue_id=4,
    )
    expected = Message(77, 1, b"body", 4, 5, 6, 8, 17, 7, b"properties", stored=True)
    assert await postgres_store.load([77]) == [expected]
    assert await postgres_store.reserve_message_ids(1) == 5001
    await postgres_store.commit(Batch(appended=[Message(5001, 1, b"", origin=b"new")]))
    [loaded] = await postgres_store.load([5001])
    assert loaded.origin == b"new"
    await postgres_store.close()
    assert (await postgres_store.open()).queues[0].message_count == 2001


async def test_unstorable_argument_is_refused_and_the_next_commit_works(
    postgres_store: PostgresStore,
) -> None:
    await postgres_store.open()
    endless: list[object] = []
    endless.append(endless)
    for odd in (object(), endless):
        await is_refused_for_good(postgres_store, Batch([QueueCreated(Queue(1, "q", arguments={"odd": odd}))]))
    await commit_until_it_works(postgres_store, Batch(appended=numbered(1)))
    assert await ids_in(postgres_store) == [1]


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
    monkeypatch.setattr(store_module, "WRITER_LOCK_TIMEOUT_S", 0.0)
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
        await is_refused_for_good(postgres_store, Batch(appended=poisoned))
    await commit_until_it_works(postgres_store, Batch(appended=numbered(1)))
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
    async with asyncio.timeout(60):
        while not await ask(postgres, "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)", pid):
            pass


async def test_a_cancelled_commit_leaves_the_store_usable(
    postgres: EmbeddedPostgres, postgres_store: PostgresStore, schema: str
) -> None:
    await postgres_store.open()
    blocker = await asyncpg.connect(postgres.dsn)
    async with blocker.transaction():
        await blocker.execute(f"LOCK TABLE {schema}.messages")
        commit = asyncio.ensure_future(postgres_store.commit(Batch(appended=numbered(1))))
        await blocked(postgres, writer_pid(postgres_store))
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
    await blocker.close()
    await commit_until_it_works(postgres_store, Batch(appended=numbered(1, 2)))
    assert await ids_in(postgres_store) == [1, 2]


async def commit_until_it_works(store: PostgresStore, batch: Batch, *, again: bool = True) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await store.commit(batch, again=again)
            except StoreUnavailable:
                continue
            return


async def is_refused_for_good(store: PostgresStore, batch: Batch) -> None:
    """A refusal ends the session: until the server has noticed that, the next one must try again."""
    with pytest.raises(StoreError) as refused:
        await commit_until_it_works(store, batch, again=False)
    assert not isinstance(refused.value, StoreUnavailable)


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
    monkeypatch.setattr(rows, "MAX_ARRAY_BYTES", 300_000)
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


async def test_of_many_transfers_only_the_oldest_are_looked_at(
    postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_ARRIVING_TRANSFERS", 2)
    await postgres_store.open()
    queues = [QueueCreated(Queue(number, f"queue {number}", member=True)) for number in (1, 2)]
    await postgres_store.commit(Batch([*queues], numbered(*range(1, 6))))
    await postgres_store.commit(Batch(transfers=[Transfer([number], 1, 2) for number in range(1, 6)]))
    came: list[list[int]] = []
    while arrived := await postgres_store.arrivals([2]):
        came.append([message.id for one in arrived for message in one.messages])
        await postgres_store.received(arrived)
    assert came == [[1, 2], [3, 4], [5]]


async def test_what_is_not_received_yet_is_found_in_a_table_and_not_row_by_row(
    postgres: EmbeddedPostgres, postgres_store: PostgresStore, schema: str
) -> None:
    await postgres_store.open()
    connection = await asyncpg.connect(postgres.dsn, server_settings={"search_path": schema})
    try:
        for statement, arguments in (
            (statements.PAGE, (1, 0, 100, 1000)),
            (statements.QUEUE_IDS, (1, 0, 100, 100)),
            (statements.BODY_BYTES, (1, [])),
        ):
            plan = await connection.fetch(f"EXPLAIN {statement}", *arguments)
            assert "hashed SubPlan" in "\n".join(row[0] for row in plan)
    finally:
        await connection.close()
