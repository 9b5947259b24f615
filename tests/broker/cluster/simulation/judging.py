"""Invariants of the manager of a simulated domain, judged by its decision log."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from flyball.broker.cluster.decisions import Failure, Mark, Move, Record, TakeOver, Unmark
from flyball.broker.cluster.manager import Manager
from flyball.broker.cluster.options import ClusterOptions

ROUNDING = 1e-6


def decided(manager: Manager) -> list[Record]:
    """Return what it has decided, oldest first."""
    return [record for record in manager.history if not isinstance(record.decision, Failure)]


def can_bear_its_load(snapshot: Mapping[str, Any], options: ClusterOptions, free: Collection[int]) -> bool:
    """I8: members can bear the load, or more are coming, or none can come now. `free` are nodes without a member."""
    load = snapshot["usable_load"]
    if load is not None and load <= options.theta_up + ROUNDING:
        return True
    staying = sum(not member["is_leaving"] for member in snapshot["members"])
    is_held = load is not None and snapshot["held_for_s"] is not None and load <= options.theta_hold + ROUNDING
    can_grow = (options.provisioner or free) and not snapshot["retry_in_s"] and staying < options.max_members
    return bool(snapshot["coming"] or is_held or not can_grow)


def wrong_moves(decisions: Iterable[Record], options: ClusterOptions, calm_s: float) -> Iterator[str]:
    """Yield clients that were sent to a marked member (I6) or, from `calm_s` on, moved twice within the cool-down
    (I9's bound), by the decisions of one leader.

    Before that, clients that have lost their nodes come back under the same names, and are new to the manager.
    """
    marked: set[int] = set()
    moved_s: dict[str, float] = {}
    for record in decisions:
        match record.decision:
            case Mark(member=member):
                marked.add(member)
            case Unmark(member=member):
                marked.discard(member)
            case TakeOver(assignments=assignments):
                marked.difference_update(assignments)
            case Move(session=session, to_member=to_member):
                if to_member in marked:
                    yield f"I6: session {session} is sent to member {to_member}, which is marked"
                if calm_s < record.at < moved_s.get(session, -math.inf) + options.cool_down_s:
                    yield f"I9: session {session} is moved twice within its cool-down"
                moved_s[session] = record.at
