"""Routing tables: indexes of an exchange's bindings, so that a match does not visit all of them.

One table per exchange type. Tables hold names of destinations only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flyball.errors import RoutingTooCostly
from flyball.model import Binding, Destination


class Targets:
    """The destinations of bindings that always match together, with the number of bindings to each."""

    __slots__ = ("exchanges", "queues")

    def __init__(self) -> None:
        self.queues: dict[str, int] = {}
        self.exchanges: dict[str, int] = {}

    def add(self, binding: Binding) -> None:
        names = self.queues if binding.kind is Destination.QUEUE else self.exchanges
        names[binding.destination] = names.get(binding.destination, 0) + 1

    def remove(self, binding: Binding) -> None:
        names = self.queues if binding.kind is Destination.QUEUE else self.exchanges
        count = names[binding.destination]
        if count > 1:
            names[binding.destination] = count - 1
        else:
            del names[binding.destination]

    @property
    def empty(self) -> bool:
        return not self.queues and not self.exchanges


# Maximum number of trie nodes that one message may visit with all its routing keys: about 35 ms. A message with
# hundreds of long keys and hundreds of patterns with `#` would block the event loop for seconds.
MAX_PLACES = 200_000


class Headers:
    """The headers of a message, decoded on first use, and the cost of its routing so far."""

    __slots__ = ("_decode", "_places", "_table")

    def __init__(self, decode: Callable[[], Mapping[str, Any]]) -> None:
        self._decode = decode
        self._table: Mapping[str, Any] | None = None
        self._places = 0

    def count_places(self, count: int) -> None:
        """Add visited trie nodes to the cost. Raises RoutingTooCostly above `MAX_PLACES`."""
        self._places += count
        if self._places > MAX_PLACES:
            raise RoutingTooCostly(MAX_PLACES)

    def table(self) -> Mapping[str, Any]:
        if self._table is None:
            self._table = self._decode()
        return self._table


class Table:
    """The bindings of one exchange, indexed for its type."""

    __slots__ = ()

    @property
    def size_bytes(self) -> int:
        """Estimated memory, without the bindings themselves."""
        return 0

    def add(self, binding: Binding) -> None:
        """Add a binding, which must not be present."""
        raise NotImplementedError

    def remove(self, binding: Binding) -> None:
        """Remove a binding, which must be present."""
        raise NotImplementedError

    def match(self, routing_key: str, headers: Headers) -> list[Targets]:
        """Return the non-empty targets of the message, as a list that the caller may keep."""
        raise NotImplementedError


class DirectTable(Table):
    """Matches bindings with an equal routing key."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[str, Targets] = {}

    def add(self, binding: Binding) -> None:
        targets = self._by_key.get(binding.routing_key)
        if targets is None:
            targets = self._by_key[binding.routing_key] = Targets()
        targets.add(binding)

    def remove(self, binding: Binding) -> None:
        targets = self._by_key[binding.routing_key]
        targets.remove(binding)
        if targets.empty:
            del self._by_key[binding.routing_key]

    def match(self, routing_key: str, headers: Headers) -> list[Targets]:
        targets = self._by_key.get(routing_key)
        return [] if targets is None else [targets]


class FanoutTable(Table):
    """Matches all bindings."""

    __slots__ = ("_targets",)

    def __init__(self) -> None:
        self._targets = Targets()

    def add(self, binding: Binding) -> None:
        self._targets.add(binding)

    def remove(self, binding: Binding) -> None:
        self._targets.remove(binding)

    def match(self, routing_key: str, headers: Headers) -> list[Targets]:
        return [] if self._targets.empty else [self._targets]
