"""Operations on remote queues, executed by their owners: consumers, gets and others. For puts, see `puts`.

A consumer of a remote queue has a proxy queue in the local engine, so protocols handle its deliveries like those of
a local queue. Independent of protocols.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from flyball.backoff import Backoff, Retries
from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.handles import Got, LocalQueue, Subscriber
from flyball.broker.core.pending import Answer, Done
from flyball.broker.core.queues import RETRY_S
from flyball.broker.core.topology import Topology
from flyball.broker.peering.handover import Handover
from flyball.broker.peering.link.contents import message_of
from flyball.broker.peering.link.outgoing import Link
from flyball.broker.peering.link.peers import PeerListener, Peers
from flyball.broker.peering.proxy_queues import Attachment, Singles, window_of
from flyball.broker.peering.puts import UNAWARE_S, RemotePuts
from flyball.broker.wire import link as wire
from flyball.errors import ClusterError, FlyballError, PeerLost, QueueNotFound
from flyball.model import Message, Queue, Selector

# Maximum number of messages in transit to, or in the proxy queue of, a consumer without its own limit.
OPEN_WINDOW = 2000

# Backoff when only the link broke: a request that breaks the link each time must not block the link for others.
BROKEN_LINK = Backoff(first_s=0.02, max_s=RETRY_S, jitter_ratio=0.0)

T = TypeVar("T")


class Changes(Protocol):
    """The part of the change feed that remote queues use."""

    async def catch_up(self) -> None:
        """Apply all changes that other nodes made before this call. Raises StoreError."""
        ...

    async def claim(self, vhost: str, name: str) -> int:
        """Claim the name of a new queue; return the id of the node that owns it, possibly another one."""
        ...

    async def may_create(self, vhost: str, name: str) -> bool:
        """Claim the name of a new queue; False if another node owns it. Raises StoreError."""
        ...


class Remotes:
    """The operations of this node on remote queues."""

    def __init__(
        self,
        topology: Topology,
        changes: Changes,
        new_peers: Callable[[PeerListener], Peers],
        *,
        wait_s: float = 15.0,
    ) -> None:
        """`wait_s` is the timeout of operations on queues whose owner is unreachable."""
        self.topology = topology
        self.broker = topology.broker
        self.directory = topology.directory
        self.changes = changes
        self.peers = new_peers(self)
        self._wait_s = wait_s
        self.puts = RemotePuts(self.broker, self.directory, self.peers, self.look, wait_s=wait_s)
        self._handover = Handover(self.peers, self.broker.faults)
        self._singles: dict[Link, Singles] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._is_looking = False
        self.directory.changed.subscribe(self._placed)

    # News

    def _placed(self, queue_id: int) -> None:
        """Resume operations that waited for a change of a queue in the directory."""
        self.puts.placed(queue_id)
        self._wake()

    def node_changed(self, node_id: int) -> None:
        self.puts.node_changed(node_id)
        self._handover.node_changed(node_id)
        self._wake()

    def puts_answered(self) -> None:
        self.puts.use_room()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def news(self, time_limit_s: float) -> None:
        """Wait until the owner of any queue changes, at most `time_limit_s`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(time_limit_s):
                await future
        except TimeoutError:
            return

    def look(self) -> None:
        """Apply changes of other nodes, unless already in progress."""
        if not self._is_looking:
            self._is_looking = True
            self.peers.spawn(self._look())

    async def _look(self) -> None:
        try:
            await self.changes.catch_up()
        except FlyballError:
            # The store is unavailable; the changes are applied once it is available again.
            return
        finally:
            self._is_looking = False

    # Consumers

    def attach(self, remote: RemoteQueue, subscriber: Subscriber, done: Done) -> None:
        """Attach a consumer to a remote queue; `done` is called before the first delivery.

        Raises PeerLost.
        """
        link = self.peers.reach(remote.owner)
        # Without acks a message is settled when it is sent to the client, so the owner needs a window as well.
        prefetch = OPEN_WINDOW if subscriber.no_ack else subscriber.prefetch

        def encode(number: int) -> bytes:
            return wire.encode_consume(
                wire.Consume(
                    number,
                    remote.queue.id,
                    window_of(subscriber, prefetch),
                    subscriber.priority,
                    subscriber.exclusive,
                    subscriber.selector,
                )
            )

        def answered(_: wire.Frame | None, error: FlyballError | None) -> None:
            if error is None:
                attachment.begin(done)
            else:
                link.consumers.pop(number, None)
                attachment.drop()
                done(error)

        number = link.ask(encode, answered)
        attachment = link.consumers[number] = Attachment(self.broker, link, number, remote, subscriber)

    # Single messages

    def get(self, remote: RemoteQueue, done: Answer[Got]) -> None:
        """Fetch a message, which is settled, requeued or dead-lettered like one of a local queue.

        Raises PeerLost.
        """
        link = self.peers.reach(remote.owner)

        def answered(frame: wire.Frame | None, error: FlyballError | None) -> None:
            message: Message | None = None
            ready = 0
            if isinstance(frame, wire.Got):
                ready = frame.ready
                if frame.message is not None:
                    message = self._singles_of(link).take_in(frame.message, remote.queue.name)
            done(Got(message, ready), error)

        link.ask(lambda number: wire.encode_get(number, remote.queue.id), answered)

    def _singles_of(self, link: Link) -> Singles:
        for lost in [other for other in self._singles if other.is_lost]:
            self._singles.pop(lost).drop()
        found = self._singles.get(link)
        if found is None:
            found = self._singles[link] = Singles(self.broker, link)
        return found

    async def read(self, remote: RemoteQueue, selector: Selector, *, removes: bool, fit: int) -> Message | None:
        """Return the first match, and remove it if `removes`.

        Raises InvalidBody if the reader's protocol cannot represent the message, and ClusterError if a message may
        have been removed without arriving here: a retry would lose it silently.
        """
        link = self.peers.reach(remote.owner)

        def encode(number: int) -> bytes:
            return wire.encode_read(wire.Read(number, remote.queue.id, selector, removes, fit))

        try:
            frame = await link.round_trip(encode, "read", self._wait_s)
        except PeerLost as error:
            if removes and link.is_ready:
                raise ClusterError(str(error)) from error
            raise
        assert isinstance(frame, wire.Got)
        found = frame.message
        return None if found is None else message_of(found, found.message_id, remote.queue.id)

    async def browse(self, remote: RemoteQueue, after_id: int, limit: int) -> list[Message]:
        """Return some ready messages with larger ids, oldest first; an empty list at the end."""
        queue_id = remote.queue.id
        link = self.peers.reach(remote.owner)
        frame = await link.round_trip(
            lambda number: wire.encode_list(number, queue_id, after_id, limit), "list", self._wait_s
        )
        assert isinstance(frame, wire.Listed)
        return [message_of(found, found.message_id, queue_id) for found in frame.messages]

    # Operations

    async def request(self, remote: RemoteQueue, command: str, arguments: Mapping[str, Any]) -> Any:
        """Execute a command on a queue at its owner, and return the result."""
        asked = {"queue_id": remote.queue.id, **arguments}
        return await self.peers.request(remote.owner, command, asked, self._wait_s)

    async def at_owner(
        self,
        queue: Queue,
        there: Callable[[RemoteQueue], Awaitable[T]],
        here: Callable[[LocalQueue], Awaitable[T]],
    ) -> T:
        """Execute an operation at the owner of a queue; retry while the queue moves or its node is unreachable.

        Raises QueueNotFound, PeerLost and the operation's own errors.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._wait_s
        retries = Retries(BROKEN_LINK)
        while True:
            state = self.broker.engine.find_queue_by_id(queue.id)
            if state is not None:
                return await here(LocalQueue(self.topology, state))
            remote = self.directory.get(queue.id)
            if remote is None:
                raise QueueNotFound(queue.name, queue.vhost)
            try:
                return await there(remote)
            except QueueNotFound as error:
                if loop.time() >= deadline_s:
                    raise QueueNotFound(queue.name, queue.vhost) from error
                await self.until_known(remote)
            except PeerLost as error:
                if loop.time() >= deadline_s:
                    raise
                broken_s = retries.next_delay_s()
                await self.news(broken_s if self.peers.can_reach(error.node_id) else RETRY_S)

    async def until_known(self, denied: RemoteQueue) -> None:
        """Wait for changes of a queue that its supposed owner does not serve.

        If none arrive, the owner has yet to apply the change that assigns the queue to it.
        """
        owner = denied.owner
        await self.changes.catch_up()
        found = self.directory.get(denied.queue.id)
        if found is not None and found.owner == owner:
            await self.news(UNAWARE_S)

    # Members

    def hand(self, remote: RemoteQueue, messages: Sequence[Message], done: Callable[[bool], None]) -> None:
        """Hand messages over to a member on another node: see `Handover.hand`."""
        self._handover.hand(remote, messages, done)
