"""Handles: the operations of a session on a queue, wherever it is served.

`LocalQueue` is the handle of a queue that this node serves. The handle of a remote queue is created by `peering`: it
follows the queue when it moves, and retries when a node is lost. Sessions use both in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from flyball.broker.core.body_format import BodyFormat, fits, format_error
from flyball.broker.core.pending import Answer, Done, TakeDone
from flyball.broker.core.topology import Topology
from flyball.broker.engine.consumer import Consumer, SharedWindow
from flyball.broker.engine.queue import QueueState
from flyball.broker.engine.traits import Traits
from flyball.errors import FlyballError
from flyball.model import Message, Queue, Selector

_UNLIMITED = float("inf")


class QueueCounts(NamedTuple):
    """The number of ready messages and of consumers of a queue."""

    ready: int = 0
    consumers: int = 0


class Got(NamedTuple):
    """The message fetched by a get, or None if the queue was empty, and the number of messages still ready."""

    message: Message | None = None
    ready: int = 0


class Subscriber(Protocol):
    """A session's consumer. It survives a move of its queue, and may switch to another member of a clustered queue.

    It implements `Receiver` without inheriting from it: a mypyc-compiled class cannot be a protocol's base.
    """

    queue: Queue
    prefetch: float
    priority: int
    exclusive: bool
    no_ack: bool
    # Filter and order of its messages; None for all messages in queue order.
    selector: Selector | None

    @property
    def window(self) -> SharedWindow | None:
        """The window shared with other consumers of its session."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether it was cancelled or its session closed."""
        ...

    @property
    def is_attached(self) -> bool:
        """Whether it is a consumer of a queue at present."""
        ...

    def deliver(self, consumer: Consumer, message: Message) -> None: ...

    def queue_deleted(self, consumer: Consumer) -> None: ...

    def queue_moved(self, consumer: Consumer) -> None: ...

    def crash(self, error: BaseException) -> None: ...

    def started(self, consumer: Consumer, queue: Queue) -> None:
        """Attach it to this consumer of the engine."""
        ...

    def ended(self) -> None:
        """Cancel it: its queue was deleted, and no other member remains."""
        ...


class QueueHandle(Protocol):
    """A queue, wherever it is served. An operation raises or calls back exactly once, maybe before it returns."""

    @property
    def queue(self) -> Queue: ...

    @property
    def traits(self) -> Traits: ...

    def check_access(self, owner: object) -> None:
        """Raise QueueLocked if it is exclusive to another connection."""
        ...

    def declare(self, declared: Queue, owner: object, done: Answer[QueueCounts]) -> None:
        """Check it against a declaration, and renew its expiry. Raises QueueLocked, UnlikeDeclared."""
        ...

    def use(self, done: Answer[QueueCounts]) -> None:
        """Return its counts, and renew its expiry."""
        ...

    def purge(self, done: Answer[int]) -> None:
        """Remove all ready messages, and return their number."""
        ...

    def delete(self, done: Answer[int], *, if_unused: bool = False, if_empty: bool = False) -> None:
        """Delete it, and return the number of its ready messages."""
        ...

    def delete_empty(self, done: Answer[None]) -> None:
        """Delete it if it has no messages, ready or unacked."""
        ...

    def get(self, done: Answer[Got], *, no_ack: bool) -> None:
        """Fetch a message, which the caller must settle, requeue or dead-letter."""
        ...

    def consume(self, subscriber: Subscriber, done: Done) -> None:
        """Attach a consumer; `done` is called before the first delivery."""
        ...

    def take(
        self,
        selector: Selector,
        done: TakeDone,
        fit: int = BodyFormat.ALL,
        taken: Callable[[Message], None] | None = None,
    ) -> None:
        """Remove and return the first match, unless the reader's protocol cannot represent it: InvalidBody.

        If this node serves the queue, `taken` is called with the message before its removal is durable.
        """
        ...

    def peek(self, selector: Selector | None, done: TakeDone, fit: int = BodyFormat.ALL) -> None:
        """Return the first match, or the next message if `selector` is None; it stays ready."""
        ...

    def browse(self, after_id: int, limit: int, done: Answer[list[Message]]) -> None:
        """Return up to `limit` ready messages with ids above `after_id`, oldest first; an empty list at the end."""
        ...

    def list_ids(self, after_id: int, limit: int, done: Answer[list[int]]) -> None:
        """Return the ids of such messages when all of them are durable."""
        ...

    def remove_oldest(self, up_to_id: int, limit: int, done: Answer[int]) -> None:
        """Remove at most `limit` ready messages up to an id, oldest first, and return their number."""
        ...


class LocalQueue:
    """A queue served by this node."""

    __slots__ = ("_broker", "_state", "_topology")

    def __init__(self, topology: Topology, state: QueueState) -> None:
        self._topology = topology
        self._broker = topology.broker
        self._state = state

    @property
    def queue(self) -> Queue:
        return self._state.queue

    @property
    def traits(self) -> Traits:
        return self._state.traits

    @property
    def _counts(self) -> QueueCounts:
        return QueueCounts(len(self._state), len(self._state.consumers))

    def check_access(self, owner: object) -> None:
        self._topology.check_owner(self._state, owner)

    def declare(self, declared: Queue, owner: object, done: Answer[QueueCounts]) -> None:
        self._topology.declare_queue(declared, owner, lambda error: done(self._counts, error))

    def use(self, done: Answer[QueueCounts]) -> None:
        self._topology.touch(self._state)
        done(self._counts, None)

    def purge(self, done: Answer[int]) -> None:
        count = len(self._state)
        self._broker.purge(self.queue.id, lambda removed, error: done(count, error))

    def delete(self, done: Answer[int], *, if_unused: bool = False, if_empty: bool = False) -> None:
        count = len(self._state)
        self._topology.delete_queue(
            self._state, lambda error: done(count, error), if_unused=if_unused, if_empty=if_empty
        )

    def delete_empty(self, done: Answer[None]) -> None:
        self._topology.lifecycle.delete(self.queue.id, partial(done, None), only_empty=True)

    def get(self, done: Answer[Got], *, no_ack: bool) -> None:
        state = self._state
        self._topology.touch(state)

        def found(message: Message | None, error: FlyballError | None) -> None:
            if message is not None:
                state.count_get(message, is_gone=no_ack)
            elif error is None:
                self._broker.meters.get_empty += 1
            done(Got(message, len(state)), error)

        self._broker.take_out(state.queue.id, state.traits.selector, found)

    def consume(self, subscriber: Subscriber, done: Done) -> None:
        state = self._state
        if subscriber.is_over:
            done(None)
            return
        self._topology.check_consumer(state, exclusive=subscriber.exclusive)

        def started(consumer: Consumer) -> None:
            subscriber.started(consumer, state.queue)
            done(None)

        self._broker.consume(
            state.queue.id,
            subscriber.selector or state.traits.selector,
            _UNLIMITED if subscriber.no_ack else subscriber.prefetch,
            subscriber,
            started,
            no_ack=subscriber.no_ack,
            priority=subscriber.priority,
            shared=None if subscriber.no_ack else subscriber.window,
        )
        # The delivery of its first message may have failed.
        if subscriber.is_attached:
            self._topology.consumer_added(state, subscriber, exclusive=subscriber.exclusive)

    def take(
        self,
        selector: Selector,
        done: TakeDone,
        fit: int = BodyFormat.ALL,
        taken: Callable[[Message], None] | None = None,
    ) -> None:
        def accepts(message: Message) -> bool:
            is_fit = fits(message, fit)
            if is_fit and taken is not None:
                taken(message)
            return is_fit

        self._broker.take(self.queue.id, selector, done, accepts)

    def peek(self, selector: Selector | None, done: TakeDone, fit: int = BodyFormat.ALL) -> None:
        def found(message: Message | None, error: FlyballError | None) -> None:
            if message is not None and not fits(message, fit):
                done(None, format_error(message, fit))
            else:
                done(message, error)

        self._broker.peek(self.queue.id, selector or self.traits.selector, found)

    def browse(self, after_id: int, limit: int, done: Answer[list[Message]]) -> None:
        self._broker.browse(self.queue.id, after_id, limit, done)

    def list_ids(self, after_id: int, limit: int, done: Answer[list[int]]) -> None:
        def listed(messages: list[Message], error: FlyballError | None) -> None:
            ids = [message.id for message in messages]
            if error is not None:
                done([], error)
            else:
                self._broker.when_durable(lambda error: done(ids, error))

        self.browse(after_id, limit, listed)

    def remove_oldest(self, up_to_id: int, limit: int, done: Answer[int]) -> None:
        self._broker.remove_oldest(self.queue.id, up_to_id, limit, done)
