"""Chooses the member for a new client, and the node for a queue without an owner. Numbers in, choice out.

The potential of a clustered queue whose members have capacities C_i, producer loads P_i and consumer loads K_i is

    Φ = Σ C_i [(P_i/C_i - P/C)² + (K_i/C_i - K/C)²]  =  Σ (P_i² + K_i²)/C_i - (P² + K²)/C

It is 0 when every member has its share of both. A producer of load l that joins member i changes it by (2 P_i l +
l²)/C_i minus a term that is the same for all i: so the member with the least (P_i + l/2)/C_i is elected. This divides
clients as Webster's method divides seats: after joins only, the P_i/C_i of two members differ by at most l/2 (1/C_i +
1/C_j).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball.broker.cluster.load_table import HAIR, ROW, Floats, LoadTable, Member
from flyball.broker.cluster.options import Policy, Role
from flyball.errors import ClusterError

# Relative error up to which two sums of loads count as equal.
ROUNDING = 1e-9

# Load of an unused queue: idle queues are spread as well.
IDLE_QUEUE_LOAD = 0.001


def elect(table: LoadTable, role: Role, *, avoid: int | None = None) -> Member | None:
    """Return the member for a new session of that role; None if no member accepts clients.

    Members that stay below θ_up are preferred. `avoid` is a node that is chosen only if there is no other.
    """
    row = ROW[role]
    scores = table.scores[row]
    place = int(scores.argmin())
    if scores[place] == math.inf:
        return None
    weight = table.options.weight(role)
    if table.at(place).node != avoid and (table.options.policy == Policy.PLAIN or _has_room(table, place, weight)):
        return table.at(place)
    if avoid is not None:
        scores = _without_node(table, scores, avoid)
    return _best_with_room(table, scores, weight)


def elect_for_load(table: LoadTable, role: Role, load: float) -> Member | None:
    """Return the member for a session of known load."""
    totals = table.loads.sum(axis=0)
    scores = np.where(
        table.is_usable(),
        (table.loads[ROW[role]] + load / 2 + HAIR * totals) / table.capacities,
        math.inf,
    )
    return _best_with_room(table, scores, load)


def _has_room(table: LoadTable, place: int, load: float) -> bool:
    total = table.loads[0, place] + table.loads[1, place] + load
    return bool(total <= table.options.theta_up * table.capacities[place] * (1 + ROUNDING))


def _without_node(table: LoadTable, scores: Floats, node: int) -> Floats:
    others = scores.copy()
    for member in table.members.values():
        if member.node == node:
            others[member.place] = math.inf
    return others if np.isfinite(others).any() else scores


def _best_with_room(table: LoadTable, scores: Floats, load: float) -> Member | None:
    room = table.options.theta_up * (1 + ROUNDING) * table.capacities
    with_room = np.where(table.loads[0] + table.loads[1] + load <= room, scores, math.inf)
    place = int(with_room.argmin())
    if with_room[place] == math.inf:
        place = int(scores.argmin())
    return None if scores[place] == math.inf else table.at(place)


@dataclass(slots=True, frozen=True)
class QueueLoad:
    """An ordinary queue: its owner and its load, in any unit."""

    queue: int
    owner: int = 0
    load: float = 0.0

    @property
    def counted(self) -> float:
        """Its load, but at least IDLE_QUEUE_LOAD."""
        return max(self.load, IDLE_QUEUE_LOAD)


@dataclass(slots=True, frozen=True)
class NodeLoad:
    """A node that can take queues, and its present load."""

    node: int
    capacity: float = 1.0
    load: float = 0.0


def assign(queues: Sequence[QueueLoad], nodes: Sequence[NodeLoad]) -> dict[int, int]:
    """Assign queues to nodes: heaviest queue first, each to the least loaded node.

    If all nodes are equal and empty, none ends up more than 4/3 as full as the fullest node of the best assignment
    (Graham's bound for longest processing time first). Raises ClusterError if there is no node.
    """
    if not nodes and queues:
        raise ClusterError("no node is left to serve the queues: start one")
    loads = np.array([node.load for node in nodes])
    capacities = np.array([node.capacity for node in nodes])
    owners: dict[int, int] = {}
    for queue in sorted(queues, key=lambda queue: (-queue.counted, queue.queue)):
        chosen = int(((loads + queue.counted) / capacities).argmin())
        loads[chosen] += queue.counted
        owners[queue.queue] = nodes[chosen].node
    return owners
