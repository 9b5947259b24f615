"""The registry in PostgreSQL: nodes with leases and epochs, claims of names, changes, and the takeover of dead nodes.

Two sessions: one renews, listens, claims and leads, with short operations only; the other runs long operations.

Fencing. A node that lost its lease must not write, even before it detects the loss. Its own clock cannot ensure this,
so the database does: `declare_dead` increments the node's epoch and then terminates every session of earlier epochs;
a session that is opened later checks the epoch before its first statement and fails with Fenced. When `declare_dead`
returns, every write of the dead node is either committed, and visible to the new owner, or refused
(`test_commit_that_waits_when_its_node_is_declared_dead_is_refused`,
`test_open_transaction_of_a_dead_node_is_ended`,
`test_a_node_is_not_dead_before_its_last_session_has_ended`). Leases are measured by the server's clock only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import asyncpg

from flyball.broker.store.changes import Change, QueueDeleted, QueueMoved
from flyball.broker.store.postgres import changes as domain_changes
from flyball.broker.store.postgres import registry_statements, statements
from flyball.broker.store.postgres.history import History
from flyball.broker.store.postgres.migrations import LOCK_CLASS, must_be_known
from flyball.broker.store.postgres.session import Connection, Outages, PostgresSession
from flyball.broker.store.postgres.values import from_json, from_text, to_json, to_text
from flyball.broker.store.registry import JOINING_LEASE_S, NodeRecord, NodeState, VersionedChange, is_known_to_all
from flyball.errors import Fenced, StoreError, StoreUnavailable
from flyball.events import Event

log = logging.getLogger(__name__)

LEADER_LOCK_CLASS = 0x666C7904

# Interval at which a joining node checks the others, if it is not notified.
JOINING_POLL_S = 0.2

# Interval of lease renewals while a node reads the stored state.
STAYING_S = 5.0

ENDING_POLL_S = 0.01
# Timeout of terminating sessions.
ENDING_LIMIT_S = 10.0

# Greater than any epoch.
EVERY_EPOCH = 2**62

LEADING_TRIES = 3

MERGE_ROWS = 5_000
# Messages moved per transaction (above) and per transfer.
MERGED_TRANSFER_ROWS = 200


class PostgresRegistry:
    """A Registry in the tables of a store; the store opens it."""

    is_shared = True

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        schema: str,
        time_limit_s: float,
        outages: Outages,
        history: History,
    ) -> None:
        self._history = history
        self._schema = schema
        self._session = PostgresSession(
            connect, prepare=self._begin_to_listen, time_limit_s=time_limit_s, outages=outages
        )
        self._worker = PostgresSession(connect, prepare=self.check_epoch, outages=outages)
        self._schema_number = 0
        self._last_announced: tuple[NodeState, int] | None = None
        self._leads = False
        self._is_open = False
        self._has_listened = False
        self._has_news = asyncio.Event()
        self.node_id = 0
        self.epoch = 0
        self.generation = 0
        self.is_clustered = False
        self.secret = b""
        self.news: Event[[]] = Event()

    # Membership

    @property
    def session_name(self) -> str:
        """The application_name of this epoch's sessions, by which other nodes find and terminate them."""
        if not self._is_open:
            return "flyball"
        return f"flyball {self.node_id} {self.epoch} {self._schema_number}"

    @property
    def channel(self) -> str:
        """The channel of notifications."""
        return f"flyball_{self._schema_number}"

    async def check_epoch(self, connection: Connection) -> None:
        """Raise Fenced if the node's epoch has ended, StoreMismatch if the tables are of a newer version.

        Does nothing before the first epoch.
        """
        if not self.epoch:
            return
        row = await connection.fetchrow(registry_statements.EPOCH_AND_VERSION, self.node_id)
        assert row is not None
        must_be_known(row["version"])
        if row["epoch"] != self.epoch:
            raise Fenced(self._fenced_text())

    async def join(self, connection: Connection, name: str) -> None:
        """Start a new epoch of the node. `connection` holds the lock that ensures that its name is unique."""
        stored_name = to_text(name)
        async with connection.transaction():
            await connection.execute(registry_statements.SHARED_MIGRATION_LOCK, LOCK_CLASS, self._schema)
            must_be_known(await connection.fetchval("SELECT version FROM schema_version"))
            generation = await connection.fetchval(registry_statements.NEXT_GENERATION)
            node_id = await connection.fetchval(registry_statements.NODE_ID, stored_name)
            if node_id is None:
                node_id = await connection.fetchval(registry_statements.NEXT_NODE_ID)
            row = await connection.fetchrow(
                registry_statements.JOIN, node_id, stored_name, generation, JOINING_LEASE_S
            )
            assert row is not None
            await connection.execute(registry_statements.RESET_TRANSFER_NUMBER, node_id)
            self._schema_number = await connection.fetchval(registry_statements.SCHEMA_NUMBER, self._schema)
            self.secret = await connection.fetchval(registry_statements.SECRET)
            self.node_id, self.epoch, self.generation = node_id, row["epoch"], generation
            self._is_open = True
            self._last_announced = None
            await connection.execute(registry_statements.NAME_SESSION, self.session_name)
            await connection.execute(registry_statements.NOTIFY, self.channel, str(node_id))
        await self._end_sessions(node_id, before_epoch=self.epoch)

    async def clean_up(self, connection: Connection) -> None:
        """Take over queues without an owner, and delete transient queues and unused names of earlier epochs."""
        async with connection.transaction():
            await domain_changes.lock(connection, self._schema)
            await connection.execute(statements.OWN_UNOWNED, self.node_id)
            rows = await connection.fetch(registry_statements.TRANSIENT_QUEUES, self.node_id)
            gone: list[Change] = [QueueDeleted(row["id"]) for row in rows]
            if gone:
                await domain_changes.apply(connection, gone, self.node_id, is_clustered=True)
                await domain_changes.announce(connection, gone, self.node_id, self.channel)
            await connection.execute(registry_statements.DROP_UNUSED_NAMES, self.node_id)

    async def become_known(self) -> None:
        """Wait until all live nodes know that this node is joining."""
        waited_for = ""
        while True:
            self._has_news.clear()
            nodes = await self._stay()
            if is_known_to_all(nodes, self.node_id):
                break
            names = ", ".join(node.name for node in nodes if node.is_live and node.known_generation < self.generation)
            if names != waited_for:
                log.info("waiting for other nodes to accept this one nodes=%s", names)
                waited_for = names
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(JOINING_POLL_S):
                    await self._has_news.wait()
        self.is_clustered = any(not node.is_gone for node in nodes if node.id != self.node_id)
        if len(nodes) > 1:
            async with self._session.connection() as connection:
                await connection.execute(registry_statements.CLAIM_EXISTING)

    @contextlib.asynccontextmanager
    async def staying(self) -> AsyncIterator[None]:
        """Renew the lease during a long operation."""

        async def stay() -> None:
            while True:
                await asyncio.sleep(STAYING_S)
                await self._stay()

        task = asyncio.ensure_future(stay())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, StoreError):
                await task

    async def close(self) -> None:
        """Leave, if connected and not done before, and close the sessions. May be called twice."""
        if self._is_open and self._session.is_connected:
            with contextlib.suppress(StoreError):
                await self.leave()
        self._is_open = False
        await self._worker.close()
        await self._session.close()

    async def renew(
        self,
        lease_s: float,
        *,
        addresses: Mapping[str, str],
        report: Mapping[str, Any],
        known_generation: int,
        seen_version: int,
        state: NodeState = NodeState.UP,
    ) -> list[NodeRecord]:
        async with self._session.connection() as connection:
            status = await connection.execute(
                registry_statements.RENEW,
                self.node_id,
                self.epoch,
                lease_s,
                state.value,
                known_generation,
                seen_version,
                to_json(addresses),
                to_json(report),
            )
            self._must_be_updated(status)
            if self._last_announced != (state, known_generation):
                await connection.execute(registry_statements.NOTIFY, self.channel, str(self.node_id))
                self._last_announced = (state, known_generation)
            await self._history.note(connection)
            return await _nodes(connection)

    async def nodes(self) -> list[NodeRecord]:
        async with self._session.connection() as connection:
            return await _nodes(connection)

    async def leave(self) -> None:
        async with self._session.connection() as connection:
            self._must_be_updated(await connection.execute(registry_statements.LEAVE, self.node_id, self.epoch))
            await connection.execute(registry_statements.NOTIFY, self.channel, str(self.node_id))

    # Changes and claims

    async def changes(self, after_version: int, limit: int = 10_000) -> list[VersionedChange]:
        async with self._session.connection() as connection:
            rows = await connection.fetch(registry_statements.CHANGES, after_version, limit)
        return [VersionedChange(row["version"], row["node"], domain_changes.decoded(row["change"])) for row in rows]

    async def claim(self, vhost: str, name: str, *, clustered: bool = False) -> int:
        owner = 0 if clustered else self.node_id
        async with self._session.connection() as connection:
            found: int = await connection.fetchval(registry_statements.CLAIM, to_text(vhost), to_text(name), owner)
        return found

    async def claim_all(self, names: Sequence[tuple[str, str]]) -> None:
        vhosts = [to_text(vhost) for vhost, _ in names]
        async with self._session.connection() as connection:
            await connection.execute(
                registry_statements.CLAIM_ALL, vhosts, [to_text(name) for _, name in names], self.node_id
            )

    # The leader

    async def lead(self) -> bool:
        for _ in range(LEADING_TRIES):
            async with self._session.connection() as connection:
                if self._leads:
                    # The lock is bound to the session: check that the session is alive.
                    await connection.execute("SELECT 1")
                    return True
                if await connection.fetchval(registry_statements.TRY_LOCK, self._schema, LEADER_LOCK_CLASS):
                    self._leads = True
                    return True
                holder = await connection.fetchrow(registry_statements.LOCK_HOLDER, self._schema, LEADER_LOCK_CLASS)
            if holder is not None and not await self._end_holder(holder):
                return False
        return False

    async def declare_dead(self, node_id: int, epoch: int) -> bool:
        async with self._worker.connection() as connection:
            dead_epoch = await connection.fetchval(registry_statements.DECLARE_DEAD, node_id, epoch)
            if dead_epoch is None:
                dead_epoch = await connection.fetchval(registry_statements.DEAD_EPOCH, node_id)
                if dead_epoch not in (epoch, epoch + 1):
                    return False
        await self._end_sessions(node_id, before_epoch=dead_epoch)
        async with self._worker.connection() as connection:
            await connection.execute(registry_statements.NOTIFY, self.channel, str(self.node_id))
        return True

    async def take_over(self, node_id: int, assignments: Mapping[int, int]) -> None:
        await self._end_sessions_of_the_dead(node_id)
        async with self._worker.connection() as connection, connection.transaction():
            await domain_changes.lock(connection, self._schema)
            await _must_be_dead(connection, node_id)
            rows = await connection.fetch(statements.ADOPTED_QUEUES, node_id, list(assignments))
            gone = await connection.fetch(registry_statements.PASSING_QUEUES, node_id, list(assignments))
            changes: list[Change] = [
                *(QueueMoved(domain_changes.queue_of(row), assignments[row["id"]]) for row in rows),
                *(QueueDeleted(row["id"]) for row in gone),
            ]
            await domain_changes.apply(connection, changes, self.node_id, is_clustered=True, moved_from=node_id)
            await connection.execute(registry_statements.DROP_UNUSED_NAMES, node_id)
            await domain_changes.announce(connection, changes, self.node_id, self.channel)

    async def merge_member(self, source: int, destination: int) -> int:
        total = 0
        async with self._worker.connection() as connection:
            node_id = await connection.fetchval(registry_statements.OWNER, source)
        if node_id is None:
            return 0
        await self._end_sessions_of_the_dead(node_id)
        while True:
            async with self._worker.connection() as connection, connection.transaction():
                await _must_be_dead(connection, node_id)
                if await connection.fetchval(registry_statements.LOCK_QUEUE, destination) is None:
                    raise StoreError(f"cannot merge queue {source} into queue {destination}: it does not exist")
                if await connection.fetchval(registry_statements.OWNER, source) != node_id:
                    return total
                moved: int = await connection.fetchval(
                    registry_statements.MERGE_PIECE, source, destination, MERGE_ROWS, MERGED_TRANSFER_ROWS
                )
                await connection.execute(registry_statements.NOTIFY, self.channel, "")
            total += moved
            if moved < MERGE_ROWS:
                return total

    async def remove_node(self, node_id: int) -> None:
        async with self._worker.connection() as connection, connection.transaction():
            # No node may move a queue to it before it is removed.
            await domain_changes.lock(connection, self._schema)
            is_gone = await connection.fetchval(registry_statements.IS_GONE, node_id)
            if is_gone is None:
                return
            if not is_gone:
                raise StoreError(f"node {node_id} has not left and is not dead: stop it first")
            if await connection.fetchval(registry_statements.SERVES_ANY, node_id):
                raise StoreError(f"node {node_id} still serves queues")
            await connection.execute(registry_statements.DROP_UNUSED_NAMES, node_id)
            await connection.execute(registry_statements.FORGET_TRANSFER_NUMBER, node_id)
            await connection.execute(registry_statements.FORGET_NODE, node_id)
            await connection.execute(registry_statements.NOTIFY, self.channel, str(self.node_id))

    async def trim_changes(self, up_to_version: int) -> None:
        async with self._worker.connection() as connection:
            await connection.execute(registry_statements.TRIM_CHANGES, up_to_version)

    async def _stay(self) -> list[NodeRecord]:
        async with self._session.connection() as connection:
            status = await connection.execute(
                registry_statements.EXTEND_LEASE, self.node_id, self.epoch, JOINING_LEASE_S
            )
            self._must_be_updated(status)
            return await _nodes(connection)

    async def _begin_to_listen(self, connection: Connection) -> None:
        self._leads = False
        await self.check_epoch(connection)
        connection.add_termination_listener(self._lost)
        await connection.add_listener(self.channel, self._notified)
        if self._has_listened:
            # Notifications sent while disconnected are lost: check for changes.
            asyncio.get_running_loop().call_soon(self._announce)
        self._has_listened = True

    def _notified(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        if payload != str(self.node_id):
            self._announce()

    def _lost(self, _connection: object) -> None:
        asyncio.get_running_loop().call_soon(self._announce)

    def _announce(self) -> None:
        self._has_news.set()
        if self._is_open:
            self.news()

    async def _end_holder(self, holder: asyncpg.Record) -> bool:
        """Terminate the leader's session if its node's lease has expired; return False if it has not."""
        node_id = _node_id_of(holder["application_name"])
        if node_id == self.node_id:
            # An earlier session of this node, dropped here and not yet noticed by the server.
            async with self._session.connection() as connection:
                await connection.execute(registry_statements.END_SESSION, holder["pid"])
            await asyncio.sleep(ENDING_POLL_S)
            return True
        async with self._session.connection() as connection:
            row = await connection.fetchrow(registry_statements.LEASE_LEFT_S, node_id)
        if row is not None and row[0] > 0:
            return False
        await self._end_sessions(node_id, before_epoch=EVERY_EPOCH if row is None else row["epoch"] + 1)
        return True

    async def _end_sessions_of_the_dead(self, node_id: int) -> None:
        """Repeat the last step of `declare_dead`: the leader may have died before completing it."""
        async with self._worker.connection() as connection:
            row = await connection.fetchrow(registry_statements.DEAD_EPOCH, node_id)
        if row is not None and row["epoch"] is None:
            raise StoreError(f"node {node_id} is not dead")
        await self._end_sessions(node_id, before_epoch=EVERY_EPOCH if row is None else row["epoch"])

    async def _end_sessions(self, node_id: int, before_epoch: int) -> None:
        """Terminate all sessions of the node's epochs before `before_epoch`, and wait until they have ended."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ENDING_LIMIT_S
        while True:
            async with self._worker.connection() as connection:
                left = await connection.fetchval(
                    registry_statements.END_SESSIONS, node_id, before_epoch, self._schema_number
                )
            if not left:
                return
            if loop.time() >= deadline:
                raise StoreUnavailable(f"sessions of node {node_id} did not end within {ENDING_LIMIT_S:g} s")
            await asyncio.sleep(ENDING_POLL_S)

    def _must_be_updated(self, status: str) -> None:
        if status != "UPDATE 1":
            raise Fenced(self._fenced_text())

    def _fenced_text(self) -> str:
        return f"node {self.node_id} is fenced: its lease expired and epoch {self.epoch} has ended"


def _node_id_of(session_name: str) -> int:
    words = session_name.split()
    return int(words[1]) if len(words) == 4 and words[1].isdigit() else 0


async def _must_be_dead(connection: Connection, node_id: int) -> None:
    # A removed node was dead before its removal.
    if await connection.fetchval(registry_statements.STATE_FOR_UPDATE, node_id) not in (NodeState.DEAD, None):
        raise StoreError(f"node {node_id} is not dead")


async def _nodes(connection: Connection) -> list[NodeRecord]:
    return [
        NodeRecord(
            row["id"],
            from_text(row["name"]),
            row["epoch"],
            NodeState(row["state"]),
            row["generation"],
            row["lease_left_s"],
            from_json(row["addresses"]),
            from_json(row["report"]),
            row["known_generation"],
            row["seen_version"],
        )
        for row in await connection.fetch(registry_statements.NODES)
    ]
