"""The life of the queues that this node serves: stored, adopted from another node, released to one, deleted.

The engine is changed at once, the store with the next commit. What hangs on a queue is the listener's business.
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
    """What has to follow when queues come and go: the topology."""

    def queue_adopted(self, state: QueueState) -> None:
        """This node serves a queue from now on that another one has served."""
        ...

    def queue_deleted(self, queue: Queue) -> None:
        """The queue is gone, before that is durable."""
        ...

    def queue_released(self, queue: Queue, owner: int) -> None:
        """Another node serves the queue from now on."""
        ...


class QueueLifecycle:
    """Lets queues come and go."""

    def __init__(self, broker: Broker, listener: QueueListener) -> None:
        self._broker = broker
        self._engine = broker.engine
        self._store = broker.store
        self._journal = broker.journal
        self._reader = broker.reader
        self._listener = listener

    def store_queue(self, queue: Queue, done: Done) -> None:
        """Make a queue durable that the engine has just created, if it is to be."""
        if not self._registers(self._engine.queue(queue.id)):
            done(None)
            return

        def undo() -> None:
            if self._engine.has_queue(queue.id):
                self._forget(queue.id)

        self._journal.change(QueueCreated(queue), PendingChange(done, undo))

    def delete(self, queue_id: int, done: Done, *, only_empty: bool = False) -> None:
        """Remove the queue and its messages; done when nothing of it can come back."""
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
        # Not before: until then they may be written, or written again, and read back after a crash; and what was
        # taken is answered with its commit.
        self._journal.mark(_Dropping(unacked))

    async def adopt(self, queue_ids: Sequence[int]) -> list[QueueState]:
        """Serve queues whose owner this node has become, as far as they still exist. Raises StoreError."""
        summaries = await self._reader.until_available(lambda: self._store.adopt(queue_ids), patient=True)
        expiries = await self._reader.until_available(self._store.expiring, patient=True)
        await self._number_above(max((summary.last_message_id for summary in summaries), default=0))
        adopted = [self._engine.adopt_queue(summary) for summary in summaries]
        new = {state.queue.id for state in adopted}
        self._engine.expect_expiries([expiry for expiry in expiries if expiry[0] in new])
        for state in adopted:
            self._listener.queue_adopted(state)
        self._broker.retention.watch_expiries()
        return adopted

    def release(self, queue_id: int, owner: int, done: Done) -> list[Message]:
        """Leave the queue to another node; return its messages that the store does not keep.

        This node serves it to nobody from now on. What was leased comes again at the new owner.
        """
        state = self._engine.queue(queue_id)
        known = (*state.oldest(0, len(state)), *state.unacked.values())
        passing = [message for message in known if not message.persistent]
        self._engine.delete_queue(queue_id)
        change_for_good(self._journal, [QueueMoved(state.queue, owner)], done)
        self._listener.queue_released(state.queue, owner)
        _notify(state, lambda consumer: consumer.owner.queue_moved(consumer))
        return passing

    # Inside

    def _registers(self, state: QueueState) -> bool:
        """Whether the store has to know the queue."""
        return state.is_stored or self._broker.is_clustered

    def _forget(self, queue_id: int, *, only_empty: bool = False) -> QueueState:
        state = self._engine.delete_queue(queue_id, only_empty=only_empty)
        _notify(state, lambda consumer: consumer.owner.queue_deleted(consumer))
        self._listener.queue_deleted(state.queue)
        return state

    async def _number_above(self, message_id: int) -> None:
        """Let new messages have higher ids than that, which another node has given: ids tell what comes first."""
        if self._engine.next_message_id <= message_id:
            first = await self._reader.until_available(
                lambda: self._store.reserve_message_ids(ID_BLOCK), patient=True
            )
            self._engine.renew_message_ids(first, ID_BLOCK)

    async def _sweep(self, queue_id: int, up_to_id: int) -> None:
        """Delete what a deleted queue has left in the store. If it fails, the next start does it."""
        with contextlib.suppress(StoreError):
            await self._reader.until_available(lambda: self._store.delete_queue_messages(queue_id, up_to_id, ()))


class _Dropping:
    """Drops the bodies of a deleted queue's unacked messages once nothing will write them any more."""

    __slots__ = ("_unacked",)

    def __init__(self, unacked: Sequence[Message]) -> None:
        self._unacked = unacked

    def committed(self) -> None:
        drop_bodies(self._unacked)

    def failed(self, error: FlyballError) -> None:
        drop_bodies(self._unacked)


def drop_bodies(unacked: Iterable[Message]) -> None:
    """Let go of what unacked messages of a queue that is gone hold: no limit counts them, and they cannot come back.

    Those who have got them may keep the messages for as long as they like.
    """
    for message in unacked:
        message.body = message.properties = b""


def _notify(state: QueueState, call: Callable[[Consumer], None]) -> None:
    """Tell the consumers of a queue that is gone from here. One that fails must not keep it from the others."""
    for consumer in list(state.consumers.values()):
        try:
            call(consumer)
        except Exception as error:
            consumer.owner.crash(error)
