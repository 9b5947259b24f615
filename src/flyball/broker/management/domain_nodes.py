"""Sends requests to all nodes of a domain, so that a list on any node covers the whole domain.

Each node answers over its link. Nodes that do not answer in time are left out; see `ask_all`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from itertools import chain
from operator import attrgetter
from typing import Any

from flyball.broker.management.inspection import (
    SLICE,
    Facts,
    channels_of,
    clients,
    connection_document,
    consumers_of,
    in_slices,
    node_facts,
    queue_facts,
)
from flyball.broker.management.node_sampler import Sampler
from flyball.broker.management.totals import totals
from flyball.broker.node.node import Node
from flyball.errors import ClusterError, FlyballError

# Time limit of an answer.
LIMIT_S = 2.0

PREFIX = "console."

Answer = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Listed:
    """How to list objects of a node: the objects, their order, and the facts of each."""

    things: Callable[[Node], Iterable[Any]]
    number: Callable[[Any], int]
    of: Callable[..., Iterable[Facts | None]]


# Other nodes are asked for a page of these per request: encoding a long list at once would block them.
_LISTS = {
    "queues": Listed(
        lambda node: node.hub.broker.engine.queues,
        attrgetter("queue.id"),
        lambda node, state: (queue_facts(node, state),),
    ),
    "connections": Listed(
        clients, attrgetter("number"), lambda node, connection: (connection_document(node, connection),)
    ),
    "channels": Listed(clients, attrgetter("number"), channels_of),
    "consumers": Listed(clients, attrgetter("number"), consumers_of),
}


class DomainNodes:
    """The requests between the nodes of a domain."""

    def __init__(self, node: Node, sampler: Sampler) -> None:
        self._node = node
        self._sampler = sampler
        self._here: dict[str, Answer] = {}

    def install(self) -> None:
        """Register the request handlers of this module."""
        for what in _LISTS:
            self._node.peers.commands[PREFIX + what] = partial(self._page, what)
        self.provide("totals", self._totals)
        self.provide("node", self._facts)
        self.provide("exchanges", self._exchanges)
        self.provide("rates", self._rates)

    def provide(self, what: str, answer: Answer) -> None:
        """Register a handler of requests from all nodes. Its result must be small, and JSON."""
        self._here[what] = answer
        self._node.peers.commands[PREFIX + what] = answer

    # Requests

    async def ask_all(self, what: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the nodes' answers by name. Nodes that do not answer in time are missing."""
        here = await self._ask_here(what, arguments or {})
        return {self._node.hub.peering.name: here, **await self.ask_others(what, arguments)}

    async def ask_others(self, what: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the other nodes' answers by name. Nodes that do not answer in time are missing."""
        given = arguments or {}
        answers: dict[str, Any] = {}

        async def ask(node_id: int, name: str) -> None:
            try:
                async with asyncio.timeout(LIMIT_S):
                    answers[name] = await self._ask_there(node_id, what, given)
            except (FlyballError, TimeoutError):
                return

        await asyncio.gather(*[ask(other.id, other.name) for other in self._node.membership.others])
        return answers

    async def list_all(self, what: str, arguments: Mapping[str, Any] | None = None) -> list[Facts]:
        """Return the concatenated lists of all nodes."""
        return [facts for answer in (await self.ask_all(what, arguments)).values() for facts in answer]

    async def ask_node(self, name: str, what: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Return the answer of one node. Raises ClusterError for an unknown node, or without an answer."""
        given = arguments or {}
        if name == self._node.hub.peering.name:
            return await self._ask_here(what, given)
        for other in self._node.membership.others:
            if other.name == name:
                return await self._ask_there(other.id, what, given)
        raise ClusterError(f"unknown node {name!r}")

    async def _ask_here(self, what: str, arguments: Mapping[str, Any]) -> Any:
        if what not in _LISTS:
            return await self._here[what](**arguments)
        listed = _LISTS[what]
        things = sorted(listed.things(self._node), key=listed.number)
        found = chain.from_iterable(listed.of(self._node, thing, **arguments) for thing in things)
        return [facts async for facts in in_slices(found) if facts is not None]

    async def _ask_there(self, node_id: int, what: str, arguments: Mapping[str, Any]) -> Any:
        request = self._node.peers.request
        if what not in _LISTS:
            return await request(node_id, PREFIX + what, dict(arguments), LIMIT_S)
        found: list[Facts] = []
        after: int | None = 0
        while after is not None:
            page = await request(node_id, PREFIX + what, {"after": after, **arguments}, LIMIT_S)
            found += page["items"]
            after = page["after"]
        return found

    # Handlers

    async def _page(self, what: str, after: int, **arguments: Any) -> Facts:
        """Return the next page of a list, at least one item, bounded in size."""
        listed = _LISTS[what]
        later = [thing for thing in listed.things(self._node) if listed.number(thing) > after]
        later = nsmallest(SLICE, later, key=listed.number)
        items: list[Facts] = []
        for thing in later:
            found = listed.of(self._node, thing, **arguments)
            items += [facts async for facts in in_slices(found) if facts is not None]
            if len(items) >= SLICE:
                return {"items": items, "after": listed.number(thing)}
        return {"items": items, "after": listed.number(later[-1]) if len(later) == SLICE else None}

    async def _totals(self) -> Facts:
        return (await totals(self._node)).by_name()

    async def _facts(self) -> Facts:
        return {
            **node_facts(self._node),
            "cpu_ratio": self._sampler.cpu_ratio,
        }

    async def _exchanges(self) -> list[Facts]:
        found = self._node.hub.broker.meters.exchanges
        return [{"vhost": vhost, "name": name, "published": count} for (vhost, name), count in found.items()]

    async def _rates(self) -> dict[str, float]:
        return self._sampler.rates()
