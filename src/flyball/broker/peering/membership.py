"""A node among others: it holds its lease, knows who else is there, and follows what they change.

Who serves what is decided elsewhere. While a node is alone nothing here is seen but a renewal every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flyball.broker.core import clock
from flyball.broker.core.authority import Authority
from flyball.broker.core.definitions import Definitions
from flyball.broker.core.supervisor import FATAL
from flyball.broker.core.topology import Topology
from flyball.broker.peering.unseen import Unseen
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
from flyball.broker.store.gathering import OperationsRefused
from flyball.broker.store.registry import NodeRecord, NodeState, Registry, VersionedChange
from flyball.broker.transport.connection import Hub
from flyball.errors import Fenced, StoreError

log = logging.getLogger(__name__)

RENEW_S = 1.0
RETRY_S = 0.2

SOONEST_RENEWAL_S = 0.1
"""News are a reason to look who is there, but not more often than this."""

ALONE_LEASE_S = 30.0
"""While nobody else is there a node may be without its store for so long before it falls silent."""

JUMP_S = 0.1
"""By so much clocks may differ in what time has passed."""

QUEUE_ID_BLOCK = 10_000
CLIENT_ID_BLOCK = 100_000
"""So many ids are reserved at a time while others give out ids too."""

NodesChanged = Callable[[Sequence[NodeRecord]], None]


class Membership:
    """One node's place in the domain."""

    def __init__(
        self, hub: Hub, topology: Topology, definitions: Definitions, *, lease_s: float, version: int
    ) -> None:
        """`version` is the last change of the domain that is known already."""
        self.registry: Registry = hub.broker.store.registry
        self.lease_s = lease_s
        """How long others wait for a node that shows no sign of life."""
        self.addresses: Mapping[str, str] = {}
        """Where the node listens, by protocol."""
        self.state = NodeState.JOINING
        self.nodes: Sequence[NodeRecord] = ()
        """All nodes as of the last renewal, this one included."""
        self.report: Callable[[], Mapping[str, Any]] = dict
        """Called at every renewal: what the node tells the others of itself, or again what it told last."""
        self.on_nodes: list[NodesChanged] = []
        """Called with all nodes after every renewal."""
        self.on_lapsed: Callable[[], None] = lambda: None
        """Called when the lease is held again after it had run out, before anybody hears of this node."""
        self.on_placed: Callable[[int], None] = lambda queue_id: None
        """Called with a queue that another node serves now, or this one instead of another, or nobody any more."""
        self._told: Mapping[str, Any] = {}
        self._is_speechless = False
        self._hub = hub
        self._broker = hub.broker
        self._authority: Authority = hub.authority
        self._topology = topology
        self._definitions = definitions
        self._version = version
        self._known_generation = self.registry.generation
        self._has_joined = False
        self._news = asyncio.Event()
        self._following = asyncio.Lock()
        self._rounds_begun = 0
        self._last_round = 0
        """The last time that the others were followed to the end, counted as begun."""
        self._renewed_s = 0.0
        self._gapless_since_s: float | None = None
        self._renewal_due = asyncio.Event()
        self._unseen = Unseen()
        self.registry.news.subscribe(self._look_again)
        self._broker.journal.changed.subscribe(self._changed_here)

    @property
    def node_id(self) -> int:
        return self.registry.node_id

    @property
    def others(self) -> list[NodeRecord]:
        """The other nodes that take part."""
        return [node for node in self.nodes if node.id != self.node_id and node.is_live]

    @property
    def version(self) -> int:
        """Up to which change of the domain this node has followed the others."""
        return self._version

    def node(self, node_id: int) -> NodeRecord | None:
        return next((node for node in self.nodes if node.id == node_id), None)

    def name_of(self, node_id: int) -> str:
        """Return the name of a node, or its id if nobody knows that any more."""
        node = self.node(node_id)
        return str(node_id) if node is None else node.name

    @property
    def may_judge(self) -> bool:
        """Whether this node has watched the others long enough to say that one is dead."""
        since_s = self._gapless_since_s
        return since_s is not None and clock.lease_time_s() - since_s >= self.lease_s

    async def start(self) -> None:
        """Renew for the first time, and behave as one of several if it is. Raises StoreError."""
        await self._renew()

    async def run(self) -> None:
        """Renew the lease and follow the others, however long the store is unavailable.

        Ends with Fenced when this node's epoch is over, with StoreMismatch when the tables are a newer version's.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_renewing())
                tasks.create_task(self._keep_following())
        except* Fenced as error:
            fenced = next(iter(error.exceptions))
            assert isinstance(fenced, Fenced), "nothing else was caught"
            # Nothing that is under way can still be done, and nothing may be said.
            self._broker.journal.fence(fenced)
            self._hub.abandon()
            raise

    async def serve(self, addresses: Mapping[str, str]) -> None:
        """Tell the others that clients can come now, and where."""
        self.addresses = addresses
        self.state = NodeState.UP
        await self.start()

    async def leave(self) -> None:
        """Tell the others that this node stops."""
        await self.registry.leave()

    async def may_create(self, vhost: str, name: str) -> bool:
        """Whether a new queue of that name may be made here: then the name is claimed. Raises StoreError."""
        await self.catch_up()
        if self._topology.directory.find(vhost, name) is not None:
            return False
        return await self.claim(vhost, name) == self.node_id

    async def claim(self, vhost: str, name: str) -> int:
        """Claim the name of a new queue; return the id of the node that has it, which may be another one."""
        if not self._broker.is_clustered:
            return self.node_id
        # The name may be that of a queue whose deletion is on its way to the store, and would take it along.
        await self._flush()
        return await self.registry.claim(vhost, name)

    async def catch_up(self) -> None:
        """Follow all that others have changed up to now. Raises StoreError."""
        if not self._broker.is_clustered:
            return
        came_after = self._rounds_begun
        async with self._following:
            if self._last_round > came_after:
                # Somebody else has begun to read since this one came: that serves all who had come.
                return
            self._rounds_begun += 1
            settled = self._unseen.count if self._broker.journal.pending_count == 0 else None
            while True:
                news = await self.registry.changes(self._version)
                if not news:
                    break
                moved: list[int] = []
                for item in news:
                    if isinstance(item.change, QueueMoved):
                        moved.append(self._move(item.change))
                    elif self._is_news(item):
                        self._apply_safely(item)
                await self._adopt([queue_id for queue_id in moved if queue_id])
                self._version = news[-1].version
            if settled == self._unseen.count:
                self._unseen.clear()
            await self._broker.take_arrivals()
            self._last_round = self._rounds_begun

    async def remove(self, node_id: int) -> None:
        """Remove a dead node from the domain: nobody here is told of it any more. Raises StoreError."""
        await self.registry.remove_node(node_id)
        self.nodes = [node for node in self.nodes if node.id != node_id]
        self._tell_nodes()

    # Inside

    async def _flush(self) -> None:
        """Wait until the store has what was changed here. What it refuses for good it will never have."""
        with contextlib.suppress(OperationsRefused):
            await self._broker.journal.flush()

    def _changed_here(self, change: Change) -> None:
        # While a node is alone its changes are told to nobody, and come back from nobody.
        if self._broker.is_clustered:
            self._unseen.add(change)

    def _is_news(self, item: VersionedChange) -> bool:
        """Whether a change has to be made here: it is another node's, or was undone by one of another node's."""
        if item.node_id != self.node_id:
            self._unseen.others_changed()
            return True
        return self._unseen.meet(item.change) or not isinstance(item.change, _OWN)

    def _look_again(self) -> None:
        self._news.set()
        self._renewal_due.set()

    async def _keep_renewing(self) -> None:
        is_failing = False
        while True:
            try:
                await self._renew()
            except FATAL:
                raise
            except StoreError as error:
                if not is_failing:
                    log.warning("the lease cannot be renewed: %s", error)
                is_failing = True
                await asyncio.sleep(RETRY_S)
                continue
            except Exception as error:
                # Not left to the supervisor: its backoff may become longer than the lease.
                self._hub.faults.note("renewal of the lease", error)
                await asyncio.sleep(RETRY_S)
                continue
            is_failing = False
            await self._until_due()

    async def _until_due(self) -> None:
        await asyncio.sleep(SOONEST_RENEWAL_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RENEW_S - SOONEST_RENEWAL_S):
                await self._renewal_due.wait()
        self._renewal_due.clear()

    async def _keep_following(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self.catch_up()
            except FATAL:
                raise
            except StoreError as error:
                log.info("the changes of other nodes could not be read: %s", error)
                await asyncio.sleep(RETRY_S)
                self._news.set()
            except Exception as error:
                self._hub.faults.note("changes of other nodes", error)
                await asyncio.sleep(RETRY_S)
                self._news.set()

    async def _renew(self) -> None:
        began_s = clock.lease_time_s()
        lease_s = self.lease_s if self._broker.is_clustered else ALONE_LEASE_S
        # The registry may have done it long before this node hears of that: a shorter lease counts from now on.
        self._hub.speaks_until = min(self._hub.speaks_until, began_s + lease_s)
        before = self.nodes
        self.nodes = await self.registry.renew(
            lease_s,
            addresses=self.addresses,
            report=self._own_report(),
            known_generation=self._known_generation,
            seen_version=self._version,
            state=self.state,
        )
        if not self._hub.may_speak:
            self.on_lapsed()
        self._hub.speak_until(began_s + lease_s)
        has_jumped = _has_jumped(before, self.nodes, clock.lease_time_s() - self._renewed_s)
        if has_jumped or began_s - self._renewed_s > self.lease_s or self._gapless_since_s is None:
            self._gapless_since_s = began_s
        self._renewed_s = began_s
        newest = max((node.generation for node in self.nodes if node.is_live), default=0)
        if (self.others or self.registry.is_clustered) and not self._has_joined:
            await self._join_others()
        if newest > self._known_generation:
            # The one that has just joined waits for this: what its earlier life has sent is not passed on any more.
            self._tell_nodes()
            self._known_generation = newest
            await self._renew()
            return
        await self._top_up_ids()
        # Should a notice have been lost, nothing is more than a renewal late.
        self._news.set()
        self._tell_nodes()

    def _own_report(self) -> Mapping[str, Any]:
        """Return what the node tells of itself; what it told last if it cannot say."""
        try:
            self._told = self.report()
            self._is_speechless = False
        except Exception:
            # Whatever is wrong there, it is no reason to lose the lease and with it all clients.
            if not self._is_speechless:
                log.exception("this node cannot say how it is: others hear what it told last")
            self._is_speechless = True
        return self._told

    def _tell_nodes(self) -> None:
        for tell in self.on_nodes:
            try:
                tell(self.nodes)
            except Exception as error:
                # Whoever listens, the lease has to be renewed.
                self._hub.faults.note("news of the nodes", error)

    async def _join_others(self) -> None:
        """Others use the same store: let it know all that they may want to use, and stop giving out ids alone."""
        self.registry.is_clustered = True
        self._broker.is_clustered = True
        names = self._topology.share_with_others()
        await self._flush()
        await self.registry.claim_all(names)
        await self._reserve_ids()
        self._has_joined = True
        self._news.set()

    async def _reserve_ids(self) -> None:
        store, engine = self._broker.store, self._broker.engine
        first = await store.reserve_queue_ids(QUEUE_ID_BLOCK)
        # What is on its way to the store, or was never meant for it, may have ids of which the store does not know.
        while first + QUEUE_ID_BLOCK <= engine.next_queue_id:
            first = await store.reserve_queue_ids(QUEUE_ID_BLOCK)
        unused = max(first, engine.next_queue_id)
        engine.grant_queue_ids(unused, first + QUEUE_ID_BLOCK - unused)
        first = await store.reserve_client_ids(CLIENT_ID_BLOCK)
        while first + CLIENT_ID_BLOCK <= engine.next_client_id:
            first = await store.reserve_client_ids(CLIENT_ID_BLOCK)
        unused = max(first, engine.next_client_id)
        engine.grant_client_ids(unused, first + CLIENT_ID_BLOCK - unused)

    async def _top_up_ids(self) -> None:
        engine = self._broker.engine
        queue_ids, client_ids = engine.queue_ids_left, engine.client_ids_left
        if queue_ids is None or client_ids is None:
            return
        if queue_ids < QUEUE_ID_BLOCK // 2 or client_ids < CLIENT_ID_BLOCK // 2:
            await self._reserve_ids()

    def _move(self, change: QueueMoved) -> int:
        """Note who serves a queue now; return its id if that is this node and it does not do so yet."""
        if change.owner == self.node_id:
            return 0 if self._broker.engine.has_queue(change.queue.id) else change.queue.id
        self._topology.directory.put(change.queue, change.owner)
        self.on_placed(change.queue.id)
        return 0

    async def _adopt(self, queue_ids: Sequence[int]) -> None:
        if queue_ids:
            log.info("serving %d queues that were another node's", len(queue_ids))
            for working in await self._topology.lifecycle.adopt(queue_ids):
                self._topology.directory.remove(working.queue.id)
                self.on_placed(working.queue.id)

    def _apply_safely(self, item: VersionedChange) -> None:
        """Make a change of another node here. One that cannot be made is left out: those after it must be."""
        try:
            self._apply(item.change, item.node_id)
        except Exception as error:
            self._hub.faults.note("change of another node", error)

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
            case QueueCreated(queue):
                self._topology.apply(change, node_id)
                self.on_placed(queue.id)
            case QueueDeleted(queue_id):
                self._topology.apply(change, node_id)
                self.on_placed(queue_id)


def _has_jumped(before: Sequence[NodeRecord], now: Sequence[NodeRecord], passed_s: float) -> bool:
    """Whether leases have lost more of their time than has passed: the registry's clock was put forward.

    Then they say nothing about their nodes, until these have had the time to renew them.
    """
    left_s = {(node.id, node.epoch): node.lease_left_s for node in before}
    # Who leaves gives up its lease.
    stayed = [node for node in now if node.state is not NodeState.LEAVING]
    return any(left_s.get((node.id, node.epoch), 0.0) - node.lease_left_s > passed_s + JUMP_S for node in stayed)


_OWN = (QueueCreated, ClientCreated, ClientDeleted, DefinitionPut, DefinitionDeleted)
"""What this node knows already when it has changed it. Not so what a leader deletes: queues of the dead."""
