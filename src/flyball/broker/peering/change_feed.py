"""Applies the changes of other nodes of the domain, in the order of the shared log of changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from flyball.broker.core.authority import Authority
from flyball.broker.core.broker import Broker
from flyball.broker.core.definitions import Definitions
from flyball.broker.core.topology import Topology
from flyball.broker.peering.local_changes import LocalChanges
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
from flyball.broker.store.pending_batch import OperationsRefused
from flyball.broker.store.registry import Registry, VersionedChange

log = logging.getLogger(__name__)

# Changes that a node applies as soon as it makes them. Deletions by a leader, of queues of dead nodes, are not.
_OWN = (QueueCreated, ClientCreated, ClientDeleted, DefinitionPut, DefinitionDeleted)


class ChangeFeed:
    """Applies the changes of other nodes to this one, and claims names in the domain."""

    def __init__(
        self, broker: Broker, authority: Authority, topology: Topology, definitions: Definitions, version: int
    ) -> None:
        """`version` is the last change that was already applied."""
        self._broker = broker
        self._registry: Registry = broker.store.registry
        self._authority = authority
        self._topology = topology
        self._definitions = definitions
        # The last change that this node has applied.
        self.version = version
        self._following = asyncio.Lock()
        self._rounds_begun = 0
        # Number of the last complete round.
        self._last_round = 0
        self._local_changes = LocalChanges()
        self._broker.journal.changed.subscribe(self._changed_here)

    async def may_create(self, vhost: str, name: str) -> bool:
        """Claim the name of a new queue; False if another node owns it. Raises StoreError."""
        await self.catch_up()
        if self._topology.directory.find(vhost, name) is not None:
            return False
        return await self.claim(vhost, name) == self._registry.node_id

    async def claim(self, vhost: str, name: str) -> int:
        """Claim the name of a new queue; return the id of the node that owns it, possibly another one."""
        if not self._broker.is_clustered:
            return self._registry.node_id
        # A deletion of a queue with this name may be pending, and would release the name.
        await self.flush()
        return await self._registry.claim(vhost, name)

    async def catch_up(self) -> None:
        """Apply all changes that other nodes made before this call. Raises StoreError."""
        if not self._broker.is_clustered:
            return
        came_after = self._rounds_begun
        async with self._following:
            if self._last_round > came_after:
                # A round that started after this call has finished: it covers this call as well.
                return
            self._rounds_begun += 1
            settled = self._local_changes.count if self._broker.journal.pending_count == 0 else None
            while True:
                news = await self._registry.changes(self.version)
                if not news:
                    break
                moved: list[int] = []
                for item in news:
                    if isinstance(item.change, QueueMoved):
                        moved.append(self._move(item.change))
                    elif self._is_news(item):
                        self._apply_safely(item)
                await self._adopt([queue_id for queue_id in moved if queue_id])
                self.version = news[-1].version
            if settled == self._local_changes.count:
                self._local_changes.clear()
            await self._broker.take_arrivals()
            self._last_round = self._rounds_begun

    async def flush(self) -> None:
        """Wait until this node's changes are durable, or the store has refused them."""
        with contextlib.suppress(OperationsRefused):
            await self._broker.journal.flush()

    def _changed_here(self, change: Change) -> None:
        # A single node does not announce its changes, so they do not return in the log.
        if self._broker.is_clustered:
            self._local_changes.add(change)

    def _is_news(self, item: VersionedChange) -> bool:
        """Return whether to apply a change: one of another node, or one of this node that another's has undone."""
        if item.node_id != self._registry.node_id:
            self._local_changes.others_changed()
            return True
        return self._local_changes.meet(item.change) or not isinstance(item.change, _OWN)

    def _move(self, change: QueueMoved) -> int:
        """Record the new owner of a queue; return the queue's id if this node must adopt it, else 0."""
        if change.owner == self._registry.node_id:
            return 0 if self._broker.engine.has_queue(change.queue.id) else change.queue.id
        self._topology.directory.put(change.queue, change.owner)
        return 0

    async def _adopt(self, queue_ids: Sequence[int]) -> None:
        if queue_ids:
            log.info("taking over queues of another node queues=%d", len(queue_ids))
            for state in await self._topology.lifecycle.adopt(queue_ids):
                self._topology.directory.remove(state.queue.id)

    def _apply_safely(self, item: VersionedChange) -> None:
        """Apply a change; one that fails is skipped, so that later ones are applied."""
        try:
            self._apply(item.change, item.node_id)
        except Exception as error:
            self._broker.faults.note("change of another node", error)

    def _apply(self, change: Change, node_id: int) -> None:
        match change:
            case ClientCreated(client):
                self._broker.engine.admit_client(client)
            case ClientDeleted(client_id):
                if self._broker.engine.has_client(client_id):
                    self._broker.engine.delete_client(client_id)
            case DefinitionPut() | DefinitionDeleted():
                kind = change.definition.kind if isinstance(change, DefinitionPut) else change.kind
                if self._authority.knows(kind):
                    self._authority.apply(change)
                elif self._topology.knows(kind):
                    self._topology.apply(change, node_id)
                elif self._definitions.knows(kind):
                    self._definitions.apply(change)
            case QueueMoved():
                raise AssertionError("moves are followed together")
            case QueueCreated() | QueueDeleted():
                self._topology.apply(change, node_id)
