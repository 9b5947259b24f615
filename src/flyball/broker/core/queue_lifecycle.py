"""The life cycle of the queues of this node: stored, adopted from another node, released to one, deleted.

The engine changes immediately, the store with the next commit. The listener updates bindings and other topology.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from flyball.broker.core.broker import ID_BLOCK, Broker
from flyball.broker.core.pending import Done, PendingChange, change_for_good
from flyball.broker.engine.consumer import Consumer
from flyball.broker.engine.queue import QueueState
from flyball.broker.store.changes import QueueCreated, QueueDeleted, QueueMoved
from flyball.errors import FlyballError, StoreError
from flyball.model import Message, Queue


class QueueListener(Protocol):
    """Is notified of changes of the node's queues; implemented by the topology."""

    def queue_adopted(self, state: QueueState) -> None:
        """This node took over a queue from another one."""
        ...

    def queue_deleted(self, queue: Queue) -> None:
        """The queue was deleted; this is not durable yet."""
        ...

    def queue_released(self, queue: Queue, owner: int) -> None:
        """Another node serves the queue now."""
        ...


class QueueLifecycle:
    """Stores, adopts, releases and deletes queues."""

    def __init__(self, broker: Broker, listener: QueueListener) -> None:
        self._broker = broker
        self._engine = broker.engine
        self._store = broker.store
        self._journal = broker.journal
        self._reader = broker.reader
        self._listener = listener

    def store_queue(self, queue: Queue, done: Done) -> None:
        """Store a queue that the engine has just created, unless it is not recorded."""
        if not self._registers(self._engine.queue(queue.id)):
            done(None)
            return

        def undo() -> None:
            if self._engine.has_queue(queue.id):
                self._forget(queue.id)

        self._journal.change(QueueCreated(queue), PendingChange(done, undo))

    def delete(self, queue_id: int, done: Done, *, only_empty: bool = False) -> None:
        """Delete the queue and its messages; calls `done` when the deletion is durable."""
        unacked = list(self._engine.queue(queue_id).unacked.values())
        state = self._forget(queue_id, only_empty=only_empty)
        if not self._registers(state):
            drop_bodies(unacked)
            done(None)
            return

        def deleted(error: FlyballError | None) -> None:
            if error is None and state.last_message_id and self._store.keeps_messages:
                self._broker.spawn(self._sweep(queue_id, state.last_message_id))
            done(error)

        change_for_good(self._journal, [QueueDeleted(queue_id)], deleted)
        # Only after the commit: until then the bodies may be written, or written again, and removed messages are
        # returned to readers with their commit (`test_unacked_messages_of_a_deleted_queue_lose_their_bodies`).
        self._journal.mark(_Dropping(unacked))

    async def adopt(self, queue_ids: Sequence[int]) -> list[QueueState]:
        """Take over those of the queues, assigned to this node by the store, that still exist. Raises StoreError."""
        summaries = await self._reader.until_available(lambda: self._store.adopt(queue_ids), without_limit=True)
        expiries = await self._reader.until_available(self._store.expiring, without_limit=True)
        await self._number_above(max((summary.last_message_id for summary in summaries), default=0))
        adopted = [self._engine.adopt_queue(summary) for summary in summaries]
        new = {state.queue.id for state in adopted}
        self._engine.expect_expiries([expiry for expiry in expiries if expiry[0] in new])
        for state in adopted:
            self._listener.queue_adopted(state)
        self._broker.retention.watch_expiries()
        return adopted

    def release(self, queue_id: int, owner: int, done: Done) -> list[Message]:
        """Stop serving a queue that moves to another node; return its transient messages, for the new owner.

        The new owner redelivers unacked messages.
        """
        state = self._engine.queue(queue_id)
        known = (*state.oldest(0, len(state)), *state.unacked.values())
        passing = [message for message in known if not message.persistent]
        self._engine.delete_queue(queue_id)
        change_for_good(self._journal, [QueueMoved(state.queue, owner)], done)
        self._listener.queue_released(state.queue, owner)
        _notify(state, lambda consumer: consumer.owner.queue_moved(consumer))
        return passing

    # Internals

    def _registers(self, state: QueueState) -> bool:
        """Whether the queue is recorded in the store."""
        return state.is_stored or self._broker.is_clustered

    def _forget(self, queue_id: int, *, only_empty: bool = False) -> QueueState:
        state = self._engine.delete_queue(queue_id, only_empty=only_empty)
        _notify(state, lambda consumer: consumer.owner.queue_deleted(consumer))
        self._listener.queue_deleted(state.queue)
        return state

    async def _number_above(self, message_id: int) -> None:
        """Reserve new ids if the next one is not above `message_id`, which another node assigned.

        Messages of a queue are ordered by id: new messages must follow those of the previous owner.
        """
        if self._engine.next_message_id <= message_id:
            first = await self._reader.until_available(
                lambda: self._store.reserve_message_ids(ID_BLOCK), without_limit=True
            )
            self._engine.renew_message_ids(first, ID_BLOCK)

    async def _sweep(self, queue_id: int, up_to_id: int) -> None:
        """Delete the messages of a deleted queue from the store. If this fails, the next start deletes them."""
        with contextlib.suppress(StoreError):
            await self._reader.until_available(lambda: self._store.delete_queue_messages(queue_id, up_to_id, ()))


class _Dropping:
    """Drops the bodies of a deleted queue's unacked messages once no commit can need them."""

    __slots__ = ("_unacked",)

    def __init__(self, unacked: Sequence[Message]) -> None:
        self._unacked = unacked

    def committed(self) -> None:
        drop_bodies(self._unacked)

    def failed(self, error: FlyballError) -> None:
        drop_bodies(self._unacked)


def drop_bodies(unacked: Iterable[Message]) -> None:
    """Drop the bodies of a deleted queue's unacked messages, which no memory limit counts and which never return.

    Consumers may keep such messages unacked indefinitely.
    """
    for message in unacked:
        message.body = message.properties = b""


def _notify(state: QueueState, call: Callable[[Consumer], None]) -> None:
    """Notify the consumers of a deleted or released queue; a failure of one does not affect the others."""
    for consumer in list(state.consumers.values()):
        try:
            call(consumer)
        except Exception as error:
            consumer.owner.crash(error)
