"""The ready messages of a queue.

A `PlainBacklog` is a FIFO in memory, with one append and one pop per message. When a reader requests another order or
a filter, or memory runs short, the queue switches to an `IndexedBacklog`, which finds messages through indexes and
can page out their bodies to the store.
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

# Messages read back from the store per batch.
LOAD_AT_ONCE = 1000

# Messages indexed per turn of the event loop.
INDEX_AT_ONCE = 500

# Maximum number of indexes of a backlog, unless consumers need more of the 24 possible shapes.
MAX_INDEXES = 8

_message_id = attrgetter("id")

# The key of every message in an index without a filter.
_ANY_KEY: Key = (None, None, None)

# Memory of an index entry: a pointer and an integer.
ENTRY_BYTES = 40

# Memory of an empty heap. An index has one heap for each combination of values of its filter fields.
HEAP_BYTES = 250

# Memory per message while an index is built: an entry in a list and one in a set.
_BUILD_ENTRY_BYTES = 72

# Memory of the delivery count of a paged-out message.
COUNT_BYTES = 100


@dataclass(slots=True, frozen=True, eq=False)
class Load:
    """The requested message is not in memory: load these messages and retry.

    Until then all requests for any of them return the same object.
    """

    message_ids: list[int]


@dataclass(slots=True, frozen=True)
class Build:
    """The index of this shape is missing, and filling it needs the store or many turns: build it and retry."""

    shape: Shape


Need = Load | Build


class PlainBacklog:
    """A FIFO in memory. A requeued message returns to its original position."""

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
        """Yield the messages with ids above `message_id`, oldest first."""
        if self._returned:
            return (message for message in self if message.id > message_id)
        return islice(self._ready, bisect_right(self._ready, message_id, key=_message_id), None)

    def newest_first(self) -> Iterator[Message]:
        """Yield the messages in reverse order of arrival, requeued ones last."""
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
    """The progress of an index build, and the messages that it must leave out."""

    __slots__ = ("added", "at", "excluded", "filled_to", "needs_store", "resident", "size_bytes")

    def __init__(self, elsewhere: Iterable[int], resident: list[int], needs_store: bool) -> None:
        # Messages in the index that were not read from the store.
        self.added: set[int] = set()
        # Messages that the store will list and that must not enter the index.
        self.excluded = set(elsewhere)
        self.filled_to = 0
        # Messages in memory when the build started.
        self.resident = resident
        # Number of these that were processed.
        self.at = 0
        # Whether the index lacks messages that are only in the store.
        self.needs_store = needs_store
        self.size_bytes = (len(resident) + len(self.excluded)) * _BUILD_ENTRY_BYTES


class IndexedBacklog:
    """Ready messages, found through indexes. Absent messages, which are only in the store, are known by id."""

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
        """`absent` is the number of messages that are in the store and not in memory.

        Messages up to the id `void_to` that the store still lists were purged; their deletion is pending. Messages up
        to that id that were requeued after the purge stay in memory. Messages up to the id `recovered_to` were in the
        store before this node served the queue.
        """
        self._resident: dict[int, Message] = {message.id: message for message in messages}
        self._count = len(self._resident) + absent
        self._void_to = void_to
        self._indexes: dict[Shape, Index] = {}
        self._last_used: Index | None = None
        # Counts switches from one index to another; orders indexes by their last use.
        self._clock = 0
        # Whether the index by arrival exists only because a backlog with absent messages must have one index.
        self._is_arrival_spare = False
        self._building: dict[Shape, _Building] = {}
        # Absent messages that are being loaded.
        self._wanted: dict[int, Load] = {}
        self._recovered_to = recovered_to
        # Absent messages with ids up to `recovered_to` that arrived later, from another node: not recovered.
        self._fresh: set[int] = set()
        # Delivery counts of absent messages, which the store does not keep.
        self._delivery_counts: dict[int, int] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def absent(self) -> int:
        """Number of messages that are not in memory."""
        return self._count - len(self._resident)

    @property
    def absent_bytes(self) -> int:
        """Memory of the index entries, except the first entry of each message in memory, which is charged with it.

        The others are not negligible: consumers with every kind of selector need 24 indexes, whose size is five times
        that of short messages if all contexts differ.
        """
        if self.is_plain:
            return 0
        heaps = sum([index.heap_count for index in self._indexes.values()])
        places = max(0, self._count * len(self._indexes) - len(self._resident))
        held_bytes = places * ENTRY_BYTES + heaps * HEAP_BYTES + len(self._delivery_counts) * COUNT_BYTES
        return held_bytes + sum([building.size_bytes for building in self._building.values()])

    @property
    def is_plain(self) -> bool:
        """Whether a `PlainBacklog` would suffice: no index except by arrival, and all messages in memory."""
        return not self.absent and not self._building and all(shape is ARRIVAL for shape in self._indexes)

    def resident(self) -> Iterator[Message]:
        """Yield the messages that are in memory, in no particular order."""
        return iter(self._resident.values())

    def oldest(self, after_id: int, limit: int) -> list[Message]:
        """Return the first messages in memory with ids above `after_id`, oldest first."""
        # The ids are mostly sorted already: sorting takes a quarter of the time of a heap with a key.
        message_ids = sorted([message_id for message_id in self._resident if message_id > after_id])
        return [self._resident[message_id] for message_id in message_ids[:limit]]

    def newest_first(self) -> Iterator[Message]:
        """Yield the messages in memory, the last to be added or requeued first."""
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
        """Add a message whose body is only in the store."""
        if not self._indexes and not self.absent:
            self._make_index(ARRIVAL)
            self._is_arrival_spare = True
        self._count += 1
        self._note_delivery_count(message)
        for index in self._indexes.values():
            index.add(message)
        for building in self._building.values():
            building.added.add(message.id)

    @property
    def is_filling(self) -> bool:
        """Whether an index is being filled."""
        return bool(self._building)

    def pass_by(self, message_id: int) -> None:
        """Exclude a new message from the indexes being filled: it was delivered at once, or has expired.

        The store may have it by the time it is read for an index, and an index that includes it would deliver it
        again.
        """
        for building in self._building.values():
            building.excluded.add(message_id)

    def first(self, selector: Selector) -> Message | Need | None:
        """Return the first match, or the read from the store that is needed to find it."""
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
        """Remove a message that is in memory."""
        del self._resident[message.id]
        self._count -= 1
        for index in self._indexes.values():
            if not self._building or not self._exclude(index.shape, message.id):
                index.remove(message)

    def loaded(self, load: Load, messages: Sequence[Message]) -> list[Message]:
        """Add messages of a `Load`; return those that are new in memory. An empty `messages` means all are lost.

        Messages that have left the backlog, or are in memory already, are ignored.
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
        """Drop these stored messages from memory."""
        if not self._indexes and not self.absent:
            # The next reader needs an index, which is cheapest to build while all messages are in memory. Later it
            # would have to be built from the store.
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
        """Start an index; new messages are added to it from now on.

        `fill_from_memory` adds messages in memory, except those that the store will list as well; then, if the index
        `needs_store`, `fill_index` adds the stored ones. `elsewhere` are ids that are stored but not ready, such as
        those of unacked messages. A short backlog is fully indexed on return.
        """
        self._indexes[shape] = Index(shape)
        self._last_used = None
        if shape is ARRIVAL:
            self._is_arrival_spare = False
        self._building[shape] = _Building(elsewhere, list(self._resident), self.absent > 0)
        if len(self._resident) <= INDEX_AT_ONCE:
            self.fill_from_memory(shape)

    def fill_from_memory(self, shape: Shape) -> bool:
        """Index a batch of the messages in memory; return whether more remain."""
        index = self._indexes[shape]
        building = self._building[shape]
        message_ids = building.resident[building.at : building.at + INDEX_AT_ONCE]
        building.at += len(message_ids)
        for message_id in message_ids:
            message = self._resident.get(message_id)
            if message is None:
                # It left the queue, or was evicted from memory.
                building.needs_store = building.needs_store or message_id not in building.excluded
            elif message_id not in building.added and not (
                building.needs_store and message.stored and message_id > self._void_to
            ):
                building.added.add(message_id)
                index.add(message)
        return building.at < len(building.resident)

    def needs_store(self, shape: Shape) -> bool:
        """Whether an index filled from memory lacks messages that are only in the store."""
        return self._building[shape].needs_store

    def fill_index(self, shape: Shape, keys: Iterable[tuple[Key, int, Sequence[int]]], up_to_id: int) -> None:
        """Add stored messages up to an id, as keys, priorities and ids, except those already added."""
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
        """Mark an index as complete: reads may use it."""
        del self._building[shape]
        if self._is_arrival_spare and shape is not ARRIVAL:
            self._is_arrival_spare = False
            del self._indexes[ARRIVAL]
            self._last_used = None

    def abandon_index(self, shape: Shape) -> None:
        """Discard an index whose build failed."""
        del self._building[shape]
        del self._indexes[shape]

    def is_building(self, shape: Shape) -> bool:
        return shape in self._building

    @property
    def index_count(self) -> int:
        return len(self._indexes)

    def drop_indexes(self, needed: Container[Shape], keep: int) -> None:
        """Drop the least recently used indexes until `keep` remain, but none of those `needed`."""
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
            # In one call: half a million short messages may be in memory when memory first runs short.
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
        """Exclude a message that leaves the queue from an index build. False if the index already contains it."""
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
    """Choose messages to evict from memory, newest first, until they add up to `wanted_bytes`.

    The newest `keep_bytes` stay in memory: a client that waits for a reply reads them first.
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
