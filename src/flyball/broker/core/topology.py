"""The exchanges, bindings and queues of all virtual hosts: declared and changed, and made durable by the journal.

The engine and the routers hold the state. The caller checks permissions; independent of protocols.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any

from flyball.broker.core.authority import Authority
from flyball.broker.core.broker import Broker
from flyball.broker.core.directory import Directory
from flyball.broker.core.pending import Done, PendingChange, PendingMark
from flyball.broker.core.queue_lifecycle import QueueLifecycle
from flyball.broker.engine.limits import MAX_QUEUES
from flyball.broker.engine.policies import effective
from flyball.broker.engine.queue import QueueState
from flyball.broker.engine.routing import RESERVED_PREFIX, Removal, Router
from flyball.broker.engine.routing.router import ALTERNATE
from flyball.broker.engine.traits import MAX_SHORTSTR_BYTES, Traits, check_alike, check_declaration, usable
from flyball.broker.store.changes import Change, DefinitionDeleted, DefinitionPut, QueueCreated, QueueDeleted
from flyball.errors import (
    ConsumerRefused,
    FlyballError,
    InvalidArgument,
    QueueInUse,
    QueueLimitReached,
    QueueLocked,
    QueueNotEmpty,
    QueueNotFound,
    RequestError,
    ReservedName,
    UnlikeDeclared,
)
from flyball.events import Event
from flyball.model import (
    BINDING_BYTES,
    DEFAULT_VHOST,
    EXCHANGE_BYTES,
    QUEUE_BYTES,
    Binding,
    Definition,
    Destination,
    Exchange,
    PlacedQueue,
    Queue,
    size_of,
)

log = logging.getLogger(__name__)

_EXCHANGE, _BINDING = "exchange", "binding"

# Memory per remote queue in the directory.
REMOTE_QUEUE_BYTES = 1024

# Maximum duration of a batch of applying policies in a turn of the event loop: each queue is matched against each
# policy, and thousands of both may exist.
POLICIES_S = 0.02

# Maximum duration of a batch of deleting a closed connection's exclusive queues: it may have declared 100,000.
DELETIONS_S = 0.01

Headers = Callable[[], Mapping[str, Any]]


@dataclass(slots=True)
class QueueUsage:
    """The exclusive owner and consumer of a queue, and the timer that deletes it when it is unused."""

    # The connection that declared it as exclusive.
    owner: object | None = None
    exclusive_consumer: object | None = None
    expiry: asyncio.TimerHandle | None = None


class Topology:
    """The exchanges, bindings and queues of all virtual hosts."""

    def __init__(
        self,
        broker: Broker,
        authority: Authority,
        definitions: Iterable[Definition],
        elsewhere: Iterable[PlacedQueue] = (),
    ) -> None:
        self.broker = broker
        self.engine = broker.engine
        self.authority = authority
        # Advances whenever routing or permissions may change.
        self.version = authority.access.version
        # The remote queues.
        self.directory = Directory(elsewhere, self.version)
        # Fires when an exchange was deleted; the deletion is not durable yet.
        self.exchange_deleted = Event[[Exchange]]()
        self.lifecycle = QueueLifecycle(broker, self)
        self._routers: dict[str, Router] = {}
        self._usage: dict[int, QueueUsage] = {}
        # The exclusive queues of each connection.
        self._owned: dict[object, set[int]] = {}
        # The exclusive queues of closed connections, deleted in batches.
        self._orphaned: dict[int, None] = {}
        self._deleting: asyncio.TimerHandle | None = None
        # Exchanges (by name) and queues (by id) with their virtual hosts to which policies have yet to be applied.
        self._unapplied: dict[tuple[str, str | int], None] = {}
        self._applying: asyncio.TimerHandle | None = None
        # The keys of stored bindings.
        self._kept_bindings: set[str] = set()
        for vhost in authority.access.vhosts:
            self._routers[vhost] = Router(vhost)
        self._load(definitions)
        authority.policies_changed.subscribe(self._apply_policies)
        authority.vhost_deleted.subscribe(self._vhost_deleted)
        for state in self.engine.queues:
            state.traits = self._traits(state.queue)
            self._set_expiry(state)

    async def start(self) -> None:
        """Measure the queues with a size limit in bytes. Raises StoreError."""
        for state in self.engine.queues:
            if state.is_unmeasured:
                await self.broker.retention.measure(state)

    def definitions_bytes(self) -> int:
        """Estimated memory of queues, exchanges, bindings and clients, remote queues included."""
        routers = sum([router.size_bytes for router in self._routers.values()])
        queues_bytes = self.engine.queues_bytes + REMOTE_QUEUE_BYTES * len(self.directory)
        return queues_bytes + routers + self.engine.clients_bytes

    def definitions_bytes_by_vhost(self) -> dict[str, int]:
        """Estimated memory of definitions by virtual host, without remote queues."""
        found = {vhost: router.size_bytes for vhost, router in self._routers.items()}
        for state in self.engine.queues:
            queue = state.queue
            found[queue.vhost] = found.get(queue.vhost, 0) + QUEUE_BYTES + size_of(queue.arguments)
        return found

    @property
    def exchange_count(self) -> int:
        """Number of exchanges, built-in ones included."""
        return sum([len(router) for router in self._routers.values()])

    def router(self, vhost: str) -> Router:
        """Return the router of a virtual host, created on first use. Raises VhostNotFound."""
        router = self._routers.get(vhost)
        if router is None:
            self.authority.access.check_vhost(vhost)
            router = self._routers[vhost] = Router(vhost)
        return router

    # Exchanges and bindings

    def declare_exchange(self, exchange: Exchange, done: Done) -> None:
        """Declare an exchange, or check that the existing one is equal."""
        router = self.router(exchange.vhost)
        if router.find(exchange.name) is None:
            check_alternate(exchange)
            self.broker.ledger.charge_definition(EXCHANGE_BYTES + size_of(exchange.arguments))
        # Transient exchanges as well: they are stored when another node joins.
        change = DefinitionPut(_of_exchange(exchange))
        self.broker.store.check(change)
        if not router.declare(exchange):
            done(None)
            return
        self._apply_policy_to_exchange(router, exchange)
        self.version.advance()
        if not self._keeps(exchange):
            done(None)
            return

        def undo() -> None:
            if router.find(exchange.name) is exchange:
                self._removed(router.delete(exchange.name))

        self.broker.journal.change(change, PendingChange(done, undo))

    def delete_exchange(self, vhost: str, name: str, done: Done, *, if_unused: bool) -> None:
        changes = self._removed(self.router(vhost).delete(name, if_unused=if_unused))
        self.broker.journal.mark(PendingMark(done, changes))

    def bind(self, binding: Binding, done: Done) -> None:
        """Bind an existing queue, or an exchange, to an exchange."""
        router = self.router(binding.vhost)
        if not router.has_binding(binding):
            self.broker.ledger.charge_definition(BINDING_BYTES + size_of(binding.arguments))
        change = DefinitionPut(_of_binding(binding))
        self.broker.store.check(change)
        if not router.bind(binding):
            done(None)
            return
        self.version.advance()
        if not self._keeps_binding(router, binding):
            done(None)
            return

        def undo() -> None:
            self._removed(router.unbind(binding))

        self._kept_bindings.add(change.definition.key)
        self.broker.journal.change(change, PendingChange(done, undo))

    def unbind(self, binding: Binding, done: Done) -> None:
        changes = self._removed(self.router(binding.vhost).unbind(binding))
        self.broker.journal.mark(PendingMark(done, changes))

    # Queues

    def queue(self, vhost: str, name: str, owner: object) -> QueueState:
        """Return a queue that the connection may use. Raises QueueNotFound, QueueLocked."""
        state = self._find_queue(name, vhost)
        if state is None:
            raise QueueNotFound(name, vhost)
        self.check_owner(state, owner)
        return state

    def _find_queue(self, name: str, vhost: str) -> QueueState | None:
        """Return the queue with the name; delete an orphan now, to free its name."""
        state = self.engine.find_queue(name, vhost)
        if state is None or state.queue.id not in self._orphaned:
            return state
        self._delete_orphan(state.queue.id)
        return self.engine.find_queue(name, vhost)

    def check_owner(self, state: QueueState, owner: object) -> None:
        """Raise QueueLocked if a queue is exclusive to another connection."""
        if state.queue.exclusive and self._usage_of(state).owner is not owner:
            raise QueueLocked(state.queue.name, state.queue.vhost)

    def declare_queue(self, declared: Queue, owner: object, done: Callable[[FlyballError | None], None]) -> None:
        """Declare a queue, or check that the existing one is equal. The id of `declared` is ignored."""
        self.broker.meters.queues_declared += 1
        existing = self._find_queue(declared.name, declared.vhost)
        if existing is not None:
            self.check_owner(existing, owner)
            check_same(existing.queue, declared)
            self.touch(existing)
            done(None)
            return
        check_declaration(declared)
        if not declared.member:
            self.check_queue_limit(declared.name, declared.vhost)
        self._create_queue(declared, owner, done)

    def create_queue(self, name: str, done: Done) -> Queue:
        """Create a plain durable queue in the default virtual host, as the research protocols do."""
        if self.engine.find_queue(name) is None:
            self.check_queue_limit(name, DEFAULT_VHOST)
        return self._create_queue(Queue(0, name), None, done)

    def _create_queue(self, declared: Queue, owner: object, done: Done) -> Queue:
        if self.engine.find_queue(declared.name, declared.vhost) is None:
            self.broker.ledger.charge_definition(QUEUE_BYTES + size_of(declared.arguments))
        self.broker.store.check(QueueCreated(declared))
        queue = self.engine.create_queue(
            declared.name,
            declared.vhost,
            durable=declared.durable,
            exclusive=declared.exclusive,
            auto_delete=declared.auto_delete,
            arguments=declared.arguments,
            member=declared.member,
            traits=self._traits(declared),
        )
        self.version.advance()
        state = self.engine.queue(queue.id)
        if queue.exclusive:
            self._usage_of(state).owner = owner
            self._owned.setdefault(owner, set()).add(queue.id)
        self._set_expiry(state)
        self.lifecycle.store_queue(queue, done)
        return queue

    def check_queue_limit(self, name: str, vhost: str) -> None:
        """Raise QueueLimitReached if the virtual host is at its limit of queues, on all nodes."""
        limit = self.authority.vhost_limits.limit(vhost, MAX_QUEUES)
        if limit is not None and self.queue_count(vhost) >= limit:
            raise QueueLimitReached(name, vhost, limit)

    def queue_count(self, vhost: str) -> int:
        """Return the number of queues of a virtual host on all nodes; a clustered queue counts as one."""
        members = {state.queue.name for state in self.engine.members.values() if state.queue.vhost == vhost}
        twice = sum(self.directory.find(vhost, name) is not None for name in members)
        return self.engine.queue_count(vhost) + self.directory.count_in(vhost) - twice

    def delete_queue(self, state: QueueState, done: Done, *, if_unused: bool, if_empty: bool) -> None:
        queue = state.queue
        if if_unused and state.consumers:
            raise QueueInUse(queue.name, queue.vhost)
        if if_empty and (len(state) or state.parked):
            raise QueueNotEmpty(queue.name, queue.vhost)
        self.lifecycle.delete(queue.id, done)

    def delete_owned(self, owner: object) -> None:
        """Delete the exclusive queues of a closed connection, in batches if there are many."""
        self._orphaned.update(dict.fromkeys(self._owned.pop(owner, ())))
        if self._deleting is None:
            self._delete_in_turns()

    def _delete_in_turns(self) -> None:
        self._deleting = None
        ends_s = time.monotonic() + DELETIONS_S
        while self._orphaned:
            self._delete_orphan(next(iter(self._orphaned)))
            if time.monotonic() > ends_s:
                self._deleting = asyncio.get_running_loop().call_later(0, self._delete_in_turns)
                return

    def _delete_orphan(self, queue_id: int) -> None:
        del self._orphaned[queue_id]
        if self.engine.has_queue(queue_id):
            self.broker.faults.guard("exclusive queue", self.lifecycle.delete, queue_id, _ignore)

    def owner_of(self, state: QueueState) -> object | None:
        """Return the connection to which the queue is exclusive, if any."""
        usage = self._usage.get(state.queue.id)
        return None if usage is None else usage.owner

    def has_exclusive_consumer(self, state: QueueState) -> bool:
        """Whether the queue has an exclusive consumer."""
        usage = self._usage.get(state.queue.id)
        return usage is not None and usage.exclusive_consumer is not None

    def touch(self, state: QueueState) -> None:
        """Renew the expiry of a queue on use."""
        if state.traits.expires_us is not None:
            self._set_expiry(state)

    def check_consumer(self, state: QueueState, *, exclusive: bool) -> None:
        """Raise ConsumerRefused if a consumer is exclusive, or the new one is and the queue has others."""
        traits = state.traits
        if traits.is_quorum:
            return
        is_taken = self._usage_of(state).exclusive_consumer is not None
        if is_taken or (exclusive and (state.consumers or traits.single_active_consumer)):
            raise ConsumerRefused(state.queue.name, state.queue.vhost)

    def consumer_added(self, state: QueueState, consumer: object, *, exclusive: bool) -> None:
        """Record a new consumer."""
        usage = self._usage_of(state)
        if exclusive and not state.traits.is_quorum:
            usage.exclusive_consumer = consumer
        if usage.expiry is not None:
            usage.expiry.cancel()
            usage.expiry = None

    def consumer_gone(self, queue_id: int, consumer: object, *, may_return_s: float = 0.0) -> None:
        """Record that a consumer was cancelled; delete an auto-delete queue after its last one.

        If the consumer may return, the deletion is delayed by `may_return_s`.
        """
        state = self.engine.find_queue_by_id(queue_id)
        usage = self._usage.get(queue_id)
        if state is None or usage is None:
            return
        if usage.exclusive_consumer is consumer:
            usage.exclusive_consumer = None
        if state.consumers:
            return
        if not state.queue.auto_delete:
            self._set_expiry(state)
        elif may_return_s:
            if usage.expiry is not None:
                usage.expiry.cancel()
            usage.expiry = asyncio.get_running_loop().call_later(may_return_s, self._expire_queue, queue_id)
        else:
            self.lifecycle.delete(queue_id, _ignore)

    # Internals

    def _has_queue(self, vhost: str, name: str) -> bool:
        return self.engine.find_queue(name, vhost) is not None or self.directory.find(vhost, name) is not None

    def _usage_of(self, state: QueueState) -> QueueUsage:
        usage = self._usage.get(state.queue.id)
        if usage is None:
            usage = self._usage[state.queue.id] = QueueUsage()
        return usage

    def _set_expiry(self, state: QueueState) -> None:
        """Schedule the deletion of the queue after its expiry, counted from now."""
        expires_us = state.traits.expires_us
        usage = self._usage.get(state.queue.id)
        if usage is not None and usage.expiry is not None:
            usage.expiry.cancel()
            usage.expiry = None
        if expires_us is not None and not state.consumers:
            loop = asyncio.get_running_loop()
            self._usage_of(state).expiry = loop.call_later(expires_us / 1e6, self._expire_queue, state.queue.id)

    def _expire_queue(self, queue_id: int) -> None:
        state = self.engine.find_queue_by_id(queue_id)
        if state is not None and not state.consumers:
            self.lifecycle.delete(queue_id, _ignore)

    def queue_adopted(self, state: QueueState) -> None:
        """Apply policies to an adopted queue, and route messages to it."""
        state.traits = self._traits(state.queue)
        self.version.advance()

    def queue_deleted(self, queue: Queue) -> None:
        """Remove the bindings of a deleted queue."""
        self._forget_usage(queue)
        self._drop_bindings(queue, self._removed)

    def _drop_bindings(self, queue: Queue, removed: Callable[[Removal], object]) -> None:
        """Remove the bindings to a deleted queue, unless another member of the clustered queue has its name."""
        if self.directory.find(queue.vhost, queue.name) or self.engine.find_queue(queue.name, queue.vhost):
            return
        router = self._routers.get(queue.vhost)
        if router is not None:
            removed(router.drop_queue(queue.name))

    def queue_released(self, queue: Queue, owner: int) -> None:
        """Route messages for a released queue to its new owner."""
        self.directory.put(queue, owner)
        self._forget_usage(queue)

    def _forget_usage(self, queue: Queue) -> None:
        self.version.advance()
        usage = self._usage.pop(queue.id, None)
        if usage is not None:
            if usage.expiry is not None:
                usage.expiry.cancel()
            if usage.owner in self._owned:
                self._owned[usage.owner].discard(queue.id)

    def _removed(self, removal: Removal) -> list[Change]:
        """Journal the removal of exchanges and bindings; return the submitted changes."""
        self.version.advance()
        changes: list[Change] = []
        for binding in removal.bindings:
            key = _key_of_binding(binding)
            if key in self._kept_bindings:
                self._kept_bindings.remove(key)
                changes.append(DefinitionDeleted(_BINDING, key))
        for exchange in removal.exchanges:
            if self._keeps(exchange):
                changes.append(DefinitionDeleted(_EXCHANGE, _key(exchange.vhost, exchange.name)))
            self.exchange_deleted(exchange)
            self.broker.meters.forget_exchange(exchange.vhost, exchange.name)
        for change in changes:
            self.broker.journal.change(change, None)
        return changes

    def _keeps(self, exchange: Exchange) -> bool:
        """Whether the exchange is stored: it is durable, or other nodes need it."""
        return exchange.durable or self.broker.is_clustered

    def _keeps_binding(self, router: Router, binding: Binding) -> bool:
        """Whether the binding is stored: both ends are durable, or other nodes need it."""
        if self.broker.is_clustered:
            return True
        if not router.get(binding.source).durable:
            return False
        if binding.kind is Destination.EXCHANGE:
            return router.get(binding.destination).durable
        state = self.engine.find_queue(binding.destination, binding.vhost)
        if state is None:
            remote = self.directory.find(binding.vhost, binding.destination)
            return remote is not None and remote.is_stored
        return state.is_stored

    # Other nodes

    def share_with_others(self) -> list[tuple[str, str]]:
        """Store transient definitions, which a single node keeps in memory; return the names of all queues."""
        journal = self.broker.journal
        for state in self.engine.queues:
            if not state.is_stored:
                journal.change(QueueCreated(state.queue), None)
        for router in self._routers.values():
            for exchange in router.exchanges:
                if not exchange.durable:
                    journal.change(DefinitionPut(_of_exchange(exchange)), None)
            for binding in router.bindings():
                definition = _of_binding(binding)
                if definition.key not in self._kept_bindings:
                    self._kept_bindings.add(definition.key)
                    journal.change(DefinitionPut(definition), None)
        return [(state.queue.vhost, state.queue.name) for state in self.engine.queues]

    def knows(self, kind: str) -> bool:
        """Whether definitions of this kind belong to the topology."""
        return kind in (_EXCHANGE, _BINDING)

    def apply(self, change: QueueCreated | QueueDeleted | DefinitionPut | DefinitionDeleted, node_id: int) -> None:
        """Apply a durable change made by another node."""
        try:
            match change:
                case QueueCreated(queue):
                    self.directory.put(queue, node_id)
                case QueueDeleted(queue_id):
                    remote = self.directory.remove(queue_id)
                    if remote is not None:
                        self._drop_bindings(remote.queue, self._gone_elsewhere)
                case DefinitionPut(definition):
                    if definition.kind == _EXCHANGE:
                        self._follow_exchange(Exchange(**definition.value))
                    else:
                        # If its queue was deleted in the meantime, the deletion removes the binding as well.
                        self._take_in(_binding_of(definition.value))
                case DefinitionDeleted(kind, key):
                    self._apply_deletion(kind, key)
        except RequestError as error:
            # Two nodes may make conflicting changes at the same time, such as a binding of an exchange that the other
            # deletes.
            log.warning("change of another node ignored: %s", error)
        self.version.advance()

    def _follow_exchange(self, exchange: Exchange) -> None:
        router = self.router(exchange.vhost)
        try:
            router.declare(exchange)
        except UnlikeDeclared:
            # Two nodes declared it at the same time. The stored definition wins, which is the later one
            # (`test_nodes_agree_on_the_last_of_two_different_exchanges`).
            router.replace(exchange)
        self._apply_policy_to_exchange(router, exchange)

    def _apply_deletion(self, kind: str, key: str) -> None:
        if kind == _EXCHANGE:
            vhost, name = json.loads(key)
            router = self._routers.get(vhost)
            if router is not None and router.find(name) is not None:
                self._gone_elsewhere(router.delete(name))
            return
        vhost, source, *_ = json.loads(key)
        router = self._routers.get(vhost)
        if router is not None and router.find(source) is not None:
            for binding in router.bindings(source=source):
                if _key_of_binding(binding) == key:
                    self._gone_elsewhere(router.unbind(binding))

    def _gone_elsewhere(self, removal: Removal) -> None:
        """Apply a removal that another node made and stored."""
        self.version.advance()
        self._kept_bindings.difference_update([_key_of_binding(binding) for binding in removal.bindings])
        for exchange in removal.exchanges:
            self.broker.meters.forget_exchange(exchange.vhost, exchange.name)

    # Policies and virtual hosts

    def traits_of(self, queue: Queue) -> Traits:
        """Return the effective settings of a local or remote queue, from its arguments and the policies."""
        return self._traits(queue)

    def _traits(self, queue: Queue) -> Traits:
        policy = self.authority.policies.for_queue(queue.vhost, queue.name)
        return Traits.of(effective(usable(queue.arguments), None if policy is None else policy.definition))

    def _apply_policy_to_exchange(self, router: Router, exchange: Exchange) -> None:
        policy = self.authority.policies.for_exchange(exchange.vhost, exchange.name)
        router.set_policy_arguments(exchange.name, {} if policy is None else policy.definition)

    def _apply_policies(self, vhost: str) -> None:
        for exchange in self.router(vhost).exchanges:
            self._unapplied[vhost, exchange.name] = None
        for state in self.engine.queues:
            if state.queue.vhost == vhost:
                self._unapplied[vhost, state.queue.id] = None
        if self._applying is None:
            self._apply_in_turns()

    def _apply_in_turns(self) -> None:
        """Apply policies to a batch of queues and exchanges, and schedule the rest."""
        self._applying = None
        self.version.advance()
        ends_s = time.monotonic() + POLICIES_S
        while self._unapplied:
            vhost, key = next(iter(self._unapplied))
            del self._unapplied[vhost, key]
            self.broker.faults.guard("policy of a queue or exchange", self._apply_policy, vhost, key)
            if time.monotonic() > ends_s:
                self._applying = asyncio.get_running_loop().call_later(0, self._apply_in_turns)
                return

    def _apply_policy(self, vhost: str, key: str | int) -> None:
        if isinstance(key, int):
            state = self.engine.find_queue_by_id(key)
            if state is not None:
                self._apply_policy_to_queue(state)
            return
        router = self._routers.get(vhost)
        exchange = None if router is None else router.find(key)
        if router is not None and exchange is not None:
            self._apply_policy_to_exchange(router, exchange)

    def _apply_policy_to_queue(self, state: QueueState) -> None:
        state.traits = self._traits(state.queue)
        self._set_expiry(state)
        self.broker.retention.enforce_new_limits(state)

    def _vhost_deleted(self, vhost: str, is_followed: bool) -> None:
        """Delete the contents of a deleted virtual host. Only the node that deleted it journals this.

        Other nodes must not: a new virtual host with the same name may exist by then, with new contents
        (`test_late_vhost_deletion_spares_the_recreated_vhost`).
        """
        router = self._routers.pop(vhost, None)
        for state in self.engine.queues:
            if state.queue.vhost == vhost:
                self.broker.faults.guard("queue of a vhost", self.lifecycle.delete, state.queue.id, _ignore)
        if router is not None:
            removal = Removal()
            for exchange in router.exchanges:
                self.broker.meters.forget_exchange(vhost, exchange.name)
                if not exchange.name.startswith(RESERVED_PREFIX) and exchange.name:
                    removal.exchanges.append(exchange)
            removal.bindings.extend(router.bindings())
            if is_followed:
                self._gone_elsewhere(removal)
            else:
                self._removed(removal)

    def _load(self, definitions: Iterable[Definition]) -> None:
        found = list(definitions)
        readers: tuple[tuple[str, Callable[[Mapping[str, Any]], None]], ...] = (
            (_EXCHANGE, self._load_exchange),
            (_BINDING, self._load_binding),
        )
        for kind, read in readers:
            for definition in found:
                if definition.kind == kind:
                    try:
                        read(definition.value)
                    except RequestError as error:
                        # A crash between two deletions may leave orphans.
                        log.error("stored %s %s ignored: %s", kind, definition.key, error)
                    except Exception as error:
                        log.error("stored %s %s ignored: it is not valid", kind, definition.key)
                        self.broker.faults.note("stored definitions", error)

    def _load_exchange(self, value: Mapping[str, Any]) -> None:
        exchange = Exchange(**value)
        if not exchange.durable and not self.broker.is_clustered:
            # Left over from a domain whose nodes have all stopped.
            self.broker.journal.change(DefinitionDeleted(_EXCHANGE, _key(exchange.vhost, exchange.name)), None)
            return
        router = self.router(exchange.vhost)
        router.declare(exchange)
        self._apply_policy_to_exchange(router, exchange)

    def _load_binding(self, value: Mapping[str, Any]) -> None:
        binding = _binding_of(value)
        if not self._take_in(binding):
            # Its queue was transient, or a crash occurred between two deletions.
            self.broker.journal.change(DefinitionDeleted(_BINDING, _key_of_binding(binding)), None)

    def _take_in(self, binding: Binding) -> bool:
        """Apply a stored binding. False if its queue does not exist."""
        if binding.kind is Destination.QUEUE and not self._has_queue(binding.vhost, binding.destination):
            return False
        self.router(binding.vhost).bind(binding)
        self._kept_bindings.add(_key_of_binding(binding))
        return True


def check_alternate(exchange: Exchange) -> None:
    """Raise InvalidArgument unless the alternate exchange of a new exchange is valid."""
    name = exchange.arguments.get(ALTERNATE)
    if isinstance(name, str) and len(name.encode("utf-8", "surrogateescape")) > MAX_SHORTSTR_BYTES:
        raise InvalidArgument(
            f"invalid arg '{ALTERNATE}' for exchange '{exchange.name}' in vhost '{exchange.vhost}': longer than"
            f" {MAX_SHORTSTR_BYTES} bytes"
        )


def check_same(existing: Queue, declared: Queue) -> None:
    """Raise QueueLocked or UnlikeDeclared if a queue differs from a declaration."""
    if existing.exclusive != declared.exclusive:
        raise QueueLocked(declared.name, declared.vhost)
    check_alike(existing, declared)


def check_queue_name(name: str) -> None:
    """Raise ReservedName for a queue name that is reserved for the broker."""
    if name.startswith(RESERVED_PREFIX):
        raise ReservedName(f"queue name '{name}' contains reserved prefix 'amq.*'")


def _ignore(error: FlyballError | None) -> None:
    """Ignore the outcome of a dependent deletion, which is retried while the store is unavailable."""


def _key(*parts: object) -> str:
    """Return an unambiguous key for several values."""
    try:
        return json.dumps([_keyed(part) for part in parts], ensure_ascii=False, sort_keys=True)
    except (RecursionError, TypeError, ValueError) as error:
        raise InvalidArgument(f"an argument cannot be stored: {error}") from error


def _keyed(value: object) -> object:
    """Return distinct JSON for distinct values: bytes must differ from a string with the same characters."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_keyed(item) for item in value]
    if isinstance(value, Mapping):
        return {f"$${name[1:]}" if name.startswith("$") else name: _keyed(item) for name, item in value.items()}
    return {"$": f"{type(value).__name__} {value!r}"}


def _of_exchange(exchange: Exchange) -> Definition:
    value = {
        "name": exchange.name,
        "type": exchange.type,
        "vhost": exchange.vhost,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": dict(exchange.arguments),
    }
    return Definition(_EXCHANGE, _key(exchange.vhost, exchange.name), value)


def _binding_of(value: Mapping[str, Any]) -> Binding:
    return Binding(**{**value, "kind": Destination(value["kind"])})


def _key_of_binding(binding: Binding) -> str:
    if not binding.arguments:
        # The same text as below in a fifth of the time: an exchange may be deleted with a hundred thousand bindings.
        parts = (binding.vhost, binding.source, binding.kind, binding.destination, binding.routing_key)
        return f"[{', '.join(map(encode_basestring, parts))}, {{}}]"
    return _key(
        binding.vhost, binding.source, binding.kind, binding.destination, binding.routing_key, binding.arguments
    )


def _of_binding(binding: Binding) -> Definition:
    value = {
        "source": binding.source,
        "destination": binding.destination,
        "kind": str(binding.kind),
        "routing_key": binding.routing_key,
        "arguments": dict(binding.arguments),
        "vhost": binding.vhost,
    }
    return Definition(_BINDING, _key_of_binding(binding), value)
