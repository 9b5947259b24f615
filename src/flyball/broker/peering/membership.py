"""The membership of a node in its domain: renews its lease, and keeps the records of the other nodes.

`change_feed` applies the changes of other nodes. A single node only renews its lease, every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from flyball.broker.core import clock
from flyball.broker.core.supervisor import FATAL
from flyball.broker.core.topology import Topology
from flyball.broker.peering.change_feed import ChangeFeed
from flyball.broker.peering.id_blocks import IdBlocks
from flyball.broker.store.registry import NodeRecord, NodeState, Registry
from flyball.broker.transport.connection import Hub
from flyball.errors import Fenced, StoreError

log = logging.getLogger(__name__)

RENEW_S = 1.0

# Retry interval of a failed renewal. Constant, since the lease keeps running.
RETRY_S = 0.2

# Minimum interval between renewals that are triggered by notifications.
SOONEST_RENEWAL_S = 0.1

# Lease of a single node: how long it may run without its store before it stops responding.
ALONE_LEASE_S = 30.0

# Tolerance between the clocks of the node and the registry.
JUMP_S = 0.1

NodesChanged = Callable[[Sequence[NodeRecord]], None]


Report = Callable[[], Mapping[str, Any]]


class Neighbours(Protocol):
    """The part of the peers that the membership uses."""

    def update(self, records: Sequence[NodeRecord]) -> None:
        """Update the records of the nodes."""
        ...

    def drop_links(self) -> None:
        """Close links after the lease had expired and was renewed."""
        ...


class Membership:
    """Keeps the lease of this node, and the records of all nodes."""

    def __init__(
        self, hub: Hub, topology: Topology, feed: ChangeFeed, neighbours: Neighbours, *, lease_s: float
    ) -> None:
        self.registry: Registry = hub.broker.store.registry
        # Time without a renewal after which other nodes take over.
        self.lease_s = lease_s
        # The addresses of the node's listeners, by protocol.
        self.addresses: Mapping[str, str] = {}
        self.state = NodeState.JOINING
        # All nodes as of the last renewal, this one included.
        self.nodes: Sequence[NodeRecord] = ()
        # Called with all nodes after every renewal.
        self.on_nodes: list[NodesChanged] = [neighbours.update]
        self._neighbours = neighbours
        self._report: Report = dict
        self._last_report: Mapping[str, Any] = {}
        self._is_report_failing = False
        self._hub = hub
        self._broker = hub.broker
        self._topology = topology
        self._feed = feed
        self._ids = IdBlocks(hub.broker)
        self._known_generation = self.registry.generation
        self._has_joined = False
        self._news = asyncio.Event()
        self._renewed_s = 0.0
        self._gapless_since_s: float | None = None
        self._renewal_due = asyncio.Event()
        # Actions whose failure was already logged.
        self._failing: set[str] = set()
        self.registry.news.subscribe(self._look_again)

    @property
    def node_id(self) -> int:
        return self.registry.node_id

    @property
    def others(self) -> list[NodeRecord]:
        """The other live nodes."""
        return [node for node in self.nodes if node.id != self.node_id and node.is_live]

    @property
    def version(self) -> int:
        """The last change of the domain that this node has applied."""
        return self._feed.version

    def report_with(self, report: Report) -> None:
        """Publish a report of the node with each renewal. If the report fails, the previous one is kept."""
        self._report = report

    async def catch_up(self) -> None:
        """Apply all changes that other nodes made before this call. Raises StoreError."""
        await self._feed.catch_up()

    def node(self, node_id: int) -> NodeRecord | None:
        return next((node for node in self.nodes if node.id == node_id), None)

    def name_of(self, node_id: int) -> str:
        """Return the name of a node, or its id if it is no longer known."""
        node = self.node(node_id)
        return str(node_id) if node is None else node.name

    @property
    def may_judge(self) -> bool:
        """Whether this node has observed the others for a whole lease, so that it may declare one dead.

        Before that, leases may have expired because the registry was unavailable or its clock was set forward
        (`test_no_node_is_declared_dead_after_a_jump_of_the_registry_clock`).
        """
        since_s = self._gapless_since_s
        return since_s is not None and clock.lease_time_s() - since_s >= self.lease_s

    async def start(self) -> None:
        """Renew for the first time, and join the other nodes if there are any. Raises StoreError."""
        await self._renew()

    async def run(self) -> None:
        """Renew the lease and apply changes until cancelled, even if the store is unavailable.

        Raises Fenced when this node's epoch has ended, StoreMismatch when the tables are of a newer version.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_renewing())
                tasks.create_task(self._keep_following())
        except* Fenced as error:
            fenced = next(iter(error.exceptions))
            assert isinstance(fenced, Fenced), "nothing else was caught"
            # Work in progress can no longer be committed, and responses must not be sent.
            self._broker.journal.fence(fenced)
            self._hub.abandon()
            raise

    async def serve(self, addresses: Mapping[str, str]) -> None:
        """Announce that the node accepts clients, and its addresses."""
        self.addresses = addresses
        self.state = NodeState.UP
        await self.start()

    async def leave(self) -> None:
        """Announce that this node is stopping."""
        await self.registry.leave()

    async def remove(self, node_id: int) -> None:
        """Remove a dead node from the domain. Raises StoreError."""
        await self.registry.remove_node(node_id)
        self.nodes = [node for node in self.nodes if node.id != node_id]
        self._notify()

    # Internals

    def _look_again(self) -> None:
        self._news.set()
        self._renewal_due.set()

    async def _keep_renewing(self) -> None:
        while True:
            if await self._works(self._renew, "renewal of the lease"):
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
            if not await self._works(self.catch_up, "following the changes of other nodes"):
                self._news.set()

    async def _works(self, act: Callable[[], Awaitable[None]], what: str) -> bool:
        """Run an action; return whether it succeeded. Waits after a failure, so that the caller can retry at once.

        Not done by the supervisor, whose backoff may exceed the lease.
        """
        try:
            await act()
        except FATAL:
            raise
        except StoreError as error:
            if what not in self._failing:
                log.warning("%s failed: %s", what, error)
            self._failing.add(what)
        except Exception as error:
            self._hub.faults.note(what, error)
        else:
            self._failing.discard(what)
            return True
        await asyncio.sleep(RETRY_S)
        return False

    async def _renew(self) -> None:
        began_s = clock.lease_time_s()
        lease_s = self.lease_s if self._broker.is_clustered else ALONE_LEASE_S
        # The lease counts from before the request: the registry may renew it long before the response arrives. A
        # shorter lease applies at once (`test_shorter_lease_counts_from_before_the_renewal`).
        self._hub.lease_ends_s = min(self._hub.lease_ends_s, began_s + lease_s)
        before = self.nodes
        self.nodes = await self.registry.renew(
            lease_s,
            addresses=self.addresses,
            report=self._own_report(),
            known_generation=self._known_generation,
            seen_version=self._feed.version,
            state=self.state,
        )
        if not self._hub.holds_lease:
            self._neighbours.drop_links()
        self._hub.extend_lease(began_s + lease_s)
        has_jumped = _has_jumped(before, self.nodes, clock.lease_time_s() - self._renewed_s)
        if has_jumped or began_s - self._renewed_s > self.lease_s or self._gapless_since_s is None:
            self._gapless_since_s = began_s
        self._renewed_s = began_s
        newest = max((node.generation for node in self.nodes if node.is_live), default=0)
        if (self.others or self.registry.is_clustered) and not self._has_joined:
            await self._join_others()
        if newest > self._known_generation:
            # The node that just joined waits for this notification: frames of its earlier epoch are no longer
            # accepted.
            self._notify()
            self._known_generation = newest
            await self._renew()
            return
        await self._ids.top_up()
        # If a notification was lost, changes are applied with the next renewal.
        self._news.set()
        self._notify()

    def _own_report(self) -> Mapping[str, Any]:
        try:
            self._last_report = self._report()
            self._is_report_failing = False
        except Exception:
            # A failing report must not end the lease, and disconnect all clients.
            if not self._is_report_failing:
                log.exception("status report failed; other nodes keep the previous one")
            self._is_report_failing = True
        return self._last_report

    def _notify(self) -> None:
        for changed in self.on_nodes:
            try:
                changed(self.nodes)
            except Exception as error:
                # A failing listener must not prevent the renewal of the lease.
                self._hub.faults.note("news of the nodes", error)

    async def _join_others(self) -> None:
        """Become one of several nodes: store state that others need, claim names, and reserve ids in blocks."""
        self.registry.is_clustered = True
        self._broker.is_clustered = True
        names = self._topology.share_with_others()
        await self._feed.flush()
        await self.registry.claim_all(names)
        await self._ids.reserve()
        self._has_joined = True
        self._news.set()


def _has_jumped(before: Sequence[NodeRecord], now: Sequence[NodeRecord], passed_s: float) -> bool:
    """Return whether leases became shorter by more than the elapsed time: the registry's clock was set forward.

    Then an expired lease proves nothing until its node has had the time to renew it.
    """
    left_s = {(node.id, node.epoch): node.lease_left_s for node in before}
    # A leaving node ended its lease deliberately.
    stayed = [node for node in now if node.state is not NodeState.LEAVING]
    return any(left_s.get((node.id, node.epoch), 0.0) - node.lease_left_s > passed_s + JUMP_S for node in stayed)
