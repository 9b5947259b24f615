"""The writer on a real PostgreSQL that is killed, frozen and restarted in the middle of commits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from flyball.broker.store.changes import QueueCreated
from flyball.broker.store.group_commit import GroupCommit
from flyball.broker.store.interface import Batch
from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from flyball.broker.store.postgres.store import PostgresStore
from flyball.errors import FlyballError
from flyball.model import Message, Queue


class Traffic:
    """Appends messages and removes every second one, each time one is answered: always some in progress."""

    def __init__(self, writer: GroupCommit) -> None:
        self._writer = writer
        self._next_id = 1
        self.goes_on = True
        self.pending = 0
        self.appended: set[int] = set()
        self.not_appended: set[int] = set()
        self.removed: set[int] = set()
        self.not_removed: set[int] = set()
        self._changed = asyncio.Event()

    def append(self) -> None:
        message = Message(self._next_id, 1, b"body")
        self._next_id += 1
        self.pending += 1
        self._writer.append(message, Append(self, message))

    def remove(self, message: Message) -> None:
        self.pending += 1
        self._writer.remove(message, Remove(self, message))

    def answered(self) -> None:
        self.pending -= 1
        self._changed.set()
        if self.goes_on:
            self.append()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class Append:
    def __init__(self, traffic: Traffic, message: Message) -> None:
        self._traffic, self._message = traffic, message

    def committed(self) -> None:
        self._traffic.appended.add(self._message.id)
        if self._message.id % 2:
            self._traffic.remove(self._message)
        self._traffic.answered()

    def failed(self, error: FlyballError) -> None:
        self._traffic.not_appended.add(self._message.id)
        self._traffic.answered()


class Remove:
    def __init__(self, traffic: Traffic, message: Message) -> None:
        self._traffic, self._message = traffic, message

    def committed(self) -> None:
        self._traffic.removed.add(self._message.id)
        self._traffic.pending -= 1
        self._traffic._changed.set()

    def failed(self, error: FlyballError) -> None:
        self._traffic.not_removed.add(self._message.id)
        self._traffic.pending -= 1
        self._traffic._changed.set()


@contextlib.asynccontextmanager
async def broker(data_dir: Path, time_limit_s: float) -> AsyncIterator[tuple[EmbeddedPostgres, GroupCommit, Traffic]]:
    """Run traffic on a server of our own; at the end what was answered is compared with what is stored."""
    server = EmbeddedPostgres(data_dir)
    await server.start()
    store = PostgresStore(server.dsn)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(server.supervise())
            await store.open()
            await store.commit(Batch([QueueCreated(Queue(1, "queue"))]))
            writer = GroupCommit(store, time_limit_s=time_limit_s)
            group.create_task(writer.run())
            traffic = Traffic(writer)
            for _ in range(50):
                traffic.append()
            await traffic.until(lambda: len(traffic.removed) > 500)
            yield server, writer, traffic
            enough = len(traffic.removed) + 500
            await traffic.until(lambda: len(traffic.removed) > enough)
            traffic.goes_on = False
            await traffic.until(lambda: traffic.pending == 0)
            await writer.stop()
            await store.close()
            await server.stop()
        await server.start()
        snapshot = await store.open()
        stored = {message.id for message in await store.page(1, 0, 1_000_000)}
        assert stored == traffic.appended - traffic.removed
        assert snapshot.queues[0].message_count == len(stored)
        assert not stored & traffic.not_appended
        assert traffic.not_removed <= stored
    finally:
        await store.close()
        await server.stop()


async def test_a_server_killed_in_the_middle_of_commits_loses_nothing(tmp_path: Path) -> None:
    async with broker(tmp_path, time_limit_s=20.0) as (server, writer, traffic):
        for restarts in (1, 2, 3):
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            await traffic.until(lambda restarts=restarts: server.restarts == restarts)  # type: ignore[misc]
            enough = len(traffic.appended) + 200
            await traffic.until(lambda enough=enough: len(traffic.appended) > enough)  # type: ignore[misc]
        assert writer.failures > 0
        assert not traffic.not_appended
        assert not traffic.not_removed


async def test_a_backend_killed_in_the_middle_of_commits_loses_nothing(tmp_path: Path) -> None:
    async with broker(tmp_path, time_limit_s=20.0) as (_, writer, traffic):
        for _ in range(3):
            store = writer._store
            assert isinstance(store, PostgresStore)
            assert store._writer_pid is not None
            # A backend that dies like this makes the server restart all of them and recover.
            os.kill(store._writer_pid, signal.SIGKILL)
            enough = len(traffic.appended) + 200
            await traffic.until(lambda enough=enough: len(traffic.appended) > enough)  # type: ignore[misc]
        assert not traffic.not_appended
        assert not traffic.not_removed


async def test_a_frozen_session_fails_what_waits_and_what_failed_is_undone(tmp_path: Path) -> None:
    async with broker(tmp_path, time_limit_s=20.0) as (_, writer, traffic):
        store = writer._store
        assert isinstance(store, PostgresStore)
        frozen = store._writer_pid
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        # Only now: a slow machine's commits may take as long.
        limits = writer._time_limit_s, writer._tick_s
        writer._time_limit_s, writer._tick_s = 0.3, 0.015
        await traffic.until(lambda: len(traffic.not_appended) >= 100)
        failures = writer.failures
        await traffic.until(lambda: writer.failures > failures)
        assert traffic.not_removed
        writer._time_limit_s, writer._tick_s = limits
        os.kill(frozen, signal.SIGCONT)


async def test_a_frozen_server_that_goes_on_soon_fails_nobody(tmp_path: Path) -> None:
    async with broker(tmp_path, time_limit_s=20.0) as (server, writer, traffic):
        store = writer._store
        assert isinstance(store, PostgresStore)
        frozen = [server.pid, store._writer_pid]
        for pid in frozen:
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
        reading = asyncio.ensure_future(store.load([1]))
        _, late = await asyncio.wait([reading], timeout=0.2)
        assert late
        for pid in frozen:
            assert pid is not None
            os.kill(pid, signal.SIGCONT)
        await reading
        assert not traffic.not_appended
