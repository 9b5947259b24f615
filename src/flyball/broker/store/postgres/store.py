"""The durable store: clients, queues, definitions and messages in PostgreSQL.

Three sessions: one writes the batches, one reads messages for waiting requests, one runs long operations. Group
commit retries, and the registry handles other nodes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Container, Sequence

import asyncpg

from flyball.broker.store.changes import Change, QueueCreated
from flyball.broker.store.interface import (
    NO_LIMIT,
    RECOVERED,
    Arrived,
    Batch,
    IndexColumns,
    IndexKeys,
    IndexPiece,
    Transfer,
    is_same,
)
from flyball.broker.store.postgres import changes as domain_changes
from flyball.broker.store.postgres import registry_statements, statements
from flyball.broker.store.postgres.history import History
from flyball.broker.store.postgres.migrations import migrate, quoted
from flyball.broker.store.postgres.registry import PostgresRegistry
from flyball.broker.store.postgres.rows import (
    append_rows,
    columns_of,
    commit_in_one_statement,
    copy_rows,
    message_of,
    pieces_of,
    size_bytes_of,
    without_deleted_queues,
)
from flyball.broker.store.postgres.session import CONNECT_LIMIT_S, Connection, Outages, PostgresSession
from flyball.broker.store.postgres.values import from_json, from_text, to_text
from flyball.errors import Fenced, StoreInUse, StoreRewound, StoreUnavailable
from flyball.model import Client, ClientMode, Definition, Message, PlacedQueue, Queue, QueueSummary, Snapshot

log = logging.getLogger(__name__)

COPY_FROM_ROWS = 80
# From this size, or the number of rows above, batches use COPY in a transaction: faster than a statement with arrays.
COPY_FROM_BYTES = 100_000

INDEX_ROUND_ROWS = 50_000
DELETE_CHUNK_ROWS = 2_000

MAX_ARRIVING_BYTES = 4 * 1024 * 1024
# Limits of one read of arrivals, in bytes (above) and transfers.
MAX_ARRIVING_TRANSFERS = 50

REGISTRY_LIMIT_S = 5.0

WRITER_LOCK_CLASS = 0x666C7901
WRITER_LOCK_TIMEOUT_S = 5.0
WRITER_LOCK_RETRY_S = 0.02


class PostgresStore:
    """A Store in one schema of a PostgreSQL database, which several nodes may share.

    The writing session holds an advisory lock on the node's name. The lock excludes a second broker of the same name,
    and fences earlier sessions of this one: a new session writes only after the server has ended the previous one, so
    a late write of an abandoned commit cannot overwrite a newer one. Every session checks the node's epoch when it
    starts, and is terminated by the node that ends the epoch (see `registry`).
    """

    keeps_messages = True
    pages = True

    def __init__(
        self, dsn: str, *, node: str = "flyball", schema: str = "flyball", read_limit_s: float = 10.0
    ) -> None:
        self._dsn = dsn
        self._node = node
        self._schema = schema
        self._outages = outages = Outages()
        self._history = History()
        self.registry = registry = PostgresRegistry(
            self._connect, schema, min(read_limit_s, REGISTRY_LIMIT_S), outages, self._history
        )
        self._writer = PostgresSession(self._connect, prepare=self._prepare_writer, outages=outages)
        self._reader = PostgresSession(
            self._connect, prepare=registry.check_epoch, time_limit_s=read_limit_s, outages=outages
        )
        self._worker = PostgresSession(self._connect, prepare=registry.check_epoch, outages=outages)
        self._writer_pid: int | None = None
        self._is_joining = False
        self._reserved_up_to: int | None = None
        self._orphaned_queue_ids: list[int] = []
        self._transferring: list[Transfer] = []
        self._last_transfer = 0

    @property
    def is_rewound(self) -> bool:
        return self._history.is_rewound

    @property
    def problem(self) -> str | None:
        return self._outages.reason

    async def open(self) -> Snapshot:
        registry = self.registry
        self._outages.is_serving = False
        # Sessions opened before the join do not have the node's name: other nodes could not find and terminate them.
        await self._reader.close()
        await self._worker.close()
        self._is_joining = True
        try:
            await self._become_writer()
            async with self._writer.connection() as connection:
                await migrate(connection, self._schema, self._node)
                await registry.join(connection, self._node)
        finally:
            self._is_joining = False
        self._transferring, self._last_transfer = [], 0
        async with self._writer.connection() as connection:
            await registry.clean_up(connection)
        await registry.become_known()
        async with registry.staying(), self._writer.connection() as connection:
            await connection.execute(statements.DROP_PASSING, registry.node_id)
            await connection.execute(statements.PASS_STORED)
            async with connection.transaction(isolation="repeatable_read"):
                snapshot = await self._snapshot(connection)
        self._outages.is_serving = True
        return snapshot

    async def close(self) -> None:
        self._outages.is_serving = False
        await self._worker.close()
        await self._reader.close()
        await self._writer.close()
        await self.registry.close()
        self._writer_pid = None

    def check(self, change: Change) -> None:
        domain_changes.check(change)

    async def commit(self, batch: Batch, *, again: bool = False) -> None:
        try:
            await self._commit(batch, again)
        except StoreRewound as error:
            self._history.rewind(error)
            raise

    async def _commit(self, batch: Batch, again: bool) -> None:
        appended, removed = without_deleted_queues(batch), batch.removed
        async with self._writer.connection() as connection:
            small = len(appended) < COPY_FROM_ROWS and size_bytes_of(appended) < COPY_FROM_BYTES
            if small and not batch.changes and not batch.transfers:
                await commit_in_one_statement(connection, appended, removed)
                return
            async with connection.transaction():
                if again or small:
                    for piece in pieces_of(appended):
                        await append_rows(connection, statements.APPEND, piece)
                else:
                    await copy_rows(connection, appended)
                if removed:
                    await connection.execute(statements.REMOVE, removed)
                if batch.transfers:
                    await self._transfer(connection, batch, again)
                if batch.changes:
                    # Last, since this blocks changes of all other nodes until the commit.
                    await self._apply_changes(connection, batch)

    async def load(self, message_ids: Sequence[int], max_bytes: int = NO_LIMIT) -> list[Message]:
        async with self._reader.connection() as connection:
            rows = await connection.fetch(statements.LOAD, message_ids, max_bytes)
        return [message_of(row) for row in rows]

    async def page(self, queue_id: int, after_id: int, limit: int, max_bytes: int = NO_LIMIT) -> list[Message]:
        async with self._reader.connection() as connection:
            rows = await connection.fetch(statements.PAGE, queue_id, after_id, limit, max_bytes)
        return [message_of(row) for row in rows]

    async def index(self, queue_id: int, columns: IndexColumns, up_to_id: int) -> AsyncIterator[IndexPiece]:
        statement = statements.index_round(
            receiver=columns.receiver, sender=columns.sender, context=columns.context, priority=columns.priority
        )
        after_id = 0
        while True:
            async with self._worker.connection() as connection:
                rows = await connection.fetch(statement, queue_id, after_id, up_to_id, INDEX_ROUND_ROWS)
            for row in rows:
                row[4].sort()  # already sorted unless the server chose another plan: cheap
            keys = [IndexKeys(*row) for row in rows]
            if sum([len(row[4]) for row in rows]) < INDEX_ROUND_ROWS:
                yield IndexPiece(keys, up_to_id)
                return
            after_id = max(row[4][-1] for row in rows)
            yield IndexPiece(keys, after_id)

    async def body_bytes(self, queue_id: int, without: Sequence[int]) -> int:
        async with self._worker.connection() as connection:
            found: int = await connection.fetchval(statements.BODY_BYTES, queue_id, without)
        return found

    async def expiring(self) -> list[tuple[int, int]]:
        async with self._worker.connection() as connection:
            rows = await connection.fetch(statements.EXPIRING, self.registry.node_id)
        return [(row[0], row[1]) for row in rows]

    async def delete_queue_messages(self, queue_id: int, up_to_id: int, keep: Container[int]) -> int:
        after_id, deleted = 0, 0
        while True:
            async with self._worker.connection() as connection:
                rows = await connection.fetch(statements.QUEUE_IDS, queue_id, after_id, up_to_id, DELETE_CHUNK_ROWS)
                doomed = [row[0] for row in rows if row[0] not in keep]
                status = await connection.execute(statements.REMOVE, doomed)
            deleted += int(status.removeprefix("DELETE "))
            if len(rows) < DELETE_CHUNK_ROWS:
                return deleted
            after_id = rows[-1][0]

    async def sweep_orphans(self) -> int:
        deleted = 0
        while self._orphaned_queue_ids:
            deleted += await self.delete_queue_messages(self._orphaned_queue_ids[-1], 2**63 - 1, ())
            self._orphaned_queue_ids.pop()
        return deleted

    async def reclaim(self) -> None:
        # A separate session: a vacuum may take minutes, and requests use the other sessions.
        session = PostgresSession(self._connect, prepare=self.registry.check_epoch, outages=self._outages)
        try:
            async with session.connection() as connection:
                await connection.execute(statements.VACUUM)
                await connection.execute(statements.CHECKPOINT)
        finally:
            await session.close()

    async def write_again(self, queues: Sequence[Queue], messages: Sequence[Message]) -> int:
        connection = await self._connect_anywhere()
        try:
            await self._take_writer_lock(connection)
            epoch = await connection.fetchval(registry_statements.EPOCH, self.registry.node_id)
            if epoch is None or epoch > self.registry.epoch:
                raise Fenced(f"node {self.registry.node_id} is fenced: epoch {self.registry.epoch} has ended")
            missing = 0
            async with connection.transaction():
                await domain_changes.lock(connection, self._schema)
                rows = await connection.fetch(statements.KNOWN_QUEUES, [queue.id for queue in queues])
                known = {row["id"] for row in rows}
                created = [QueueCreated(queue) for queue in queues if queue.id not in known]
                await domain_changes.apply(
                    connection, created, self.registry.node_id, is_clustered=self.registry.is_clustered
                )
                for piece in pieces_of(messages):
                    status = await connection.execute(statements.APPEND, *columns_of(piece))
                    missing += int(status.removeprefix("INSERT 0 "))
            return missing
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise StoreUnavailable(f"lost messages could not be written again: {error}") from error
        finally:
            connection.terminate()

    async def adopt(self, queue_ids: Sequence[int]) -> list[QueueSummary]:
        node_id, wanted = self.registry.node_id, list(queue_ids)
        async with self._worker.connection() as connection:
            await connection.execute(statements.DROP_ADOPTED_PASSING, node_id, wanted)
            async with connection.transaction(isolation="repeatable_read"):
                rows = await connection.fetch(statements.ADOPTED_QUEUES, node_id, wanted)
                summaries = {row["id"]: QueueSummary(domain_changes.queue_of(row)) for row in rows}
                _summarize(summaries, await connection.fetch(statements.ADOPTED_SUMMARY, node_id, wanted))
                await connection.execute(statements.FORGET_TRANSFERS, list(summaries))
        return list(summaries.values())

    async def arrivals(self, queue_ids: Sequence[int]) -> list[Arrived]:
        async with self._reader.connection() as connection:
            rows = await connection.fetch(
                statements.ARRIVALS, list(queue_ids), MAX_ARRIVING_BYTES, MAX_ARRIVING_TRANSFERS
            )
        arrived: dict[int, tuple[int, list[Message]]] = {}
        for transfer_id, queue_id, delivery_count, *values in rows:
            _, messages = arrived.setdefault(transfer_id, (queue_id, []))
            if values[0] is not None:
                message = message_of(values)
                message.delivery_count = max(delivery_count, 0)
                message.recovered = delivery_count == RECOVERED
                messages.append(message)
        return [Arrived(transfer_id, queue_id, messages) for transfer_id, (queue_id, messages) in arrived.items()]

    async def received(self, taken: Sequence[Arrived]) -> None:
        places = [arrived.transfer_id for arrived in taken], [arrived.queue_id for arrived in taken]
        async with self._reader.connection() as connection:
            await connection.execute(statements.RECEIVED, *places)

    async def reserve_queue_ids(self, count: int) -> int:
        return await self._reserve("queue", count)

    async def reserve_client_ids(self, count: int) -> int:
        return await self._reserve("client", count)

    async def reserve_message_ids(self, count: int) -> int:
        first = await self._reserve("message", count)
        self._reserved_up_to = first + count
        return first

    async def return_message_ids(self, next_id: int) -> None:
        if self._reserved_up_to is None:
            return
        async with self._reader.connection() as connection:
            await connection.execute(statements.RETURN_MESSAGE_IDS, next_id, self._reserved_up_to)
        self._reserved_up_to = None
        self._history.reserved.pop("message", None)

    async def _connect(self) -> Connection:
        connection = await self._connect_anywhere()
        try:
            await self._history.check(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _connect_anywhere(self) -> Connection:
        return await asyncpg.connect(
            self._dsn,
            timeout=CONNECT_LIMIT_S,
            max_cached_statement_lifetime=0,
            server_settings={
                "application_name": self.registry.session_name,
                "search_path": quoted(self._schema),
                # An external server may have other defaults.
                "synchronous_commit": "on",
                "default_transaction_isolation": "read committed",
                "statement_timeout": "0",
                "jit": "off",
                # Makes the planner use the index messages_in_queue for the summary, which avoids reading all bodies.
                "random_page_cost": "1.1",
                "work_mem": "32MB",
                # The writer lock of a broker whose machine failed must not be held for hours.
                "tcp_keepalives_idle": "10",
                "tcp_keepalives_interval": "5",
                "tcp_keepalives_count": "3",
            },
        )

    async def _become_writer(self) -> None:
        """Open the writing session; wait for the session of a broker that was just killed to end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WRITER_LOCK_TIMEOUT_S
        while True:
            try:
                async with self._writer.connection():
                    return
            except _WriterLockTaken as error:
                if loop.time() >= deadline:
                    raise StoreInUse(
                        f"another broker uses this database: node {self._node!r} in {error}; stop it, or choose"
                        " another --name"
                    ) from error
            await asyncio.sleep(WRITER_LOCK_RETRY_S)

    async def _prepare_writer(self, connection: Connection) -> None:
        try:
            await self._take_writer_lock(connection)
        finally:
            # The lock may be held by a later epoch of this node: then this one is fenced and must not wait.
            if not self._is_joining:
                await self.registry.check_epoch(connection)

    async def _take_writer_lock(self, connection: Connection) -> None:
        lock = (f"{quoted(self._schema)} {to_text(self._node)}", WRITER_LOCK_CLASS)
        if await connection.fetchval(registry_statements.TRY_LOCK, *lock):
            self._writer_pid = connection.get_server_pid()
            return
        holder = await connection.fetchrow(registry_statements.LOCK_HOLDER, *lock)
        if holder is None:
            raise _WriterLockTaken("its session has just ended")
        if holder["pid"] == self._writer_pid:
            # An earlier session of this node, dropped here and not yet noticed by the server.
            await connection.execute(registry_statements.END_SESSION, self._writer_pid)
        raise _WriterLockTaken(f"session {holder['pid']} from {holder['client_addr'] or 'this machine'}")

    async def _reserve(self, counter: str, count: int) -> int:
        async with self._reader.connection() as connection:
            floor = self._history.reserved.get(counter, 0)
            first: int = await connection.fetchval(statements.RESERVE_NUMBERS, counter, count, floor)
        self._history.reserved[counter] = first + count
        return first

    async def _transfer(self, connection: Connection, batch: Batch, again: bool) -> None:
        """Move messages at most once: they may have returned after an attempt whose outcome was unknown."""
        if not (again and is_same(batch.transfers, self._transferring)):
            self._transferring = [*batch.transfers]
            self._last_transfer += len(batch.transfers)
        batch.refused = []
        first = self._last_transfer - len(batch.transfers) + 1
        for number, transfer in enumerate(batch.transfers, first):
            if not await connection.fetchval(
                statements.TRANSFER,
                transfer.message_ids,
                transfer.source,
                transfer.destination,
                self.registry.node_id,
                number,
                json.dumps(transfer.delivery_counts),
            ):
                batch.refused.append(transfer)
        await connection.execute(registry_statements.NOTIFY, self.registry.channel, "")

    async def _apply_changes(self, connection: Connection, batch: Batch) -> None:
        registry, is_clustered = self.registry, self.registry.is_clustered
        if is_clustered:
            await domain_changes.lock(connection, self._schema)
        done = await domain_changes.apply(connection, batch.changes, registry.node_id, is_clustered=is_clustered)
        if is_clustered and done:
            await domain_changes.announce(connection, done, registry.node_id, registry.channel)

    async def _snapshot(self, connection: Connection) -> Snapshot:
        node_id = self.registry.node_id
        counters = {row["name"]: row["value"] for row in await connection.fetch(statements.COUNTERS)}
        clients = [
            Client(row["id"], row["name"], ClientMode(row["mode"]))
            for row in await connection.fetch(statements.CLIENTS)
        ]
        queues: dict[int, QueueSummary] = {}
        elsewhere: list[PlacedQueue] = []
        for row in await connection.fetch(statements.QUEUES):
            if row["owner"] == node_id:
                queues[row["id"]] = QueueSummary(domain_changes.queue_of(row))
            else:
                elsewhere.append(PlacedQueue(domain_changes.queue_of(row), row["owner"]))
        definitions = [
            Definition(from_text(row["kind"]), from_text(row["key"]), from_json(row["value"]))
            for row in await connection.fetch(statements.DEFINITIONS)
        ]
        _summarize(queues, await connection.fetch(statements.SUMMARY, node_id))
        await connection.execute(statements.FORGET_TRANSFERS, list(queues))
        self._orphaned_queue_ids = [row["queue_id"] for row in await connection.fetch(statements.ORPHANS)]
        return Snapshot(
            clients,
            list(queues.values()),
            counters["client"],
            counters["queue"],
            definitions,
            elsewhere,
            version=counters["change"] - 1,
        )


def _summarize(queues: dict[int, QueueSummary], rows: Sequence[asyncpg.Record]) -> None:
    """Add counts of messages by sender and receiver to the summaries."""
    for queue_id, receiver, sender, count, last_id in rows:
        summary = queues[queue_id]
        summary.message_count += count
        summary.last_message_id = max(summary.last_message_id, last_id)
        if receiver is not None:
            summary.addressed[receiver] = summary.addressed.get(receiver, 0) + count
        if sender is not None:
            summary.sent[sender] = summary.sent.get(sender, 0) + count


class _WriterLockTaken(StoreUnavailable):
    """Another session holds the writer lock."""
