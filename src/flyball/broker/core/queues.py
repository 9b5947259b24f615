"""Finds queues, wherever they are served, and puts messages into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.handles import LocalQueue, QueueHandle, Subscriber
from flyball.broker.core.intake import Intake
from flyball.broker.core.peering import Peering
from flyball.broker.core.pending import Countdown, Done, PendingMark, outcome
from flyball.broker.core.topology import Headers, Topology
from flyball.broker.engine.queue import QueueState
from flyball.broker.wire.link import Content, PutOutcome
from flyball.errors import (
    ConsumerRefused,
    FlyballError,
    PeerLost,
    QueueFull,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
)
from flyball.model import Draft, Message, Queue

# Retry interval for an unreachable queue; a change reported by peers triggers an earlier retry.
RETRY_S = 0.5

# Ids of the members at which a connection was placed, by virtual host and name of the clustered queue.
Homes = Mapping[tuple[str, str], int]

_NO_HOMES: Homes = {}


class _Copies:
    """Waits until the local copies of a message are stored, and other nodes have confirmed theirs."""

    __slots__ = ("_done", "_is_refused", "_left")

    def __init__(self, left: int, done: Callable[[bool], None] | None, *, is_refused: bool) -> None:
        self._left = left
        self._done = done
        self._is_refused = is_refused

    def answered(self, _: int, outcome: int) -> None:
        self._one(outcome in (PutOutcome.FULL, PutOutcome.UNKNOWN))

    def stored(self, error: FlyballError | None) -> None:
        self._one(error is not None)

    def _one(self, is_refused: bool) -> None:
        self._is_refused |= is_refused
        self._left -= 1
        if self._left == 0 and self._done is not None:
            self._done(self._is_refused)


class Queues:
    """Finds queues, wherever they are served."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        # Replaced by the node when it has created its links, which need this object.
        self.peering = Peering()
        self._engine = topology.engine
        self._directory = topology.directory
        self._intake = Intake(topology.broker)

    def find(self, vhost: str, name: str, homes: Homes = _NO_HOMES) -> QueueHandle | None:
        """Return a handle of the named queue, or None if it does not exist: see `locate`."""
        return self._handle(self.locate(vhost, name, homes))

    def get(self, queue_id: int) -> QueueHandle | None:
        """Return a handle of the queue with the id, or None if it does not exist."""
        return self._handle(self._by_id(queue_id))

    def locate(self, vhost: str, name: str, homes: Homes = _NO_HOMES) -> QueueState | RemoteQueue | None:
        """Resolve a name for a connection: to its home, else to a local queue, else to a remote one."""
        if homes:
            home = homes.get((vhost, name))
            if home is not None:
                found = self._by_id(home)
                if found is not None:
                    return found
        state = self._engine.find_queue(name, vhost)
        return self._directory.find(vhost, name) if state is None else state

    def _by_id(self, queue_id: int) -> QueueState | RemoteQueue | None:
        state = self._engine.find_queue_by_id(queue_id)
        return self._directory.get(queue_id) if state is None else state

    def _handle(self, found: QueueState | RemoteQueue | None) -> QueueHandle | None:
        if isinstance(found, QueueState):
            return LocalQueue(self.topology, found)
        return None if found is None else self.peering.handle(found)

    def route(
        self,
        vhost: str,
        exchange: str,
        routing_keys: Sequence[str],
        headers: Headers,
        homes: Homes = _NO_HOMES,
    ) -> tuple[list[QueueState], list[RemoteQueue]]:
        """Return the local and remote queues to which a message is routed, each once. Raises ExchangeNotFound."""
        router = self.topology.router(vhost)
        if len(routing_keys) == 1:
            names = router.route(exchange, routing_keys[0], headers)
        else:
            names = router.route_keys(exchange, routing_keys, headers)
        here: list[QueueState] = []
        elsewhere: list[RemoteQueue] = []
        for name in names:
            found = self.locate(vhost, name, homes)
            if isinstance(found, QueueState):
                here.append(found)
            elif found is not None:
                elsewhere.append(found)
        return here, elsewhere

    def put(
        self,
        here: Sequence[QueueState],
        elsewhere: Sequence[RemoteQueue],
        content: Content,
        done: Callable[[bool], None] | None,
        owner: object,
    ) -> None:
        """Put a message into local and remote queues.

        When all copies are stored, `done` is called with True if one was refused or lost; None if no confirmation is
        needed. See `Peering.put` for the owner.
        """
        engine, journal = self._engine, self.topology.broker.journal
        first_id = engine.next_message_id
        stored = self._intake.put_content(here, content)
        awaits = done is not None and stored is None
        copies = _Copies(1 + awaits, done, is_refused=stored is PutOutcome.FULL)
        if awaits:
            journal.mark(PendingMark(copies.stored, (), first_id, engine.next_message_id))
        self.peering.put(elsewhere, content, copies.answered, 0, owner)

    def put_draft(
        self, draft: Draft, queue_ids: Sequence[int], done: Done, owner: object, waits: Callable[[], None]
    ) -> None:
        """Put a message without expiry into those of the queues that exist.

        `done` is called when all copies are stored. `waits` is called first if some queues are remote. See
        `Peering.put` for the owner.
        """
        here = [queue_id for queue_id in queue_ids if self._engine.has_queue(queue_id)]
        found = [self._directory.get(queue_id) for queue_id in queue_ids if not self._engine.has_queue(queue_id)]
        elsewhere = [remote for remote in found if remote is not None]
        broker = self.topology.broker
        if not elsewhere:
            broker.put(draft, here, lambda messages, error: done(error))
            return
        waits()
        countdown = Countdown(2, done)
        broker.put(draft, here, lambda messages, error: countdown.one_done(None, error))
        missing: list[int] = []

        def put(_: int, outcome: int) -> None:
            countdown.one_done(None, _failure_of(outcome, elsewhere[0].queue, missing))

        content = Content(
            draft.body, priority=draft.priority, sender=draft.sender, receiver=draft.receiver, context=draft.context
        )
        self.peering.put(elsewhere, content, put, 0, owner, missing)

    def is_remote(self, message: Message) -> bool:
        """Whether a delivered message belongs to a remote queue: proxy queues have negative ids."""
        return message.queue_id < 0

    def is_lost(self, message: Message) -> bool:
        """Whether another node redelivers a delivered message: an ack here has no effect."""
        if not self.peering.is_clustered:
            return False
        state = self._engine.find_queue_by_id(message.queue_id)
        if state is not None:
            return message.id not in state.unacked
        # Messages of a proxy queue whose queue was deleted have no receipt.
        if self.is_remote(message):
            return message.receipt is not None
        return self._directory.get(message.queue_id) is not None

    async def follow(self, subscriber: Subscriber, homes: Homes) -> None:
        """Attach a consumer to its queue on any node; retry if the queue moves in the meantime."""
        has_looked = False
        while not subscriber.is_over:
            try:
                found = self._home_of(subscriber, homes)
                if found is not None:
                    await outcome(partial(found.consume, subscriber))
                    # It may have been detached again before this task continued.
                    if subscriber.is_attached:
                        return
                elif has_looked:
                    subscriber.ended()
                    return
                else:
                    has_looked = True
                    await self.peering.catch_up()
                    continue
            except ConsumerRefused:
                subscriber.ended()
            except (PeerLost, QueueNotFound, StoreError):
                await self.peering.news(RETRY_S)
            has_looked = False

    def _home_of(self, subscriber: Subscriber, homes: Homes) -> QueueHandle | None:
        """Return the queue of a consumer; if it was a member of a clustered queue and deleted, another member."""
        queue = subscriber.queue
        found = self.get(queue.id)
        return self.find(queue.vhost, queue.name, homes) if found is None and queue.member else found


def _failure_of(outcome: int, first: Queue, missing: Sequence[int]) -> FlyballError | None:
    """Return the error of a put into remote queues, some of them missing; None if it succeeded."""
    if outcome == PutOutcome.FULL:
        return QueueFull(first.name, first.vhost)
    if outcome == PutOutcome.UNKNOWN:
        return StoreUnavailable("another node did not respond: its queues may or may not have the message")
    return QueueNotFound(missing[0]) if missing else None
