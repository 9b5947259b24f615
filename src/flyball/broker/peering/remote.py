"""Queues of other nodes: consumers, gets and the rest, carried out by whoever owns them. Puts are in `puts`.

A consumer of such a queue has a shadow of it in the local engine, so that whatever a protocol does with deliveries it
does as with those of a local queue. What protocol a client speaks is not known here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from flyball.backoff import Backoff, Retries
from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.fit import Fit
from flyball.broker.core.handles import Counts, Got, LocalQueue, Subscriber
from flyball.broker.core.pending import Answer, Done
from flyball.broker.core.queue_lifecycle import drop_bodies
from flyball.broker.core.queues import RETRY_S
from flyball.broker.core.topology import Topology
from flyball.broker.peering.link.failures import raised_elsewhere
from flyball.broker.peering.link.peers import Link, Peers
from flyball.broker.peering.puts import UNAWARE_S, RemotePuts
from flyball.broker.peering.shadows import Attachment, Singles
from flyball.broker.wire import link as wire
from flyball.broker.wire.link import Content, Outcome
from flyball.errors import FlyballError, PeerLost, QueueNotFound
from flyball.model import Message, Queue, Selector

OPEN_WINDOW = 2000
"""So many messages are on the way to, or wait in the shadow of, a consumer that has no limit of its own."""

# Ids of messages in one answer: they have to fit into a frame.
MAX_IDS = 20_000

# Direct replies, which nobody answers, are dropped while another node leaves so much unread.
UNREAD_BYTES = 8 * 1024 * 1024

# If only the link broke its node is asked again after this, and later the next times: a request that breaks the link
# whenever it is made must not keep it from others.
BROKEN_LINK = Backoff(first_s=0.02, max_s=RETRY_S, jitter_ratio=0.0)

CLAIM_LIMIT_S = 10.0
"""A queue whose name another node has claimed must be there by then."""

T = TypeVar("T")


class _Hand:
    """A batch of messages on its way to a member on another node."""

    __slots__ = ("batch", "done", "messages", "queue_id")

    def __init__(self, batch: int, queue_id: int, messages: Sequence[Message], done: Callable[[bool], None]) -> None:
        self.batch = batch
        self.queue_id = queue_id
        self.messages = messages
        self.done = done


class Remotes:
    """All that this node does with queues of others."""

    def __init__(self, topology: Topology, peers: Peers, *, wait_s: float = 15.0) -> None:
        """For `wait_s` something waits whose queue has no owner that can be reached."""
        self.topology = topology
        self.broker = topology.broker
        self.directory = topology.directory
        self.peers = peers
        self.catch_up: Callable[[], Awaitable[None]] = _nothing_to_catch_up
        """Returns when this node knows all that others had changed before."""
        self.claim: Callable[[str, str], Awaitable[int]] = self._claim_unasked
        """Claims a name, by virtual host and name; returns the id of the node that has it."""
        self._wait_s = wait_s
        self.puts = RemotePuts(self.broker, self.directory, peers, self.look, wait_s=wait_s)
        self._singles: dict[Link, Singles] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._hands: dict[int, deque[_Hand]] = {}
        self._last_batch = 0
        self._is_looking = False
        peers.on_found = self._news_of_node
        peers.on_lost = self._news_of_node
        peers.on_room = self.puts.use_room

    async def _claim_unasked(self, vhost: str, name: str) -> int:
        return self.peers.node_id

    async def settle_name(self, vhost: str, name: str) -> None:
        """Return when a new queue of that name may be made here, or the directory has one of another node.

        Raises StoreError, and PeerLost if another node has claimed the name and makes no queue of it.
        """
        owner = await self.claim(vhost, name)
        deadline_s = asyncio.get_running_loop().time() + CLAIM_LIMIT_S
        while owner != self.peers.node_id and self.directory.find(vhost, name) is None:
            if asyncio.get_running_loop().time() >= deadline_s:
                raise PeerLost(owner, f"has claimed the name of the queue '{name}' and not made it yet")
            await self.catch_up()
            if self.directory.find(vhost, name) is None:
                await self.news(RETRY_S)
                owner = await self.claim(vhost, name)

    # What membership tells

    def placed(self, queue_id: int) -> None:
        """The directory has changed about a queue, or this node serves it now: who waited for that goes on."""
        self.puts.placed(queue_id)
        self._wake()

    def _news_of_node(self, node_id: int) -> None:
        self.puts.node_changed(node_id)
        if not self.peers.can_reach(node_id):
            hands = self._hands.pop(node_id, deque())
            for hand in hands:
                self.broker.faults.guard("messages handed to another node", hand.done, False)
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def news(self, time_limit_s: float) -> None:
        """Return when something has changed about who serves what, or the time is up."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(time_limit_s):
                await future
        except TimeoutError:
            return

    def look(self) -> None:
        """Find out what has changed elsewhere, if nobody does already."""
        if not self._is_looking:
            self._is_looking = True
            self.peers.spawn(self._look())

    async def _look(self) -> None:
        try:
            await self.catch_up()
        except FlyballError:
            # The store is away; the changes come when it is back.
            return
        finally:
            self._is_looking = False

    # Consumers

    def attach(self, remote: RemoteQueue, subscriber: Subscriber, done: Done) -> None:
        """Send a consumer messages of a queue of another node; `done` is called before the first one."""
        link = self.peers.link(remote.owner)
        if link is None:
            done(PeerLost(remote.owner, "is not there"))
            return
        # Without acknowledgements a message is settled when it is sent to the client, and not before.
        wanted = OPEN_WINDOW if subscriber.no_ack else subscriber.prefetch
        attachment = Attachment(self.broker, link, remote, subscriber, wanted)

        def answered(frame: wire.Frame | None) -> None:
            if isinstance(frame, wire.Consuming):
                attachment.begin(done)
                return
            link.consumers.pop(attachment.number, None)
            if isinstance(frame, wire.Failure):
                done(raised_elsewhere(frame.kind, frame.text))
            else:
                done(PeerLost(remote.owner, "was lost before it answered"))

        def encode(number: int) -> bytes:
            return wire.encode_consume(
                wire.Consume(
                    number,
                    remote.queue.id,
                    attachment.window,
                    subscriber.priority,
                    subscriber.exclusive,
                    subscriber.selector,
                )
            )

        attachment.number = link.ask(encode, answered)
        link.consumers[attachment.number] = attachment

    # Single messages

    def get(self, remote: RemoteQueue, done: Answer[Got]) -> None:
        """Take one message out of a queue. It is settled, requeued or dead-lettered as one of a local queue."""
        link = self.peers.link(remote.owner)
        if link is None:
            done(Got(), PeerLost(remote.owner, "is not there"))
            return

        def answered(frame: wire.Frame | None) -> None:
            if isinstance(frame, wire.Got):
                message: Message | None = None
                if frame.message is not None:
                    message = self._single(link).take_in(self.broker, frame.message, remote.queue.name)
                done(Got(message, frame.ready), None)
            elif isinstance(frame, wire.Failure):
                done(Got(), raised_elsewhere(frame.kind, frame.text))
            else:
                self._forget_singles(link)
                done(Got(), PeerLost(remote.owner, "was lost before it answered"))

        link.ask(lambda number: wire.encode_get(number, remote.queue.id), answered)

    async def read(self, remote: RemoteQueue, selector: Selector, *, removes: bool, fit: Fit) -> Message | None:
        """Find the first message that fits, as its owner sees it, and remove it for good or leave it there.

        Raises InvalidBody for one that the reader cannot be sent, and ClusterError if one may have been removed that
        has not arrived.
        """
        read = wire.Read(0, remote.queue.id, selector, removes, fit)
        return await self.peers.read(remote.owner, read, self._wait_s)

    def _single(self, link: Link) -> Singles:
        for other in [other for other in self._singles if other.is_lost]:
            self._forget_singles(other)
        found = self._singles.get(link)
        if found is None:
            found = self._singles[link] = Singles(self.broker, link)
        return found

    def _forget_singles(self, link: Link) -> None:
        gone = self._singles.pop(link, None)
        if gone is not None:
            unacked = list(gone.working.out.values())
            self.broker.engine.delete_queue(gone.working.queue.id)
            drop_bodies(unacked)

    # Requests

    async def counts(self, remote: RemoteQueue) -> Counts:
        """Return what the queue holds; it expires later."""
        return Counts(*await self._ask(remote, "queue.counts"))

    async def purge(self, remote: RemoteQueue) -> int:
        """Remove all ready messages and return how many there were."""
        count: int = await self._ask(remote, "queue.purge")
        return count

    async def delete(self, remote: RemoteQueue, *, if_unused: bool, if_empty: bool) -> int:
        """Delete the queue and return how many messages were ready. By then this node has forgotten it."""
        count: int = await self._ask(remote, "queue.delete", if_unused=if_unused, if_empty=if_empty)
        await self.catch_up()
        return count

    async def delete_empty(self, remote: RemoteQueue) -> None:
        """Delete the queue if it holds no message, not even an unacked one. By then this node has forgotten it."""
        await self._ask(remote, "queue.delete_empty")
        await self.catch_up()

    async def browse(self, remote: RemoteQueue, after_id: int, limit: int) -> list[Message]:
        """Return some of the ready messages with a larger id, oldest first; none if there are no more."""
        return await self.peers.list_messages(remote.owner, remote.queue.id, after_id, limit, self._wait_s)

    async def list_ids(self, remote: RemoteQueue, after_id: int, limit: int) -> list[int]:
        """Return the ids of such messages, when all of these are durable."""
        ids: list[int] = await self._ask(remote, "queue.ids", after_id=after_id, limit=min(limit, MAX_IDS))
        return ids

    async def remove_oldest(self, remote: RemoteQueue, up_to_id: int, limit: int) -> int:
        """Remove the oldest messages up to an id, so many at the most, and return how many there were."""
        count: int = await self._ask(remote, "queue.remove_oldest", up_to_id=up_to_id, limit=limit)
        return count

    async def _ask(self, remote: RemoteQueue, command: str, **arguments: object) -> Any:
        asked = {"queue_id": remote.queue.id, **arguments}
        return await self.peers.request(remote.owner, command, asked, self._wait_s)

    async def ask_owners(
        self, command: str, arguments: Mapping[str, Any], time_limit_s: float
    ) -> tuple[dict[int, Any], list[FlyballError]]:
        """Ask all nodes that serve queues; return their answers by node, and why others did not answer."""
        answers: dict[int, Any] = {}
        errors: list[FlyballError] = []

        async def ask(node_id: int) -> None:
            try:
                answers[node_id] = await self.peers.request(node_id, command, arguments, time_limit_s)
            except FlyballError as error:
                errors.append(error)

        await asyncio.gather(*[ask(owner) for owner in {remote.owner for remote in self.directory.all()}])
        return answers, errors

    async def at_owner(
        self,
        queue: Queue,
        there: Callable[[RemoteQueue], Awaitable[T]],
        here: Callable[[LocalQueue], Awaitable[T]],
    ) -> T:
        """Carry out an operation wherever a queue is served; retry while it moves or its node cannot be reached.

        Raises QueueNotFound, PeerLost and what the operation raises.
        """
        deadline_s = asyncio.get_running_loop().time() + self._wait_s
        retries = Retries(BROKEN_LINK)
        while True:
            working = self.broker.engine.find_working(queue.id)
            if working is not None:
                return await here(LocalQueue(self.topology, working))
            remote = self.directory.get(queue.id)
            if remote is None:
                raise QueueNotFound(queue.name, queue.vhost)
            try:
                return await there(remote)
            except QueueNotFound as error:
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise QueueNotFound(queue.name, queue.vhost) from error
                await self.until_known(remote)
            except PeerLost as error:
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise
                broken_s = retries.next_delay_s()
                await self.news(broken_s if self.peers.can_reach(error.node_id) else RETRY_S)

    async def until_known(self, denied: RemoteQueue) -> None:
        """Wait a moment until a queue that its owner does not know, as it says, is told to be gone or another's.

        If nothing is told, that node has yet to hear that it is to serve the queue.
        """
        owner = denied.owner
        await self.catch_up()
        found = self.directory.get(denied.queue.id)
        if found is not None and found.owner == owner:
            await self.news(UNAWARE_S)

    # Members

    def hand(self, remote: RemoteQueue, messages: Sequence[Message], done: Callable[[bool], None]) -> None:
        """Give messages that are out, and in no store, to a member on another node.

        `done` tells whether it has them; if not they are the caller's as before. While both nodes live none is lost
        or doubled, whatever happens to the link. They should hold less than a megabyte.
        """
        self._last_batch += 1
        hands = self._hands.setdefault(remote.owner, deque())
        hands.append(_Hand(self._last_batch, remote.queue.id, messages, done))
        if len(hands) == 1:
            self._send_hand(remote.owner)

    def _send_hand(self, node_id: int) -> None:
        hands = self._hands.get(node_id)
        if not hands:
            self._hands.pop(node_id, None)
            return
        hand = hands[0]
        link = self.peers.link(node_id)
        if link is None:
            self._news_of_node(node_id)
            return

        def answered(frame: wire.Frame | None) -> None:
            if self._hands.get(node_id) is not hands or not hands or hands[0] is not hand:
                return
            if isinstance(frame, wire.Handed):
                hands.popleft()
                hand.done(frame.outcome == Outcome.STORED)
            elif isinstance(frame, wire.Failure):
                # It has met a defect before it took them: to send them again would repeat that.
                hands.popleft()
                hand.done(False)
            # Else the link is lost: nobody knows whether it has them, but it will know the batch again.
            self._send_hand(node_id)

        link.ask(lambda number: wire.encode_hand(number, hand.batch, hand.queue_id, hand.messages), answered)

    # Direct replies

    def reply(self, node_id: int, name: str, content: Content) -> None:
        """Send a direct reply to a channel of another node, if that is there and reads."""
        link = self.peers.link(node_id)
        if link is not None and link.unread_bytes <= UNREAD_BYTES:
            link.send(wire.encode_reply(name, content))


async def _nothing_to_catch_up() -> None:
    return
