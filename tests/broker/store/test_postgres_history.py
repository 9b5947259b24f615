"""A database that goes back in time: a replica that lags behind is promoted, or ids are given out twice."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from flyball.broker.store.changes import QueueCreated
from flyball.broker.store.interface import Batch
from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from flyball.broker.store.postgres.store import PostgresStore
from flyball.errors import StoreRewound, StoreUnavailable
from flyball.model import Message, Queue
from tests.broker.store.replication import Pair

QUEUE = Queue(1, "queue")


@contextlib.asynccontextmanager
async def pair_of_servers(folder: Path) -> AsyncIterator[Pair]:
    pair = Pair(folder)
    try:
        await pair.start()
        yield pair
    finally:
        pair.stop()


async def test_failover_to_a_lagging_replica_is_noticed_and_gives_no_id_twice(tmp_path: Path) -> None:
    async with pair_of_servers(tmp_path) as pair:
        store = PostgresStore(pair.url)
        await store.open()
        await store.commit(Batch([QueueCreated(QUEUE)]))
        replicated = await store.reserve_message_ids(1000)
        await pair.catch_up()
        await pair.cut()
        first = await store.reserve_message_ids(1000)
        lost = [Message(first + number, 1, b"confirmed", arrived_us=1) for number in range(10)]
        await store.commit(Batch(appended=lost))
        await pair.fail_over()
        for message in lost:
            message.stored = True
        # Whichever session reconnects first finds out, and no other writes.
        with pytest.raises((StoreRewound, StoreUnavailable)):
            await store.commit(Batch(appended=[Message(first + 10, 1, b"too late")]))
        with pytest.raises(StoreRewound, match=r"timeline 1, then 2.*a replica was promoted"):
            await store.load([first])
        with pytest.raises(StoreRewound):
            await store.commit(Batch(appended=[Message(first + 10, 1, b"too late")]), again=True)
        assert store.is_rewound
        assert await store.write_again([QUEUE, Queue(2, "made later")], lost) == len(lost)
        await store.close()

        again = PostgresStore(pair.url)
        snapshot = await again.open()
        assert {summary.queue.name: summary.message_count for summary in snapshot.queues} == {
            "queue": len(lost),
            "made later": 0,
        }
        assert snapshot.next_queue_id > 2
        assert first == replicated + 1000
        assert await again.reserve_message_ids(1000) >= first + 1000
        await again.close()


async def test_id_that_stands_for_another_message_is_never_dropped(postgres_store: PostgresStore) -> None:
    await postgres_store.open()
    await postgres_store.commit(Batch([QueueCreated(QUEUE)], [Message(7, 1, b"first", arrived_us=1)]))
    with pytest.raises(StoreRewound, match="already in use in the store"):
        await postgres_store.commit(Batch(appended=[Message(7, 1, b"second", arrived_us=2)]))
    with pytest.raises(StoreRewound):
        await postgres_store.load([7])


@pytest.mark.parametrize("again", [False, True])
async def test_id_in_a_large_batch_that_stands_for_another_message_is_noticed(
    postgres_store: PostgresStore, again: bool
) -> None:
    await postgres_store.open()
    await postgres_store.commit(Batch([QueueCreated(QUEUE)], [Message(7, 1, b"first", arrived_us=1)]))
    many = [Message(number, 1, b"second", arrived_us=2) for number in range(1, 200)]
    with pytest.raises(StoreRewound):
        await postgres_store.commit(Batch(appended=many), again=again)


@pytest.mark.parametrize("count", [1, 200])
async def test_same_message_may_be_committed_again(postgres_store: PostgresStore, count: int) -> None:
    await postgres_store.open()
    messages = [Message(number, 1, b"body", arrived_us=1) for number in range(1, count + 1)]
    await postgres_store.commit(Batch([QueueCreated(QUEUE)], messages))
    await postgres_store.commit(Batch(appended=messages), again=True)
    await postgres_store.commit(Batch(appended=messages[:1], removed=[count + 1]), again=True)
    assert len(await postgres_store.page(1, 0, 1000)) == count


async def test_counter_behind_the_stored_messages_is_put_right(
    postgres_store: PostgresStore, postgres: EmbeddedPostgres, schema: str
) -> None:
    await postgres_store.open()
    first = await postgres_store.reserve_message_ids(100)
    await postgres_store.commit(Batch([QueueCreated(QUEUE)], [Message(first + 50, 1, b"kept")]))
    await postgres_store.close()
    connection = await asyncpg.connect(postgres.dsn)
    await connection.execute(f"UPDATE {schema}.counters SET value = 1 WHERE name = 'message'")
    await connection.close()
    restored = PostgresStore(postgres.dsn, schema=schema)
    await restored.open()
    assert await restored.reserve_message_ids(100) == first + 51
    await restored.close()


async def test_standby_is_not_taken_for_the_store(tmp_path: Path) -> None:
    async with pair_of_servers(tmp_path) as pair:
        only = pair.url.replace("&target_session_attrs=read-write", "").replace(
            pair.url[pair.url.index("host=") : pair.url.index(",")] + ",", "host="
        )
        store = PostgresStore(only.replace("5432,5432", "5432"))
        with pytest.raises(StoreUnavailable, match="is a standby: promote it"):
            await store.open()
        await store.close()
