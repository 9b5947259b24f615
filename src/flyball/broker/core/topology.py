"""Virtual hosts at work: exchanges, bindings and AMQP's queues, declared, changed and made durable.

The engine and its routers decide, the journal keeps. Who may do what is asked elsewhere; nothing here knows a wire.
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

# What a queue of another node takes here.
REMOTE_QUEUE_BYTES = 1024

# So long policies are applied at a time, before others have their turn of the loop: each queue is compared with each
# policy, and there may be thousands of both.
POLICIES_S = 0.02

# Exclusive queues of a connection that is gone are deleted for so long at a time: it may have had a hundred thousand.
DELETIONS_S = 0.01

Headers = Callable[[], Mapping[str, Any]]


@dataclass(slots=True)
class QueueUsage:
    """Who has a queue for himself, and when it goes if nobody uses it."""

    # The connection that declared it exclusively.
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
        # Advances whenever a message may be routed, or allowed, differently than before.
        self.version = authority.access.version
        # The queues of other nodes.
        self.directory = Directory(elsewhere, self.version)
        # An exchange is gone, before that is durable.
        self.exchange_deleted = Event[[Exchange]]()
        self.lifecycle = QueueLifecycle(broker, self)
        self._routers: dict[str, Router] = {}
        self._usage: dict[int, QueueUsage] = {}
        # The exclusive queues of each connection.
        self._owned: dict[object, set[int]] = {}
        # Those of connections that are gone, which are deleted in turns of the loop.
        self._orphaned: dict[int, None] = {}
        self._deleting: asyncio.TimerHandle | None = None
        # The exchanges, by name, and queues, by id, that policies have to be applied to, and their virtual hosts.
        self._unapplied: dict[tuple[str, str | int], None] = {}
        self._applying: asyncio.TimerHandle | None = None
        # The keys of those that the store has.
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
        """Find out what the queues hold whose bytes are limited. Raises StoreError."""
        for state in self.engine.queues:
            if state.is_unmeasured:
                await self.broker.retention.measure(state)

    def definitions_bytes(self) -> int:
        """What queues, exchanges, bindings and clients take in memory, those of other nodes included; about."""
        routers = sum([router.size_bytes for router in self._routers.values()])
        queues_bytes = self.engine.queues_bytes + REMOTE_QUEUE_BYTES * len(self.directory)
        return queues_bytes + routers + self.engine.clients_bytes

    def definitions_bytes_by_vhost(self) -> dict[str, int]:
        """The same for each virtual host, without the queues of other nodes."""
        found = {vhost: router.size_bytes for vhost, router in self._routers.items()}
        for state in self.engine.queues:
            queue = state.queue
            found[queue.vhost] = found.get(queue.vhost, 0) + QUEUE_BYTES + size_of(queue.arguments)
        return found

    @property
    def exchange_count(self) -> int:
        """How many exchanges there are, those included that every virtual host has."""
        return sum([len(router) for router in self._routers.values()])

    def router(self, vhost: str) -> Router:
        """Return the exchanges and bindings of a virtual host; they begin with the first who asks."""
        router = self._routers.get(vhost)
        if router is None:
            self.authority.access.check_vhost(vhost)
            router = self._routers[vhost] = Router(vhost)
        return router

    # Exchanges and bindings

    def declare_exchange(self, exchange: Exchange, done: Done) -> None:
        """Declare an exchange, or see that it is as declared."""
        router = self.router(exchange.vhost)
        if router.find(exchange.name) is None:
            check_alternate(exchange)
            self.broker.ledger.charge_definition(EXCHANGE_BYTES + size_of(exchange.arguments))
        # Also what is not stored now: it is when another node joins.
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
        """Bind a queue, which exists, or an exchange to an exchange."""
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
        """Return a queue that the owner may use. Raises QueueNotFound, QueueLocked."""
        state = self._find_queue(name, vhost)
        if state is None:
            raise QueueNotFound(name, vhost)
        self.check_owner(state, owner)
        return state

    def _find_queue(self, name: str, vhost: str) -> QueueState | None:
        """Return the queue of a name; one whose connection is gone is deleted now, so that its name is free."""
        state = self.engine.find_queue(name, vhost)
        if state is None or state.queue.id not in self._orphaned:
            return state
        self._delete_orphan(state.queue.id)
        return self.engine.find_queue(name, vhost)

    def check_owner(self, state: QueueState, owner: object) -> None:
        """Raise QueueLocked if a queue is exclusive to somebody else."""
        if state.queue.exclusive and self._usage_of(state).owner is not owner:
            raise QueueLocked(state.queue.name, state.queue.vhost)

    def declare_queue(self, declared: Queue, owner: object, done: Callable[[FlyballError | None], None]) -> None:
        """Declare a queue, or see that it is as declared. The id of `declared` is not looked at."""
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
        """Raise QueueLimitReached if the virtual host has as many queues, on all nodes, as it may have."""
        limit = self.authority.vhost_limits.limit(vhost, MAX_QUEUES)
        if limit is not None and self.queue_count(vhost) >= limit:
            raise QueueLimitReached(name, vhost, limit)

    def queue_count(self, vhost: str) -> int:
        """Return how many queues a virtual host has on all nodes, members of one clustered queue being one."""
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
        """The owner of exclusive queues is gone: so are they, in turns of the loop if they are many."""
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
        """Return the connection that has the queue for itself, if one has."""
        usage = self._usage.get(state.queue.id)
        return None if usage is None else usage.owner

    def has_exclusive_consumer(self, state: QueueState) -> bool:
        """Return whether the queue has a consumer that is to be alone."""
        usage = self._usage.get(state.queue.id)
        return usage is not None and usage.exclusive_consumer is not None

    def touch(self, state: QueueState) -> None:
        """Somebody uses the queue: it expires later."""
        if state.traits.expires_us is not None:
            self._set_expiry(state)

    def check_consumer(self, state: QueueState, *, exclusive: bool) -> None:
        """Raise ConsumerRefused if a consumer may not come: it, or another one, is to be alone."""
        traits = state.traits
        if traits.is_quorum:
            return
        is_taken = self._usage_of(state).exclusive_consumer is not None
        if is_taken or (exclusive and (state.consumers or traits.single_active_consumer)):
            raise ConsumerRefused(state.queue.name, state.queue.vhost)

    def consumer_added(self, state: QueueState, consumer: object, *, exclusive: bool) -> None:
        """Note a consumer that has come."""
        usage = self._usage_of(state)
        if exclusive and not state.traits.is_quorum:
            usage.exclusive_consumer = consumer
        if usage.expiry is not None:
            usage.expiry.cancel()
            usage.expiry = None

    def consumer_gone(self, queue_id: int, consumer: object, *, may_return_s: float = 0.0) -> None:
        """A consumer has been cancelled: an auto-delete queue that had it as its last goes too.

        If the consumer was only lost it may return: for so long the queue waits.
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

    # Inside

    def _has_queue(self, vhost: str, name: str) -> bool:
        return self.engine.find_queue(name, vhost) is not None or self.directory.find(vhost, name) is not None

    def _usage_of(self, state: QueueState) -> QueueUsage:
        usage = self._usage.get(state.queue.id)
        if usage is None:
            usage = self._usage[state.queue.id] = QueueUsage()
        return usage

    def _set_expiry(self, state: QueueState) -> None:
        """Let the queue go when nobody has used it for its time, counted from now."""
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
        """Policies apply to it, and messages find it here."""
        state.traits = self._traits(state.queue)
        self.version.advance()

    def queue_deleted(self, queue: Queue) -> None:
        """Its bindings go with it."""
        self._forget_usage(queue)
        self._drop_bindings(queue, self._removed)

    def _drop_bindings(self, queue: Queue, removed: Callable[[Removal], object]) -> None:
        """A queue is gone: so are the bindings to it, unless another member of the clustered queue has the name."""
        if self.directory.find(queue.vhost, queue.name) or self.engine.find_queue(queue.name, queue.vhost):
            return
        router = self._routers.get(queue.vhost)
        if router is not None:
            removed(router.drop_queue(queue.name))

    def queue_released(self, queue: Queue, owner: int) -> None:
        """Messages find it there."""
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
        """Keep it that exchanges and bindings are gone; return what was submitted for that."""
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
        """Whether the store has to know the exchange: for a restart, or for other nodes."""
        return exchange.durable or self.broker.is_clustered

    def _keeps_binding(self, router: Router, binding: Binding) -> bool:
        """Whether the store has to know the binding: both ends will be there after a restart, or others use it."""
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
        """Let the store know what it did not need to know before; return the names of all queues."""
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
        """Whether definitions of that kind are for the topology."""
        return kind in (_EXCHANGE, _BINDING)

    def apply(self, change: QueueCreated | QueueDeleted | DefinitionPut | DefinitionDeleted, node_id: int) -> None:
        """Follow what another node has changed, and has made durable."""
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
                        # If its queue is gone by now, whoever deletes or makes that has the last word on the binding.
                        self._take_in(_binding_of(definition.value))
                case DefinitionDeleted(kind, key):
                    self._apply_deletion(kind, key)
        except RequestError as error:
            # Two nodes may have changed what hangs together at the same time.
            log.warning("ignored a change of another node: %s", error)
        self.version.advance()

    def _follow_exchange(self, exchange: Exchange) -> None:
        router = self.router(exchange.vhost)
        try:
            router.declare(exchange)
        except UnlikeDeclared:
            # Two nodes have declared it at the same time. What counts is what the store keeps, the last of both.
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
        """Another node has removed this, and what hung on it."""
        self.version.advance()
        self._kept_bindings.difference_update([_key_of_binding(binding) for binding in removal.bindings])
        for exchange in removal.exchanges:
            self.broker.meters.forget_exchange(exchange.vhost, exchange.name)

    # Policies and virtual hosts

    def traits_of(self, queue: Queue) -> Traits:
        """Return how a queue behaves, by its arguments and the policies; it may be one of another node."""
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
        """Apply policies to as many queues and exchanges as a turn has time for, and to the rest in further turns."""
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
        """Everything goes with its virtual host. Only the node that was asked to delete that makes it durable.

        Somebody may have made another one of that name since, with what is to be in it.
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
                        # A crash between two deletions may leave what hangs on nothing.
                        log.error("ignored the stored %s %s: %s", kind, definition.key, error)
                    except Exception as error:
                        log.error("ignored the stored %s %s, which makes no sense", kind, definition.key)
                        self.broker.faults.note("stored definitions", error)

    def _load_exchange(self, value: Mapping[str, Any]) -> None:
        exchange = Exchange(**value)
        if not exchange.durable and not self.broker.is_clustered:
            # Of nodes that have all stopped since.
            self.broker.journal.change(DefinitionDeleted(_EXCHANGE, _key(exchange.vhost, exchange.name)), None)
            return
        router = self.router(exchange.vhost)
        router.declare(exchange)
        self._apply_policy_to_exchange(router, exchange)

    def _load_binding(self, value: Mapping[str, Any]) -> None:
        binding = _binding_of(value)
        if not self._take_in(binding):
            # Of a queue that ended with its node, or with a crash between two deletions.
            self.broker.journal.change(DefinitionDeleted(_BINDING, _key_of_binding(binding)), None)

    def _take_in(self, binding: Binding) -> bool:
        """Use a binding that the store has. False if its queue is not there."""
        if binding.kind is Destination.QUEUE and not self._has_queue(binding.vhost, binding.destination):
            return False
        self.router(binding.vhost).bind(binding)
        self._kept_bindings.add(_key_of_binding(binding))
        return True


def check_alternate(exchange: Exchange) -> None:
    """Raise InvalidArgument if the alternate exchange of a new exchange is one that cannot be."""
    name = exchange.arguments.get(ALTERNATE)
    if isinstance(name, str) and len(name.encode("utf-8", "surrogateescape")) > MAX_SHORTSTR_BYTES:
        raise InvalidArgument(
            f"invalid arg '{ALTERNATE}' for exchange '{exchange.name}' in vhost '{exchange.vhost}': longer than"
            f" {MAX_SHORTSTR_BYTES} bytes"
        )


def check_same(existing: Queue, declared: Queue) -> None:
    """Raise QueueLocked or UnlikeDeclared if a queue is not as it is declared."""
    if existing.exclusive != declared.exclusive:
        raise QueueLocked(declared.name, declared.vhost)
    check_alike(existing, declared)


def check_queue_name(name: str) -> None:
    """Raise ReservedName for a name that only the broker may give to a new queue."""
    if name.startswith(RESERVED_PREFIX):
        raise ReservedName(f"queue name '{name}' contains reserved prefix 'amq.*'")


def _ignore(error: FlyballError | None) -> None:
    """Something went because of something else; if the store is away, it goes there later."""


def _key(*parts: object) -> str:
    """Return a text for several, whatever characters are in them."""
    try:
        return json.dumps([_keyed(part) for part in parts], ensure_ascii=False, sort_keys=True)
    except (RecursionError, TypeError, ValueError) as error:
        raise InvalidArgument(f"an argument cannot be stored: {error}") from error


def _keyed(value: object) -> object:
    """Return what JSON can say, different for different values: bytes must not be a string that looks like them."""
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
        # The same text as below, in a fifth of the time: an exchange may go with a hundred thousand bindings.
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
