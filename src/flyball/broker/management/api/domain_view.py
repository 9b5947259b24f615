"""Merges the reports of the domain's nodes about queues and connections into one record for each."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from typing import Any

from flyball.broker.engine.queue import QueueState
from flyball.broker.management import inspection
from flyball.broker.management.api.answers import QUICK_SLICE, in_slices
from flyball.broker.management.api.context import ApiContext, Call, Right, Routes
from flyball.broker.management.api.statistics import Facts
from flyball.broker.management.inspection import COUNTS
from flyball.broker.node.node import Node
from flyball.broker.store.registry import NodeRecord
from flyball.errors import ClusterError, QueueNotFound
from flyball.model import Queue

# The request to another node for one of its queues.
QUEUE = "queue"

# Counters that are shown with rates.
GROWING = tuple(name for name in COUNTS if name not in ("consumers", "parked"))

# Counters of a queue, read in one call: there may be ten thousand queues.
_GROWN = attrgetter("arrived", "delivered", "delivered_no_ack", "got", "got_no_ack", "redelivered", "acknowledged")


routes = Routes()


@routes.peer(QUEUE)
async def queue_here(context: ApiContext, vhost: str, name: str) -> dict[str, Any] | None:
    state = context.node.hub.broker.engine.find_queue(name, vhost)
    return None if state is None else inspection.queue_facts(context.node, state)


def nodes(node: Node) -> dict[str, NodeRecord]:
    """Return the nodes of the domain that are not gone, by name, oldest first."""
    here = node.membership.node_id
    records = sorted(node.membership.nodes, key=lambda record: record.id)
    # An in-memory store does not know the node's name.
    return {
        node.hub.peering.name if record.id == here else record.name: record
        for record in records
        if not record.is_gone
    }


class ListedQueue:
    """A queue in a list. Its full facts are collected on demand only: a page shows few of many."""

    __slots__ = ("_node", "_owner", "_queue", "_reported", "_state")

    def __init__(self, node: Node, queue: Queue, state: QueueState | None, owner: int) -> None:
        """A queue served here, or by the node `owner`; a clustered one may be both."""
        self._node = node
        self._queue = queue
        self._state = state
        self._owner = owner
        self._reported: list[Facts] = []

    @property
    def name(self) -> str:
        return self._queue.name

    @property
    def vhost(self) -> str:
        return self._queue.vhost

    def add(self, facts: Facts) -> None:
        """Add the facts reported by another node."""
        self._reported.append(facts)

    def count(self, name: str) -> int | None:
        """Return a counter of the queue; None if its node does not answer."""
        if self.is_down:
            return None
        here = 0 if self._state is None else COUNTS[name](self._state)
        elsewhere: int = sum(facts[name] for facts in self._reported)
        return here + elsewhere

    @property
    def is_down(self) -> bool:
        """Whether its node does not answer."""
        return self._state is None and not self._reported

    def counts(self) -> dict[str, int] | None:
        """Return the counters that have rates; None if its node does not answer."""
        if self.is_down:
            return None
        state = self._state
        if state is None:
            found = dict.fromkeys(GROWING, 0)
        else:
            ready, unacked = len(state), state.unacked_count
            found = dict(zip(GROWING, (ready, unacked, ready + unacked, *_GROWN(state)), strict=True))
        for facts in self._reported:
            found = {name: value + facts[name] for name, value in found.items()}
        return found

    def facts(self) -> Facts:
        """Return all known facts; if its node does not answer, the declaration and that it is down."""
        found = list(self._reported)
        if self._state is not None:
            found.insert(0, inspection.queue_facts(self._node, self._state))
        if not found:
            kind = self._queue.arguments.get("x-queue-type", "classic")
            owner = self._node.hub.peering.name_of(self._owner)
            return {**inspection.declared(self._queue), "type": kind, "node": owner, "state": "down"}
        return functools.reduce(_together, found)


async def queues(call: Call, vhosts: Collection[str]) -> list[ListedQueue]:
    """Return the queues of all nodes in the vhosts, by vhost and name. A clustered queue is one entry."""
    node = call.node
    found: dict[tuple[str, str], ListedQueue] = {}
    async for some in in_slices(node.hub.broker.engine.queues, QUICK_SLICE):
        for state in some:
            queue = state.queue
            if queue.vhost in vhosts:
                found[queue.vhost, queue.name] = ListedQueue(node, queue, state, node.membership.node_id)
    async for others in in_slices(node.hub.directory.all(), QUICK_SLICE):
        for remote in others:
            place = (remote.queue.vhost, remote.queue.name)
            if place not in found and remote.queue.vhost in vhosts:
                found[place] = ListedQueue(node, remote.queue, None, remote.owner)
    for reported in (await call.context.domain_nodes.ask_others("queues")).values():
        async for facts_of_some in in_slices(reported, QUICK_SLICE):
            for facts in facts_of_some:
                listed = found.get((facts["vhost"], facts["name"]))
                if listed is not None:
                    listed.add(facts)
    return [found[place] for place in sorted(found)]


def queue_count(node: Node) -> int:
    """Return the number of queues on all nodes. A clustered queue counts once."""
    here, directory = [state.queue for state in node.hub.broker.engine.queues], node.hub.directory
    members = [queue for queue in here if queue.member]
    in_both = sum(directory.find(queue.vhost, queue.name) is not None for queue in members)
    return len(here) + directory.name_count - in_both


def exchange_count(node: Node, vhosts: Iterable[str]) -> int:
    """Return the number of exchanges in the vhosts: all nodes have the same."""
    return sum(len(node.topology.router(vhost)) for vhost in vhosts)


async def queue(call: Call, vhost: str, name: str) -> Facts:
    """Return one queue, on any node. Raises QueueNotFound."""
    node = call.node
    state = node.hub.broker.engine.find_queue(name, vhost)
    remotes = node.hub.directory.members(vhost, name)
    if state is not None:
        found = ListedQueue(node, state.queue, state, node.membership.node_id)
    elif remotes:
        found = ListedQueue(node, remotes[0].queue, None, remotes[0].owner)
    else:
        raise QueueNotFound(name, vhost)
    for remote in remotes:
        owner = node.hub.peering.name_of(remote.owner)
        with contextlib.suppress(ClusterError):
            facts = await call.context.domain_nodes.ask_node(owner, QUEUE, {"vhost": vhost, "name": name})
            if facts is not None:
                found.add(facts)
    return found.facts()


def _together(one: Facts, other: Facts) -> Facts:
    """Merge the facts of two members of a clustered queue."""
    ages = [facts["head_age_s"] for facts in (one, other) if facts["head_age_s"] is not None]
    return {
        **one,
        **{name: one[name] + other[name] for name in (*COUNTS, "in_memory")},
        **{name: _if_both_known(one[name], other[name]) for name in ("ready_bytes", "unacked_bytes")},
        "head_age_s": max(ages, default=None),
        "members": [*one.get("members", [one["node"]]), other["node"]],
    }


def _if_both_known(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


async def connections(call: Call) -> list[Facts]:
    """Return the connections of all nodes that the user may see: its own, or all."""
    return await _own(call, "connections")


async def channels(call: Call) -> list[Facts]:
    """Return the channels of all nodes that the user may see: its own, or all."""
    return await _own(call, "channels")


async def _own(call: Call, what: str) -> list[Facts]:
    everything: list[Facts] = list(await call.context.domain_nodes.list_all(what))
    if not call.has(Right.MONITORING):
        everything = [found for found in everything if found["user_who_performed_action"] == call.user.name]
    return sorted(everything, key=lambda found: str(found["name"]))


async def consumers(call: Call, vhosts: Collection[str]) -> list[Facts]:
    """Return the consumers of queues in the vhosts."""
    everything = await call.context.domain_nodes.list_all("consumers")
    return _sorted_consumers([found for found in everything if found["queue"]["vhost"] in vhosts])


async def consumers_of_queue(call: Call, vhost: str, name: str) -> list[Facts]:
    """Return the consumers of one queue, from all nodes."""
    return _sorted_consumers(await call.context.domain_nodes.list_all("consumers", {"queue": (vhost, name)}))


def _sorted_consumers(found: Iterable[Facts]) -> list[Facts]:
    def place(consumer: Facts) -> tuple[str, ...]:
        queue = consumer["queue"]
        return queue["vhost"], queue["name"], consumer["channel_details"]["name"], consumer["consumer_tag"]

    return sorted(found, key=place)


async def published_by_exchange(call: Call) -> dict[tuple[str, str], int]:
    """Return the number of messages published to each exchange, by vhost and name."""
    found: dict[tuple[str, str], int] = {}
    for facts in await call.context.domain_nodes.list_all("exchanges"):
        place = (facts["vhost"], facts["name"])
        found[place] = found.get(place, 0) + facts["published"]
    return found


async def totals(call: Call) -> tuple[dict[str, float], dict[str, float]]:
    """Return the totals of all nodes and their rates."""
    counts = await call.context.domain_nodes.ask_all("totals")
    rates = await call.context.domain_nodes.ask_all("rates")
    return summed(counts.values()), summed(rates.values())


def summed(parts: Collection[Mapping[str, float]]) -> dict[str, float]:
    """Sum mappings key by key."""
    found: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = found.get(name, 0) + value
    return found
