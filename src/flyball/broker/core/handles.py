"""What a session does with a queue, wherever that is served.

A handle stands for one queue. `LocalQueue` is that of a queue which this node serves. That of a queue which another
node serves comes from `peering`: it follows the queue when it moves, and retries when a node is lost. Sessions need
not know which of both they have.
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
    """What a queue holds."""

    ready: int = 0
    consumers: int = 0


class Got(NamedTuple):
    """A message that was taken out of a queue, None if there was none, and how many more are ready."""

    message: Message | None = None
    ready: int = 0


class Subscriber(Protocol):
    """A consumer of a session. It may go on with the same queue on another node, or with another queue.

    It is a `Receiver`, without inheriting from it: that is compiled, and typing knows no compiled protocol.
    """

    queue: Queue
    prefetch: float
    priority: int
    exclusive: bool
    no_ack: bool
    # Which messages it asks for; None: all, in the order of the queue.
    selector: Selector | None

    @property
    def window(self) -> SharedWindow | None:
        """The window that it shares with others of its session."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether its client has cancelled it, or has gone."""
        ...

    @property
    def is_attached(self) -> bool:
        """Whether a queue sends it messages."""
        ...

    def deliver(self, consumer: Consumer, message: Message) -> None: ...

    def queue_deleted(self, consumer: Consumer) -> None: ...

    def queue_moved(self, consumer: Consumer) -> None: ...

    def crash(self, error: BaseException) -> None: ...

    def started(self, consumer: Consumer, queue: Queue) -> None:
        """From now on it is sent what this consumer of the engine gets."""
        ...

    def ended(self) -> None:
        """There is nowhere to go on."""
        ...


class QueueHandle(Protocol):
    """A queue, wherever it is served. An operation raises an error, or calls back once, maybe before it returns."""

    @property
    def queue(self) -> Queue: ...

    @property
    def traits(self) -> Traits: ...

    def check_access(self, owner: object) -> None:
        """Raise QueueLocked if it is exclusive to another connection."""
        ...

    def declare(self, declared: Queue, owner: object, done: Answer[QueueCounts]) -> None:
        """Compare it with a declaration, and use it. Raises QueueLocked, UnlikeDeclared."""
        ...

    def use(self, done: Answer[QueueCounts]) -> None:
        """Return what it holds; it expires later."""
        ...

    def purge(self, done: Answer[int]) -> None:
        """Remove all ready messages, and return how many there were."""
        ...

    def delete(self, done: Answer[int], *, if_unused: bool = False, if_empty: bool = False) -> None:
        """Delete it, and return how many messages were ready."""
        ...

    def delete_empty(self, done: Answer[None]) -> None:
        """Delete it if it holds no message, not even an unacked one."""
        ...

    def get(self, done: Answer[Got], *, no_ack: bool) -> None:
        """Take a message out; it has to be settled, requeued or dead-lettered."""
        ...

    def consume(self, subscriber: Subscriber, done: Done) -> None:
        """Send its messages to a consumer; `done` is called before the first one."""
        ...

    def take(
        self,
        selector: Selector,
        done: TakeDone,
        fit: int = BodyFormat.ALL,
        taken: Callable[[Message], None] | None = None,
    ) -> None:
        """Remove the first message that fits. One that the reader cannot be sent stays: InvalidBody.

        If this node serves the queue `taken` is called with the message while its removal is on the way to the store.
        """
        ...

    def peek(self, selector: Selector | None, done: TakeDone, fit: int = BodyFormat.ALL) -> None:
        """Return the first message that fits; without a selector the next one. It stays where it is."""
        ...

    def browse(self, after_id: int, limit: int, done: Answer[list[Message]]) -> None:
        """Return some ready messages with a larger id, oldest first; none if there are no more."""
        ...

    def list_ids(self, after_id: int, limit: int, done: Answer[list[int]]) -> None:
        """Return the ids of such messages, when all of these are durable."""
        ...

    def remove_oldest(self, up_to_id: int, limit: int, done: Answer[int]) -> None:
        """Remove the oldest ready messages up to an id, so many at the most, and return how many there were."""
        ...


class LocalQueue:
    """A queue that this node serves."""

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
        # It may have failed meanwhile, with its first message.
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
