"""Applies changes of queues, clients and definitions to the tables, and announces them to the other nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from typing import Any

import asyncpg

from flyball.broker.store.changes import (
    Change,
    ClientCreated,
    ClientDeleted,
    DefinitionDeleted,
    DefinitionPut,
    QueueCreated,
    QueueDeleted,
    QueueMoved,
)
from flyball.broker.store.postgres import registry_statements, statements
from flyball.broker.store.postgres.session import Connection
from flyball.broker.store.postgres.values import from_json, from_text, is_plain, to_json, to_text
from flyball.errors import InvalidArgument, StoreError, StoreMismatch
from flyball.model import Arguments, Client, ClientMode, Definition, PlacedQueue, Queue

CHANGES_LOCK_CLASS = 0x666C7903

# Maximum size of a change in JSON. PostgreSQL's limit is 256 MB, but every node reads it at startup and keeps it in
# memory.
MAX_CHANGE_BYTES = 16 * 1024 * 1024

# Maximum stored size of a queue's virtual host and name: an index entry has at most 2704 bytes.
MAX_PLACE_BYTES = 2600


def check(change: Change) -> None:
    """Raise InvalidArgument if the change cannot be stored or announced to other nodes."""
    try:
        size_bytes = len(_storable(_encoded(change)).encode())
    except StoreError as error:
        raise InvalidArgument(str(error)) from error
    if size_bytes > MAX_CHANGE_BYTES:
        raise InvalidArgument(f"definition of {size_bytes} bytes exceeds the maximum of {MAX_CHANGE_BYTES}")
    if isinstance(change, ClientCreated) and not is_plain(change.client.name):
        raise InvalidArgument(
            f"client name {change.client.name!r} cannot be stored: it contains a null character or a lone surrogate"
        )
    if isinstance(change, QueueCreated):
        place_bytes = len((to_text(change.queue.vhost) + to_text(change.queue.name)).encode())
        if place_bytes > MAX_PLACE_BYTES:
            raise InvalidArgument(
                f"queue name and virtual host have {place_bytes} bytes together, the maximum is {MAX_PLACE_BYTES}"
            )


class _Latest:
    """The last change of each object. Changes of different objects are independent, so earlier ones are dropped."""

    __slots__ = ("clients", "definitions", "last_client_id", "last_queue_id", "moved", "queues", "unmade")

    def __init__(self, changes: Sequence[Change], node_id: int) -> None:
        self.queues: dict[int, PlacedQueue | None] = {}
        # Created and deleted in this batch: only the names claimed for them remain.
        self.unmade: list[Queue] = []
        self.moved: dict[int, int] = {}
        self.clients: dict[int, Client | None] = {}
        self.definitions: dict[tuple[str, str], Definition | None] = {}
        self.last_queue_id = self.last_client_id = 0
        for change in changes:
            self._add(change, node_id)

    def _add(self, change: Change, node_id: int) -> None:
        match change:
            case QueueCreated(queue):
                self.queues[queue.id] = PlacedQueue(queue, node_id)
                self.last_queue_id = max(self.last_queue_id, queue.id)
            case QueueDeleted(queue_id):
                placed = self.queues.get(queue_id)
                if placed is not None:
                    self.unmade.append(placed.queue)
                self.queues[queue_id] = None
                self.moved.pop(queue_id, None)
            case QueueMoved(queue, owner):
                if self.queues.get(queue.id) is not None:
                    self.queues[queue.id] = PlacedQueue(queue, owner)
                else:
                    self.moved[queue.id] = owner
            case ClientCreated(client):
                self.clients[client.id] = client
                self.last_client_id = max(self.last_client_id, client.id)
            case ClientDeleted(client_id):
                self.clients[client_id] = None
            case DefinitionPut(definition):
                self.definitions[definition.kind, definition.key] = definition
            case DefinitionDeleted(kind, key):
                self.definitions[kind, key] = None


async def apply(
    connection: Connection,
    changes: Sequence[Change],
    node_id: int,
    *,
    is_clustered: bool,
    moved_from: int | None = None,
) -> Sequence[Change]:
    """Apply a node's changes in a constant number of statements.

    Queues move from the node itself, or from `moved_from`. Return the changes, without moves of queues that had moved
    already.
    """
    latest = _Latest(changes, node_id)
    if latest.queues:
        await _apply_to_queues(connection, latest.queues, is_clustered)
    if latest.unmade and is_clustered:
        vhosts, names = zip(*((to_text(queue.vhost), to_text(queue.name)) for queue in latest.unmade), strict=True)
        await connection.execute(statements.GIVE_NAMES_BACK, vhosts, names, node_id)
    if latest.moved:
        vain = await _move(connection, latest.moved, node_id if moved_from is None else moved_from)
        changes = [change for change in changes if not _is_vain(change, vain)]
    if latest.clients:
        await _apply_to_clients(connection, latest.clients)
    if latest.definitions:
        await _apply_to_definitions(connection, latest.definitions)
    for counter, last_id in (("queue", latest.last_queue_id), ("client", latest.last_client_id)):
        if last_id:
            await connection.execute(statements.PASS_NUMBER, counter, last_id)
    return changes


async def _move(connection: Connection, moved: Mapping[int, int], source: int) -> Set[int]:
    """Move queues from a node to their new owners; return those that had moved already."""
    rows = await connection.fetch(statements.MOVE_QUEUES, list(moved), list(moved.values()), source)
    done = {row["id"] for row in rows}
    await connection.execute(statements.NAME_MOVED, list(done))
    return moved.keys() - done


async def lock(connection: Connection, schema: str) -> None:
    """Block all other changes until the end of the transaction; required before `apply`."""
    await connection.execute(registry_statements.CHANGES_LOCK, schema, CHANGES_LOCK_CLASS)


async def announce(connection: Connection, changes: Sequence[Change], node_id: int, channel: str) -> None:
    """Append the changes to the log that all nodes read, and notify the nodes on commit."""
    encoded = [_storable(_encoded(change)) for change in changes]
    await connection.execute(registry_statements.ANNOUNCE_CHANGES, node_id, encoded, channel)


def decoded(stored: str) -> Change:
    """Decode a change that `announce` stored."""
    value = from_json(stored)
    match value["change"]:
        case "QueueCreated":
            return QueueCreated(Queue(**value["queue"]))
        case "QueueDeleted":
            return QueueDeleted(value["queue_id"])
        case "QueueMoved":
            return QueueMoved(Queue(**value["queue"]), value["owner"])
        case "ClientCreated":
            return ClientCreated(Client(value["id"], value["name"], ClientMode(value["mode"])))
        case "ClientDeleted":
            return ClientDeleted(value["client_id"])
        case "DefinitionPut":
            return DefinitionPut(Definition(value["kind"], value["key"], value["value"]))
        case "DefinitionDeleted":
            return DefinitionDeleted(value["kind"], value["key"])
    raise StoreMismatch(f"unknown change {value['change']!r} from a node of a newer version: upgrade this node")


def queue_of(row: asyncpg.Record) -> Queue:
    """Return the queue of a row of `queues`."""
    return Queue(
        row["id"],
        from_text(row["name"]),
        vhost=from_text(row["vhost"]),
        durable=row["durable"],
        exclusive=row["exclusive"],
        auto_delete=row["auto_delete"],
        arguments=from_json(row["arguments"]),
        member=row["member"],
    )


def _is_vain(change: Change, unmoved: Set[int]) -> bool:
    return isinstance(change, QueueMoved) and change.queue.id in unmoved


def _encoded(change: Change) -> dict[str, Any]:
    match change:
        case QueueCreated(queue):
            fields: dict[str, Any] = {"queue": _encoded_queue(queue)}
        case QueueMoved(queue, owner):
            fields = {"queue": _encoded_queue(queue), "owner": owner}
        case ClientCreated(client):
            fields = {"id": client.id, "name": client.name, "mode": int(client.mode)}
        case DefinitionPut(definition):
            fields = {"kind": definition.kind, "key": definition.key, "value": definition.value}
        case QueueDeleted(queue_id):
            fields = {"queue_id": queue_id}
        case ClientDeleted(client_id):
            fields = {"client_id": client_id}
        case DefinitionDeleted(kind, key):
            fields = {"kind": kind, "key": key}
    return {"change": type(change).__name__, **fields}


def _encoded_queue(queue: Queue) -> dict[str, Any]:
    return {
        "id": queue.id,
        "name": queue.name,
        "vhost": queue.vhost,
        "durable": queue.durable,
        "exclusive": queue.exclusive,
        "auto_delete": queue.auto_delete,
        "arguments": queue.arguments,
        "member": queue.member,
    }


async def _apply_to_queues(
    connection: Connection, queues: Mapping[int, PlacedQueue | None], is_clustered: bool
) -> None:
    deleted = [queue_id for queue_id, placed in queues.items() if placed is None]
    placed = [placed for placed in queues.values() if placed is not None]
    created = [one.queue for one in placed]
    if deleted:
        members = await connection.fetch(statements.DELETE_QUEUES, deleted)
        if members:
            await connection.execute(
                statements.REDIRECT_TRANSFERS,
                [row["id"] for row in members],
                [row["vhost"] for row in members],
                [row["name"] for row in members],
            )
            await connection.execute(statements.FORGET_TRANSFERS, deleted)
    if created:
        await connection.execute(
            statements.CREATE_QUEUES,
            [queue.id for queue in created],
            [to_text(queue.vhost) for queue in created],
            [to_text(queue.name) for queue in created],
            [queue.auto_delete for queue in created],
            [_storable(queue.arguments) for queue in created],
            [queue.durable for queue in created],
            [queue.exclusive for queue in created],
            [queue.member for queue in created],
            [one.owner for one in placed],
        )
        if is_clustered:
            await connection.execute(statements.NAME_CREATED, [queue.id for queue in created])


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
