"""The members of clustered queues on this node: created, drained and removed, and their messages handed to others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from flyball.engine.queue import WorkingQueue
from flyball.errors import ClusterError, FlyballError, StoreError
from flyball.model import Arguments, Message, Queue
from flyball.server.node import Node
from flyball.store.interface import Transfer

SETTLE_S = 3.0
"""So long consumers may take to settle what they hold before their queue goes to another node."""
SETTLE_POLL_S = 0.02


class Members:
    """What this node does with members, as it is told."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._broker = node.hub.broker
        self._engine = node.hub.broker.engine
        self.given = 0
        """How many messages were handed to members on other nodes."""
        self.handing: dict[int, int] = {}
        """How many transfers to each member are under way."""

    def local(self) -> list[WorkingQueue]:
        """Return the members that this node serves."""
        return [working for working in self._engine.queues if working.queue.member]

    def find(self, vhost: str, name: str) -> WorkingQueue | None:
        working = self._engine.find_queue(name, vhost)
        return working if working is not None and working.queue.member else None

    async def add(self, vhost: str, name: str, arguments: Arguments) -> int:
        """Create the member of a clustered queue on this node; return its id. Harmless if it is there."""
        existing = self._engine.find_queue(name, vhost)
        if existing is not None:
            if not existing.queue.member:
                raise ClusterError(f"queue '{name}' in vhost '{vhost}' exists and is no member of a clustered queue")
            return existing.queue.id
        declared = Queue(0, name, vhost, arguments=arguments, member=True)
        await outcome(lambda done: self._node.topology.declare_queue(declared, None, done))
        working = self._engine.find_queue(name, vhost)
        assert working is not None, "it was declared just now"
        return working.queue.id

    async def remove(self, queue_id: int) -> bool:
        """Remove a member if nobody uses it and nothing is in it; tell whether it is gone."""
        await self._broker.take_arrivals()
        working = self._engine.find_working(queue_id)
        if working is None:
            return True
        if len(working) or working.out or working.consumers:
            return False
        await outcome(lambda done: self._broker.delete_queue(queue_id, done))
        return True

    async def delete(self, queue_id: int) -> None:
        """Delete a member with everything in it."""
        if self._engine.has_queue(queue_id):
            await outcome(lambda done: self._broker.delete_queue(queue_id, done))

    async def give(self, source_id: int, destination_id: int, most: int) -> int:
        """Hand up to so many ready messages, oldest first, to a member on another node; return how many went."""
        remote = self._node.topology.directory.get(destination_id)
        if remote is None or not self._engine.has_queue(source_id):
            return 0
        messages = await self._take(source_id, most)
        if any(message.persistent and not message.stored for message in messages):
            # Only what is in the store can be given another queue there.
            await self._broker.journal.flush()
        lasting = [message for message in messages if message.persistent]
        passing = [message for message in messages if not message.persistent]
        self.handing[destination_id] = self.handing.get(destination_id, 0) + 1
        try:
            await self._transfer(lasting, source_id, destination_id)
            if passing:
                await self._hand(passing, destination_id)
        finally:
            self.handing[destination_id] -= 1
            if not self.handing[destination_id]:
                del self.handing[destination_id]
        self.given += len(messages)
        return len(messages)

    async def release(self, queue_id: int, owner: int) -> None:
        """Leave an ordinary queue to another node. Who consumes it is served from there."""
        broker = self._broker
        working = self._engine.queue(queue_id)
        for consumer in working.consumers.values():
            broker.pause(consumer)
        await self._settled(working)
        passing: list[Message] = []
        await outcome(lambda done: passing.extend(broker.release_queue(queue_id, owner, done)))
        if passing:
            await self._hand(passing, queue_id)

    # Inside

    async def _settled(self, working: WorkingQueue) -> None:
        """Give consumers a moment to settle what they hold; the rest comes again, marked as redelivered."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_S
        # Settling has no event of its own: nobody but this needs one.
        while working.out and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(SETTLE_POLL_S)

    async def _take(self, queue_id: int, most: int) -> list[Message]:
        taken: list[Message] = []
        while len(taken) < most:
            message = await self._take_one(queue_id)
            if message is None:
                break
            taken.append(message)
        return taken

    async def _take_one(self, queue_id: int) -> Message | None:
        working = self._engine.find_working(queue_id)
        if working is None:
            return None
        found: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()

        def done(message: Message | None, error: FlyballError | None) -> None:
            if found.done():
                if message is not None:
                    self._broker.bring_back(message)
            elif error is not None:
                found.set_exception(error)
            else:
                found.set_result(message)

        self._broker.take_out(queue_id, working.traits.selector, done)
        return await found

    async def _transfer(self, messages: Sequence[Message], source_id: int, destination_id: int) -> None:
        """Give persistent messages another queue, in the store and at once."""
        if not messages:
            return
        transfer = Transfer([message.id for message in messages], source_id, destination_id)
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._broker.journal.transfer(transfer, _Waiter(committed))
        try:
            await asyncio.shield(committed)
        except StoreError:
            self._give_back(messages)
            raise
        for message in messages:
            self._engine.settle(message)

    async def _hand(self, messages: Sequence[Message], queue_id: int) -> None:
        """Send messages that the store does not keep over the link."""
        remote = self._node.topology.directory.get(queue_id)
        if remote is None:
            self._give_back(messages)
            return
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(went: bool) -> None:
            if not outcome.done():
                outcome.set_result(went)

        self._node.remotes.hand(remote, messages, done)
        if await outcome:
            for message in messages:
                self._engine.settle(message)
        else:
            self._give_back(messages)

    def _give_back(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._broker.bring_back(message)


class _Waiter:
    """Waits for a transfer on behalf of a future."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def committed(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def failed(self, error: StoreError) -> None:
        if not self._future.done():
            self._future.set_exception(error)


async def outcome(operation: Callable[[Callable[[FlyballError | None], None]], object]) -> None:
    """Wait for what an operation of the broker reports. Raises that error."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def report(error: FlyballError | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    operation(report)
    await done
