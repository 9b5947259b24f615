"""The interface of a registry: the nodes of a domain with their leases and epochs, and the log of their changes.

Each store has one. A single node only renews its lease in it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flyball.broker.store.changes import Change
from flyball.events import Event

# Lease of a node from the opening of its store to its first renewal.
JOINING_LEASE_S = 30.0


class NodeState(enum.StrEnum):
    """The life cycle of a node."""

    JOINING = "joining"
    UP = "up"
    LEAVING = "leaving"
    DEAD = "dead"


@dataclass(slots=True, frozen=True)
class NodeRecord:
    """A node's record in the registry."""

    # Constant for a name.
    id: int
    name: str
    # Incremented with each join of the node, and when it is declared dead.
    epoch: int
    state: NodeState
    # The sequence number of its join in the domain.
    generation: int
    # By the registry's clock at the time of reading; negative if the lease has expired.
    lease_left_s: float
    # Its addresses by protocol: amqp, amqps, telesto, thorbang, link, http.
    addresses: Mapping[str, str] = field(default_factory=dict)
    # Its status report, sent with the last renewal.
    report: Mapping[str, Any] = field(default_factory=dict)
    # The generation of the last join that it has seen and takes into account.
    known_generation: int = 0
    # The version of the last change of other nodes that it applied.
    seen_version: int = 0

    @property
    def is_live(self) -> bool:
        """Whether it has a valid lease."""
        return self.state in (NodeState.JOINING, NodeState.UP, NodeState.LEAVING) and self.lease_left_s > 0

    @property
    def is_gone(self) -> bool:
        """Whether it is dead or has left: it no longer applies changes, and would have to rejoin."""
        return self.state is NodeState.DEAD or (self.state is NodeState.LEAVING and self.lease_left_s <= 0)


@dataclass(slots=True, frozen=True)
class VersionedChange:
    """A change, its version in the domain, and the node that made it."""

    version: int
    node_id: int
    change: Change


def is_known_to_all(nodes: Sequence[NodeRecord], node_id: int) -> bool:
    """Whether all live earlier nodes know that the node is joining.

    If several nodes join concurrently, each waits only for earlier ones.
    """
    joining = next(node for node in nodes if node.id == node_id)
    return all(
        node.known_generation >= joining.generation
        for node in nodes
        if node.is_live and (node.state is not NodeState.JOINING or node.generation < joining.generation)
    )


class Registry(Protocol):
    """The nodes of a domain. All calls may raise StoreUnavailable, and Fenced after this node's epoch has ended."""

    # This node's own id, epoch and generation, set when its store is opened.
    node_id: int
    epoch: int
    generation: int

    # Whether other nodes are possible: not with a store in this process's memory.
    is_shared: bool

    # Whether changes are announced to other nodes. Set when the store is opened, and later by the server; while it is
    # False, changes have no overhead.
    is_clustered: bool

    # The shared secret with which the nodes of the domain authenticate to each other.
    secret: bytes

    # Fires in the event loop's thread when there may be new changes, transfers or nodes.
    news: Event[[]]

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
        """Renew the lease for `lease_s`, and return all nodes, this one included, sorted by id."""
        ...

    async def nodes(self) -> list[NodeRecord]:
        """Return all nodes, sorted by id."""
        ...

    async def leave(self) -> None:
        """End the lease at a graceful stop. The node's queues stay assigned to it until they are taken over."""
        ...

    async def changes(self, after_version: int, limit: int = 10_000) -> list[VersionedChange]:
        """Return the changes after the version, in order."""
        ...

    async def claim(self, vhost: str, name: str, *, clustered: bool = False) -> int:
        """Claim the name of a queue for this node; return the id of the node that owns it, which may be another.

        Deleting the queue releases the name. Names of clustered queues belong to node 0: `clustered` claims one for
        it, as does the creation of a member. They are released with the last member.
        """
        ...

    async def claim_all(self, names: Sequence[tuple[str, str]]) -> None:
        """Claim the names of this node's queues."""
        ...

    # The leader

    async def lead(self) -> bool:
        """Try to become the leader of the domain; return whether this node is."""
        ...

    async def declare_dead(self, node_id: int, epoch: int) -> bool:
        """Fence a node whose lease has expired: on return it can no longer write.

        Return False if it has another epoch or a valid lease by now. Return True also if its epoch was already ended
        by a leader that died before the takeover.
        """
        ...

    async def take_over(self, node_id: int, assignments: Mapping[int, int]) -> None:
        """Assign the queues of a dead node (by id) to other nodes (by id), and delete its transient ones.

        Members that were merged into others are deleted as well. Durable queues that are not assigned stay. Appends
        QueueMoved and QueueDeleted to the changes. Raises StoreError if the node is not dead. A removed node counts
        as dead: a queue may have been moved to it.
        """
        ...

    async def merge_member(self, source: int, destination: int) -> int:
        """Move all messages of a dead node's member to another member (a Transfer); return their number.

        May fail with StoreUnavailable between transactions, with part of the messages moved. Raises StoreError if the
        node is not dead.
        """
        ...

    async def remove_node(self, node_id: int) -> None:
        """Remove a node that is dead or has left. Raises StoreError if it is neither, or still serves queues."""
        ...

    async def trim_changes(self, up_to_version: int) -> None:
        """Delete changes up to the version that all nodes have applied."""
        ...
