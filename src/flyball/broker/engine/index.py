"""An index of a queue's messages: by some of their fields, in some order.

An index holds only message ids, so it also covers messages whose bodies are not in memory. It is a heap of integers
for each combination of values of its filter fields. A message removed through another index stays in the heap as a
stale entry until it reaches the top or stale entries are the majority, so every operation is O(log n) amortized.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from flyball.model import Message, Order, Selector

# Receiver, sender and context; None for a field that the index does not filter by.
Key = tuple[int | None, int | None, int | None]

_ID_BITS = 63
_ID_MASK = (1 << _ID_BITS) - 1
# Minimum number of stale entries of an index to be rebuilt.
_FEW = 64


@dataclass(slots=True, frozen=True, eq=False)
class Shape:
    """The filter fields and the order of an index. Shapes are singletons."""

    by_receiver: bool
    by_sender: bool
    by_context: bool
    order: Order

    @staticmethod
    def of(selector: Selector) -> Shape:
        # On the path of every read: a table lookup by position is cheaper than hashing.
        place = selector.order * 8
        if selector.reader is not None:
            place += 4
        if selector.sender is not None:
            place += 2
        if selector.context is not None:
            place += 1
        return _SHAPES[place - 8]


_SHAPES = [
    Shape(by_receiver, by_sender, by_context, order)
    for order in (Order.OLDEST, Order.NEWEST, Order.PRIORITY)
    for by_receiver in (False, True)
    for by_sender in (False, True)
    for by_context in (False, True)
]

# First in, first out, without a filter.
ARRIVAL = Shape.of(Selector())


class Index:
    """The ids of a queue's ready messages, ordered for selectors of one shape."""

    __slots__ = ("_heaps", "_size", "_stale", "last_use", "shape")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        # Time of last use, from its backlog's logical clock.
        self.last_use = 0
        # Never holds an empty heap.
        self._heaps: dict[Key, list[int]] = {}
        self._stale: set[int] = set()
        self._size = 0

    def __len__(self) -> int:
        return self._size - len(self._stale)

    @property
    def heap_count(self) -> int:
        """Number of combinations of values of the filter fields."""
        return len(self._heaps)

    def add(self, message: Message) -> None:
        """Add a message at the position given by its id and priority."""
        if self._stale and message.id in self._stale:
            self._stale.remove(message.id)
            return
        key = self._key(message)
        rank = self._rank(message.id, message.priority)
        heap = self._heaps.get(key)
        if heap is None:
            self._heaps[key] = [rank]
        else:
            heappush(heap, rank)
        self._size += 1

    def extend(self, key: Key, priority: int, message_ids: Sequence[int]) -> None:
        """Add messages that share a key and a priority."""
        if self.shape.order is Order.OLDEST:
            ranks = list(message_ids)
        else:
            ranks = [self._rank(message_id, priority) for message_id in message_ids]
        if not ranks:
            return
        heap = self._heaps.get(key)
        if heap is None:
            heapify(ranks)
            self._heaps[key] = ranks
        elif len(ranks) < len(heap) // 8:
            for rank in ranks:
                heappush(heap, rank)
        else:
            heap.extend(ranks)
            heapify(heap)
        self._size += len(ranks)

    def first(self, selector: Selector) -> int | None:
        """Return the id of the first match, or None."""
        best = self._top((selector.reader, selector.sender, selector.context))
        if selector.reader is not None and selector.unaddressed:
            other = self._top((None, selector.sender, selector.context))
            if best is None or (other is not None and other < best):
                best = other
        return None if best is None else self._id(best)

    def first_ids(self, selector: Selector, limit: int) -> list[int]:
        """Return the ids of the first matches, in order."""
        keys: list[Key] = [(selector.reader, selector.sender, selector.context)]
        if selector.reader is not None and selector.unaddressed:
            keys.append((None, selector.sender, selector.context))
        heaps = [self._heaps[key] for key in keys if key in self._heaps]
        # A heap is a tree: the next smallest is always a child of an entry already visited.
        frontier = [(heap[0], number, 0) for number, heap in enumerate(heaps)]
        heapify(frontier)
        found: list[int] = []
        while frontier and len(found) < limit:
            rank, number, place = heappop(frontier)
            message_id = self._id(rank)
            if message_id not in self._stale:
                found.append(message_id)
            heap = heaps[number]
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(heap):
                    heappush(frontier, (heap[child], number, child))
        return found

    def remove(self, message: Message) -> None:
        """Remove a message."""
        key = self._key(message)
        heap = self._heaps.get(key)
        if heap is not None and heap[0] == self._rank(message.id, message.priority):
            heappop(heap)
            self._size -= 1
            if not heap:
                del self._heaps[key]
        else:
            self.discard(message.id)

    def discard(self, message_id: int) -> None:
        """Remove a message known only by its id."""
        self._stale.add(message_id)
        if len(self._stale) > _FEW and len(self._stale) * 2 > self._size:
            self._rebuild()

    def _key(self, message: Message) -> Key:
        shape = self.shape
        return (
            message.receiver if shape.by_receiver else None,
            message.sender if shape.by_sender else None,
            message.context if shape.by_context else None,
        )

    def _rank(self, message_id: int, priority: int) -> int:
        order = self.shape.order
        if order is Order.OLDEST:
            return message_id
        if order is Order.NEWEST:
            return -message_id
        return (-priority << _ID_BITS) + message_id

    def _id(self, rank: int) -> int:
        order = self.shape.order
        if order is Order.OLDEST:
            return rank
        if order is Order.NEWEST:
            return -rank
        return rank & _ID_MASK

    def _top(self, key: Key) -> int | None:
        heap = self._heaps.get(key)
        if heap is None:
            return None
        if self._stale:
            while self._id(heap[0]) in self._stale:
                self._stale.remove(self._id(heap[0]))
                heappop(heap)
                self._size -= 1
                if not heap:
                    del self._heaps[key]
                    return None
        return heap[0]

    def _rebuild(self) -> None:
        stale = self._stale
        heaps: dict[Key, list[int]] = {}
        self._size = 0
        for key, heap in self._heaps.items():
            live = [rank for rank in heap if self._id(rank) not in stale]
            if live:
                heapify(live)
                heaps[key] = live
                self._size += len(live)
        self._heaps = heaps
        self._stale = set()
