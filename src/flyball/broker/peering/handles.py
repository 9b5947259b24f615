"""The handle of a remote queue: each operation goes to the node that currently serves the queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from flyball.broker.core.body_format import BodyFormat
from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.handles import Got, LocalQueue, QueueCounts, Subscriber
from flyball.broker.core.pending import Answer, Done, TakeDone, result
from flyball.broker.core.topology import check_same
from flyball.broker.engine.traits import Traits
from flyball.broker.peering.link.ownership import OPERATIONS
from flyball.broker.peering.remote import Remotes
from flyball.errors import ClusterError, FlyballError, QueueLocked
from flyball.model import Message, Queue, Selector

# Maximum number of message ids in a response, so that it fits into a frame.
MAX_IDS = 20_000

# After these commands this node applies changes before it responds, so that the queue is deleted here as well.
_DELETIONS = ("queue.delete", "queue.delete_empty")

T = TypeVar("T")


class RemoteHandle:
    """A queue that was served by another node when it was looked up."""

    __slots__ = ("_queue", "_remotes")

    def __init__(self, remotes: Remotes, queue: Queue) -> None:
        self._remotes = remotes
        self._queue = queue

    @property
    def queue(self) -> Queue:
        return self._queue

    @property
    def traits(self) -> Traits:
        return self._remotes.topology.traits_of(self._queue)

    def check_access(self, owner: object) -> None:
        # An exclusive queue belongs to a connection of the node that serves it.
        if self._queue.exclusive:
            raise QueueLocked(self._queue.name, self._queue.vhost)

    def declare(self, declared: Queue, owner: object, done: Answer[QueueCounts]) -> None:
        self.check_access(owner)
        check_same(self._queue, declared)
        self.use(done)

    def use(self, done: Answer[QueueCounts]) -> None:
        self._request("queue.counts", lambda counts, error: done(QueueCounts(*counts), error), QueueCounts())

    def purge(self, done: Answer[int]) -> None:
        self._request("queue.purge", done, 0)

    def delete(self, done: Answer[int], *, if_unused: bool = False, if_empty: bool = False) -> None:
        self._request("queue.delete", done, 0, if_unused=if_unused, if_empty=if_empty)

    def delete_empty(self, done: Answer[None]) -> None:
        self._request("queue.delete_empty", done, None)

    def list_ids(self, after_id: int, limit: int, done: Answer[list[int]]) -> None:
        self._request("queue.ids", done, [], after_id=after_id, limit=min(limit, MAX_IDS))

    def remove_oldest(self, up_to_id: int, limit: int, done: Answer[int]) -> None:
        self._request("queue.remove_oldest", done, 0, up_to_id=up_to_id, limit=limit)

    def get(self, done: Answer[Got], *, no_ack: bool) -> None:
        def there(remote: RemoteQueue) -> Awaitable[Got]:
            return result(partial(self._remotes.get, remote))

        self._carry_out(there, partial(LocalQueue.get, no_ack=no_ack), done, Got())

    def consume(self, subscriber: Subscriber, done: Done) -> None:
        def begun(answer: Answer[None], error: FlyballError | None) -> None:
            if error is None:
                # Before the first delivery.
                done(None)
            answer(None, error)

        def there(remote: RemoteQueue) -> Awaitable[None]:
            return result(lambda answer: self._remotes.attach(remote, subscriber, partial(begun, answer)))

        def here(local: LocalQueue, answer: Answer[None]) -> None:
            local.consume(subscriber, partial(begun, answer))

        def ended(_: None, error: FlyballError | None) -> None:
            if error is not None:
                done(error)

        self._carry_out(there, here, ended, None)

    def take(
        self,
        selector: Selector,
        done: TakeDone,
        fit: int = BodyFormat.ALL,
        taken: Callable[[Message], None] | None = None,
    ) -> None:
        nothing: Message | None = None
        self._carry_out(
            lambda remote: self._remotes.read(remote, selector, removes=True, fit=fit),
            lambda local, answer: local.take(selector, answer, fit, taken),
            done,
            nothing,
        )

    def peek(self, selector: Selector | None, done: TakeDone, fit: int = BodyFormat.ALL) -> None:
        nothing: Message | None = None
        wanted = selector or self.traits.selector
        self._carry_out(
            lambda remote: self._remotes.read(remote, wanted, removes=False, fit=fit),
            lambda local, answer: local.peek(selector, answer, fit),
            done,
            nothing,
        )

    def browse(self, after_id: int, limit: int, done: Answer[list[Message]]) -> None:
        nothing: list[Message] = []
        self._carry_out(
            lambda remote: self._remotes.browse(remote, after_id, limit),
            lambda local, answer: local.browse(after_id, limit, answer),
            done,
            nothing,
        )

    def _request(self, command: str, done: Answer[T], nothing: T, **arguments: object) -> None:
        """Execute an operation that is sent as a generic request on the link."""

        async def there(remote: RemoteQueue) -> Any:
            value = await self._remotes.request(remote, command, arguments)
            if command in _DELETIONS:
                await self._remotes.changes.catch_up()
            return value

        def here(local: LocalQueue, answer: Answer[T]) -> None:
            OPERATIONS[command](local, done=answer, **arguments)

        self._carry_out(there, here, done, nothing)

    def _carry_out(
        self,
        there: Callable[[RemoteQueue], Awaitable[T]],
        here: Callable[[LocalQueue, Answer[T]], None],
        done: Answer[T],
        nothing: T,
    ) -> None:
        """Start an operation, and call back with its result, or with `nothing` and an error."""

        async def work() -> None:
            value = nothing
            failure: FlyballError | None = None
            try:
                value = await self._remotes.at_owner(self._queue, there, lambda local: result(partial(here, local)))
            except FlyballError as error:
                failure = error
            except Exception as error:
                # Respond: otherwise the caller would wait forever.
                self._remotes.broker.faults.note("remote queue", error)
                failure = ClusterError("internal error; see this node's log")
            done(value, failure)

        self._remotes.peers.spawn(work())
