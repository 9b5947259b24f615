"""What a registry promises: the nodes of a domain with their leases and epochs, and what they tell each other.

A store has one. While a node is alone in it, nothing here is asked more than a renewal now and then.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flyball.broker.store.changes import Change
from flyball.events import Event

# How long a node may take from the opening of its store to its first renewal.
JOINING_LEASE_S = 30.0


class NodeState(enum.StrEnum):
    """How far a node is in its life."""

    JOINING = "joining"
    UP = "up"
    LEAVING = "leaving"
    DEAD = "dead"


@dataclass(slots=True, frozen=True)
class NodeRecord:
    """What the registry knows of a node."""

    # Stays the same for a name.
    id: int
    name: str
    # Counts up with each join of the node, and when it is declared dead.
    epoch: int
    state: NodeState
    # Its place among all joins of the domain.
    generation: int
    # By the registry's clock when it was read; below zero the lease is over.
    lease_left_s: float
    # Where it listens, by protocol: amqp, amqps, telesto, thorbang, link, http.
    addresses: Mapping[str, str] = field(default_factory=dict)
    # What it told of itself with its last renewal.
    report: Mapping[str, Any] = field(default_factory=dict)
    # Up to which join it knows the others and behaves accordingly.
    known_generation: int = 0
    # Up to which change it has followed the others.
    seen_version: int = 0

    @property
    def is_live(self) -> bool:
        """Whether it takes part, as far as its lease tells."""
        return self.state in (NodeState.JOINING, NodeState.UP, NodeState.LEAVING) and self.lease_left_s > 0

    @property
    def is_gone(self) -> bool:
        """Whether it follows no changes any more: it is dead, or has left, and would have to join again."""
        return self.state is NodeState.DEAD or (self.state is NodeState.LEAVING and self.lease_left_s <= 0)


@dataclass(slots=True, frozen=True)
class VersionedChange:
    """A change, its place among all changes of the domain, and who made it."""

    version: int
    node_id: int
    change: Change


def is_known_to_all(nodes: Sequence[NodeRecord], node_id: int) -> bool:
    """Whether everybody who is live and was there before knows that the node joins.

    Of several that join at once each waits for those before it only.
    """
    joining = next(node for node in nodes if node.id == node_id)
    return all(
        node.known_generation >= joining.generation
        for node in nodes
        if node.is_live and (node.state is not NodeState.JOINING or node.generation < joining.generation)
    )


class Registry(Protocol):
    """The nodes of a domain. All calls may raise StoreUnavailable, and Fenced once this node's epoch is over."""

    node_id: int
    epoch: int
    # All three are this node's own, once its store is open.
    generation: int

    # Whether other nodes can ever be there: not for a store in this process's memory.
    is_shared: bool

    # Whether other nodes have to hear of changes. Set when the store is opened, and by the server later on: while it
    # is False, changes cost nothing beyond themselves.
    is_clustered: bool

    # What the nodes of the domain prove to each other that they know.
    secret: bytes

    # In the loop's thread: there may be changes, transfers or nodes that are new; look again.
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
        """Hold the lease from now on for so long, and return all nodes, this one included, by their ids."""
        ...

    async def nodes(self) -> list[NodeRecord]:
        """Return all nodes by their ids."""
        ...

    async def leave(self) -> None:
        """End the lease: the node stops in good order. Its queues stay its own until somebody takes them over."""
        ...

    async def changes(self, after_version: int, limit: int = 10_000) -> list[VersionedChange]:
        """Return what was changed after that version, in order."""
        ...

    async def claim(self, vhost: str, name: str, *, clustered: bool = False) -> int:
        """Claim the name of a queue for this node; return the id of the node that has it now, which may be another.

        Deleting the queue gives the name back. Names of clustered queues belong to 0: `clustered` claims one for
        that, and so does the creation of a member. They are given back with the last member.
        """
        ...

    async def claim_all(self, names: Sequence[tuple[str, str]]) -> None:
        """Claim many names that are this node's own."""
        ...

    # The leader

    async def lead(self) -> bool:
        """Try to become, or see whether this node still is, the leader of the domain."""
        ...

    async def declare_dead(self, node_id: int, epoch: int) -> bool:
        """End the epoch of a node whose lease is over: on return it can write nothing more.

        False if it has another epoch or a valid lease by now. True also for one whose epoch was ended before, by a
        leader that got no further.
        """
        ...

    async def take_over(self, node_id: int, assignments: Mapping[int, int]) -> None:
        """Give the queues (id) of a dead node to nodes (id), and forget its others, which were not durable.

        Forgets members that were merged into others, too. Durable queues that are not assigned stay where they are.
        Appends QueueMoved and QueueDeleted to the changes. Raises StoreError if the node is not dead. One that was
        removed since is dead: a queue may have been on its way to it.
        """
        ...

    async def merge_member(self, source: int, destination: int) -> int:
        """Move all messages of a member whose node is dead to another member (a Transfer); return how many.

        May stop half way, in good order, with StoreUnavailable. Raises StoreError if the node is not dead.
        """
        ...

    async def remove_node(self, node_id: int) -> None:
        """Forget a node that is dead or has left and serves no queue. Raises StoreError if it does."""
        ...

    async def trim_changes(self, up_to_version: int) -> None:
        """Forget changes up to that version, as far as all nodes have seen them."""
        ...
