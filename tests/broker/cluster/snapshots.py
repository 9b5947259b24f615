"""The manager's view of a clustered queue, in one piece."""

from __future__ import annotations

from typing import Any

from flyball.broker.cluster.load_table import LoadTable
from flyball.broker.cluster.manager import Manager
from flyball.broker.cluster.options import Role


def snapshot_of(manager: Manager, cluster: str, now: float) -> dict[str, Any]:
    found = manager.cluster(cluster)
    table = found.table
    producers, consumers = table.count(Role.PRODUCER), table.count(Role.CONSUMER)
    return {
        "producers": producers,
        "consumers": consumers,
        "load": table.load,
        "usable_capacity": table.usable_capacity,
        "usable_load": table.usable_load if table.usable_count else None,
        "potential": potential(table),
        "coming": len(found.provisioning.coming),
        "retry_in_s": max(0.0, found.provisioning.retry_at - now),
        "held_for_s": None
        if found.provisioning.held_until is None
        else max(0.0, found.provisioning.held_until - now),
        "members": [
            {
                "member": member.id,
                "node": member.node,
                "is_marked": member.is_marked,
                "is_leaving": member.is_leaving,
                "is_served": member.is_served,
                "is_fixed": member.is_fixed,
                "producers": table.count_of(member, Role.PRODUCER),
                "consumers": table.count_of(member, Role.CONSUMER),
                "producer_share": table.count_of(member, Role.PRODUCER) / producers if producers else 0.0,
                "consumer_share": table.count_of(member, Role.CONSUMER) / consumers if consumers else 0.0,
                "load": table.load_of(member) / member.capacity,
                "capacity": member.capacity,
                "ready": member.ready,
                "unacked": member.unacked,
            }
            for _, member in sorted(table.members.items())
        ],
    }


def member_of(manager: Manager, session: str) -> int | None:
    """Return the member that a session counts at, None if it is not known."""
    known = manager.sessions.get(session)
    return None if known is None else known[1].member.id


def potential(table: LoadTable) -> float:
    """Return Φ of the members that get clients; see `flyball.broker.cluster.placement`."""
    usable = table.is_usable()
    if not usable.any():
        return 0.0
    loads, capacities = table.loads[:, usable], table.capacities[usable]
    shares = loads.sum(axis=1, keepdims=True) / capacities.sum()
    return float((capacities * (loads / capacities - shares) ** 2).sum())
