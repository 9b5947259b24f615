"""Situations of the registry in PostgreSQL only: sessions that do not end, and a server that does."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import asyncpg
import pytest

from flyball.broker.store.changes import QueueCreated
from flyball.broker.store.group_commit import GroupCommit
from flyball.broker.store.interface import Batch
from flyball.broker.store.postgres import registry as registry_module
from flyball.broker.store.postgres import registry_statements, statements
from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from flyball.broker.store.postgres.store import PostgresStore
from flyball.errors import Fenced, StoreError, StoreUnavailable
from flyball.model import Message, Queue
from tests.broker.store.domains import (
    Node,
    SharedDomain,
    crash,
    die,
    ids_in,
    lapse,
    opened,
    retried,
    shared_postgres,
    until,
    up,
    with_queue,
)
from tests.broker.store.test_group_commit import Answers


def in_postgres(node: Node) -> PostgresStore:
    assert isinstance(node, PostgresStore)
    return node


async def two_nodes(domain: SharedDomain) -> tuple[PostgresStore, PostgresStore]:
    first = await domain.node("a")
    second = await domain.node("b", first)
    await with_queue(first, 1, range(1, 3))
    return in_postgres(first), in_postgres(second)


async def test_open_transaction_of_a_dead_node_is_ended(postgres_domain: SharedDomain) -> None:
    first, second = await two_nodes(postgres_domain)
    await lapse(first)

    async def is_frozen_in_a_transaction() -> None:
        async with first._writer.connection() as connection, connection.transaction():
            await connection.execute("DELETE FROM messages")
            assert await second.registry.declare_dead(1, 1)

    with pytest.raises(StoreUnavailable):
        await is_frozen_in_a_transaction()
    assert await ids_in(second, 1) == [1, 2]
    with pytest.raises(Fenced):
        await first.commit(Batch(removed=[1]))


async def test_transfers_to_a_member_survive_the_takeover_of_its_dead_node(
    postgres: EmbeddedPostgres, postgres_domain: SharedDomain
) -> None:
    first, second = await two_nodes(postgres_domain)
    third = await postgres_domain.node("c", first, second)
    for node, number in ((first, 11), (third, 13)):
        await node.commit(Batch([QueueCreated(Queue(number, "orders", member=True))]))
    await first.commit(Batch(appended=[Message(20, 11, b"body")]))
    await die(third, second)
    observer = await asyncpg.connect(postgres.dsn)
    async with first._writer.connection() as connection, connection.transaction():
        assert await connection.fetchval(statements.TRANSFER, [20], 11, 13, 1, 1, "{}")
        taking_over = asyncio.ensure_future(second.registry.take_over(3, {}))
        while not await observer.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
            continue
    await observer.close()
    await taking_over
    [arrived] = await first.arrivals([11])
    assert [message.id for message in arrived.messages] == [20]


async def test_commit_that_waits_when_its_node_is_declared_dead_is_refused(
    postgres: EmbeddedPostgres, postgres_domain: SharedDomain, schema: str
) -> None:
    first, second = await two_nodes(postgres_domain)
    await lapse(first)
    waiter = Answers()
    writer = GroupCommit(first)
    blocker = await asyncpg.connect(postgres.dsn)
    async with asyncio.TaskGroup() as group:
        group.create_task(writer.run())
        async with blocker.transaction():
            await blocker.execute(f"LOCK TABLE {schema}.messages")
            writer.append(Message(9, 1, b""), waiter)
            asked = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1"
            while not await blocker.fetchval(asked, first._writer_pid):
                continue
            assert await second.registry.declare_dead(1, 1)
        await until(lambda: waiter.errors)
        await writer.stop()
    await blocker.close()
    assert isinstance(waiter.errors[0], Fenced)
    assert await ids_in(second, 1) == [1, 2]


async def test_a_node_is_not_dead_before_its_last_session_has_ended(
    postgres_domain: SharedDomain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "ENDING_LIMIT_S", 0.0)
    first, second = await two_nodes(postgres_domain)
    await lapse(first)
    frozen = first._writer_pid
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match="did not end within"):
            await second.registry.declare_dead(1, 1)
        with pytest.raises(StoreUnavailable, match="did not end within"):
            await second.registry.take_over(1, {1: 2})
    finally:
        os.kill(frozen, signal.SIGCONT)
    monkeypatch.undo()
    assert await second.registry.declare_dead(1, 1)
    await second.registry.take_over(1, {1: 2})
    assert [summary.message_count for summary in await second.adopt([1])] == [2]


async def test_a_node_that_starts_again_ends_the_sessions_of_its_earlier_life(postgres_domain: SharedDomain) -> None:
    first, second = await two_nodes(postgres_domain)
    # Its writer is gone, and with it the lock of its name, but something else is still at work.
    async with first._worker.connection() as connection, first.registry._worker.connection() as other:
        first._writer.abandon()
        again = postgres_domain.store("a")
        await opened(again, second)
        await until(lambda: connection.is_closed() and other.is_closed())
    with pytest.raises(Fenced):
        await retried(first, Batch(removed=[1]))


async def test_nodes_of_other_schemas_are_left_alone(
    postgres: EmbeddedPostgres, postgres_domain: SharedDomain, schema: str
) -> None:
    first, second = await two_nodes(postgres_domain)
    stranger = PostgresStore(postgres.dsn, schema=f"{schema}_other", node="a")
    await stranger.open()
    try:
        pid = stranger._writer_pid
        assert await first.registry.lead()
        assert await stranger.registry.lead()
        await lapse(first)
        assert await second.registry.declare_dead(1, 1)
        await with_queue(stranger, 1)
        assert stranger._writer_pid == pid
        assert await stranger.registry.changes(0) == []
        assert stranger.registry.secret != second.registry.secret
    finally:
        await stranger.close()


async def test_a_registry_that_lost_its_connection_says_so_and_listens_again(
    postgres: EmbeddedPostgres, postgres_domain: SharedDomain
) -> None:
    first, second = await two_nodes(postgres_domain)
    heard: list[None] = []
    second.registry.news.subscribe(lambda: heard.append(None))
    async with second.registry._session.connection() as connection:
        pid = connection.get_server_pid()
    killer = await asyncpg.connect(postgres.dsn)
    await killer.fetchval("SELECT pg_terminate_backend($1, 5000)", pid)
    await killer.close()
    await until(lambda: heard)
    heard.clear()
    assert len(await second.registry.nodes()) == 2
    await until(lambda: heard)
    heard.clear()
    await with_queue(first, 2)
    await until(lambda: heard)


async def test_a_renewal_does_not_wait_for_the_disk(
    postgres: EmbeddedPostgres, postgres_domain: SharedDomain
) -> None:
    node = in_postgres(await postgres_domain.node("a"))
    async with node.registry._session.connection() as connection:
        assert await connection.fetchval("SHOW synchronous_commit") == "on"
        async with connection.transaction():
            await connection.execute(
                registry_statements.EXTEND_LEASE, node.registry.node_id, node.registry.epoch, 5.0
            )
            assert await connection.fetchval("SHOW synchronous_commit") == "off"
        assert await connection.fetchval("SHOW synchronous_commit") == "on"


async def test_tables_for_one_node_are_not_touched_while_an_older_broker_uses_them(
    postgres: EmbeddedPostgres, postgres_domain: SharedDomain, schema: str
) -> None:
    older = await asyncpg.connect(postgres.dsn)
    try:
        await older.execute(
            f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.schema_version (version integer NOT NULL);"
            f"INSERT INTO {schema}.schema_version (version) VALUES (2)"
        )
        await older.execute("SELECT pg_advisory_lock($1, hashtext($2))", 0x666C7901, schema)
        with pytest.raises(StoreError, match="older version"):
            await postgres_domain.store("a").open()
        assert await older.fetchval(f"SELECT version FROM {schema}.schema_version") == 2
    finally:
        await older.close()


async def test_longest_names_of_odd_characters_can_be_claimed(
    postgres_domain: SharedDomain,
) -> None:
    node = await postgres_domain.node("\udc80\0" * 127)
    odd = "".join(chr(0xDC80 + number % 128) for number in range(255))
    assert await node.registry.claim(odd, odd) == 1
    assert (await node.registry.nodes())[0].name == "\udc80\0" * 127


async def test_a_server_that_is_killed_costs_no_node_its_epoch(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path)
    await server.start()
    domain = shared_postgres(server.dsn, "flyball")
    try:
        first, second = await two_nodes(domain)
        third = await domain.node("c", first, second)
        assert await first.registry.lead()
        await up(first, 60.0)
        await up(second, 60.0)
        await up(third, 0.0)
        crash(third)
        await with_queue(second, 2)  # flushes the renewals before it
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        async with asyncio.TaskGroup() as group:
            supervising = group.create_task(server.supervise())
            await until(lambda: server.restarts == 1)
            supervising.cancel()
        async with asyncio.timeout(60):
            while True:
                try:
                    leads = await second.registry.lead()
                    break
                except StoreUnavailable:
                    continue
        assert leads, "the lock ended with the server"
        records = await second.registry.nodes()
        assert [record.is_live for record in records] == [True, True, False]
        assert not await second.registry.declare_dead(1, 1), "it had no chance to renew its lease"
        assert await second.registry.declare_dead(3, 1)
        await retried(first, Batch(removed=[1]))
        assert not await leads_now(first)
        await up(first)
        assert await ids_in(second, 1) == [2]
    finally:
        await domain.close()
        await server.stop()


async def leads_now(node: PostgresStore) -> bool:
    async with asyncio.timeout(60):
        while True:
            try:
                return await node.registry.lead()
            except StoreUnavailable:
                continue
