"""What a connection remembers of the messages published on it: where they went, and what their properties said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from flyball.broker.core.directory import RemoteQueue
from flyball.broker.engine.counts import ExchangeMeter
from flyball.broker.engine.queue import QueueState

T = TypeVar("T")

# What a connection remembers of routes, and of properties, in bytes; with more it begins again with nothing. What
# would take more than a part of it is not remembered.
REMEMBERED_BYTES = 512 * 1024
_LARGEST_REMEMBERED_BYTES = REMEMBERED_BYTES // 8
# What an entry takes beside the bytes that it is found by.
_ENTRY_BYTES = 500


class Remembered(Generic[T]):
    """Values by the bytes that they were read from, bounded in bytes."""

    __slots__ = ("entries", "size_bytes")

    def __init__(self) -> None:
        self.entries: dict[bytes, T] = {}
        self.size_bytes = 0

    def add(self, key: bytes, value: T, content_bytes: int) -> None:
        """Remember a value, unless it is large. `content_bytes` is what it takes with its key."""
        cost_bytes = _ENTRY_BYTES + content_bytes
        if cost_bytes <= _LARGEST_REMEMBERED_BYTES:
            if self.size_bytes + cost_bytes > REMEMBERED_BYTES:
                self.clear()
            self.size_bytes += cost_bytes
            self.entries[key] = value

    def clear(self) -> None:
        self.entries.clear()
        self.size_bytes = 0


@dataclass(slots=True, eq=False)
class Route:
    """Where messages of an origin go, as long as `version` is the present one."""

    version: int
    exchange: str
    routing_key: str
    targets: Sequence[QueueState]
    # Whether nothing but the routing key decides.
    is_fixed: bool
    # The queues of other nodes that get them, too.
    elsewhere: Sequence[RemoteQueue]
    meter: ExchangeMeter
