"""Asks all nodes of a domain what there is on them: a list covers the domain, whichever node is asked.

Each answers for itself, over its link. Who does not answer in time is left out: see `ask_all`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from heapq import nsmallest
from typing import Any

from flyball.broker.management.inspection import (
    SLICE,
    Facts,
    channel_list,
    channels_of,
    connection_facts,
    connection_list,
    consumer_list,
    consumers_of,
    exchange_published,
    in_slices,
    node_facts,
    queue_facts,
    queue_list,
    totals,
)
from flyball.broker.management.sampling import Sampler
from flyball.broker.node.node import Node
from flyball.broker.transport.connection import Connection
from flyball.errors import ClusterError, FlyballError

LIMIT_S = 2.0
"""Who has not answered by then is left out."""

PREFIX = "console."

Answer = Callable[..., Awaitable[Any]]

_LISTS: Mapping[str, Callable[..., Awaitable[list[Facts]]]] = {
    "queues": queue_list,
    "connections": connection_list,
    "channels": channel_list,
    "consumers": consumer_list,
}
"""What is asked for a page at a time: packed as a whole, a long list would take the other node's time."""


class Everywhere:
    """What the nodes of a domain ask each other."""

    def __init__(self, node: Node, sampler: Sampler) -> None:
        self._node = node
        self._sampler = sampler
        self._here: dict[str, Answer] = {}

    def install(self) -> None:
        """Answer what this module lets others ask."""
        node = self._node
        pages: Mapping[str, Answer] = {
            "queues": self._queues_page,
            "connections": self._connections_page,
            "channels": self._channels_page,
            "consumers": self._consumers_page,
        }
        for what in _LISTS:
            node.peers.commands[PREFIX + what] = pages[what]
        self.provide("totals", self._totals)
        self.provide("node", self._facts)
        self.provide("exchanges", self._exchanges)
        self.provide("rates", self._rates)

    def provide(self, what: str, answer: Answer) -> None:
        """Let all nodes ask this one for something more. What it returns must be small, and fit into JSON."""
        self._here[what] = answer
        self._node.peers.commands[PREFIX + what] = answer

    # Asking

    async def ask_all(self, what: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what the nodes answer, by their names. Who does not answer in time is missing."""
        here = await self._ask_here(what, arguments or {})
        return {self._node.hub.peering.name: here, **await self.ask_others(what, arguments)}

    async def ask_others(self, what: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what the other nodes answer, by their names. Who does not answer in time is missing."""
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
        """Return the lists of all nodes as one."""
        return [facts for answer in (await self.ask_all(what, arguments)).values() for facts in answer]

    async def ask_node(self, name: str, what: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Return what one node answers. Raises ClusterError if there is none of that name, or it does not answer."""
        given = arguments or {}
        if name == self._node.hub.peering.name:
            return await self._ask_here(what, given)
        for other in self._node.membership.others:
            if other.name == name:
                return await self._ask_there(other.id, what, given)
        raise ClusterError(f"there is no node {name!r}")

    async def _ask_here(self, what: str, arguments: Mapping[str, Any]) -> Any:
        if what in _LISTS:
            return await _LISTS[what](self._node, **arguments)
        return await self._here[what](**arguments)

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

    # Answering

    async def _queues_page(self, after: int) -> Facts:
        engine = self._node.hub.broker.engine
        later = nsmallest(
            SLICE,
            [working for working in engine.queues if working.queue.id > after],
            key=lambda working: working.queue.id,
        )
        items = [queue_facts(self._node, working) for working in later]
        return {"items": items, "after": items[-1]["id"] if len(items) == SLICE else None}

    async def _connections_page(self, after: int) -> Facts:
        return await self._page(after, lambda connection: iter([connection_facts(self._node, connection)]))

    async def _channels_page(self, after: int) -> Facts:
        return await self._page(after, lambda connection: channels_of(self._node, connection))

    async def _consumers_page(self, after: int, queue: Sequence[str] = ()) -> Facts:
        return await self._page(after, lambda connection: consumers_of(self._node, connection, queue))

    async def _page(self, after: int, of: Callable[[Connection], Iterator[Facts | None]]) -> Facts:
        """Return what the next connections have: of so many that it is a page, however much one of them has."""
        connections = [
            connection
            for connection in self._node.hub.connections
            if connection.number > after and not connection.is_link
        ]
        later = nsmallest(SLICE, connections, key=lambda connection: connection.number)
        items: list[Facts] = []
        for connection in later:
            items += [facts async for facts in in_slices(of(connection)) if facts is not None]
            if len(items) >= SLICE:
                return {"items": items, "after": connection.number}
        return {"items": items, "after": later[-1].number if len(later) == SLICE else None}

    async def _totals(self) -> Facts:
        return asdict(await totals(self._node))

    async def _facts(self) -> Facts:
        return {
            **node_facts(self._node),
            "cpu_ratio": self._sampler.cpu_ratio,
        }

    async def _exchanges(self) -> list[Facts]:
        found = exchange_published(self._node)
        return [{"vhost": vhost, "name": name, "published": count} for (vhost, name), count in found.items()]

    async def _rates(self) -> dict[str, float]:
        return self._sampler.rates()
