"""The interface of queues and sessions to the other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.handles import QueueHandle
from flyball.broker.wire.link import Content, PutOutcome
from flyball.errors import FlyballError, QueueNotFound

# Called with the token of a put and its outcome.
PutDone = Callable[[int, int], None]


class Settled:
    """Acks forwarded to other nodes and not confirmed yet; a single node has none."""

    async def flush(self) -> None:
        """Wait until they are durable. Raises ClusterError if a message moved away before its ack."""


class Peering:
    """The peering of a single node, without peers. See `peering.domain` for a node in a domain."""

    # The name of this node in its domain.
    name = ""
    node_id = 0

    @property
    def is_clustered(self) -> bool:
        """Whether this node has peers."""
        return False

    def name_of(self, node_id: int) -> str:
        return str(node_id)

    def can_reach(self, node_id: int) -> bool:
        """Whether a node is expected to be reachable."""
        return False

    async def ask_owners(
        self, command: str, arguments: Mapping[str, Any], time_limit_s: float
    ) -> tuple[dict[int, Any], list[FlyballError]]:
        """Send a command to all nodes that serve queues; return their responses by node, and the errors."""
        return {}, []

    # Changes

    async def catch_up(self) -> None:
        """Apply all changes that the peers made before this call. Raises StoreError."""

    async def followed(self) -> None:
        """Wait until the peers that respond soon have applied this node's durable changes."""

    async def may_create(self, vhost: str, name: str) -> bool:
        """Claim the name of a new queue; False if another node has it. Raises StoreError."""
        return True

    async def settle_name(self, vhost: str, name: str) -> None:
        """Wait until this node has claimed the name, or the directory lists a queue of this name on another node.

        Raises StoreError, and PeerLost if another node has claimed the name and does not create the queue.
        """

    async def news(self, time_limit_s: float) -> None:
        """Wait up to `time_limit_s` for a change in the assignment of queues to nodes."""
        await asyncio.sleep(time_limit_s)

    # Queues

    def handle(self, remote: RemoteQueue) -> QueueHandle:
        """Return the handle of a remote queue."""
        raise QueueNotFound(remote.queue.name, remote.queue.vhost)

    def put(
        self,
        remotes: Sequence[RemoteQueue],
        content: Content,
        done: PutDone,
        token: int,
        owner: object = None,
        missing: list[int] | None = None,
    ) -> None:
        """Put a message into remote queues; call back with the token and a `PutOutcome`, maybe before this returns.

        As with local queues, a deleted queue among several is not an error; its id is added to `missing`. A put that
        has to wait is charged to the `owner`; when the owner is closed, `forget` must be called.
        """
        done(token, PutOutcome.UNKNOWN)

    def forget(self, owner: object) -> None:
        """Drop the waiting puts of a closed owner."""

    def must_wait(self, remotes: Sequence[RemoteQueue]) -> bool:
        """Whether a put into these queues would wait, because too many puts to one of their nodes are unconfirmed."""
        return False

    def when_clear(self, remotes: Sequence[RemoteQueue], go_on: Callable[[], None]) -> None:
        """Call back once when puts into these queues need not wait."""
        go_on()

    def take_settled(self) -> Settled:
        """Return the acks forwarded since the last call."""
        return Settled()

    def settled_in_vain(self) -> None:
        """Record the ack of a message whose queue has moved to another node."""

    def reply(self, node_id: int, name: str, content: Content) -> None:
        """Send a direct reply to a channel on another node, if it exists and reads."""
