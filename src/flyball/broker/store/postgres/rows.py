"""Messages as rows of PostgreSQL: inserted by statements with arrays or by COPY, and read back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import asyncpg

from flyball.broker.store.changes import QueueDeleted
from flyball.broker.store.interface import Batch
from flyball.broker.store.postgres import statements
from flyball.broker.store.postgres.session import Connection
from flyball.errors import StoreError, StoreRewound
from flyball.model import Message

# Maximum size of the bodies in one statement: PostgreSQL refuses parameters of 1 GB.
MAX_ARRAY_BYTES = 16 * 1024 * 1024
MAX_ARRAY_ROWS = 2_000

_IDS_IN_USE = "ids of new messages are already in use in the store: it was restored to an earlier state"


async def commit_in_one_statement(
    connection: Connection, appended: Sequence[Message], removed: Sequence[int]
) -> None:
    """Append and remove in one statement, without an explicit transaction: one round trip."""
    if not appended:
        if removed:
            await connection.execute(statements.REMOVE, removed)
        return
    if not removed:
        await append_rows(connection, statements.APPEND, appended)
        return
    gone = frozenset(removed)
    # Drop messages that are appended and removed at once: in one statement, neither half sees the other.
    left = [message for message in appended if message.id not in gone]
    await append_rows(connection, statements.APPEND_AND_REMOVE, left, removed)


async def append_rows(
    connection: Connection, statement: str, appended: Sequence[Message], *more: Sequence[int]
) -> None:
    """Insert messages that are not stored yet. Raises StoreRewound if an id belongs to another message."""
    arrays = columns_of(appended)
    status = await connection.execute(statement, *arrays, *more)
    missing = len(appended) - int(status.removeprefix("INSERT 0 "))
    # An earlier attempt may have inserted the same messages.
    if missing and await connection.fetchval(statements.COUNT_OTHERS, *arrays):
        raise StoreRewound(_IDS_IN_USE)


async def copy_rows(connection: Connection, appended: Sequence[Message]) -> None:
    try:
        await connection.copy_records_to_table("messages", records=map(_row_of, appended), columns=statements.COLUMNS)
    except asyncpg.UniqueViolationError as error:
        raise StoreRewound(_IDS_IN_USE) from error
    except (OverflowError, TypeError, ValueError) as error:
        # For COPY, asyncpg does not wrap the errors of its encoders as it does for arguments.
        raise StoreError(f"a message cannot be stored: {error}") from error


def without_deleted_queues(batch: Batch) -> Sequence[Message]:
    """Return the messages to append, without those of queues that the batch deletes."""
    deleted = {change.queue_id for change in batch.changes if isinstance(change, QueueDeleted)}
    if not deleted:
        return batch.appended
    return [message for message in batch.appended if message.queue_id not in deleted]


def size_bytes_of(messages: Sequence[Message]) -> int:
    return sum([len(message.body) + len(message.properties) + len(message.origin) for message in messages])


def pieces_of(appended: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Split messages into pieces that fit one statement each."""
    piece: list[Message] = []
    size_bytes = 0
    for message in appended:
        piece.append(message)
        size_bytes += len(message.body) + len(message.properties) + len(message.origin)
        if size_bytes >= MAX_ARRAY_BYTES or len(piece) >= MAX_ARRAY_ROWS:
            yield piece
            piece, size_bytes = [], 0
    if piece:
        yield piece


def columns_of(messages: Sequence[Message]) -> tuple[list[object], ...]:
    """Return the messages by column, in the order of statements.COLUMNS."""
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


def _row_of(message: Message) -> tuple[object, ...]:
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


def message_of(row: asyncpg.Record | Sequence[Any]) -> Message:
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
