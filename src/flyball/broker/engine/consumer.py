"""Consumers of a queue, and the order in which waiting consumers are served."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from itertools import takewhile
from typing import Protocol

from flyball.broker.engine.credit import Credit
from flyball.model import Message, Selector

# Matches every receiver; no client has this id.
_ANY_RECEIVER = -1

# The filter of a consumer: receiver (None: messages without one), sender, context.
_Filter = tuple[int | None, int | None, int | None]


class SharedWindow:
    """A limit of unacked messages shared by several consumers, such as those of a channel; 0 means unlimited."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.held = 0

    @property
    def has_room(self) -> bool:
        return self.limit == 0 or self.held < self.limit


# Reasons to pause a consumer: its peer reads or acks too slowly, or its queue moves to another node.
SLOW_PEER = 1
QUEUE_MOVES = 2


class Receiver(Protocol):
    """The protocol session of a consumer. The engine only returns it with each delivery."""

    def deliver(self, consumer: Consumer, message: Message) -> None:
        """Send the message, which is now leased to the consumer."""
        ...

    def queue_deleted(self, consumer: Consumer) -> None:
        """The queue was deleted, together with the consumer and its unacked messages."""
        ...

    def queue_moved(self, consumer: Consumer) -> None:
        """The queue moved to another node, which redelivers the unacked messages; the consumer no longer exists."""
        ...

    def crash(self, error: BaseException) -> None:
        """Close the session after one of the above raised; this requeues its unacked messages."""
        ...


class Consumer:
    """A subscription to a queue: messages are pushed to it up to its credit.

    With `no_ack`, messages are removed when they are delivered instead of leased.
    """

    __slots__ = (
        "credit",
        "id",
        "is_cancelled",
        "is_standby",
        "leased_bytes",
        "leases",
        "no_ack",
        "owner",
        "paused_for",
        "priority",
        "queue_id",
        "selector",
        "shared",
        "turn",
    )

    def __init__(
        self,
        consumer_id: int,
        queue_id: int,
        selector: Selector,
        credit: Credit,
        owner: Receiver,
        *,
        no_ack: bool = False,
        priority: int = 0,
        shared: SharedWindow | None = None,
    ) -> None:
        self.id = consumer_id
        self.queue_id = queue_id
        self.selector = selector
        self.credit = credit
        self.owner = owner
        self.no_ack = no_ack
        # Consumers with a higher priority are served first.
        self.priority = priority
        self.shared = shared
        self.leases: dict[int, Message] = {}
        # Size of the bodies of `leases` that are in memory.
        self.leased_bytes = 0
        self.is_cancelled = False
        # Bits `SLOW_PEER` and `QUEUE_MOVES`: the reasons to pause are cleared separately.
        self.paused_for = 0
        # Whether another consumer of the queue is the single active one.
        self.is_standby = False
        # Sequence number of the start of its wait; 0 while it does not wait.
        self.turn = 0

    def release(self, message_id: int) -> None:
        """End the lease of a message; idempotent."""
        message = self.leases.pop(message_id, None)
        if message is not None:
            self.leased_bytes -= len(message.body)
            if self.shared is not None:
                self.shared.held -= 1

    def wants(self, now_us: int) -> bool:
        return (
            len(self.leases) < self.credit.window(now_us)
            and not (self.is_cancelled or self.paused_for or self.is_standby)
            and (self.shared is None or self.shared.has_room)
        )


class WaitingConsumers:
    """The consumers that wait for a message, served by priority, then in the order in which they started to wait.

    After each delivery a consumer joins again at the end, so that equal priorities are served round-robin. Consumers
    with a filter are grouped by filter, so that thousands that wait for other messages do not slow down an arrival;
    those without a filter are grouped by priority.
    """

    __slots__ = ("_by_filter", "_last_turn", "_ranks", "_unfiltered", "sole")

    def __init__(self) -> None:
        # The only waiting consumer, if it has no filter: the usual case.
        # It is served without leaving and joining again, which cost 18 % of the instructions of a transient message.
        self.sole: Consumer | None = None
        # Never holds an empty dict.
        self._by_filter: dict[_Filter, OrderedDict[int, Consumer]] = {}
        # By priority; never holds an empty dict.
        self._unfiltered: dict[int, dict[int, Consumer]] = {}
        # The priorities in use, negated so that the highest sorts first; empty in the usual case of at most one
        # priority. A client may use a different priority for each of thousands of consumers, so they are never
        # resorted.
        self._ranks: list[int] = []
        self._last_turn = 0

    def __bool__(self) -> bool:
        return bool(self._unfiltered) or bool(self._by_filter)

    def __len__(self) -> int:
        """Number of waiting consumers; one with two filters (its own messages, and unaddressed ones) counts once."""
        filtered = {consumer_id for consumers in self._by_filter.values() for consumer_id in consumers}
        return len(filtered) + sum(len(rank) for rank in self._unfiltered.values())

    def join(self, consumer: Consumer) -> None:
        """Add the consumer after the others of its priority; no effect if it is waiting already."""
        if consumer.turn:
            return
        self._last_turn += 1
        consumer.turn = self._last_turn
        is_unfiltered = _is_unfiltered(consumer.selector)
        self.sole = consumer if is_unfiltered and not self else None
        if is_unfiltered:
            rank = self._unfiltered.get(consumer.priority)
            if rank is None:
                rank = self._unfiltered[consumer.priority] = {}
                if len(self._unfiltered) > 1:
                    self._add_rank(consumer.priority)
            rank[consumer.id] = consumer
            return
        for key in _filters_of(consumer.selector):
            consumers = self._by_filter.get(key)
            if consumers is None:
                consumers = self._by_filter[key] = OrderedDict()
            consumers[consumer.id] = consumer

    def leave(self, consumer: Consumer) -> None:
        if not consumer.turn:
            return
        consumer.turn = 0
        self.sole = None
        if _is_unfiltered(consumer.selector):
            rank = self._unfiltered[consumer.priority]
            del rank[consumer.id]
            if not rank:
                del self._unfiltered[consumer.priority]
                if self._ranks:
                    self._remove_rank(consumer.priority)
            return
        for key in _filters_of(consumer.selector):
            consumers = self._by_filter[key]
            del consumers[consumer.id]
            if not consumers:
                del self._by_filter[key]

    def leave_all(self) -> list[Consumer]:
        """Remove and return all waiting consumers, in the order in which they would have been served."""
        waiting = {consumer.id: consumer for rank in self._unfiltered.values() for consumer in rank.values()}
        for filtered in self._by_filter.values():
            waiting.update(filtered)
        consumers = sorted(waiting.values(), key=lambda each: (-each.priority, each.turn))
        for consumer in consumers:
            self.leave(consumer)
        return consumers

    def match(self, message: Message, now_us: int) -> Consumer | None:
        """Remove and return the next consumer whose filter matches the message and whose window has room."""
        best = self._first_unfiltered(now_us) if self._unfiltered else None
        if self._by_filter:
            for receiver in (None,) if message.receiver is None else (message.receiver, _ANY_RECEIVER):
                for sender in (None,) if message.sender is None else (message.sender, None):
                    for context in (None,) if message.context is None else (message.context, None):
                        consumer = self._head((receiver, sender, context), now_us)
                        if consumer is not None and (best is None or _goes_before(consumer, best)):
                            best = consumer
        if best is not None:
            self.leave(best)
        return best

    def _first_unfiltered(self, now_us: int) -> Consumer | None:
        while self._unfiltered:
            rank = self._unfiltered[-self._ranks[0]] if self._ranks else next(iter(self._unfiltered.values()))
            consumer = next(iter(rank.values()))
            if consumer.wants(now_us):
                return consumer
            # Remove all full or cancelled ones in one pass: finding the first entry of a dict costs a step for each
            # entry removed before it. They join again when they have room.
            for unready in list(takewhile(lambda each: not each.wants(now_us), rank.values())):
                self.leave(unready)
        return None

    def _add_rank(self, priority: int) -> None:
        if self._ranks:
            insort(self._ranks, -priority)
        else:
            self._ranks = sorted([-each for each in self._unfiltered])

    def _remove_rank(self, priority: int) -> None:
        if len(self._unfiltered) == 1:
            self._ranks.clear()
        else:
            del self._ranks[bisect_left(self._ranks, -priority)]

    def _head(self, key: _Filter, now_us: int) -> Consumer | None:
        while key in self._by_filter:
            consumer = next(iter(self._by_filter[key].values()))
            if consumer.wants(now_us):
                return consumer
            self.leave(consumer)
        return None


def _goes_before(consumer: Consumer, other: Consumer) -> bool:
    if consumer.priority != other.priority:
        return consumer.priority > other.priority
    return consumer.turn < other.turn


def _is_unfiltered(selector: Selector) -> bool:
    return selector.reader is None and selector.sender is None and selector.context is None


def _filters_of(selector: Selector) -> list[_Filter]:
    reader = _ANY_RECEIVER if selector.reader is None else selector.reader
    keys: list[_Filter] = [(reader, selector.sender, selector.context)]
    if selector.reader is None or selector.unaddressed:
        keys.append((None, selector.sender, selector.context))
    return keys
