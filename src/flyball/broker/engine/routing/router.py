"""The exchanges and bindings of a virtual host, and the routing of messages through them.

Errors and their texts are RabbitMQ's. The caller checks that queues exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flyball.broker.engine.routing.headers import HeadersTable, check_match
from flyball.broker.engine.routing.tables import DirectTable, FanoutTable, Headers, Table, Targets
from flyball.broker.engine.routing.topic import TopicTable
from flyball.broker.engine.routing.values import equal, frozen, shown, type_name
from flyball.errors import (
    ExchangeInUse,
    ExchangeNotFound,
    InvalidArgument,
    ReservedName,
    UnknownExchangeType,
    UnlikeDeclared,
)
from flyball.model import BINDING_BYTES, EXCHANGE_BYTES, Arguments, Binding, Destination, Exchange, size_of

# The argument of a declaration or policy that names the exchange for unroutable messages.
ALTERNATE = "alternate-exchange"

# The prefix of names reserved for the broker.
RESERVED_PREFIX = "amq."
_BUILT_IN = (
    ("", "direct", False),
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.topic", "topic", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    ("amq.rabbitmq.trace", "topic", True),
)

# The identity of a binding: source, kind and name of the destination, routing key, arguments.
_BindingKey = tuple[str, str, str, str, tuple[str, Any] | None]


@dataclass(slots=True)
class Removal:
    """The exchanges and bindings that were removed, directly or by auto-delete."""

    exchanges: list[Exchange] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)


class _Exchange:
    """An exchange with its outgoing and incoming bindings."""

    __slots__ = ("exchange", "incoming", "outgoing", "policy", "table")

    def __init__(self, exchange: Exchange, table: Table) -> None:
        self.exchange = exchange
        self.table = table
        self.outgoing: dict[_BindingKey, Binding] = {}
        self.incoming: dict[_BindingKey, Binding] = {}
        self.policy: Arguments = {}

    @property
    def alternate(self) -> str | None:
        name = self.exchange.arguments.get(ALTERNATE)
        if name is None:
            name = self.policy.get(ALTERNATE)
        return name if isinstance(name, str) else None


class Router:
    """The exchanges and bindings of one virtual host.

    `version` changes whenever routing may change.
    """

    __slots__ = ("_places", "_plain", "_to_queue", "size_bytes", "version", "vhost")

    def __init__(self, vhost: str) -> None:
        self.vhost = vhost
        self.version = 0
        # Estimated memory of exchanges and bindings.
        self.size_bytes = 0
        self._places: dict[str, _Exchange] = {}
        self._to_queue: dict[str, dict[_BindingKey, Binding]] = {}
        # Results of `is_plain` since the last change.
        self._plain: dict[str, bool] = {}
        for name, kind, internal in _BUILT_IN:
            self._add(Exchange(name, kind, vhost, internal=internal))

    def __len__(self) -> int:
        """Number of exchanges."""
        return len(self._places)

    @property
    def exchanges(self) -> list[Exchange]:
        """All exchanges, the default one included, in declaration order."""
        return [place.exchange for place in self._places.values()]

    def find(self, name: str) -> Exchange | None:
        """Return the exchange of this name, or None."""
        place = self._places.get(name)
        return None if place is None else place.exchange

    def get(self, name: str) -> Exchange:
        """Return the exchange of this name, or raise ExchangeNotFound."""
        return self._place(name).exchange

    def bindings(
        self, *, source: str | None = None, destination: str | None = None, kind: Destination = Destination.QUEUE
    ) -> list[Binding]:
        """Return the bindings in the order of their creation: all, of one source, or to one destination.

        The implicit bindings of the default exchange are not included.
        """
        if source is not None:
            place = self._places.get(source)
            found = [] if place is None else list(place.outgoing.values())
            if destination is not None:
                found = [item for item in found if item.destination == destination and item.kind is kind]
            return found
        if destination is None:
            return [item for place in self._places.values() for item in place.outgoing.values()]
        if kind is Destination.QUEUE:
            return list(self._to_queue.get(destination, {}).values())
        place = self._places.get(destination)
        return [] if place is None else list(place.incoming.values())

    def declare(self, exchange: Exchange) -> bool:
        """Add an exchange and return True, or return False if an equal one exists.

        Raises UnlikeDeclared if the existing exchange differs, UnknownExchangeType, ReservedName for the default
        exchange and for a new name that starts with "amq.", and InvalidArgument for an alternate exchange that is not
        a string.
        """
        if exchange.type not in ("direct", "fanout", "topic", "headers"):
            raise UnknownExchangeType(exchange.type)
        self._refuse_default(exchange.name)
        place = self._places.get(exchange.name)
        if place is not None:
            self._check_alike(place.exchange, exchange)
            return False
        if exchange.name.startswith(RESERVED_PREFIX):
            raise ReservedName(f"exchange name '{exchange.name}' contains reserved prefix 'amq.*'")
        alternate = exchange.arguments.get(ALTERNATE, "")
        if not isinstance(alternate, str):
            raise InvalidArgument(
                f"invalid type '{type_name(alternate)}' for arg '{ALTERNATE}' in {self._described(exchange.name)}"
            )
        self._add(exchange)
        return True

    def replace(self, exchange: Exchange) -> None:
        """Redefine an exchange for which `declare` raised UnlikeDeclared. It keeps its bindings."""
        place = self._place(exchange.name)
        self.size_bytes += size_of(exchange.arguments) - size_of(place.exchange.arguments)
        self.size_bytes -= place.table.size_bytes
        place.exchange, place.table = exchange, _table_of(exchange.type)
        for binding in place.outgoing.values():
            place.table.add(binding)
        self.size_bytes += place.table.size_bytes
        self._changed()

    def delete(self, name: str, *, if_unused: bool = False) -> Removal:
        """Remove an exchange and its bindings in both directions, and auto-delete exchanges without bindings left.

        A missing exchange is not an error. Raises ReservedName for a reserved name, and ExchangeInUse with
        `if_unused` if it has outgoing bindings.
        """
        self._refuse_default(name)
        if name.startswith(RESERVED_PREFIX):
            raise ReservedName(f"deletion of system {self._described(name)} not allowed")
        removal = Removal()
        place = self._places.get(name)
        if place is None:
            return removal
        if if_unused and place.outgoing:
            raise ExchangeInUse(name, self.vhost)
        self._remove_exchange(place, removal)
        self._auto_delete(self._remove_leading_to(place.incoming, removal), removal)
        return removal

    def bind(self, binding: Binding) -> bool:
        """Add a binding and return True, or return False if an equal one exists.

        Raises ReservedName for the default exchange, ExchangeNotFound for the source and then for the destination,
        and InvalidArgument for an invalid `x-match`.
        """
        self._refuse_default_ends(binding)
        place = self._place(binding.source)
        destination = None if binding.kind is Destination.QUEUE else self._place(binding.destination)
        if place.exchange.type == "headers":
            check_match(binding.arguments)
        key = _key(binding)
        if key in place.outgoing:
            return False
        place.outgoing[key] = binding
        before = place.table.size_bytes
        place.table.add(binding)
        self.size_bytes += BINDING_BYTES + size_of(binding.arguments) + place.table.size_bytes - before
        if destination is not None:
            destination.incoming[key] = binding
        else:
            self._to_queue.setdefault(binding.destination, {})[key] = binding
        self._changed()
        return True

    def has_binding(self, binding: Binding) -> bool:
        """Whether an equal binding exists."""
        place = self._places.get(binding.source)
        return place is not None and _key(binding) in place.outgoing

    def unbind(self, binding: Binding) -> Removal:
        """Remove a binding, and its source if that is an auto-delete exchange without further bindings.

        A missing binding or exchange is not an error. Raises ReservedName for the default exchange.
        """
        self._refuse_default_ends(binding)
        removal = Removal()
        place = self._places.get(binding.source)
        if place is None:
            return removal
        key = _key(binding)
        known = place.outgoing.get(key)
        if known is not None:
            self._remove_binding(key, known, removal)
            self._auto_delete([binding.source], removal)
        return removal

    def drop_queue(self, queue_name: str) -> Removal:
        """Remove the bindings to a deleted queue, and auto-delete exchanges without bindings left."""
        removal = Removal()
        self._auto_delete(self._remove_leading_to(self._to_queue.get(queue_name, {}), removal), removal)
        return removal

    def set_policy_arguments(self, exchange_name: str, arguments: Arguments) -> None:
        """Replace the policy arguments of the exchange.

        Arguments of the declaration take precedence. Raises ExchangeNotFound.
        """
        place = self._place(exchange_name)
        before = place.alternate
        place.policy = arguments
        if place.alternate != before:
            self._changed()

    def route(self, exchange_name: str, routing_key: str, headers: Callable[[], Mapping[str, Any]]) -> list[str]:
        """Return the names of the queues to which the message is routed, once each, in a deterministic order.

        The default exchange routes to the queue named by the routing key. `headers` is called at most once, and only
        if a headers exchange needs it. Raises ExchangeNotFound.
        """
        if not exchange_name:
            return [routing_key]
        place = self._place(exchange_name)
        decoded = Headers(headers)
        found = place.table.match(routing_key, decoded)
        if len(found) == 1 and not found[0].exchanges:
            return list(found[0].queues)
        return self._spread(place, found, [routing_key], decoded)

    def route_keys(
        self, exchange_name: str, routing_keys: Sequence[str], headers: Callable[[], Mapping[str, Any]]
    ) -> list[str]:
        """Route a message with several routing keys (CC, BCC), at most once to each queue."""
        if not exchange_name:
            return list(dict.fromkeys(routing_keys))
        place = self._place(exchange_name)
        decoded = Headers(headers)
        return self._spread(place, _matches(place, routing_keys, decoded), routing_keys, decoded)

    def is_plain(self, exchange_name: str) -> bool:
        """Whether routing from the exchange depends only on the routing key, until `version` changes.

        Raises ExchangeNotFound.
        """
        plain = self._plain.get(exchange_name)
        if plain is None:
            plain = self._plain[exchange_name] = self._find_plain(self._place(exchange_name))
        return plain

    def _find_plain(self, start: _Exchange) -> bool:
        seen = {start.exchange.name}
        waiting = [start]
        while waiting:
            place = waiting.pop()
            if place.exchange.type == "headers" and place.outgoing:
                return False
            names = [item.destination for item in place.outgoing.values() if item.kind is Destination.EXCHANGE]
            if place.alternate is not None:
                names.append(place.alternate)
            self._visit(names, seen, waiting)
        return True

    def _spread(
        self, start: _Exchange, found: list[Targets], routing_keys: Sequence[str], headers: Headers
    ) -> list[str]:
        """Follow the targets found at the first exchange to all queues."""
        queues: dict[str, None] = {}
        seen = {start.exchange.name}
        waiting: list[_Exchange] = []
        place = start
        while True:
            for targets in found:
                for name in targets.queues:
                    queues[name] = None
                if targets.exchanges:
                    self._visit(list(targets.exchanges), seen, waiting)
            # As in RabbitMQ, any matching binding suppresses the alternate exchange, even one to an exchange
            # that routes to no queue.
            if not found and place.alternate is not None:
                self._visit([place.alternate], seen, waiting)
            if not waiting:
                return list(queues)
            place = waiting.pop()
            found = _matches(place, routing_keys, headers)

    def _visit(self, names: list[str], seen: set[str], waiting: list[_Exchange]) -> None:
        for name in names:
            if name not in seen:
                seen.add(name)
                place = self._places.get(name)
                # An alternate exchange may be missing.
                if place is not None:
                    waiting.append(place)

    def _place(self, name: str) -> _Exchange:
        place = self._places.get(name)
        if place is None:
            raise ExchangeNotFound(name, self.vhost)
        return place

    def _add(self, exchange: Exchange) -> None:
        self._places[exchange.name] = _Exchange(exchange, _table_of(exchange.type))
        self.size_bytes += EXCHANGE_BYTES + size_of(exchange.arguments)
        self._changed()

    def _remove_exchange(self, place: _Exchange, removal: Removal) -> None:
        for key, binding in list(place.outgoing.items()):
            self._forget(key, binding, removal)
        del self._places[place.exchange.name]
        self.size_bytes -= EXCHANGE_BYTES + size_of(place.exchange.arguments) + place.table.size_bytes
        removal.exchanges.append(place.exchange)
        self._changed()

    def _remove_leading_to(self, bindings: dict[_BindingKey, Binding], removal: Removal) -> list[str]:
        """Remove the bindings and return their sources."""
        sources: dict[str, None] = {}
        for key, binding in list(bindings.items()):
            self._remove_binding(key, binding, removal)
            sources[binding.source] = None
        return list(sources)

    def _auto_delete(self, names: list[str], removal: Removal) -> None:
        """Remove those of the exchanges that are auto-delete and have just lost their last binding."""
        while names:
            place = self._places.get(names.pop())
            if place is not None and place.exchange.auto_delete and not place.outgoing:
                self._remove_exchange(place, removal)
                names += self._remove_leading_to(place.incoming, removal)

    def _remove_binding(self, key: _BindingKey, binding: Binding, removal: Removal) -> None:
        place = self._places[binding.source]
        del place.outgoing[key]
        before = place.table.size_bytes
        place.table.remove(binding)
        self.size_bytes -= before - place.table.size_bytes
        self._forget(key, binding, removal)
        self._changed()

    def _forget(self, key: _BindingKey, binding: Binding, removal: Removal) -> None:
        """Remove a binding from its destination; the caller removes it from its source."""
        self.size_bytes -= BINDING_BYTES + size_of(binding.arguments)
        removal.bindings.append(binding)
        if binding.kind is Destination.EXCHANGE:
            destination = self._places.get(binding.destination)
            if destination is not None:
                del destination.incoming[key]
            return
        bindings = self._to_queue[binding.destination]
        del bindings[key]
        if not bindings:
            del self._to_queue[binding.destination]

    def _changed(self) -> None:
        self.version += 1
        self._plain.clear()

    def _refuse_default(self, name: str) -> None:
        if not name:
            raise ReservedName("operation not permitted on the default exchange")

    def _refuse_default_ends(self, binding: Binding) -> None:
        self._refuse_default(binding.source)
        if binding.kind is Destination.EXCHANGE:
            self._refuse_default(binding.destination)

    def _described(self, name: str) -> str:
        return f"exchange '{name}' in vhost '{self.vhost}'"

    def _check_alike(self, known: Exchange, wanted: Exchange) -> None:
        for name, current, received in (
            ("type", known.type, wanted.type),
            ("durable", known.durable, wanted.durable),
            ("auto_delete", known.auto_delete, wanted.auto_delete),
            ("internal", known.internal, wanted.internal),
        ):
            if current != received:
                raise self._unlike(name, known, f"'{shown(received)}'", f"'{shown(current)}'")
        if (ALTERNATE in known.arguments) != (ALTERNATE in wanted.arguments):
            raise self._unlike(ALTERNATE, known, _typed(wanted), _typed(known))
        if ALTERNATE in known.arguments:
            # Separate names: mypyc fixes the type of those above to str | bool.
            old, new = known.arguments[ALTERNATE], wanted.arguments[ALTERNATE]
            if not equal(old, new):
                raise self._unlike(ALTERNATE, known, f"'{shown(new)}'", f"'{shown(old)}'")

    def _unlike(self, name: str, known: Exchange, received: str, current: str) -> UnlikeDeclared:
        return UnlikeDeclared(name, f"exchange '{known.name}'", self.vhost, received, current)


def _typed(exchange: Exchange) -> str:
    """Describe the alternate exchange of a declaration in RabbitMQ's words."""
    if ALTERNATE not in exchange.arguments:
        return "none"
    value = exchange.arguments[ALTERNATE]
    return f"the value '{shown(value)}' of type '{type_name(value)}'"


def _table_of(kind: str) -> Table:
    if kind == "direct":
        return DirectTable()
    if kind == "fanout":
        return FanoutTable()
    if kind == "topic":
        return TopicTable()
    return HeadersTable()


def _key(binding: Binding) -> _BindingKey:
    arguments = frozen(binding.arguments) if binding.arguments else None
    return (binding.source, binding.kind, binding.destination, binding.routing_key, arguments)


def _matches(place: _Exchange, routing_keys: Sequence[str], headers: Headers) -> list[Targets]:
    if place.exchange.type in ("fanout", "headers"):
        return place.table.match(routing_keys[0], headers)
    found: list[Targets] = []
    for routing_key in routing_keys:
        found += place.table.match(routing_key, headers)
    return found
