"""Domains of several nodes for tests: the same on PostgreSQL and in memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from flyball.broker.store.changes import QueueCreated
from flyball.broker.store.interface import Batch
from flyball.broker.store.memory import MemoryDomain, MemoryStore
from flyball.broker.store.postgres.store import PostgresStore
from flyball.broker.store.registry import NodeRecord, NodeState, VersionedChange
from flyball.errors import StoreUnavailable
from flyball.model import Message, Queue, Snapshot

# A lease that outlasts every test.
LONG_S = 600.0

Node = PostgresStore | MemoryStore


class SharedDomain:
    """Nodes that share a database, or what stands for one."""

    def __init__(self, new_store: Callable[[str], Node]) -> None:
        self._new_store = new_store
        self._nodes: list[Node] = []

    def store(self, name: str) -> Node:
        """Return a store that is not open."""
        store = self._new_store(name)
        self._nodes.append(store)
        return store

    async def node(self, name: str, *others: Node) -> Node:
        """Return a node that is up. The others make room for it."""
        node = self.store(name)
        await opened(node, *others)
        await up(node)
        return node

    async def close(self) -> None:
        for node in self._nodes:
            await node.close()


def shared_memory() -> SharedDomain:
    domain = MemoryDomain()
    return SharedDomain(lambda name: MemoryStore(domain=domain, node=name))


def shared_postgres(dsn: str, schema: str) -> SharedDomain:
    return SharedDomain(lambda name: PostgresStore(dsn, schema=schema, node=name))


async def opened(node: Node, *others: Node) -> Snapshot:
    """Open a store while the others let its node in."""
    opening = asyncio.ensure_future(node.open())
    while not opening.done():
        for other in others:
            await up(other)
        await asyncio.sleep(0)
    return opening.result()


async def up(node: Node, lease_s: float = LONG_S, state: NodeState = NodeState.UP) -> list[NodeRecord]:
    """Renew the lease of a node that knows everything."""
    registry = node.registry
    await asyncio.sleep(0)  # nothing in memory ever waits, and others want their turn
    nodes = await registry.nodes()
    registry.is_clustered = len(nodes) > 1
    latest = max(record.generation for record in nodes)
    return await registry.renew(
        lease_s, addresses={}, report={}, known_generation=latest, seen_version=0, state=state
    )


async def lapse(node: Node) -> None:
    """Let the lease of a node run out."""
    await up(node, 0.0)


def crash(node: Node) -> None:
    """As if the process of a node had been killed."""
    if isinstance(node, MemoryStore):
        node.kill()
        return
    for session in (node._writer, node._reader, node._worker, node.registry._session, node.registry._worker):
        session.abandon()


async def die(node: Node, leader: Node) -> int:
    """Crash a node and let another one declare it dead; return its id."""
    await lapse(node)
    crash(node)
    assert await leader.registry.declare_dead(node.registry.node_id, node.registry.epoch)
    return node.registry.node_id


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110, what is waited for comes from another process
            await asyncio.sleep(0.005)


async def retried(node: Node, batch: Batch) -> None:
    """Commit as the writer does: again while the outcome is not known."""
    async with asyncio.timeout(60):
        for attempt in itertools.count():
            try:
                await node.commit(batch, again=attempt > 0)
            except StoreUnavailable:
                await asyncio.sleep(0.005)
            else:
                return


async def with_queue(node: Node, queue_id: int, message_ids: range = range(0), **declared: bool) -> None:
    queue = Queue(queue_id, f"queue {queue_id}", **declared)  # type: ignore[arg-type]
    await node.commit(Batch([QueueCreated(queue)], [Message(number, queue_id, b"body") for number in message_ids]))


async def ids_in(node: Node, queue_id: int) -> list[int]:
    return [message.id for message in await node.page(queue_id, 0, 100_000)]


async def told(node: Node, after_version: int = 0) -> list[object]:
    return [told.change for told in await all_changes(node, after_version)]


async def all_changes(node: Node, after_version: int = 0) -> list[VersionedChange]:
    return await node.registry.changes(after_version)
