"""The other nodes, as far as queues and sessions need them."""

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
    """Which way acknowledgements went that are not known to be durable: here all into this node's own journal."""

    async def flush(self) -> None:
        """Return when they are durable. Raises ClusterError if a message was lost to this node before its ack."""


class Peering:
    """The other nodes, of which this one has none: see `peering.domain` for one that has."""

    # The name of this node among them.
    name = ""
    node_id = 0

    @property
    def is_clustered(self) -> bool:
        """Whether there are others."""
        return False

    def name_of(self, node_id: int) -> str:
        """Return the name of a node."""
        return str(node_id)

    def can_reach(self, node_id: int) -> bool:
        """Whether it is worth trying to reach a node."""
        return False

    async def ask_owners(
        self, command: str, arguments: Mapping[str, Any], time_limit_s: float
    ) -> tuple[dict[int, Any], list[FlyballError]]:
        """Ask all nodes that serve queues; return their answers by node, and why others did not answer."""
        return {}, []

    # What changes

    async def catch_up(self) -> None:
        """Return when this node knows all that others had changed before. Raises StoreError."""

    async def followed(self) -> None:
        """Return when the others know what was changed and is durable, as far as they can be reached soon."""

    async def may_create(self, vhost: str, name: str) -> bool:
        """Whether a new queue of that name may be made here: then the name is claimed. Raises StoreError."""
        return True

    async def settle_name(self, vhost: str, name: str) -> None:
        """Return when a new queue of that name may be made here, or the directory has one of another node.

        Raises StoreError, and PeerLost if another node has claimed the name and makes no queue of it.
        """

    async def news(self, time_limit_s: float) -> None:
        """Return when something has changed about which node serves what, or the time is up."""
        await asyncio.sleep(time_limit_s)

    # Queues

    def handle(self, remote: RemoteQueue) -> QueueHandle:
        """Return the handle of a queue that another node serves."""
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

        Of several queues one that is gone refuses nothing, as a local one; ids of such queues are added to `missing`.
        What has to wait should be charged to the `owner`, whose end `forget` tells.
        """
        done(token, PutOutcome.UNKNOWN)

    def forget(self, owner: object) -> None:
        """Drop the puts of an owner that wait: it has gone."""

    @property
    def must_wait(self) -> bool:
        """Whether a put would wait, since other nodes owe too many answers."""
        return False

    def when_clear(self, go_on: Callable[[], None]) -> None:
        """Call back, once, when puts need not wait."""
        go_on()

    def take_settled(self) -> Settled:
        """Return which way acknowledgements went since the last call."""
        return Settled()

    def settled_in_vain(self) -> None:
        """A message was acked that belongs to others again."""

    def reply(self, node_id: int, name: str, content: Content) -> None:
        """Send a direct reply to a channel of another node, if that is there and reads."""
