"""Where a queue's ready messages wait.

A `PlainBacklog` is first in, first out, and all in memory: it costs an append and a pop. As soon as a reader
asks for another order or a filter, or the memory runs short, the queue changes to an `IndexedBacklog`, which
finds messages through indexes and may leave their bodies to the store.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, merge
from itertools import islice
from operator import attrgetter

from flyball.broker.engine.index import ARRIVAL, Index, Key, Shape
from flyball.model import Message, Selector

# How many messages are read back from the store together.
LOAD_AT_ONCE = 1000

# An index of more messages is filled in rounds of this size, so that others have their turn in between.
INDEX_AT_ONCE = 500

# Indexes that a backlog keeps though no consumer needs them. There are 24 shapes.
MAX_INDEXES = 8

_message_id = attrgetter("id")

# That of all messages in an index that filters by nothing.
_ANY_KEY: Key = (None, None, None)

# What the place of a message in an index takes: a pointer and an integer.
ENTRY_BYTES = 40

# What a heap of an index takes beside its entries: there is one for each combination of the fields it filters by.
HEAP_BYTES = 250

# What an index takes for each message while it is filled: a place in a list, and one in a set.
_NOTE_BYTES = 72

# What it takes to remember how often a message was delivered that is not in memory.
COUNT_BYTES = 100


@dataclass(slots=True, frozen=True, eq=False)
class Load:
    """The wanted messages are not in memory: load these, then ask again.

    All who want one of them meanwhile get the same object.
    """

    message_ids: list[int]


@dataclass(slots=True, frozen=True)
class Build:
    """There is no index of this shape, and to fill it takes reads or many rounds: build it, then ask again."""

    shape: Shape


Need = Load | Build


class PlainBacklog:
    """First in, first out. A message that comes back goes to its old place."""

    __slots__ = ("_ready", "_returned")

    def __init__(self) -> None:
        self._ready: deque[Message] = deque()
        self._returned: list[tuple[int, Message]] = []

    def __len__(self) -> int:
        return len(self._ready) + len(self._returned)

    def __iter__(self) -> Iterator[Message]:
        """Yield the messages, oldest first."""
        if not self._returned:
            return iter(self._ready)
        returned = [message for _, message in sorted(self._returned)]
        return merge(returned, self._ready, key=lambda message: message.id)

    def after(self, message_id: int) -> Iterator[Message]:
        """Yield the messages with a larger id, oldest first."""
        if self._returned:
            return (message for message in self if message.id > message_id)
        return islice(self._ready, bisect_right(self._ready, message_id, key=_message_id), None)

    def newest_first(self) -> Iterator[Message]:
        """Yield the messages, those that came back last."""
        yield from reversed(self._ready)
        for _, message in self._returned:
            yield message

    def add(self, message: Message) -> None:
        ready = self._ready
        if ready and message.id < ready[-1].id:
            heappush(self._returned, (message.id, message))
        else:
            ready.append(message)

    def first(self) -> Message | None:
        if self._returned and (not self._ready or self._returned[0][0] < self._ready[0].id):
            return self._returned[0][1]
        return self._ready[0] if self._ready else None

    def pop(self) -> None:
        """Remove the first message."""
        if self._returned and (not self._ready or self._returned[0][0] < self._ready[0].id):
            heappop(self._returned)
        else:
            self._ready.popleft()


class _Building:
    """How far an index has been filled, and what the filling must leave out."""

    __slots__ = ("added", "at", "excluded", "filled_to", "needs_store", "resident", "size_bytes")

    def __init__(self, elsewhere: Iterable[int], resident: list[int], needs_store: bool) -> None:
        # What is in the index without having come from the store.
        self.added: set[int] = set()
        # What the store still has to name, and which must not be taken from there.
        self.excluded = set(elsewhere)
        self.filled_to = 0
        # What was in memory when it was begun.
        self.resident = resident
        # How much of that was looked at.
        self.at = 0
        # Whether it lacks messages that are only in the store.
        self.needs_store = needs_store
        self.size_bytes = (len(resident) + len(self.excluded)) * _NOTE_BYTES


class IndexedBacklog:
    """Ready messages, found through indexes; those that are not resident are known by their ids only."""

    __slots__ = (
        "_building",
        "_clock",
        "_count",
        "_delivery_counts",
        "_fresh",
        "_indexes",
        "_is_arrival_spare",
        "_last_used",
        "_recovered_to",
        "_resident",
        "_void_to",
        "_wanted",
    )

    def __init__(
        self, messages: Iterable[Message] = (), *, absent: int = 0, void_to: int = 0, recovered_to: int = 0
    ) -> None:
        """`absent` messages are in the store and not in memory.

        What the store names up to the id `void_to` was purged and is only waiting to be deleted there. Messages
        up to that id that came back after the purge stay resident. What the store has up to the id `recovered_to` was
        there before this node served the queue.
        """
        self._resident: dict[int, Message] = {message.id: message for message in messages}
        self._count = len(self._resident) + absent
        self._void_to = void_to
        self._indexes: dict[Shape, Index] = {}
        self._last_used: Index | None = None
        # How often another index was used than the time before.
        self._clock = 0
        # Whether the index by arrival is there only because the backlog must not be without any.
        self._is_arrival_spare = False
        self._building: dict[Shape, _Building] = {}
        # Absent messages that somebody was told to load.
        self._wanted: dict[int, Load] = {}
        self._recovered_to = recovered_to
        # Absent messages up to that id that came later, from another node: they were not recovered.
        self._fresh: set[int] = set()
        # How often absent messages were delivered before: the store does not know.
        self._delivery_counts: dict[int, int] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def absent(self) -> int:
        """How many of the messages are not in memory."""
        return self._count - len(self._resident)

    @property
    def absent_bytes(self) -> int:
        """How much memory places in the indexes take. The first place of a message in memory counts with the message.

        The others do not: consumers that ask for messages in every way make 24 indexes, and where all contexts are
        different these take five times as much as short messages.
        """
        if self.is_plain:
            return 0
        heaps = sum([index.heap_count for index in self._indexes.values()])
        places = max(0, self._count * len(self._indexes) - len(self._resident))
        held_bytes = places * ENTRY_BYTES + heaps * HEAP_BYTES + len(self._delivery_counts) * COUNT_BYTES
        return held_bytes + sum([building.size_bytes for building in self._building.values()])

    @property
    def is_plain(self) -> bool:
        """Whether nobody has asked for more than first in, first out, of messages that are all in memory."""
        return not self.absent and not self._building and all(shape is ARRIVAL for shape in self._indexes)

    def resident(self) -> Iterator[Message]:
        """Yield the messages that are in memory, in no particular order."""
        return iter(self._resident.values())

    def oldest(self, after_id: int, limit: int) -> list[Message]:
        """Return the first messages in memory with a larger id, oldest first."""
        # Most of them came in this order: to sort them takes a quarter of what a heap with a key does.
        message_ids = sorted([message_id for message_id in self._resident if message_id > after_id])
        return [self._resident[message_id] for message_id in message_ids[:limit]]

    def newest_first(self) -> Iterator[Message]:
        """Yield the messages that are in memory, those first that came or came back last."""
        return reversed(self._resident.values())

    def get(self, message_id: int) -> Message | None:
        """Return the message if it is ready and resident."""
        return self._resident.get(message_id)

    def add(self, message: Message) -> None:
        self._resident[message.id] = message
        self._count += 1
        for index in self._indexes.values():
            index.add(message)
        if self._building:
            for building in self._building.values():
                building.added.add(message.id)

    def add_absent(self, message: Message) -> None:
        """Take in a message whose body is only in the store."""
        if not self._indexes and not self.absent:
            self._make_index(ARRIVAL)
            self._is_arrival_spare = True
        self._count += 1
        self._note_delivery_count(message)
        for index in self._indexes.values():
            index.add(message)
        for building in self._building.values():
            building.added.add(message.id)

    def first(self, selector: Selector) -> Message | Need | None:
        """Return the first message that fits, or what must be read from the store to know it."""
        if self._count == 0:
            return None
        shape = Shape.of(selector)
        index = self._indexes.get(shape)
        if index is None:
            is_short = shape is ARRIVAL or len(self._resident) <= INDEX_AT_ONCE
            if self.absent or not is_short or len(self._indexes) >= MAX_INDEXES:
                return Build(shape)
            index = self._make_index(shape)
        elif self._building and shape in self._building:
            return Build(shape)
        elif shape is ARRIVAL:
            self._is_arrival_spare = False
        if index is not self._last_used:
            self._last_used = index
            self._clock += 1
            index.last_use = self._clock
        message_id = index.first(selector)
        if message_id is None:
            return None
        resident = self._resident.get(message_id)
        return self._load(index, selector, message_id) if resident is None else resident

    def remove(self, message: Message) -> None:
        """Take a resident message out."""
        del self._resident[message.id]
        self._count -= 1
        for index in self._indexes.values():
            if not self._building or not self._exclude(index.shape, message.id):
                index.remove(message)

    def loaded(self, load: Load, messages: Sequence[Message]) -> list[Message]:
        """Take in some of what was asked for; return what is new in memory. Without any, all are lost.

        What has left the backlog since, or is in memory already, is ignored.
        """
        new = [message for message in messages if self._wanted.pop(message.id, None) is not None]
        for message in new:
            self._resident[message.id] = message
            if self._delivery_counts:
                message.delivery_count = self._delivery_counts.pop(message.id, message.delivery_count)
            if message.id <= self._recovered_to:
                message.recovered = message.id not in self._fresh
                self._fresh.discard(message.id)
        left = [message_id for message_id in load.message_ids if self._wanted.get(message_id) is load]
        for message_id in left:
            del self._wanted[message_id]
            if not messages:
                self._lose(message_id)
        return new

    def evict(self, messages: Iterable[Message]) -> None:
        """Leave these resident messages to the store."""
        if not self._indexes and not self.absent:
            # The next reader needs an index, and it is cheapest to make while everything is here. If not everything
            # is, it would lack what is only in the store: then the next reader has one built from there.
            self._make_index(ARRIVAL)
            self._is_arrival_spare = True
        for message in messages:
            del self._resident[message.id]
            self._note_delivery_count(message)

    def _note_delivery_count(self, message: Message) -> None:
        if message.delivery_count:
            self._delivery_counts[message.id] = message.delivery_count
        if message.id <= self._recovered_to and not message.recovered:
            self._fresh.add(message.id)

    def begin_index(self, shape: Shape, elsewhere: Iterable[int]) -> None:
        """Start an index; new messages find their way in at once.

        `fill_from_memory` fills it with what is in memory, but for what the store will name anyway, and after that
        `fill_index` with what is stored, if it `needs_store`. `elsewhere` are ids that are stored but not ready, such
        as those of leased messages. Few messages are in the index on return.
        """
        self._indexes[shape] = Index(shape)
        self._last_used = None
        if shape is ARRIVAL:
            self._is_arrival_spare = False
        self._building[shape] = _Building(elsewhere, list(self._resident), self.absent > 0)
        if len(self._resident) <= INDEX_AT_ONCE:
            self.fill_from_memory(shape)

    def fill_from_memory(self, shape: Shape) -> bool:
        """Look at some of the messages in memory; return whether there are more."""
        index = self._indexes[shape]
        building = self._building[shape]
        message_ids = building.resident[building.at : building.at + INDEX_AT_ONCE]
        building.at += len(message_ids)
        for message_id in message_ids:
            message = self._resident.get(message_id)
            if message is None:
                # It has left the queue, or only the memory.
                building.needs_store = building.needs_store or message_id not in building.excluded
            elif message_id not in building.added and not (
                building.needs_store and message.stored and message_id > self._void_to
            ):
                building.added.add(message_id)
                index.add(message)
        return building.at < len(building.resident)

    def needs_store(self, shape: Shape) -> bool:
        """Whether an index that was filled from memory lacks messages that are only in the store."""
        return self._building[shape].needs_store

    def fill_index(self, shape: Shape, keys: Iterable[tuple[Key, int, Sequence[int]]], up_to_id: int) -> None:
        """Add all stored messages up to that id which were not added before: their keys, priorities and ids."""
        index = self._indexes[shape]
        building = self._building[shape]
        for key, priority, message_ids in keys:
            index.extend(
                key,
                priority,
                [
                    message_id
                    for message_id in message_ids
                    if message_id > self._void_to
                    and message_id not in building.excluded
                    and message_id not in building.added
                ],
            )
        building.filled_to = up_to_id

    def finish_index(self, shape: Shape) -> None:
        """The index is complete and may answer."""
        del self._building[shape]
        if self._is_arrival_spare and shape is not ARRIVAL:
            self._is_arrival_spare = False
            del self._indexes[ARRIVAL]
            self._last_used = None

    def abandon_index(self, shape: Shape) -> None:
        """Give up an index that was begun and could not be filled."""
        del self._building[shape]
        del self._indexes[shape]

    def is_building(self, shape: Shape) -> bool:
        return shape in self._building

    @property
    def index_count(self) -> int:
        return len(self._indexes)

    def drop_indexes(self, needed: Container[Shape], keep: int) -> None:
        """Drop the indexes that were used longest ago until there are few enough; those that are `needed` stay."""
        idle = [
            index for shape, index in self._indexes.items() if shape not in needed and shape not in self._building
        ]
        idle.sort(key=lambda index: index.last_use)
        for index in idle[: max(0, len(self._indexes) - keep)]:
            del self._indexes[index.shape]
        self._last_used = None
        self._is_arrival_spare = self._is_arrival_spare and ARRIVAL in self._indexes

    def _make_index(self, shape: Shape) -> Index:
        index = self._indexes[shape] = Index(shape)
        if shape is ARRIVAL:
            # All at once: half a million short messages may be in memory when it runs short for the first time.
            index.extend(_ANY_KEY, 0, list(self._resident))
            return index
        for message in self._resident.values():
            index.add(message)
        return index

    def _load(self, index: Index, selector: Selector, message_id: int) -> Load:
        load = self._wanted.get(message_id)
        if load is None:
            wanted = index.first_ids(selector, LOAD_AT_ONCE)
            load = Load([other for other in wanted if other not in self._resident and other not in self._wanted])
            for other in load.message_ids:
                self._wanted[other] = load
        return load

    def _lose(self, message_id: int) -> None:
        self._count -= 1
        self._delivery_counts.pop(message_id, None)
        self._fresh.discard(message_id)
        for index in self._indexes.values():
            if not self._exclude(index.shape, message_id):
                index.discard(message_id)

    def _exclude(self, shape: Shape, message_id: int) -> bool:
        """Keep a message that leaves out of an index that is being built. False if it is in the index already."""
        building = self._building.get(shape)
        if building is None:
            return False
        if message_id in building.added:
            building.added.remove(message_id)
            building.excluded.add(message_id)
            return False
        if message_id > building.filled_to:
            building.excluded.add(message_id)
            return True
        return False


def evictable(newest_first: Iterable[Message], wanted_bytes: int, keep_bytes: int, above_id: int) -> list[Message]:
    """Choose messages that memory can do without, from new to old, until they make up `wanted_bytes`.

    The newest `keep_bytes` stay: they are the likeliest to be read by somebody who waits for an answer.
    """
    chosen: list[Message] = []
    for message in newest_first:
        if wanted_bytes <= 0:
            break
        if keep_bytes > 0:
            keep_bytes -= message.footprint_bytes
        elif message.stored and message.id > above_id:
            wanted_bytes -= message.footprint_bytes
            chosen.append(message)
    return chosen
