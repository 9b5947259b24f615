"""What an exchange keeps of its bindings, so that a message finds its destinations without asking each of them.

One table for each type of exchange. A table knows names of destinations and nothing of what is behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flyball.errors import RoutingTooCostly
from flyball.model import Binding, Destination


class Targets:
    """The destinations of bindings that always fit together, with the number of bindings to each."""

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


# Places in tries that one message may meet, with all its routing keys: about 35 ms. A message with hundreds of long
# keys would keep the loop for seconds where there are hundreds of patterns with `#`.
MAX_PLACES = 200_000


class Headers:
    """The headers of a message, decoded when the first table asks for them, and what its routing has cost so far."""

    __slots__ = ("_decode", "_places", "_table")

    def __init__(self, decode: Callable[[], Mapping[str, Any]]) -> None:
        self._decode = decode
        self._table: Mapping[str, Any] | None = None
        self._places = 0

    def count_places(self, count: int) -> None:
        """Note places of a trie that the message has met. Raises RoutingTooCostly if there are too many."""
        self._places += count
        if self._places > MAX_PLACES:
            raise RoutingTooCostly(MAX_PLACES)

    def table(self) -> Mapping[str, Any]:
        if self._table is None:
            self._table = self._decode()
        return self._table


class Table:
    """The bindings of one exchange, arranged as its type needs them."""

    __slots__ = ()

    @property
    def size_bytes(self) -> int:
        """What it takes in memory beside the bindings, about."""
        return 0

    def add(self, binding: Binding) -> None:
        """Take in a binding that is not there yet."""
        raise NotImplementedError

    def remove(self, binding: Binding) -> None:
        """Forget a binding that is there."""
        raise NotImplementedError

    def match(self, routing_key: str, headers: Headers) -> list[Targets]:
        """Return where the message goes: no empty targets, and no list that changes later."""
        raise NotImplementedError


class DirectTable(Table):
    """The routing key is that of the binding."""

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
    """Everything goes everywhere."""

    __slots__ = ("_targets",)

    def __init__(self) -> None:
        self._targets = Targets()

    def add(self, binding: Binding) -> None:
        self._targets.add(binding)

    def remove(self, binding: Binding) -> None:
        self._targets.remove(binding)

    def match(self, routing_key: str, headers: Headers) -> list[Targets]:
        return [] if self._targets.empty else [self._targets]
