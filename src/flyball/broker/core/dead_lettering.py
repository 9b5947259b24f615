"""What becomes of messages that their queues give up: dead-lettered in turns of the loop, dropped, or parked.

Whether there is a dead letter and where it goes is decided by a publisher: see `dead_letters`.
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

# While so much waits for the store, what would add to it and can wait is tried again after so long.
CONGESTED_S = 0.05

# More messages than these that one request rejects are dead-lettered in further turns.
MAX_DEAD_LETTERS_AT_ONCE = 100

# Dead letters of one message that full queues may refuse and dead-letter in turn: queues that lead to each other
# could multiply it endlessly.
MAX_REFUSED = 1000

# So long messages are dead-lettered at a time, before others have their turn of the loop: a hundred thousand may
# expire at once, and one may die in a chain of a hundred queues. Then as long is left to others, so that dead
# letters take half of the loop at most.
TURN_S = 0.01

# Why messages die that a consumer gives up: it may do so in a transaction.
_ASKED_FOR = ("rejected", "delivery_limit")


class DeadLetterResult(enum.Enum):
    """What becomes of a message that nobody will get any more."""

    NO_SUCCESSOR = 0
    # Another message takes its place.
    SUCCEEDED = 1
    # Another one will take its place; `settle` follows when that is safe.
    LATER = 2


# An unacked message that its queue has given up, and why: expired, maxlen, rejected or delivery_limit.
_Pending = tuple[QueueState, Message, str]


class Publisher(Protocol):
    """Publishes dead letters."""

    def publish(self, state: QueueState, message: Message, reason: str) -> DeadLetterResult:
        """Publish the dead letter of a message that its queue gives up, if there is one, before it is removed."""
        ...


class Keeper(Protocol):
    """The broker, as far as messages that are given up need it."""

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
    """Removes what queues have given up, after its dead letters were put into their queues."""

    def __init__(
        self, broker: Keeper, reader: StoreReader, spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self._broker = broker
        self._engine = broker.engine
        self._reader = reader
        self._spawn = spawn
        # It publishes with what stands on the broker, exchanges and links, and so is made later. Until then nothing
        # has a dead letter.
        self.publisher: Publisher | None = None
        # By queue, messages that wait to be dead-lettered, and why: the first is being read from the store.
        self._loading: dict[int, deque[tuple[Message, str]]] = {}
        # What is to be dead-lettered when its turn comes: what has expired, and what dead letters have displaced.
        self._pending: deque[_Pending] = deque()
        # How many of them each queue has.
        self._pending_counts: dict[int, int] = {}
        # Whether a dead letter is being published. What that displaces, and what is refused, is in these two.
        self._is_publishing = False
        self._displaced: list[_Pending] = []
        self._refused: list[tuple[QueueState, Message]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_quiescent = False
        # Parked messages whose bodies are still in memory: not stored yet, or never.
        self._parked_whole: dict[int, tuple[QueueState, Message]] = {}

    @property
    def is_publishing(self) -> bool:
        """Whether a dead letter is being put into queues."""
        return self._is_publishing

    def quiesce(self) -> None:
        """Begin nothing more: what waits is found again after the next start."""
        self._is_quiescent = True
        if self._timer is not None:
            self._timer.cancel()

    def dead_letter(self, state: QueueState, message: Message, reason: str) -> None:
        """Drop an unacked message for good; its queue may have it dead-lettered."""
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
            # In a transaction it must be in the same batch as the rest, and may overtake others for that.
            self._dead_letter_or_load(state, message, reason)
        self.go_on()

    def dead_letter_all(self, messages: Sequence[Message], reason: str) -> None:
        """Drop unacked messages for good: many of them in several turns of the loop, unless in a transaction."""
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
        """Dead-letter a message that a full queue has refused: it is in no queue."""
        if self._is_publishing:
            self._refused.append((state, message))
            return
        try:
            self._publish_with_refused(state, message, "maxlen")
        except Exception as error:
            # Its publisher hears that it was refused.
            self._broker.faults.note("dead letters", error, quiet=True)
        self.go_on()

    def dead_letter_later(self, state: QueueState, message: Message, reason: str) -> None:
        """Drop an unacked message when its turn comes; `go_on` follows."""
        self._pending.append((state, message, reason))
        self._count_pending(state)

    def _count_pending(self, state: QueueState) -> None:
        queue_id = state.queue.id
        self._pending_counts[queue_id] = self._pending_counts.get(queue_id, 0) + 1

    def go_on(self) -> None:
        """Dead-letter what waits for that, unless it is being done."""
        if self._pending and self._timer is None and not (self._is_publishing or self._is_quiescent):
            self._dead_letter_pending()

    def _dead_letter_pending(self, *, is_urged: bool = True) -> None:
        """Dead-letter what waits, as much as a turn of the loop has time for, and the rest in further turns.

        All of it is unacked and, if it is persistent, in the store: whenever the node ends it is found again there.
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
                # Dead letters wait for the store in memory, and no publisher is there to be slowed.
                self._timer = loop.call_later(CONGESTED_S, again)
                return
            self._dead_letter_first_pending()
            if time.monotonic() > ends_s:
                # As long again for others: messages in a cycle of queues come back as fast as they are dropped.
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
        """Whether it still is, though its queue may have moved away meanwhile, and come back with the same ids."""
        return self._engine.find_queue_by_id(state.queue.id) is state and state.unacked.get(message.id) is message

    def _dead_letter_or_load(self, state: QueueState, message: Message, reason: str) -> None:
        queue_id = state.queue.id
        if state.traits.dead_letter_exchange is not None and (
            message.is_paged or queue_id in self._loading or self._engine.message_ids_left < self._engine.max_copies
        ):
            # Its dead letter needs its body and an id for each copy, and those behind it must not overtake it.
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
            # Its publisher must not be told that it is safe before its successor is, or before the transaction is
            # durable that rejects it.
            self._broker.settle_written(message)
        else:
            self._broker.settle(message)

    def _publish_with_refused(self, state: QueueState, message: Message, reason: str) -> DeadLetterResult:
        """Publish the dead letter of a message, and those of all that full queues refuse on its way.

        What is refused is in no queue, so all of it has to be in the batch in which the message itself is removed: a
        crash would lose it otherwise. What a dead letter displaces from a full queue is unacked there and can wait.
        It goes before what waits already, so that few wait however often that happens. Both are loops, since a chain
        of queues may have any length.
        """
        self._is_publishing = True
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
            return result
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
        """Keep a message, which is out and could not be dead-lettered, for an operator: nobody gets it meanwhile.

        It stays in the store, where it is found again, and tried once more, after a restart.
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
        can_be_paged = message.persistent and state.is_stored and len(message.body) >= WORTH_PAGING_BYTES
        if can_be_paged and not message.is_paged and not self._engine.page_out(message):
            self._parked_whole[message.id] = (state, message)

    def page_out_parked(self) -> None:
        """Leave the bodies of parked messages to the store that was not ready for that when they were parked.

        They may stay for days, and what they hold is taken from what publishers may fill.
        """
        for message_id, (state, message) in list(self._parked_whole.items()):
            is_here = self._engine.find_queue_by_id(state.queue.id) is state and message_id in state.parked
            if not is_here or message.is_paged or self._engine.page_out(message):
                del self._parked_whole[message_id]

    async def _dead_letter_in_order(self, state: QueueState, line: deque[tuple[Message, str]]) -> None:
        """Dead-letter messages of which some have to be read from the store first, or for which there were no ids."""
        engine = self._engine
        try:
            while line and not self._is_quiescent:
                while self._broker.is_congested:  # noqa: ASYNC110
                    # Dead letters wait for the store in memory, and no publisher is there to be slowed.
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
            # The node has lost its queues: whoever serves them now has the messages.
            return
        except Exception as error:
            for message, reason in line:
                self.park(state, message, reason, error)
        finally:
            del self._loading[state.queue.id]

    def requeue_parked(self, state: QueueState, message_ids: Iterable[int] | None = None) -> int:
        """Let parked messages, or all, go back to their places; return how many did.

        One whose time is up, or that came back too often, is given up again at once: that is another attempt.
        """
        messages = self._unpark(state, message_ids)
        self._broker.requeue(messages)
        return len(messages)

    def drop_parked(self, state: QueueState, message_ids: Iterable[int] | None, done: Done) -> int:
        """Remove parked messages, or all, for good; return how many that are. Done when it is durable."""
        messages = self._unpark(state, message_ids)
        state.dropped += len(messages)
        for message in messages:
            # Not `remove`: a message whose body is only in the store could not be written again.
            self._broker.settle(message)
        self._broker.when_durable(done)
        return len(messages)

    def _unpark(self, state: QueueState, message_ids: Iterable[int] | None) -> list[Message]:
        wanted = list(state.parked) if message_ids is None else message_ids
        found = [state.parked.pop(message_id, None) for message_id in wanted]
        return [parked.message for parked in found if parked is not None]
