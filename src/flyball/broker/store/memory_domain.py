"""A domain in memory: the state shared by several memory stores of one process, and the registry of each.

For simulations, which set its clock, and for single stores. Its guarantees are those of the registry in PostgreSQL.
Only `join` waits.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
from flyball.broker.store.interface import RECOVERED, Transfer
from flyball.broker.store.registry import JOINING_LEASE_S, NodeRecord, NodeState, VersionedChange, is_known_to_all
from flyball.errors import Fenced, StoreError, StoreInUse, StoreUnavailable
from flyball.events import Event
from flyball.model import Client, Definition, Message, PlacedQueue, Queue

# Interval at which a joining node checks whether a lease has expired.
JOINING_POLL_S = 0.02


@dataclass(slots=True)
class _Node:
    id: int
    name: str
    epoch: int = 0
    state: NodeState = NodeState.DEAD
    generation: int = 0
    lease_until: float = 0.0
    addresses: Mapping[str, str] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    known_generation: int = 0
    seen_version: int = 0


class MemoryDomain:
    """The tables of a domain, in dictionaries. `now` is the clock of leases."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.secret = secrets.token_bytes(32)
        self.clients: dict[int, Client] = {}
        self.queues: dict[int, PlacedQueue] = {}
        self.definitions: dict[tuple[str, str], Definition] = {}
        self.messages: dict[int, Message] = {}
        self.counters = dict.fromkeys(("client", "queue", "message", "node", "generation", "transfer"), 1)
        self.names: dict[tuple[str, str], int] = {}
        # Destination queue and message ids, by number of the transfer.
        self.transfers: dict[int, tuple[int, list[int]]] = {}
        self.version = 0
        self.log: list[VersionedChange] = []
        # The leader and its epoch.
        self.leader: tuple[int, int] | None = None
        self._nodes: dict[int, _Node] = {}
        # The connected nodes, by name.
        self._sessions: dict[str, MemoryRegistry] = {}

    # Nodes

    def enter(self, registry: MemoryRegistry) -> None:
        """Start a new epoch of a node. Raises StoreInUse if a node of the same name is connected."""
        if self._sessions.get(registry.name, registry) is not registry:
            raise StoreInUse(f"another broker uses this database: {registry.name}")
        found = [node for node in self._nodes.values() if node.name == registry.name]
        node = found[0] if found else _Node(self.count("node"), registry.name)
        node.epoch += 1
        node.state = NodeState.JOINING
        node.generation = node.known_generation = self.count("generation")
        node.seen_version = self.version
        node.lease_until = self._now() + JOINING_LEASE_S
        self._nodes[node.id] = node
        self._sessions[registry.name] = registry
        registry.node_id, registry.epoch, registry.generation = node.id, node.epoch, node.generation
        self._clean_up_after(node.id)
        self.notify(node.id)

    def end_session(self, name: str) -> None:
        """Disconnect the named node; it loses the leadership."""
        registry = self._sessions.pop(name, None)
        if registry is not None and self.leader == (registry.node_id, registry.epoch):
            self.leader = None

    def records(self) -> list[NodeRecord]:
        now = self._now()
        return [
            NodeRecord(
                node.id,
                node.name,
                node.epoch,
                node.state,
                node.generation,
                node.lease_until - now,
                node.addresses,
                node.report,
                node.known_generation,
                node.seen_version,
            )
            for _, node in sorted(self._nodes.items())
        ]

    def epoch_of(self, node_id: int) -> int:
        node = self._nodes.get(node_id)
        return 0 if node is None else node.epoch

    def is_over(self, node_id: int) -> bool:
        """Whether the node's lease has expired."""
        node = self._nodes.get(node_id)
        return node is None or node.lease_until <= self._now()

    def is_dead(self, node_id: int) -> bool:
        """Whether the node is dead or was removed."""
        node = self._nodes.get(node_id)
        return node is None or node.state is NodeState.DEAD

    def renew(self, node_id: int, lease_s: float, **fields: Any) -> None:
        """Renew a lease and record the node's fields; notify the other nodes of relevant changes."""
        node = self._nodes[node_id]
        node.lease_until = self._now() + lease_s
        is_news = (node.state, node.known_generation) != (fields["state"], fields["known_generation"])
        for name, value in fields.items():
            setattr(node, name, value)
        if is_news:
            self.notify(node_id)

    def declare_dead(self, node_id: int, epoch: int) -> bool:
        node = self._nodes.get(node_id)
        if node is None:
            return False
        if node.state is NodeState.DEAD:
            return node.epoch in (epoch, epoch + 1)
        if node.epoch != epoch or not self.is_over(node_id):
            return False
        self.end_session(node.name)
        node.epoch += 1
        node.state = NodeState.DEAD
        self.notify()
        return True

    def remove_node(self, node_id: int) -> None:
        self._nodes.pop(node_id, None)
        self._drop_unused_names(node_id)
        self.notify()

    def notify(self, of: int | None = None) -> None:
        """Notify all nodes except the one that changed."""
        for registry in self._sessions.values():
            if registry.node_id != of:
                registry.notify()

    # Contents

    def count(self, counter: str, count: int = 1) -> int:
        """Reserve `count` numbers and return the first."""
        first = self.counters[counter]
        self.counters[counter] += count
        return first

    def apply(self, change: Change, node_id: int) -> bool:
        """Apply a node's change. False if it has no effect because the queue belongs to another node."""
        match change:
            case QueueCreated(queue):
                self.queues[queue.id] = PlacedQueue(queue, node_id)
                self.counters["queue"] = max(self.counters["queue"], queue.id + 1)
                if queue.member:
                    self.names[queue.vhost, queue.name] = 0
                else:
                    self.names.setdefault((queue.vhost, queue.name), node_id)
            case QueueDeleted(queue_id):
                self.delete_queue(queue_id)
            case QueueMoved(queue, owner):
                return self.move_queue(queue.id, node_id, owner)
            case ClientCreated(client):
                self.clients[client.id] = client
                self.counters["client"] = max(self.counters["client"], client.id + 1)
            case ClientDeleted(client_id):
                self.clients.pop(client_id, None)
            case DefinitionPut(definition):
                self.definitions[definition.kind, definition.key] = definition
            case DefinitionDeleted(kind, key):
                self.definitions.pop((kind, key), None)
        return True

    def announce(self, changes: Sequence[Change], node_id: int) -> None:
        """Append the changes to the log that all nodes read."""
        for change in changes:
            self.version += 1
            self.log.append(VersionedChange(self.version, node_id, change))
        self.notify(node_id)

    def delete_queue(self, queue_id: int) -> None:
        placed = self.queues.pop(queue_id, None)
        if placed is None:
            return
        place = placed.queue.vhost, placed.queue.name
        if self.names.get(place) == placed.owner or (self.names.get(place) == 0 and not self._has_member(*place)):
            del self.names[place]
        if placed.queue.member:
            self._redirect_transfers(placed.queue)
        self.forget_transfers([queue_id])

    def _redirect_transfers(self, gone: Queue) -> None:
        """Redirect transfers to a deleted member to another member."""
        members = [placed.queue for placed in self.queues.values() if placed.queue.member]
        heirs = [queue.id for queue in members if (queue.vhost, queue.name) == (gone.vhost, gone.name)]
        if not heirs:
            return
        for number, (queue_id, message_ids) in self.transfers.items():
            if queue_id == gone.id:
                # Messages that were moved together with the rest of the member must not arrive twice.
                left = [one for one in message_ids if one in self.messages and self.messages[one].queue_id == gone.id]
                self.transfers[number] = (min(heirs), left)
                for message_id in left:
                    self.messages[message_id] = replace(self.messages[message_id], queue_id=min(heirs))

    def move_queue(self, queue_id: int, node_id: int, owner: int) -> bool:
        """Move a queue from a node to another owner. False if the node does not own it."""
        placed = self.queues.get(queue_id)
        if placed is None or placed.owner != node_id:
            return False
        self.queues[queue_id] = PlacedQueue(placed.queue, owner)
        place = placed.queue.vhost, placed.queue.name
        if self.names.get(place) != 0:
            self.names[place] = owner
        return True

    def transfer(self, transfer: Transfer) -> bool:
        """Move the messages that are in the source. False if the destination does not exist."""
        if transfer.destination not in self.queues:
            return False
        moved: list[int] = []
        for message_id in sorted(transfer.message_ids):
            message = self.messages.get(message_id)
            if message is not None and message.queue_id == transfer.source:
                # A copy: the node that handed it over may still use its object.
                self.messages[message_id] = replace(
                    message,
                    queue_id=transfer.destination,
                    stored=True,
                    receipt=None,
                    delivery_count=max(transfer.delivery_counts.get(message_id, 0), 0),
                    recovered=transfer.delivery_counts.get(message_id) == RECOVERED,
                )
                moved.append(message_id)
        if moved:
            self.transfers[self.count("transfer")] = (transfer.destination, moved)
            self.notify()
        return True

    def forget_transfers(self, queue_ids: Sequence[int]) -> None:
        gone = frozenset(queue_ids)
        self.transfers = {number: entry for number, entry in self.transfers.items() if entry[0] not in gone}

    def queues_of(self, node_id: int) -> list[Queue]:
        return [placed.queue for placed in self.queues.values() if placed.owner == node_id]

    def take_over(self, leader_id: int, node_id: int, assignments: Mapping[int, int]) -> None:
        changes: list[Change] = []
        holding = {message.queue_id for message in self.messages.values() if message.persistent}
        for queue in self.queues_of(node_id):
            if queue.id in assignments:
                changes.append(QueueMoved(queue, assignments[queue.id]))
            elif not queue.durable or queue.exclusive or (queue.member and queue.id not in holding):
                changes.append(QueueDeleted(queue.id))
        for change in changes:
            self.apply(change, node_id)
        self._drop_unused_names(node_id)
        self.announce(changes, leader_id)

    def _clean_up_after(self, node_id: int) -> None:
        """Take over queues without an owner, and delete transient queues and unused names of earlier epochs."""
        for placed in list(self.queues.values()):
            if placed.owner == 0:
                self.queues[placed.queue.id] = PlacedQueue(placed.queue, node_id)
        gone = [QueueDeleted(queue.id) for queue in self.queues_of(node_id) if not queue.durable or queue.exclusive]
        for change in gone:
            self.apply(change, node_id)
        self._drop_unused_names(node_id)
        if gone:
            self.announce(gone, node_id)

    def _drop_unused_names(self, node_id: int) -> None:
        used = {(queue.vhost, queue.name) for queue in self.queues_of(node_id)}
        self.names = {place: owner for place, owner in self.names.items() if owner != node_id or place in used}

    def _has_member(self, vhost: str, name: str) -> bool:
        return any(
            placed.queue.member and (placed.queue.vhost, placed.queue.name) == (vhost, name)
            for placed in self.queues.values()
        )


class MemoryRegistry:
    """A Registry of a domain in memory. Operations are allowed before its store is opened."""

    def __init__(self, domain: MemoryDomain, name: str, *, is_shared: bool) -> None:
        self.domain = domain
        self.name = name
        self.is_shared = is_shared
        self.node_id = 0
        self.epoch = 0
        self.generation = 0
        self.is_clustered = False
        self.secret = domain.secret
        self.news: Event[[]] = Event()
        self.cut_off = False
        self._is_killed = False
        self._has_news = asyncio.Event()

    async def join(self) -> None:
        """Enter the domain and wait until all of its nodes know this one."""
        self._is_killed = False
        self.epoch = 0
        self.check()
        self.domain.enter(self)
        while not is_known_to_all(self.domain.records(), self.node_id):
            try:
                async with asyncio.timeout(JOINING_POLL_S):
                    await self._has_news.wait()
            except TimeoutError:
                pass
            self._has_news.clear()
            self.check()
            node = self._own_record()
            self.domain.renew(self.node_id, JOINING_LEASE_S, state=node.state, known_generation=node.known_generation)
        self.is_clustered = any(not node.is_gone for node in self.domain.records() if node.id != self.node_id)

    def let_go(self) -> None:
        """End the session: another node may take the name and the leadership."""
        if self.epoch and self.domain.epoch_of(self.node_id) == self.epoch:
            self.domain.end_session(self.name)

    def kill(self) -> None:
        """Simulate that the process is killed: no node is notified."""
        self.let_go()
        self._is_killed = True

    def check(self) -> None:
        """Raise StoreUnavailable if the store is cut off, and Fenced if the epoch has ended."""
        if self.cut_off or self._is_killed:
            raise StoreUnavailable("the store cannot be reached")
        if self.epoch and self.domain.epoch_of(self.node_id) != self.epoch:
            raise Fenced(f"node {self.name} is fenced: its lease expired and another epoch has begun")

    def notify(self) -> None:
        """Fire `news` in a later turn of the event loop, after the caller has completed its operation."""
        self._has_news.set()
        if not self.cut_off:
            asyncio.get_running_loop().call_soon(self._announce)

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
        self.check()
        self.domain.renew(
            self.node_id,
            lease_s,
            addresses=addresses,
            report=report,
            known_generation=known_generation,
            seen_version=seen_version,
            state=state,
        )
        return self.domain.records()

    async def nodes(self) -> list[NodeRecord]:
        self.check()
        return self.domain.records()

    async def leave(self) -> None:
        self.check()
        self.domain.renew(
            self.node_id, 0.0, state=NodeState.LEAVING, known_generation=self._own_record().known_generation
        )

    async def changes(self, after_version: int, limit: int = 10_000) -> list[VersionedChange]:
        self.check()
        return [entry for entry in self.domain.log if entry.version > after_version][:limit]

    async def claim(self, vhost: str, name: str, *, clustered: bool = False) -> int:
        self.check()
        return self.domain.names.setdefault((vhost, name), 0 if clustered else self.node_id)

    async def claim_all(self, names: Sequence[tuple[str, str]]) -> None:
        self.check()
        for place in names:
            self.domain.names.setdefault(place, self.node_id)

    async def lead(self) -> bool:
        self.check()
        domain, me = self.domain, (self.node_id, self.epoch)
        if domain.leader is not None and domain.leader != me:
            node_id, epoch = domain.leader
            if domain.epoch_of(node_id) == epoch and not domain.is_over(node_id):
                return False
        domain.leader = me
        return True

    async def declare_dead(self, node_id: int, epoch: int) -> bool:
        self.check()
        return self.domain.declare_dead(node_id, epoch)

    async def take_over(self, node_id: int, assignments: Mapping[int, int]) -> None:
        self.check()
        self._must_be_dead(node_id)
        self.domain.take_over(self.node_id, node_id, assignments)

    async def merge_member(self, source: int, destination: int) -> int:
        self.check()
        placed = self.domain.queues.get(source)
        if placed is None:
            return 0
        self._must_be_dead(placed.owner)
        messages = self.domain.messages.values()
        moving = [message.id for message in messages if message.queue_id == source and message.persistent]
        if not self.domain.transfer(Transfer(moving, source, destination)):
            raise StoreError(f"cannot merge queue {source} into queue {destination}: it does not exist")
        return len(moving)

    async def remove_node(self, node_id: int) -> None:
        self.check()
        if self.domain.queues_of(node_id):
            raise StoreError(f"node {node_id} still serves queues")
        if any(node.id == node_id and not node.is_gone for node in self.domain.records()):
            raise StoreError(f"node {node_id} has not left and is not dead: stop it first")
        self.domain.remove_node(node_id)

    async def trim_changes(self, up_to_version: int) -> None:
        self.check()
        following = [node.seen_version for node in self.domain.records() if not node.is_gone]
        seen = min([up_to_version, *following])
        self.domain.log = [entry for entry in self.domain.log if entry.version > seen]

    def _announce(self) -> None:
        if not self._is_killed:
            self.news()

    def _own_record(self) -> NodeRecord:
        return next(node for node in self.domain.records() if node.id == self.node_id)

    def _must_be_dead(self, node_id: int) -> None:
        if not self.domain.is_dead(node_id):
            raise StoreError(f"node {node_id} is not dead")
