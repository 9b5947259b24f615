"""The durable store: clients, queues, definitions and messages in PostgreSQL.

Knows SQL and asyncpg and nobody else does. Three sessions: one writes the batches, one reads messages while
somebody waits, one does what takes long. Retrying is the group commit's business.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import asyncpg

from flyball.errors import StoreError, StoreUnavailable
from flyball.model import Arguments, Client, ClientMode, Definition, Message, Queue, QueueSummary, Snapshot
from flyball.store.changes import (
    Change,
    ClientCreated,
    ClientDeleted,
    DefinitionDeleted,
    DefinitionPut,
    QueueCreated,
    QueueDeleted,
)
from flyball.store.interface import NO_LIMIT, Batch, IndexColumns, IndexKeys, IndexPiece
from flyball.store.postgres import statements
from flyball.store.postgres.migrations import migrate, quoted
from flyball.store.postgres.session import CONNECT_LIMIT_S, Connection, Session
from flyball.store.postgres.values import from_json, from_text, to_json, to_text

log = logging.getLogger(__name__)

COPY_FROM_ROWS = 80
COPY_FROM_BYTES = 100_000
"""From so many messages or bytes on COPY in a transaction is faster than one statement with arrays."""

MAX_ARRAY_BYTES = 16 * 1024 * 1024
"""Most bytes of bodies in one statement: PostgreSQL takes no parameter of 1 GB."""

INDEX_ROUND_ROWS = 50_000
DELETE_CHUNK_ROWS = 2_000

WRITER_LOCK_CLASS = 0x666C7901
WRITER_LOCK_PATIENCE_S = 5.0
WRITER_LOCK_RETRY_S = 0.02


class PostgresStore:
    """A Store in one schema of a PostgreSQL database, for one broker at a time.

    The writing session holds an advisory lock. It keeps a second broker out, and it fences: a new session
    writes only when the server has ended the one before, so that no late write can undo a newer one.
    """

    keeps_messages = True
    pages = True

    def __init__(self, dsn: str, *, schema: str = "flyball", read_limit_s: float = 10.0) -> None:
        self._dsn = dsn
        self._schema = schema
        self._writer = Session(self._connect, prepare=self._take_writer_lock)
        self._reader = Session(self._connect, time_limit_s=read_limit_s)
        self._worker = Session(self._connect)
        self._writer_pid: int | None = None
        self._reserved_up_to: int | None = None
        self._orphaned_queue_ids: list[int] = []

    async def open(self) -> Snapshot:
        await self._become_writer()
        async with self._writer.connection() as connection:
            await migrate(connection, self._schema)
            await connection.execute(statements.DROP_PASSING)
            return await self._snapshot(connection)

    async def close(self) -> None:
        await self._worker.close()
        await self._reader.close()
        await self._writer.close()
        self._writer_pid = None

    async def commit(self, batch: Batch, *, again: bool = False) -> None:
        appended, removed = _without_deleted_queues(batch), batch.removed
        async with self._writer.connection() as connection:
            small = len(appended) < COPY_FROM_ROWS and _size_bytes(appended) < COPY_FROM_BYTES
            if small and not batch.changes:
                await _commit_in_one_statement(connection, appended, removed)
                return
            async with connection.transaction():
                if batch.changes:
                    await _apply(connection, batch.changes)
                if again or small:
                    for piece in _pieces(appended):
                        await connection.execute(statements.APPEND, *_arrays(piece))
                else:
                    await _copy(connection, appended)
                if removed:
                    await connection.execute(statements.REMOVE, removed)

    async def load(self, message_ids: Sequence[int], max_bytes: int = NO_LIMIT) -> list[Message]:
        async with self._reader.connection() as connection:
            rows = await connection.fetch(statements.LOAD, message_ids, max_bytes)
        return [_message(row) for row in rows]

    async def page(self, queue_id: int, after_id: int, limit: int, max_bytes: int = NO_LIMIT) -> list[Message]:
        async with self._reader.connection() as connection:
            rows = await connection.fetch(statements.PAGE, queue_id, after_id, limit, max_bytes)
        return [_message(row) for row in rows]

    async def index(self, queue_id: int, columns: IndexColumns, up_to_id: int) -> AsyncIterator[IndexPiece]:
        statement = statements.index_round(
            receiver=columns.receiver, sender=columns.sender, context=columns.context, priority=columns.priority
        )
        after_id = 0
        while True:
            async with self._worker.connection() as connection:
                rows = await connection.fetch(statement, queue_id, after_id, up_to_id, INDEX_ROUND_ROWS)
            for row in rows:
                row[4].sort()  # sorted already unless the server chose another plan: costs next to nothing
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

    async def expiring(self) -> list[tuple[int, int, int]]:
        async with self._worker.connection() as connection:
            rows = await connection.fetch(statements.EXPIRING)
        return [(row[0], row[1], row[2]) for row in rows]

    async def delete_queue_messages(self, queue_id: int, up_to_id: int, keep: Sequence[int]) -> int:
        kept = frozenset(keep)
        after_id, deleted = 0, 0
        while True:
            async with self._worker.connection() as connection:
                rows = await connection.fetch(statements.QUEUE_IDS, queue_id, after_id, up_to_id, DELETE_CHUNK_ROWS)
                doomed = [row[0] for row in rows if row[0] not in kept]
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

    async def reserve_message_ids(self, count: int) -> int:
        async with self._reader.connection() as connection:
            first: int = await connection.fetchval(statements.RESERVE_MESSAGE_IDS, count)
        self._reserved_up_to = first + count
        return first

    async def return_message_ids(self, next_id: int) -> None:
        if self._reserved_up_to is None:
            return
        async with self._reader.connection() as connection:
            await connection.execute(statements.RETURN_MESSAGE_IDS, next_id, self._reserved_up_to)
        self._reserved_up_to = None

    async def _connect(self) -> Connection:
        return await asyncpg.connect(
            self._dsn,
            timeout=CONNECT_LIMIT_S,
            max_cached_statement_lifetime=0,
            server_settings={
                "application_name": "flyball",
                "search_path": quoted(self._schema),
                # An external server may have other defaults: these are ours.
                "synchronous_commit": "on",
                "default_transaction_isolation": "read committed",
                "statement_timeout": "0",
                "jit": "off",
                # The backlog's summary comes from the index messages_in_queue, not from all the bodies.
                "random_page_cost": "1.1",
                "work_mem": "32MB",
                # A broker whose machine vanished must not hold the writer lock for hours.
                "tcp_keepalives_idle": "10",
                "tcp_keepalives_interval": "5",
                "tcp_keepalives_count": "3",
            },
        )

    async def _become_writer(self) -> None:
        """Open the writing session. The one of a broker that was just killed may take a moment to end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WRITER_LOCK_PATIENCE_S
        while True:
            try:
                async with self._writer.connection():
                    return
            except _WriterLockTaken as error:
                if loop.time() >= deadline:
                    raise StoreError(f"another broker uses this database: {error}") from error
            await asyncio.sleep(WRITER_LOCK_RETRY_S)

    async def _take_writer_lock(self, connection: Connection) -> None:
        if await connection.fetchval(statements.TRY_WRITER_LOCK, WRITER_LOCK_CLASS, self._schema):
            self._writer_pid = connection.get_server_pid()
            return
        holder = await connection.fetchrow(statements.WRITER_LOCK_HOLDER, WRITER_LOCK_CLASS, self._schema)
        if holder is None:
            raise _WriterLockTaken("its session has just ended")
        if holder["pid"] == self._writer_pid:
            # Our own session before this one: given up here, and not yet noticed by the server.
            await connection.execute(statements.END_SESSION, self._writer_pid)
        raise _WriterLockTaken(f"session {holder['pid']} from {holder['client_addr'] or 'this machine'}")

    async def _snapshot(self, connection: Connection) -> Snapshot:
        counters = {row["name"]: row["value"] for row in await connection.fetch(statements.COUNTERS)}
        clients = [
            Client(row["id"], row["name"], ClientMode(row["mode"]))
            for row in await connection.fetch(statements.CLIENTS)
        ]
        queues = {row["id"]: QueueSummary(_queue(row)) for row in await connection.fetch(statements.QUEUES)}
        definitions = [
            Definition(from_text(row["kind"]), from_text(row["key"]), from_json(row["value"]))
            for row in await connection.fetch(statements.DEFINITIONS)
        ]
        orphaned: set[int] = set()
        for queue_id, receiver, sender, count, last_id in await connection.fetch(statements.SUMMARY):
            summary = queues.get(queue_id)
            if summary is None:
                orphaned.add(queue_id)
                continue
            summary.message_count += count
            summary.last_message_id = max(summary.last_message_id, last_id)
            if receiver is not None:
                summary.addressed[receiver] = summary.addressed.get(receiver, 0) + count
            if sender is not None:
                summary.sent[sender] = summary.sent.get(sender, 0) + count
        self._orphaned_queue_ids = sorted(orphaned)
        return Snapshot(clients, list(queues.values()), counters["client"], counters["queue"], definitions)


class _WriterLockTaken(StoreUnavailable):
    """Another session may still write."""


async def _commit_in_one_statement(
    connection: Connection, appended: Sequence[Message], removed: Sequence[int]
) -> None:
    """Append and remove without a transaction of our own: one round trip."""
    if not appended:
        if removed:
            await connection.execute(statements.REMOVE, removed)
        return
    if not removed:
        await connection.execute(statements.APPEND, *_arrays(appended))
        return
    gone = frozenset(removed)
    # Appended and removed at once: for the statement neither half sees the other.
    left = [message for message in appended if message.id not in gone]
    await connection.execute(statements.APPEND_AND_REMOVE, *_arrays(left), removed)


async def _copy(connection: Connection, appended: Sequence[Message]) -> None:
    try:
        await connection.copy_records_to_table("messages", records=map(_record, appended), columns=statements.COLUMNS)
    except (OverflowError, TypeError, ValueError) as error:
        # Unlike a statement's arguments, records fail with whatever their encoder raises.
        raise StoreError(f"a message cannot be stored: {error}") from error


async def _apply(connection: Connection, changes: Sequence[Change]) -> None:
    """Bring about what the changes leave behind, in a few statements however many they are.

    Changes of different things do not touch each other, so that for each thing only the last one counts.
    """
    queues: dict[int, Queue | None] = {}
    clients: dict[int, Client | None] = {}
    definitions: dict[tuple[str, str], Definition | None] = {}
    last_queue_id = last_client_id = 0
    for change in changes:
        match change:
            case QueueCreated(queue):
                queues[queue.id] = queue
                last_queue_id = max(last_queue_id, queue.id)
            case QueueDeleted(queue_id):
                queues[queue_id] = None
            case ClientCreated(client):
                clients[client.id] = client
                last_client_id = max(last_client_id, client.id)
            case ClientDeleted(client_id):
                clients[client_id] = None
            case DefinitionPut(definition):
                definitions[definition.kind, definition.key] = definition
            case DefinitionDeleted(kind, key):
                definitions[kind, key] = None
    if queues:
        await _apply_to_queues(connection, queues)
    if clients:
        await _apply_to_clients(connection, clients)
    if definitions:
        await _apply_to_definitions(connection, definitions)
    for counter, last_id in (("queue", last_queue_id), ("client", last_client_id)):
        if last_id:
            await connection.execute(statements.PASS_NUMBER, counter, last_id)


async def _apply_to_queues(connection: Connection, queues: Mapping[int, Queue | None]) -> None:
    deleted = [queue_id for queue_id, queue in queues.items() if queue is None]
    created = [queue for queue in queues.values() if queue is not None]
    if deleted:
        await connection.execute(statements.DELETE_QUEUES, deleted)
    if created:
        await connection.execute(
            statements.CREATE_QUEUES,
            [queue.id for queue in created],
            [to_text(queue.vhost) for queue in created],
            [to_text(queue.name) for queue in created],
            [queue.auto_delete for queue in created],
            [_storable(queue.arguments) for queue in created],
        )


async def _apply_to_clients(connection: Connection, clients: Mapping[int, Client | None]) -> None:
    deleted = [client_id for client_id, client in clients.items() if client is None]
    created = [client for client in clients.values() if client is not None]
    if deleted:
        await connection.execute(statements.DELETE_CLIENTS, deleted)
    if created:
        await connection.execute(
            statements.CREATE_CLIENTS,
            [client.id for client in created],
            [client.name for client in created],
            [int(client.mode) for client in created],
        )


async def _apply_to_definitions(
    connection: Connection, definitions: Mapping[tuple[str, str], Definition | None]
) -> None:
    deleted = [place for place, definition in definitions.items() if definition is None]
    put = [definition for definition in definitions.values() if definition is not None]
    if deleted:
        await connection.execute(
            statements.DELETE_DEFINITIONS,
            [to_text(kind) for kind, _ in deleted],
            [_digest(to_text(key)) for _, key in deleted],
        )
    if put:
        keys = [to_text(definition.key) for definition in put]
        await connection.execute(
            statements.PUT_DEFINITIONS,
            [to_text(definition.kind) for definition in put],
            [_digest(key) for key in keys],
            keys,
            [_storable(definition.value) for definition in put],
        )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _storable(arguments: Arguments) -> str:
    try:
        return to_json(arguments)
    except (RecursionError, TypeError, ValueError) as error:
        raise StoreError(f"an argument cannot be stored: {error}") from error


def _without_deleted_queues(batch: Batch) -> Sequence[Message]:
    """The messages to append: a queue that the batch deletes takes its messages along."""
    deleted = {change.queue_id for change in batch.changes if isinstance(change, QueueDeleted)}
    if not deleted:
        return batch.appended
    return [message for message in batch.appended if message.queue_id not in deleted]


def _size_bytes(messages: Sequence[Message]) -> int:
    return sum([len(message.body) + len(message.properties) + len(message.origin) for message in messages])


def _pieces(appended: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Cut into pieces that each fit one statement."""
    piece: list[Message] = []
    size_bytes = 0
    for message in appended:
        piece.append(message)
        size_bytes += len(message.body) + len(message.properties) + len(message.origin)
        if size_bytes >= MAX_ARRAY_BYTES or len(piece) >= DELETE_CHUNK_ROWS:
            yield piece
            piece, size_bytes = [], 0
    if piece:
        yield piece


def _arrays(messages: Sequence[Message]) -> tuple[list[object], ...]:
    """The messages column by column, in the order of statements.COLUMNS."""
    return (
        [message.id for message in messages],
        [message.queue_id for message in messages],
        [message.sender for message in messages],
        [message.receiver for message in messages],
        [message.context for message in messages],
        [message.priority for message in messages],
        [message.arrived_us for message in messages],
        [message.expires_us for message in messages],
        [message.properties for message in messages],
        [message.persistent for message in messages],
        [message.origin for message in messages],
        [message.body for message in messages],
    )


def _record(message: Message) -> tuple[object, ...]:
    return (
        message.id,
        message.queue_id,
        message.sender,
        message.receiver,
        message.context,
        message.priority,
        message.arrived_us,
        message.expires_us,
        message.properties,
        message.persistent,
        message.origin,
        message.body,
    )


def _message(row: asyncpg.Record) -> Message:
    (
        number,
        queue_id,
        sender,
        receiver,
        context,
        priority,
        arrived_us,
        expires_us,
        properties,
        persistent,
        origin,
        body,
    ) = row
    return Message(
        id=number,
        queue_id=queue_id,
        body=body,
        sender=sender,
        receiver=receiver,
        context=context,
        priority=priority,
        arrived_us=arrived_us,
        expires_us=expires_us,
        properties=properties,
        persistent=persistent,
        origin=origin,
        stored=True,
    )


def _queue(row: asyncpg.Record) -> Queue:
    return Queue(
        row["id"],
        from_text(row["name"]),
        vhost=from_text(row["vhost"]),
        auto_delete=row["auto_delete"],
        arguments=from_json(row["arguments"]),
    )
