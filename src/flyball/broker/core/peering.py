"""The other nodes, as far as queues and sessions need them. `Alone` is what a node has that has none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.handles import QueueHandle
from flyball.broker.wire.link import Content, Outcome
from flyball.errors import FlyballError, QueueNotFound

PutDone = Callable[[int, int], None]
"""Called with the token of a put and its outcome."""


class Settled(Protocol):
    """Which way acknowledgements went that are not known to be durable."""

    async def flush(self) -> None:
        """Return when they are durable. Raises ClusterError if a message was lost to this node before its ack."""
        ...


class Peering(Protocol):
    """The other nodes."""

    @property
    def node_id(self) -> int:
        """The id of this node among them."""
        ...

    @property
    def is_clustered(self) -> bool:
        """Whether there are others."""
        ...

    @property
    def name(self) -> str:
        """The name of this node among them."""
        ...

    def name_of(self, node_id: int) -> str:
        """Return the name of a node."""
        ...

    def address_of(self, node_id: int, protocol: str) -> str | None:
        """Return where a node listens for a protocol; None if it cannot be reached at present."""
        ...

    def can_reach(self, node_id: int) -> bool:
        """Whether it is worth trying to reach a node."""
        ...

    async def ask_owners(
        self, command: str, arguments: Mapping[str, Any], time_limit_s: float
    ) -> tuple[dict[int, Any], list[FlyballError]]:
        """Ask all nodes that serve queues; return their answers by node, and why others did not answer."""
        ...

    # What changes

    async def followed(self) -> None:
        """Return when the others know what was changed and is durable, as far as they can be reached soon."""
        ...

    async def may_create(self, vhost: str, name: str) -> bool:
        """Whether a new queue of that name may be made here: then the name is claimed. Raises StoreError."""
        ...

    async def catch_up(self) -> None:
        """Return when this node knows all that others had changed before. Raises StoreError."""
        ...

    async def settle_name(self, vhost: str, name: str) -> None:
        """Return when a new queue of that name may be made here, or the directory has one of another node.

        Raises StoreError, and PeerLost if another node has claimed the name and makes no queue of it.
        """
        ...

    async def news(self, time_limit_s: float) -> None:
        """Return when something has changed about which node serves what, or the time is up."""
        ...

    # Queues

    def handle(self, remote: RemoteQueue) -> QueueHandle:
        """Return the handle of a queue that another node serves."""
        ...

    def put(
        self,
        remotes: Sequence[RemoteQueue],
        content: Content,
        done: PutDone,
        token: int,
        owner: object = None,
        missing: list[int] | None = None,
    ) -> None:
        """Put a message into remote queues, and call back with the token and an Outcome, maybe before this returns.

        Of several queues one that is gone refuses nothing, as a local one; ids of such queues are added to `missing`.
        What has to wait should be charged to the `owner`, whose end `forget` tells.
        """
        ...

    def forget(self, owner: object) -> None:
        """Drop the puts of an owner that wait: it has gone."""
        ...

    @property
    def must_wait(self) -> bool:
        """Whether a put would wait, since other nodes owe too many answers."""
        ...

    def when_clear(self, go_on: Callable[[], None]) -> None:
        """Call back, once, when puts need not wait."""
        ...

    def take_settled(self) -> Settled:
        """Return which way acknowledgements went since the last call."""
        ...

    def settled_in_vain(self) -> None:
        """A message was acked that belongs to others again."""
        ...

    def reply(self, node_id: int, name: str, content: Content) -> None:
        """Send a direct reply to a channel of another node, if that is there and reads."""
        ...


class _NothingSettled:
    async def flush(self) -> None:
        """Everything is in this node's own journal."""


class Alone:
    """No other nodes."""

    node_id = 0
    name = ""
    is_clustered = False
    must_wait = False

    def name_of(self, node_id: int) -> str:
        return str(node_id)

    def address_of(self, node_id: int, protocol: str) -> str | None:
        return None

    def can_reach(self, node_id: int) -> bool:
        return False

    async def ask_owners(
        self, command: str, arguments: Mapping[str, Any], time_limit_s: float
    ) -> tuple[dict[int, Any], list[FlyballError]]:
        return {}, []

    async def followed(self) -> None:
        """Nobody else has to know."""

    async def may_create(self, vhost: str, name: str) -> bool:
        return True

    async def catch_up(self) -> None:
        """Nobody else changes anything."""

    async def settle_name(self, vhost: str, name: str) -> None:
        """Nobody else can have the name."""

    async def news(self, time_limit_s: float) -> None:
        await asyncio.sleep(time_limit_s)

    def handle(self, remote: RemoteQueue) -> QueueHandle:
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
        done(token, Outcome.UNKNOWN)

    def forget(self, owner: object) -> None:
        """Nothing waits."""

    def when_clear(self, go_on: Callable[[], None]) -> None:
        go_on()

    def take_settled(self) -> Settled:
        return _NothingSettled()

    def settled_in_vain(self) -> None:
        """Nobody asks."""

    def reply(self, node_id: int, name: str, content: Content) -> None:
        """Nobody is there."""
