"""The members of clustered queues on this node: created, drained and removed, and their messages handed to others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from flyball.broker.cluster.names import cluster_key
from flyball.broker.core.pending import PendingChange, outcome
from flyball.broker.engine.consumer import QUEUE_MOVES
from flyball.broker.engine.queue import QueueState
from flyball.broker.node.node import Node
from flyball.broker.store.interface import RECOVERED, Transfer
from flyball.errors import ClusterError, FlyballError, StoreError
from flyball.model import Draft, Message, Queue

# So long consumers may take to settle what they hold before their queue goes to another node.
SETTLE_S = 3.0
SETTLE_POLL_S = 0.02

# Of messages that the store does not keep, so much goes over the link at a time.
HAND_BYTES = 512 * 1024

# So many messages of a member that has a twin go over in one transfer.
MERGED_AT_ONCE = 1000

# Lets a node carry out a command: its id, the command's name, and arguments by name.
Ask = Callable[..., Awaitable[Any]]


class Members:
    """What this node does with members, as it is told."""

    def __init__(self, node: Node, ask: Ask) -> None:
        self._node = node
        self._ask = ask
        self._broker = node.hub.broker
        self._engine = node.hub.broker.engine
        # How many transfers to each member elsewhere are under way.
        self.handing: dict[int, int] = {}

    def local(self) -> Iterator[QueueState]:
        """Yield the members that this node serves."""
        for definition in self._node.definitions.of("cluster").values():
            state = self._engine.find_queue(definition["name"], definition["vhost"])
            if state is not None and state.queue.member:
                yield state

    def definition(self, queue: Queue) -> Mapping[str, Any] | None:
        """Return how the clustered queue of a member is defined."""
        return self._node.definitions.of("cluster").get(cluster_key(queue.vhost, queue.name))

    async def add(self, vhost: str, name: str) -> int:
        """Create the member of a clustered queue on this node; return its id. Harmless if it is there."""
        existing = self._engine.find_queue(name, vhost)
        if existing is not None:
            if not existing.queue.member:
                raise ClusterError(f"queue '{name}' in vhost '{vhost}' exists and is no member of a clustered queue")
            return existing.queue.id
        declared = Queue(0, name, vhost, member=True)
        await outcome(lambda done: self._node.topology.declare_queue(declared, None, done))
        state = self._engine.find_queue(name, vhost)
        assert state is not None, "it was declared just now"
        return state.queue.id

    async def remove(self, queue_id: int) -> bool:
        """Remove a member if nobody uses it and nothing is in it; tell whether it is gone."""
        await self._broker.take_arrivals()
        state = self._engine.find_queue_by_id(queue_id)
        if state is None:
            return True
        if len(state) or state.unacked or state.consumers:
            return False
        await outcome(lambda done: self._node.topology.lifecycle.delete(queue_id, done))
        return True

    async def delete(self, queue_id: int) -> None:
        """Delete a member with everything in it."""
        if self._engine.has_queue(queue_id):
            await outcome(lambda done: self._node.topology.lifecycle.delete(queue_id, done))

    async def give(self, source_id: int, destination_id: int, most: int) -> int:
        """Hand up to so many ready messages, oldest first, to a member on another node; return how many went.

        Raises StoreError; then what did not go is where it was.
        """
        remote = self._node.topology.directory.get(destination_id)
        definition = None if remote is None else self.definition(remote.queue)
        if definition is None or destination_id in definition.get("marked", ()):
            return 0
        # Noted before anything is awaited: who removes a marked member looks whether anything is on its way there.
        self.handing[destination_id] = self.handing.get(destination_id, 0) + 1
        try:
            messages = await self._take(source_id, most)
            lasting = [message for message in messages if message.persistent]
            passing = [message for message in messages if not message.persistent]
            went = await self._hand_all(passing, destination_id)
            went += await self._transfer(lasting, source_id, destination_id)
        finally:
            self.handing[destination_id] -= 1
            if not self.handing[destination_id]:
                del self.handing[destination_id]
        source = self._engine.find_queue_by_id(source_id)
        if source is not None:
            source.handed_over += went
        return went

    async def merge_twin(self, twin: QueueState) -> None:
        """Let the other member that this node serves have everything of one whose name means that; then delete it.

        What consumers hold stays until they have settled it. Raises FlyballError; then the rest is where it was.
        """
        source = twin.queue
        other = self._engine.find_queue(source.name, source.vhost)
        if other is None or source.id not in self._engine.twins:
            return
        messages = await self._take(source.id, MERGED_AT_ONCE)
        for message in messages:
            if not message.persistent:
                self._put_again(message, other.queue.id)
        await self._transfer([message for message in messages if message.persistent], source.id, other.queue.id)
        await self._broker.take_arrivals()
        if not len(twin) and not twin.unacked and source.id in self._engine.twins:
            await outcome(lambda done: self._node.topology.lifecycle.delete(source.id, done, only_empty=True))

    def _put_again(self, message: Message, queue_id: int) -> None:
        """Let a message that no store keeps be one of another queue of this node."""
        self._engine.settle(message)
        draft = Draft(
            message.body,
            message.sender,
            message.receiver,
            message.context,
            message.priority,
            message.expires_us,
            message.properties,
            message.persistent,
            message.origin,
        )
        self._broker.put(draft, [queue_id], lambda messages, error: None, is_forwarded=True)

    async def release(self, queue_id: int, owner: int) -> None:
        """Leave an ordinary queue to another node. Who consumes it is served from there. Raises FlyballError."""
        broker = self._broker
        state = self._engine.find_queue_by_id(queue_id)
        if state is None:
            return
        consumers = list(state.consumers.values())
        for consumer in consumers:
            broker.pause(consumer, QUEUE_MOVES)
        passing: list[Message] = []
        try:
            await self._settled(state)
            await outcome(lambda done: passing.extend(self._node.topology.lifecycle.release(queue_id, owner, done)))
        finally:
            # The queue stays if the store refused or the leader that wanted this has gone, and so do its consumers.
            if self._engine.find_queue_by_id(queue_id) is state:
                for consumer in consumers:
                    broker.resume(consumer, QUEUE_MOVES)
        with contextlib.suppress(ClusterError):
            # It will follow by itself, only later: what it is handed now waits for it.
            await self._ask(owner, "queue.adopt", queue_id=queue_id)
        for part in _parts(passing):
            await self._hand(part, queue_id)

    async def adopt(self, queue_id: int) -> bool:
        """Look whether this node has become the owner of a queue, and serve it; tell whether it does."""
        await self._node.membership.catch_up()
        return self._engine.has_queue(queue_id)

    # Inside

    async def _settled(self, state: QueueState) -> None:
        """Give consumers a moment to settle what they hold; the rest comes again, marked as redelivered."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_S
        # Settling has no event of its own: nobody but this needs one.
        while state.unacked and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(SETTLE_POLL_S)

    async def _take(self, queue_id: int, most: int) -> list[Message]:
        """Take so many ready messages out, oldest first. Raises FlyballError; then none is out."""
        taken: list[Message] = []
        try:
            while len(taken) < most and (message := await self._take_one(queue_id)) is not None:
                taken.append(message)
        except FlyballError:
            self._requeue_undelivered(taken)
            raise
        return taken

    async def _take_one(self, queue_id: int) -> Message | None:
        state = self._engine.find_queue_by_id(queue_id)
        if state is None:
            return None
        found: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()

        def done(message: Message | None, error: FlyballError | None) -> None:
            if found.done():
                if message is not None:
                    self._broker.requeue_undelivered(message)
            elif error is not None:
                found.set_exception(error)
            else:
                found.set_result(message)

        self._broker.take_out(queue_id, state.traits.selector, done)
        return await found

    async def _transfer(self, messages: Sequence[Message], source_id: int, destination_id: int) -> int:
        """Give persistent messages another queue, in the store and at once; return how many. Raises StoreError."""
        if not messages:
            return 0
        counts = {message.id: message.delivery_count or RECOVERED for message in messages if message.redelivered}
        transfer = Transfer([message.id for message in messages], source_id, destination_id, counts)
        try:
            if not all(message.stored for message in messages):
                # Only what is in the store can be given another queue there.
                await self._broker.journal.flush()
            await outcome(lambda done: self._broker.journal.transfer(transfer, PendingChange(done)))
        except StoreError:
            self._requeue_undelivered(messages)
            raise
        for message in messages:
            self._engine.settle(message)
        return len(messages)

    async def _hand_all(self, messages: Sequence[Message], queue_id: int) -> int:
        """Send messages that the store does not keep over the link; return how many went."""
        went = 0
        for part in _parts(messages):
            if await self._hand(part, queue_id):
                went += len(part)
        return went

    async def _hand(self, messages: Sequence[Message], queue_id: int) -> bool:
        remote = self._node.topology.directory.get(queue_id)
        if remote is None:
            self._requeue_undelivered(messages)
            return False
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(went: bool) -> None:
            if not answer.done():
                answer.set_result(went)

        self._node.remotes.hand(remote, messages, done)
        if not await answer:
            self._requeue_undelivered(messages)
            return False
        for message in messages:
            self._engine.settle(message)
        return True

    def _requeue_undelivered(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._broker.requeue_undelivered(message)


def _parts(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Divide messages so that no part is larger than a frame should be, unless a single message is."""
    part: list[Message] = []
    size = 0
    for message in messages:
        if part and size + len(message.body) > HAND_BYTES:
            yield part
            part, size = [], 0
        part.append(message)
        size += len(message.body)
    if part:
        yield part
