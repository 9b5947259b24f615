"""What metrics are made from: the numbers of a node at a moment, each under one name.

Nothing is asked of other nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from flyball.broker.core.flow import NO_DISK, NO_MEMORY
from flyball.broker.management import inspection
from flyball.broker.management.inspection import COUNTERS, GAUGES
from flyball.broker.node.node import Node
from flyball.broker.store.registry import NodeState

Numbers = Mapping[str, float | None]

_OF_TOTALS = (*COUNTERS, *GAUGES)
_totals_of = attrgetter(*_OF_TOTALS)

_OF_FACTS = (
    "memory_bytes",
    "memory_limit_bytes",
    "resident_limit_bytes",
    "cpu_s",
    "open_files",
    "open_files_limit",
    "disk_free_bytes",
    "disk_free_limit_bytes",
    "max_connections",
    "uptime_s",
    "started_at_s",
)


async def numbers_of(node: Node) -> Numbers:
    """Return the numbers of the node."""
    # Not those of the last second's sample: rates over times that differ by a second would waver.
    totals = await inspection.totals(node)
    facts = inspection.node_facts(node)
    store, flow = facts["store"], facts["flow"]
    channels = await inspection.channel_totals(node)
    return {
        **dict(zip(_OF_TOTALS, _totals_of(totals), strict=True)),
        "messages": totals.ready + totals.unacked,
        "sent": totals.delivered + totals.delivered_no_ack + totals.got + totals.got_no_ack,
        **{name: facts[name] for name in _OF_FACTS},
        **{f"channel_{name}": value for name, value in channels.items()},
        "last_commit_s": store["last_commit_s"],
        "store_is_failing": store["is_failing"],
        "is_low_on_memory": NO_MEMORY in facts["alarms"],
        "is_low_on_disk": NO_DISK in facts["alarms"],
        "alarms": len(facts["alarms"]),
        "is_under_pressure": flow["under_pressure"],
        "waiting_connections": flow["waiting_connections"],
        "blocked_connections": flow["blocked_connections"],
        "may_speak": node.hub.may_speak,
        "is_leaving": node.membership.state is NodeState.LEAVING,
        **_of_trace(node),
    }


def _of_trace(node: Node) -> dict[str, float | None]:
    recorder = node.hub.recorder
    if recorder is None:
        return {"trace_dropped": None, "trace_failures": None}
    return {"trace_dropped": recorder.dropped, "trace_failures": recorder.failures}
