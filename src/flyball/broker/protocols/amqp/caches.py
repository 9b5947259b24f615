"""Per-connection caches of routes and parsed properties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from flyball.broker.core.directory import RemoteQueue
from flyball.broker.engine.counts import ExchangeMeter
from flyball.broker.engine.queue import QueueState

T = TypeVar("T")

# Size limit of a cache in bytes; when it is exceeded, the cache is cleared. Larger entries are not cached.
CACHE_BYTES = 512 * 1024
_LARGEST_CACHED_BYTES = CACHE_BYTES // 8
# Memory of an entry, without its key.
_ENTRY_BYTES = 500


class BytesCache(Generic[T]):
    """A cache keyed by wire bytes, bounded in bytes."""

    __slots__ = ("entries", "size_bytes")

    def __init__(self) -> None:
        self.entries: dict[bytes, T] = {}
        self.size_bytes = 0

    def add(self, key: bytes, value: T, content_bytes: int) -> None:
        """Cache a value unless it is large. `content_bytes` is its size with its key."""
        cost_bytes = _ENTRY_BYTES + content_bytes
        if cost_bytes <= _LARGEST_CACHED_BYTES:
            if self.size_bytes + cost_bytes > CACHE_BYTES:
                self.clear()
            self.size_bytes += cost_bytes
            self.entries[key] = value

    def clear(self) -> None:
        self.entries.clear()
        self.size_bytes = 0


@dataclass(slots=True, eq=False)
class Route:
    """The targets of messages with an exchange and routing key, valid for one `version` of the topology."""

    version: int
    exchange: str
    routing_key: str
    targets: Sequence[QueueState]
    # Whether the route depends only on the routing key.
    is_fixed: bool
    # Remote queues among the targets.
    elsewhere: Sequence[RemoteQueue]
    meter: ExchangeMeter
