"""The members of clustered queues on this node: creates, drains and removes them, and transfers their messages."""

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

# How long consumers have to ack before their queue moves to another node.
SETTLE_S = 3.0
SETTLE_POLL_S = 0.02

# Bytes of transient messages per transfer over the link.
HAND_BYTES = 512 * 1024

# Messages per transfer when two members are merged.
MERGED_AT_ONCE = 1000

# Runs a command on a node: its id, the command's name, and keyword arguments.
Ask = Callable[..., Awaitable[Any]]


class Members:
    """Carries out commands on the members of this node."""

    def __init__(self, node: Node, ask: Ask) -> None:
        self._node = node
        self._ask = ask
        self._broker = node.hub.broker
        self._engine = node.hub.broker.engine
        # Transfers in progress, by remote member.
        self.handing: dict[int, int] = {}

    def local(self) -> Iterator[QueueState]:
        """Yield the members that this node serves."""
        for definition in self._node.definitions.of("cluster").values():
            state = self._engine.find_queue(definition["name"], definition["vhost"])
            if state is not None and state.queue.member:
                yield state

    def definition(self, queue: Queue) -> Mapping[str, Any] | None:
        """Return the definition of the clustered queue that a member belongs to."""
        return self._node.definitions.of("cluster").get(cluster_key(queue.vhost, queue.name))

    async def add(self, vhost: str, name: str) -> int:
        """Create the member of a clustered queue on this node; return its id. Idempotent."""
        existing = self._engine.find_queue(name, vhost)
        if existing is not None:
            if not existing.queue.member:
                raise ClusterError(
                    f"queue '{name}' in vhost '{vhost}' already exists and is not a member of a clustered queue"
                )
            return existing.queue.id
        declared = Queue(0, name, vhost, member=True)
        await outcome(lambda done: self._node.topology.declare_queue(declared, None, done))
        state = self._engine.find_queue(name, vhost)
        assert state is not None, "it was declared just now"
        return state.queue.id

    async def remove(self, queue_id: int) -> bool:
        """Remove a member unless it has clients or messages; return whether it was removed."""
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
        """Transfer up to `most` ready messages, oldest first, to a member on another node; return how many.

        Raises StoreError; messages that were not transferred stay here.
        """
        remote = self._node.topology.directory.get(destination_id)
        definition = None if remote is None else self.definition(remote.queue)
        if definition is None or destination_id in definition.get("marked", ()):
            return 0
        # Counted before the first await: the removal of a marked member checks for transfers in flight to it.
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
        """Merge a second member of the same clustered queue on this node into the first, then delete it.

        Unacked messages stay until they are acked. Raises FlyballError; the rest then stays where it was.
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
        """Move a transient message to another queue of this node."""
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
        """Hand an ordinary queue over to another node, which serves its consumers from then on. Raises
        FlyballError.
        """
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
            # After a failure of the store, or if the requesting leader has lost its lease, the queue and its
            # consumers stay.
            if self._engine.find_queue_by_id(queue_id) is state:
                for consumer in consumers:
                    broker.resume(consumer, QUEUE_MOVES)
        with contextlib.suppress(ClusterError):
            # The owner also learns of the queue without this command, only later: its messages wait in the store
            # until then.
            await self._ask(owner, "queue.adopt", queue_id=queue_id)
        for part in _parts(passing):
            await self._hand(part, queue_id)

    async def adopt(self, queue_id: int) -> bool:
        """Check whether this node has become the owner of a queue, and serve it; return whether it is."""
        await self._node.membership.catch_up()
        return self._engine.has_queue(queue_id)

    # Internals

    async def _settled(self, state: QueueState) -> None:
        """Wait for consumers to ack; messages still unacked after SETTLE_S are delivered again, as redelivered."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_S
        # Polled: there is no event for an ack, since only this caller would need one.
        while state.unacked and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(SETTLE_POLL_S)

    async def _take(self, queue_id: int, most: int) -> list[Message]:
        """Take up to `most` ready messages, oldest first. Raises FlyballError; then none is taken."""
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
        """Move persistent messages to another queue, in one transaction; return how many. Raises StoreError."""
        if not messages:
            return 0
        counts = {message.id: message.delivery_count or RECOVERED for message in messages if message.redelivered}
        transfer = Transfer([message.id for message in messages], source_id, destination_id, counts)
        try:
            if not all(message.stored for message in messages):
                # Only messages that the store has written can be moved there.
                await self._broker.journal.flush()
            await outcome(lambda done: self._broker.journal.transfer(transfer, PendingChange(done)))
        except StoreError:
            self._requeue_undelivered(messages)
            raise
        for message in messages:
            self._engine.settle(message)
        return len(messages)

    async def _hand_all(self, messages: Sequence[Message], queue_id: int) -> int:
        """Send transient messages over the link; return how many were accepted."""
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
    """Split messages into batches that fit into a frame; a larger message is a batch of its own."""
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
