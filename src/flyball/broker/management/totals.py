"""Totals of a node since its start, and its current gauges, with the source of each."""

from __future__ import annotations

import time
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from flyball.broker.engine.counts import COUNTED
from flyball.broker.management.slices import next_slice
from flyball.broker.node.node import Node

# Queues counted per turn of the event loop: one or two milliseconds.
SLICE = 200

# Counters of the node.
_COUNTED_BY_NODE = {
    # Published by clients of this node.
    "published": "hub.broker.meters.published",
    "confirmed": "hub.broker.meters.confirmed",
    "unroutable_returned": "hub.broker.meters.returned",
    "unroutable_dropped": "hub.broker.meters.unroutable",
    "get_empty": "hub.broker.meters.get_empty",
    "connections_opened": "hub.broker.meters.connections_opened",
    "connections_closed": "hub.broker.meters.connections_closed",
    "channels_opened": "hub.broker.meters.channels_opened",
    "channels_closed": "hub.broker.meters.channels_closed",
    "queues_declared": "hub.broker.meters.queues_declared",
    "read_bytes": "hub.broker.meters.read_bytes",
    "written_bytes": "hub.broker.meters.written_bytes",
    "queues_created": "hub.broker.engine.queues_created",
    "queues_deleted": "hub.broker.engine.queues_deleted",
    "store_commits": "hub.broker.journal.commits",
    "store_failures": "hub.broker.journal.failures",
    "store_appended": "hub.broker.journal.rows_appended",
    "store_removed": "hub.broker.journal.rows_removed",
    "store_bytes": "hub.broker.journal.bytes_committed",
    # Unexpected exceptions: bugs, each confined to one operation.
    "faults": "hub.broker.faults.count",
    "task_restarts": "supervisor.restarts",
}

# Counters of its queues: see `engine.counts`. A message that arrives in several queues counts as routed for each.
_COUNTED_BY_QUEUES = {"routed" if name == "arrived" else name: name for name in COUNTED}

COUNTERS = (*_COUNTED_BY_NODE, *_COUNTED_BY_QUEUES)

_HELD_BY_NODE = {
    "exchanges": "topology.exchange_count",
    "resident_bytes": "hub.broker.engine.resident_bytes",
    # Memory of index entries for messages outside memory.
    "indexes_bytes": "hub.broker.engine.absent_bytes",
    # Memory of connections, without messages.
    "connections_bytes": "hub.broker.ledger.connections_bytes",
    # Memory of unread and unanswered data on links.
    "links_bytes": "hub.broker.ledger.links_bytes",
    "definitions_bytes": "hub.broker.ledger.definitions_bytes",
    # Memory charged against the limit: see `core.memory`.
    "held_bytes": "hub.broker.ledger.level_bytes",
    "pending_changes": "hub.broker.journal.pending_count",
    "pending_bytes": "hub.broker.journal.pending_bytes",
}

# Gauges. Parked messages are not unacked ones. `ready_bytes` lacks messages found at startup, in queues that were not
# empty since.
_HELD_BY_QUEUES = ("consumers", "queues", "ready", "unacked", "parked", "ready_bytes")
GAUGES = ("connections", "channels", *_HELD_BY_QUEUES, *_HELD_BY_NODE)

_read_node = attrgetter(*_COUNTED_BY_NODE.values(), *_HELD_BY_NODE.values())
_counts_of = attrgetter(*COUNTED)


class Totals:
    """All counters and gauges of a node at one time."""

    # Slots: five minutes of them are kept.
    __slots__ = ("at_s", *COUNTERS, *GAUGES)

    def __init__(self, at_s: float = 0.0, **values: int) -> None:
        """`at_s` is in seconds since 1970."""
        self.at_s = at_s
        for name in (*COUNTERS, *GAUGES):
            setattr(self, name, values.get(name, 0))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def by_name(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


async def totals(node: Node) -> Totals:
    """Return the totals. Counters never decrease between calls."""
    engine = node.hub.broker.engine
    # Read together: a queue deleted during the count still counts once.
    queues, counts = engine.queues, list(_counts_of(engine.gone))
    ready = unacked = parked = ready_bytes = consumers = 0
    for start in range(0, len(queues), SLICE):
        if start:
            await next_slice()
        part = queues[start : start + SLICE]
        # Called every second with up to 10,000 queues: a Python loop would take three times as long.
        counts = [sum(column) for column in zip(counts, *map(_counts_of, part), strict=True)]
        ready += sum(map(len, part))
        unacked += sum([len(state.unacked) for state in part])
        parked += sum([len(state.parked) for state in part])
        ready_bytes += sum([state.ready_bytes for state in part])
        consumers += sum([len(state.consumers) for state in part])
    found = dict(zip((*_COUNTED_BY_NODE, *_HELD_BY_NODE), _read_node(node), strict=True))
    found |= zip(_COUNTED_BY_QUEUES, counts, strict=True)
    found |= zip(_HELD_BY_QUEUES, (consumers, len(queues), ready, unacked - parked, parked, ready_bytes), strict=True)
    found["connections"] = found["connections_opened"] - found["connections_closed"]
    found["channels"] = found["channels_opened"] - found["channels_closed"]
    return Totals(time.time(), **found)
