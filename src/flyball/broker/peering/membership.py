"""A node among others: it holds its lease, and knows who else is there.

Who serves what is decided elsewhere, and `change_feed` follows what the others change. While a node is alone nothing
here is seen but a renewal every second.
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

# A renewal that failed is tried again after this time. Not longer and longer: the lease goes on.
RETRY_S = 0.2

# News are a reason to look who is there, but not more often than this.
SOONEST_RENEWAL_S = 0.1

# While no other node is there a node may be without its store for this long before it falls silent.
ALONE_LEASE_S = 30.0

# Clocks may differ by this in what time has passed.
JUMP_S = 0.1

NodesChanged = Callable[[Sequence[NodeRecord]], None]


Report = Callable[[], Mapping[str, Any]]


class Neighbours(Protocol):
    """The other nodes, as this one reaches them."""

    def update(self, records: Sequence[NodeRecord]) -> None:
        """Take over who is there, and where."""
        ...

    def drop_links(self) -> None:
        """The lease is held again after it had run out; other nodes have not heard of this one yet."""
        ...


class Membership:
    """One node's place in the domain."""

    def __init__(
        self, hub: Hub, topology: Topology, feed: ChangeFeed, neighbours: Neighbours, *, lease_s: float
    ) -> None:
        self.registry: Registry = hub.broker.store.registry
        # How long others wait for a node that shows no sign of life.
        self.lease_s = lease_s
        # Where the node listens, by protocol.
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
        # What has failed since it last worked.
        self._failing: set[str] = set()
        self.registry.news.subscribe(self._look_again)

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
        return self._feed.version

    def report_with(self, report: Report) -> None:
        """At every renewal let the others have this report of the node; the last one if it cannot be made."""
        self._report = report

    async def catch_up(self) -> None:
        """Follow all that others have changed up to now. Raises StoreError."""
        await self._feed.catch_up()

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

    async def remove(self, node_id: int) -> None:
        """Remove a dead node from the domain: nobody here is told of it any more. Raises StoreError."""
        await self.registry.remove_node(node_id)
        self.nodes = [node for node in self.nodes if node.id != node_id]
        self._notify()

    # Inside

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
        """Whether an action succeeds. If not it may be tried again now: the time for that has passed.

        Not left to the supervisor, whose backoff may become longer than the lease.
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
        # The registry may have done it long before this node hears of that: a shorter lease counts from now on.
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
            # The one that has just joined waits for this: what its earlier life has sent is not passed on any more.
            self._notify()
            self._known_generation = newest
            await self._renew()
            return
        await self._ids.top_up()
        # Should a notice have been lost, nothing is more than a renewal late.
        self._news.set()
        self._notify()

    def _own_report(self) -> Mapping[str, Any]:
        try:
            self._last_report = self._report()
            self._is_report_failing = False
        except Exception:
            # Whatever is wrong there, it is no reason to lose the lease and with it all clients.
            if not self._is_report_failing:
                log.exception("status report failed; other nodes keep the previous one")
            self._is_report_failing = True
        return self._last_report

    def _notify(self) -> None:
        for changed in self.on_nodes:
            try:
                changed(self.nodes)
            except Exception as error:
                # Whoever listens, the lease has to be renewed.
                self._hub.faults.note("news of the nodes", error)

    async def _join_others(self) -> None:
        """Others use the same store: let it know all that they may want to use, and stop giving out ids alone."""
        self.registry.is_clustered = True
        self._broker.is_clustered = True
        names = self._topology.share_with_others()
        await self._feed.flush()
        await self.registry.claim_all(names)
        await self._ids.reserve()
        self._has_joined = True
        self._news.set()


def _has_jumped(before: Sequence[NodeRecord], now: Sequence[NodeRecord], passed_s: float) -> bool:
    """Whether leases have lost more of their time than has passed: the registry's clock was put forward.

    Then they say nothing about their nodes, until these have had the time to renew them.
    """
    left_s = {(node.id, node.epoch): node.lease_left_s for node in before}
    # Who leaves gives up its lease.
    stayed = [node for node in now if node.state is not NodeState.LEAVING]
    return any(left_s.get((node.id, node.epoch), 0.0) - node.lease_left_s > passed_s + JUMP_S for node in stayed)
