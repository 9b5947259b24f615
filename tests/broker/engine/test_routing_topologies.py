"""Exchanges bound to exchanges at random: routes against a naive search, and what holds whatever is changed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flyball.broker.engine.routing import Removal, Router
from flyball.errors import ExchangeInUse, ExchangeNotFound, UnlikeDeclared
from flyball.model import Arguments, Binding, Destination, Exchange

EXCHANGES = [f"x{number}" for number in range(6)]
QUEUES = ["q0", "q1", "q2", "x0"]
KEYS = ["", "a", "a.b", "b"]

types = st.sampled_from(["direct", "fanout", "topic", "headers"])
arguments = st.sampled_from([{}, {"h": 1}, {"h": 2, "x-match": "any"}])
alternates = st.sampled_from([{}, *({"alternate-exchange": name} for name in [*EXCHANGES, "missing", ""])])
exchanges = st.builds(Exchange, st.sampled_from(EXCHANGES), types, auto_delete=st.booleans(), arguments=alternates)
routing_keys = st.sampled_from([*KEYS, "*", "#", "a.*"])
bindings = st.builds(
    Binding, st.sampled_from(EXCHANGES), st.sampled_from(QUEUES), st.just(Destination.QUEUE), routing_keys, arguments
) | st.builds(
    Binding,
    st.sampled_from(EXCHANGES),
    st.sampled_from(EXCHANGES),
    st.just(Destination.EXCHANGE),
    routing_keys,
    arguments,
)
headers_of_messages = st.sampled_from([{}, {"h": 1}, {"h": 2}])


@dataclass
class Naive:
    """Exchanges and bindings in lists, searched from front to back."""

    exchanges: dict[str, Exchange] = field(default_factory=dict)
    bindings: list[Binding] = field(default_factory=list)
    policies: dict[str, Arguments] = field(default_factory=dict)

    def fits(self, binding: Binding, key: str, headers: Arguments) -> bool:
        kind = self.exchanges[binding.source].type
        if kind == "direct":
            return binding.routing_key == key
        if kind == "topic":
            # Of the patterns in this file only a lone # stands for less than one word.
            pattern = re.escape(binding.routing_key).replace(r"\*", r"[^.]+").replace(r"\#", ".*")
            return re.fullmatch(pattern, key) is not None
        if kind == "headers" and binding.arguments:
            return bool(headers.get("h") == binding.arguments["h"])
        return True

    def route(self, name: str, keys: list[str], headers: Arguments) -> set[str]:
        queues: set[str] = set()
        seen = [name]
        for source in seen:
            if source not in self.exchanges:
                continue
            found = [
                binding
                for binding in self.bindings
                if binding.source == source and any(self.fits(binding, key, headers) for key in keys)
            ]
            queues |= {binding.destination for binding in found if binding.kind is Destination.QUEUE}
            onwards = [binding.destination for binding in found if binding.kind is Destination.EXCHANGE]
            if not found:
                given: Arguments = {**self.policies.get(source, {}), **self.exchanges[source].arguments}
                onwards = [given["alternate-exchange"]] if "alternate-exchange" in given else []
            seen += [other for other in dict.fromkeys(onwards) if other not in seen]
        return queues

    def drop(self, gone: list[Binding]) -> tuple[list[str], list[Binding]]:
        """Forget bindings, and what should go with them."""
        names: list[str] = []
        dropped: list[Binding] = []
        while gone:
            self.bindings = [binding for binding in self.bindings if binding not in gone]
            dropped += gone
            idle = {
                binding.source
                for binding in gone
                if binding.source in self.exchanges
                and self.exchanges[binding.source].auto_delete
                and not any(other.source == binding.source for other in self.bindings)
            }
            names += idle
            for name in idle:
                del self.exchanges[name]
            gone = [item for item in self.bindings if item.kind is Destination.EXCHANGE and item.destination in idle]
        return names, dropped


@given(
    st.lists(exchanges, unique_by=lambda exchange: exchange.name),
    st.lists(bindings, max_size=25),
    st.dictionaries(st.sampled_from(EXCHANGES), alternates),
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=3),
    headers_of_messages,
)
@settings(max_examples=300)
def test_a_message_reaches_what_a_naive_search_finds(
    declared: list[Exchange],
    bound: list[Binding],
    policies: dict[str, Arguments],
    keys: list[str],
    headers: dict[str, Any],
) -> None:
    router, naive = Router("/"), Naive()
    naive.exchanges[""] = Exchange("", "direct")
    for exchange in declared:
        router.declare(exchange)
        naive.exchanges[exchange.name] = exchange
    for binding in bound:
        if {binding.source, binding.destination} <= {*naive.exchanges, *QUEUES}:
            try:
                router.bind(binding)
            except ExchangeNotFound:
                continue
            naive.bindings.append(binding)
    for name, policy in policies.items():
        if name in naive.exchanges:
            router.set_policy_arguments(name, policy)
            naive.policies[name] = policy
    for exchange in declared:
        found = router.route_keys(exchange.name, keys, lambda: headers)
        assert len(found) == len(set(found))
        assert set(found) == naive.route(exchange.name, keys, headers)
        single = router.route(exchange.name, keys[0], lambda: headers)
        assert len(single) == len(set(single))
        assert set(single) == naive.route(exchange.name, keys[:1], headers)
        assert single == router.route(exchange.name, keys[0], lambda: headers)
        if router.is_plain(exchange.name):
            assert single == router.route(exchange.name, keys[0], lambda: {"h": "other"})


class ChangingTopology(RuleBasedStateMachine):
    """Declare, bind, unbind and delete in any order: the router does what lists would do."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router("/")
        self.naive = Naive()
        self.routes: dict[tuple[str, str], list[str]] = {}
        self.version = self.router.version

    def expect(self, removal: Removal, expected: tuple[list[str], list[Binding]]) -> None:
        names, gone = expected
        assert sorted(exchange.name for exchange in removal.exchanges) == sorted(names)
        assert sorted(map(repr, removal.bindings)) == sorted(map(repr, gone))

    @rule(exchange=exchanges)
    def declare(self, exchange: Exchange) -> None:
        known = self.naive.exchanges.get(exchange.name)
        try:
            new = self.router.declare(exchange)
        except UnlikeDeclared:
            assert known is not None
            assert known != exchange
            return
        assert new == (known is None)
        assert known in (None, exchange)
        self.naive.exchanges[exchange.name] = exchange

    @rule(binding=bindings)
    def bind(self, binding: Binding) -> None:
        ends = {binding.source} | ({binding.destination} if binding.kind is Destination.EXCHANGE else set())
        try:
            new = self.router.bind(binding)
        except ExchangeNotFound:
            assert not ends <= set(self.naive.exchanges)
            return
        assert ends <= set(self.naive.exchanges)
        assert new == (binding not in self.naive.bindings)
        if new:
            self.naive.bindings.append(binding)

    @rule(binding=bindings)
    def unbind(self, binding: Binding) -> None:
        gone = [binding] if binding in self.naive.bindings else []
        self.expect(self.router.unbind(binding), self.naive.drop(gone))

    @rule(data=st.data())
    def unbind_a_known_one(self, data: st.DataObject) -> None:
        if self.naive.bindings:
            self.unbind(data.draw(st.sampled_from(self.naive.bindings)))

    @rule(name=st.sampled_from(QUEUES))
    def drop_queue(self, name: str) -> None:
        gone = [item for item in self.naive.bindings if item.kind is Destination.QUEUE and item.destination == name]
        self.expect(self.router.drop_queue(name), self.naive.drop(gone))

    @rule(name=st.sampled_from(EXCHANGES), if_unused=st.booleans())
    def delete(self, name: str, if_unused: bool) -> None:
        used = any(binding.source == name for binding in self.naive.bindings)
        try:
            removal = self.router.delete(name, if_unused=if_unused)
        except ExchangeInUse:
            assert if_unused
            assert used
            return
        assert not (if_unused and used)
        known = self.naive.exchanges.pop(name, None)
        gone = [
            item
            for item in self.naive.bindings
            if item.source == name or (item.kind is Destination.EXCHANGE and item.destination == name)
        ]
        names, dropped = self.naive.drop(gone)
        self.expect(removal, (names + ([name] if known is not None else []), dropped))

    @invariant()
    def it_knows_what_was_declared_and_bound(self) -> None:
        router = self.router
        own = {exchange.name: exchange for exchange in router.exchanges if exchange.name in EXCHANGES}
        assert own == self.naive.exchanges
        known = sorted(map(repr, self.naive.bindings))
        assert sorted(map(repr, router.bindings())) == known
        to_queues = [item for name in QUEUES for item in router.bindings(destination=name)]
        to_exchanges = [
            item for name in EXCHANGES for item in router.bindings(destination=name, kind=Destination.EXCHANGE)
        ]
        assert sorted(map(repr, to_queues + to_exchanges)) == known

    @invariant()
    def routes_change_only_with_the_version(self) -> None:
        routes = {
            (name, key): self.router.route(name, key, lambda: {"h": 1})
            for name in self.naive.exchanges
            for key in KEYS
        }
        for (name, key), queues in routes.items():
            assert set(queues) == self.naive.route(name, [key], {"h": 1})
        if self.router.version == self.version:
            assert routes == self.routes
        self.version, self.routes = self.router.version, routes


TestChangingTopology = ChangingTopology.TestCase
TestChangingTopology.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
