"""Removal of expired, rejected and displaced messages: dead-lettered in batches, dropped, or parked.

The publisher decides whether a message is dead-lettered, and where to: see `dead_letters`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Protocol

from flyball.broker.core.pending import Done
from flyball.broker.core.store_reader import StoreReader
from flyball.broker.engine.backlog import LOAD_AT_ONCE
from flyball.broker.engine.engine import WORTH_PAGING_BYTES, Engine
from flyball.broker.engine.queue import Parked, QueueState
from flyball.broker.store.group_commit import GroupCommit
from flyball.errors import Fenced, FlyballError, RequestError
from flyball.faults import Faults
from flyball.model import Message

log = logging.getLogger(__name__)

# Retry interval of dead-lettering while the commit queue is congested.
CONGESTED_S = 0.05

# Maximum number of messages rejected by one request that are dead-lettered at once; more are deferred.
MAX_DEAD_LETTERS_AT_ONCE = 100

# Maximum number of dead letters of one message that full queues refuse and dead-letter in turn: queues that
# dead-letter into each other could multiply a message endlessly.
MAX_REFUSED = 1000

# Duration of a batch of dead-lettering and of the pause after it, which limits it to half of the event loop's time: a
# hundred thousand messages may expire at once, and each may pass through a chain of a hundred queues.
TURN_S = 0.01

# Reasons caused by a consumer's request, which may be part of a transaction.
_ASKED_FOR = ("rejected", "delivery_limit")


class DeadLetterResult(enum.Enum):
    """Whether a removed message has a dead letter."""

    NO_SUCCESSOR = 0
    # The dead letter was put into its queues.
    SUCCEEDED = 1
    # A dead letter was sent to another node: the message stays until that node confirms it, see `Held`.
    LATER = 2


class Held:
    """A message that stays unacked until other nodes have confirmed all of its dead letters sent to them.

    They include the dead letters of copies that full queues refused: those copies are in no queue.
    """

    __slots__ = ("_left", "is_unacked", "message", "state")

    def __init__(self, state: QueueState, message: Message) -> None:
        self.state = state
        self.message = message
        # A message that a full queue refused when it was published is in no queue: its publisher is notified.
        self.is_unacked = message.id in state.unacked
        # Unconfirmed dead letters, plus one while they are being published.
        self._left = 1

    def hold(self) -> None:
        self._left += 1

    def release(self) -> bool:
        """Return whether this was the last one: the message may be removed then."""
        self._left -= 1
        return self._left == 0


# An unacked message to be dead-lettered, and the reason: expired, maxlen, rejected or delivery_limit.
_Pending = tuple[QueueState, Message, str]


class Publisher(Protocol):
    """Publishes dead letters."""

    def publish(self, state: QueueState, message: Message, reason: str) -> DeadLetterResult:
        """Publish the dead letter of a message before it is removed, if its queue has a dead-letter exchange."""
        ...


class Keeper(Protocol):
    """The part of the broker that dead-lettering uses."""

    engine: Engine
    journal: GroupCommit
    faults: Faults
    now_us: Callable[[], int]

    @property
    def is_congested(self) -> bool: ...

    async def obtain_ids(self, count: int) -> None: ...

    def settle(self, message: Message, is_acknowledged: bool = False) -> bool: ...

    def settle_written(self, message: Message, is_acknowledged: bool = False) -> bool: ...

    def requeue(self, messages: Sequence[Message]) -> None: ...

    def when_durable(self, done: Done) -> None: ...


class DeadLettering:
    """Removes messages, after putting their dead letters into queues."""

    def __init__(
        self, broker: Keeper, reader: StoreReader, spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self._broker = broker
        self._engine = broker.engine
        self._reader = reader
        self._spawn = spawn
        # Set later, since it needs exchanges and links, which need the broker. Until then nothing is dead-lettered.
        self.publisher: Publisher | None = None
        # Messages and reasons in order, by queue; the first message is being loaded from the store.
        self._loading: dict[int, deque[tuple[Message, str]]] = {}
        # Deferred messages: expired ones, and those displaced by dead letters.
        self._pending: deque[_Pending] = deque()
        # Their number by queue.
        self._pending_counts: dict[int, int] = {}
        # Whether a dead letter is being published; the messages that it displaces; copies that full queues refuse.
        self._is_publishing = False
        self._displaced: list[_Pending] = []
        self._refused: list[tuple[QueueState, Message]] = []
        # The message whose dead letters are being published, or were published last.
        self.held: Held | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_quiescent = False
        # Parked messages whose bodies are still in memory, since they are not stored yet.
        self._parked_whole: dict[int, tuple[QueueState, Message]] = {}

    @property
    def is_publishing(self) -> bool:
        """Whether a dead letter is being put into queues."""
        return self._is_publishing

    def quiesce(self) -> None:
        """Stop dead-lettering; recovery at the next start finds the messages again."""
        self._is_quiescent = True
        if self._timer is not None:
            self._timer.cancel()

    def dead_letter(self, state: QueueState, message: Message, reason: str) -> None:
        """Remove an unacked message, and dead-letter it if its queue has a dead-letter exchange."""
        if state.original is not None:
            self._engine.settle(message)
            state.original.dead_letter(message)
            return
        if self._is_publishing:
            self._displaced.append((state, message, reason))
            return
        if state.queue.id in self._pending_counts and not self._broker.journal.is_grouping:
            self.dead_letter_later(state, message, reason)
        else:
            # In a transaction it must be in the same batch as the other changes, even if it overtakes deferred ones.
            self._dead_letter_or_load(state, message, reason)
        self.go_on()

    def dead_letter_all(self, messages: Sequence[Message], reason: str) -> None:
        """Remove and dead-letter unacked messages: many of them in batches, unless in a transaction."""
        is_later = len(messages) > MAX_DEAD_LETTERS_AT_ONCE and not self._broker.journal.is_grouping
        for message in messages:
            state = self._engine.find_queue_by_id(message.queue_id)
            if state is None:
                continue
            if is_later and state.original is None:
                self.dead_letter_later(state, message, reason)
            else:
                self.dead_letter(state, message, reason)
        self.go_on()

    def dead_letter_refused(self, state: QueueState, message: Message) -> None:
        """Dead-letter a message that is in no queue because a full queue refused it."""
        if self._is_publishing:
            self._refused.append((state, message))
            return
        try:
            self._publish_with_refused(state, message, "maxlen")
        except Exception as error:
            # The publisher is notified that the message was refused.
            self._broker.faults.note("dead letters", error, quiet=True)
        self.go_on()

    def dead_letter_later(self, state: QueueState, message: Message, reason: str) -> None:
        """Defer the dead-lettering of an unacked message; the caller must call `go_on`."""
        self._pending.append((state, message, reason))
        self._count_pending(state)

    def _count_pending(self, state: QueueState) -> None:
        queue_id = state.queue.id
        self._pending_counts[queue_id] = self._pending_counts.get(queue_id, 0) + 1

    def go_on(self) -> None:
        """Dead-letter deferred messages, unless that is in progress."""
        if self._pending and self._timer is None and not (self._is_publishing or self._is_quiescent):
            self._dead_letter_pending()

    def _dead_letter_pending(self, *, is_urged: bool = True) -> None:
        """Dead-letter a batch of deferred messages, and schedule the rest.

        All of them are unacked and, if persistent, in the store: recovery finds them again after a crash.
        """
        self._timer = None
        ends_s = time.monotonic() + TURN_S
        again = partial(self._dead_letter_pending, is_urged=False)
        loop = asyncio.get_running_loop()
        while self._pending:
            if (
                not is_urged
                and self._broker.is_congested
                and self._pending[0][0].traits.dead_letter_exchange is not None
            ):
                # Dead letters would fill the commit queue, with no publisher to throttle.
                self._timer = loop.call_later(CONGESTED_S, again)
                return
            self._dead_letter_first_pending()
            if time.monotonic() > ends_s:
                # Pause for as long as the batch: messages in a cycle of queues return as fast as they are removed.
                self._timer = loop.call_later(TURN_S, again)
                return

    def _dead_letter_first_pending(self) -> None:
        state, message, reason = self._pending.popleft()
        queue_id = state.queue.id
        left = self._pending_counts.pop(queue_id) - 1
        if left:
            self._pending_counts[queue_id] = left
        if self._is_unacked(state, message):
            try:
                self._dead_letter_or_load(state, message, reason)
            except Exception as error:
                self.park(state, message, reason, error)

    def _is_unacked(self, state: QueueState, message: Message) -> bool:
        """Whether the message is still unacked; its queue may have moved away and returned with the same ids."""
        return self._engine.find_queue_by_id(state.queue.id) is state and state.unacked.get(message.id) is message

    def _dead_letter_or_load(self, state: QueueState, message: Message, reason: str) -> None:
        queue_id = state.queue.id
        if state.traits.dead_letter_exchange is not None and (
            message.is_paged or queue_id in self._loading or self._engine.message_ids_left < self._engine.max_copies
        ):
            # The dead letter needs the body and an id for each copy, and later messages must not overtake it.
            line = self._loading.get(queue_id)
            if line is None:
                self._loading[queue_id] = line = deque()
                self._spawn(self._dead_letter_in_order(state, line))
            line.append((message, reason))
            return
        self._dead_letter(state, message, reason)

    def _dead_letter(self, state: QueueState, message: Message, reason: str) -> None:
        try:
            result = self._publish_with_refused(state, message, reason)
        except Exception as error:
            self.park(state, message, reason, error)
            return
        state.dropped += 1
        if result is DeadLetterResult.LATER:
            return
        if result is DeadLetterResult.SUCCEEDED or reason in _ASKED_FOR:
            # The publisher must not be confirmed before the dead letter, or the transaction that rejects the message,
            # is durable.
            self._broker.settle_written(message)
        else:
            self._broker.settle(message)

    def _publish_with_refused(self, state: QueueState, message: Message, reason: str) -> DeadLetterResult:
        """Publish the dead letter of a message, and those of all its copies that full queues refuse.

        Refused copies are in no queue, so their dead letters must be in the batch that removes the message itself: a
        crash would lose them otherwise. A message displaced by a dead letter is unacked in its queue and can be
        deferred; it is queued before earlier deferred ones, which keeps their number small. Both are loops, not
        recursion, since a chain of queues may have any length.
        """
        self._is_publishing = True
        held = self.held = Held(state, message)
        try:
            result = self._publish(state, message, reason)
            refused = deque(self._refused)
            count = 0
            while refused:
                count += 1
                if count > MAX_REFUSED:
                    raise RequestError(f"full queues refused more than {MAX_REFUSED} dead letters of this message")
                self._refused.clear()
                self._publish(*refused.popleft(), "maxlen")
                refused.extendleft(reversed(self._refused))
            if not held.release():
                return DeadLetterResult.LATER
            return DeadLetterResult.SUCCEEDED if result is DeadLetterResult.LATER else result
        finally:
            self._is_publishing = False
            self._refused.clear()
            for displaced in reversed(self._displaced):
                self._pending.appendleft(displaced)
                self._count_pending(displaced[0])
            self._displaced.clear()

    def _publish(self, state: QueueState, message: Message, reason: str) -> DeadLetterResult:
        publisher = self.publisher
        return DeadLetterResult.NO_SUCCESSOR if publisher is None else publisher.publish(state, message, reason)

    def park(self, state: QueueState, message: Message, reason: str, error: Exception) -> None:
        """Park an unacked message that could not be dead-lettered: keep it undelivered, for an operator.

        It stays in the store; recovery after a restart finds it and retries once.
        """
        if message.id not in state.unacked:
            return
        problem = str(error) if isinstance(error, FlyballError) else f"{type(error).__name__}: {error}"
        if not isinstance(error, FlyballError):
            self._broker.faults.note("dead letters", error, quiet=True)
        if not any(parked.problem == problem for parked in state.parked.values()):
            queue = state.queue
            log.error(
                "message cannot be dead-lettered; parked queue=%r vhost=%r id=%d reason=%s problem=%r",
                *(queue.name, queue.vhost, message.id, reason, problem),
            )
        state.parked[message.id] = Parked(message, reason, problem, self._broker.now_us())
        if state.begun:
            # It stays for days, and would take the place of a message whose service time can be measured.
            state.begun.pop(message.id, None)
        can_be_paged = message.persistent and state.is_stored and len(message.body) >= WORTH_PAGING_BYTES
        if can_be_paged and not message.is_paged and not self._engine.page_out(message):
            self._parked_whole[message.id] = (state, message)

    def page_out_parked(self) -> None:
        """Page out the bodies of parked messages that were not stored yet when they were parked.

        They may stay for days and use memory that publishers need.
        """
        for message_id, (state, message) in list(self._parked_whole.items()):
            is_here = self._engine.find_queue_by_id(state.queue.id) is state and message_id in state.parked
            if not is_here or message.is_paged or self._engine.page_out(message):
                del self._parked_whole[message_id]

    async def _dead_letter_in_order(self, state: QueueState, line: deque[tuple[Message, str]]) -> None:
        """Dead-letter messages in order, after loading their bodies and obtaining ids."""
        engine = self._engine
        try:
            while line and not self._is_quiescent:
                while self._broker.is_congested:  # noqa: ASYNC110
                    # Dead letters would fill the commit queue, with no publisher to throttle.
                    await asyncio.sleep(CONGESTED_S)
                await self._reader.page_in([message for message, _ in islice(line, LOAD_AT_ONCE) if message.is_paged])
                await self._broker.obtain_ids(engine.max_copies)
                ends_s = time.monotonic() + TURN_S
                while line and not line[0][0].is_paged and engine.message_ids_left >= engine.max_copies:
                    message, reason = line.popleft()
                    if self._is_unacked(state, message):
                        self._dead_letter(state, message, reason)
                    if time.monotonic() > ends_s:
                        break
                self.go_on()
                await asyncio.sleep(TURN_S)
        except Fenced:
            # The node lost its queues: the nodes that serve them now have the messages.
            return
        except Exception as error:
            for message, reason in line:
                self.park(state, message, reason, error)
        finally:
            del self._loading[state.queue.id]

    def requeue_parked(self, state: QueueState, message_ids: Iterable[int] | None = None) -> int:
        """Requeue these parked messages, or all; return their number.

        An expired message, or one over the delivery limit, is dead-lettered again at once.
        """
        messages = self._unpark(state, message_ids)
        self._broker.requeue(messages)
        return len(messages)

    def drop_parked(self, state: QueueState, message_ids: Iterable[int] | None, done: Done) -> int:
        """Remove these parked messages, or all; return their number. Calls `done` when the removal is durable."""
        messages = self._unpark(state, message_ids)
        state.dropped += len(messages)
        for message in messages:
            # Not `remove`, which keeps the message to restore it on failure: the body may be only in the store.
            self._broker.settle(message)
        self._broker.when_durable(done)
        return len(messages)

    def _unpark(self, state: QueueState, message_ids: Iterable[int] | None) -> list[Message]:
        wanted = list(state.parked) if message_ids is None else message_ids
        found = [state.parked.pop(message_id, None) for message_id in wanted]
        return [parked.message for parked in found if parked is not None]
