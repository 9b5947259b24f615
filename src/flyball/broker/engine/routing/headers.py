"""Headers exchanges: a binding's arguments are the headers that a message must have.

`x-match` requires all of them or any; arguments that start with `x-` count only in the -with-x variants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyball.broker.engine.routing.tables import Headers, Table, Targets
from flyball.broker.engine.routing.values import equal, frozen, shown, type_name
from flyball.errors import InvalidArgument
from flyball.model import Arguments, Binding

_MATCH = "x-match"
_KINDS = ("all", "any", "all-with-x", "any-with-x")


def check_match(arguments: Arguments) -> None:
    """Raise InvalidArgument if `x-match` is present and invalid."""
    if _MATCH not in arguments:
        return
    kind = arguments[_MATCH]
    if not isinstance(kind, str):
        raise InvalidArgument(f"Invalid x-match field type {type_name(kind)} (value {shown(kind)}); expected longstr")
    if kind not in _KINDS:
        raise InvalidArgument(
            f'Invalid x-match field value <<"{kind}">>; expected all, any, all-with-x, or any-with-x'
        )


class _Rule:
    """The condition shared by bindings with equal arguments, and their destinations."""

    __slots__ = ("_any", "_wanted", "targets")

    def __init__(self, arguments: Arguments) -> None:
        kind = arguments.get(_MATCH, "all")
        with_x = kind in ("all-with-x", "any-with-x")
        self._any = kind in ("any", "any-with-x")
        self._wanted: list[tuple[str, Any]] = [
            (name, value)
            for name, value in arguments.items()
            if name != _MATCH and (with_x or not name.startswith("x-"))
        ]
        self.targets = Targets()

    def fits(self, headers: Mapping[str, Any]) -> bool:
        # Without conditions "all" matches every message and "any" none, as in RabbitMQ.
        for name, value in self._wanted:
            # An argument without a value requires only the presence of the header.
            found = name in headers and (value is None or equal(value, headers[name]))
            if found is self._any:
                return found
        return not self._any


class HeadersTable(Table):
    """Matches the headers of the message with the arguments of bindings; routing keys are ignored.

    The cost of a match is linear in the number of distinct arguments.
    """

    __slots__ = ("_rules",)

    def __init__(self) -> None:
        self._rules: dict[tuple[str, Any], _Rule] = {}

    def add(self, binding: Binding) -> None:
        key = frozen(binding.arguments)
        rule = self._rules.get(key)
        if rule is None:
            rule = self._rules[key] = _Rule(binding.arguments)
        rule.targets.add(binding)

    def remove(self, binding: Binding) -> None:
        key = frozen(binding.arguments)
        rule = self._rules[key]
        rule.targets.remove(binding)
        if rule.targets.empty:
            del self._rules[key]

    def match(self, routing_key: str, headers: Headers) -> list[Targets]:
        if not self._rules:
            return []
        table = headers.table()
        return [rule.targets for rule in self._rules.values() if rule.fits(table)]
