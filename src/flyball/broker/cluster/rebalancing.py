"""Chooses the sessions that move, and the ordinary queues that change their owner. Numbers in, moves out.

A session of load l and one role that moves from member i to member j changes the potential Φ (placement.py) by

    ΔΦ = l² (1/C_i + 1/C_j) - 2 l (P_i/C_i - P_j/C_j)

**The rebalancer terminates.** A move is made only if -ΔΦ > δ = ε + cost > 0. Φ is a sum of squares, so never below 0,
and changes only by moves while loads and members stay: at most Φ/δ moves follow. A session moved from i to j moves
back only if Φ falls again by more than δ, which needs a change of the loads; and not before its cool-down. Moves away
from marked members are made first and are not counted here: each lowers the load on marked members, which no move
ever raises, so the pair (load on marked members, Φ) falls in lexical order with every move.

If more is produced than consumed in total, or less, no move helps: `RatioWatch` reports it; another loop must act.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from flyball.broker.cluster.load_table import ROW, Floats, LoadTable, Member, MemberSession
from flyball.broker.cluster.options import Role
from flyball.broker.cluster.placement import ROUNDING, NodeLoad, QueueLoad, assign, elect_for_load
from flyball.errors import ClusterError

# Members examined for one move: if no session of the fullest can move, the next round may find one.
MAX_SOURCES = 16


@dataclass(slots=True, frozen=True)
class SessionMove:
    """A move that lowers the potential."""

    session: MemberSession
    to: Member
    # Decrease of the potential.
    gain: float
    reason: str


def drains(table: LoadTable, now: float, maximum: int) -> Iterator[SessionMove]:
    """Yield moves away from marked members; make each before requesting the next."""
    for member in list(table.marked.values()):
        for session in [session for session in member.sessions.values() if _may_move(session, table, now)]:
            if maximum <= 0:
                return
            to = elect_for_load(table, session.role, session.load)
            if to is None:
                return
            maximum -= 1
            yield SessionMove(session, to, 0.0, f"member {member.id} is draining")


def best_move(table: LoadTable, now: float) -> SessionMove | None:
    """Return the move with the largest gain; None if no gain exceeds the cost and ε."""
    moves = [move for role in Role if (move := _best_of(table, role, now)) is not None]
    return max(moves, key=lambda move: move.gain, default=None)


def _best_of(table: LoadTable, role: Role, now: float) -> SessionMove | None:
    """Try the fullest members first, until the rest cannot gain more than the best move found."""
    usable = table.is_usable()
    if usable.sum() < 2:
        return None
    row = ROW[role]
    ratios = table.loads[row] / table.capacities
    target = table.at(_emptiest(table, role, usable))
    gaps = np.where(usable, ratios - ratios[target.place], 0.0)
    inverses = 1 / table.capacities + 1 / target.capacity
    # The gain 2lg - l²h grows with the load l up to l = g/h, so the bound is the gain of the largest load, or that of
    # g/h.
    loads = np.minimum(np.maximum(gaps / inverses, 0.0), table.largest[row])
    bounds = np.where(gaps > 0, loads * (2 * gaps - loads * inverses), 0.0)
    best: SessionMove | None = None
    for place in np.argsort(-bounds)[:MAX_SOURCES]:
        bound = float(bounds[place])
        if bound <= _threshold(table) or (best is not None and bound <= best.gain):
            break
        move = _best_between(table, role, table.at(int(place)), target, bound, now)
        if move is not None and (best is None or move.gain > best.gain):
            best = move
    return best


def _emptiest(table: LoadTable, role: Role, usable: np.typing.NDArray[np.bool_]) -> int:
    """Prefer members with room for one more session."""
    weight = table.options.weight(role)
    scores = np.where(usable, (table.loads[ROW[role]] + weight / 2) / table.capacities, math.inf)
    room = table.options.theta_up * (1 + ROUNDING) * table.capacities
    with_room: Floats = np.where(table.loads.sum(axis=0) + weight <= room, scores, math.inf)
    return int(with_room.argmin()) if np.isfinite(with_room).any() else int(scores.argmin())


def _best_between(
    table: LoadTable, role: Role, source: Member, to: Member, bound: float, now: float
) -> SessionMove | None:
    """Return the best move from one member to another; none can gain more than `bound`."""
    row = ROW[role]
    gap = float(table.loads[row, source.place] / source.capacity - table.loads[row, to.place] / to.capacity)
    inverse = 1 / source.capacity + 1 / to.capacity
    room = table.options.theta_up * to.capacity * (1 + ROUNDING) - table.load_of(to)
    # If all members are overloaded, a less loaded one is good enough.
    room = max(room, table.load_of(source) / source.capacity * to.capacity - table.load_of(to))
    best: MemberSession | None = None
    best_gain = _threshold(table)
    for session in source.sessions.values():
        if session.role is not role or session.load > room or not _may_move(session, table, now):
            continue
        gain = 2 * session.load * gap - session.load * session.load * inverse
        if gain > best_gain:
            best, best_gain = session, gain
            if best_gain >= bound * (1 - ROUNDING):
                break
    if best is None:
        return None
    reason = (
        f"member {source.id} has {table.load_of(source, role):g} of {role}s for a capacity of {source.capacity:g},"
        f" member {to.id} only {table.load_of(to, role):g} for {to.capacity:g}"
    )
    return SessionMove(best, to, best_gain, reason)


def _threshold(table: LoadTable) -> float:
    options = table.options
    return max(options.epsilon + options.move_cost, ROUNDING) * options.potential_unit


def _may_move(session: MemberSession, table: LoadTable, now: float) -> bool:
    """Return whether a session has arrived and its cool-down is over."""
    return session.due is None and now - session.moved_at >= table.options.cool_down_s


@dataclass(slots=True)
class RatioWatch:
    """Detects that messages pile up, or consumers idle, for a whole dwell time: rules R1 and R2 for the whole queue.

    Then the ratio of producers to consumers is wrong, which placement cannot fix.
    """

    _since: float | None = None
    _ready_then: int = 0
    _most_at_first: int = 0
    _least_since: int | None = None
    _is_idle: bool = True
    _said: str = ""

    def look(self, table: LoadTable, now: float) -> tuple[str, str] | None:
        """Return the part that has to act, and the reason, when the verdict has changed."""
        ready = sum(member.ready for member in table.members.values())
        dwell_s = max(table.options.dwell_s, table.options.period_s)
        if self._since is None:
            self._since, self._ready_then = now, ready
            self._most_at_first, self._least_since, self._is_idle = ready, None, True
        passed_s = now - self._since
        if passed_s < dwell_s / 2:
            self._most_at_first = max(self._most_at_first, ready)
        else:
            self._least_since = ready if self._least_since is None else min(self._least_since, ready)
        self._is_idle = self._is_idle and ready == 0 and any(member.idle for member in table.members.values())
        if passed_s < dwell_s:
            return None
        self._since = None
        to = self._verdict(table, ready)
        if to == self._said:
            return None
        self._said = to
        return (to, _RATIO_REASONS[to].format(grown=ready - self._ready_then, passed_s=passed_s)) if to else None

    def _verdict(self, table: LoadTable, ready: int) -> str:
        """Compare the minimum of the second half with the first: a transient backlog does not count."""
        has_grown = self._least_since is not None and self._least_since > self._most_at_first
        if has_grown and ready > self._ready_then + table.options.surplus:
            return "admission" if table.count(Role.CONSUMER) else "consumers"
        return "none" if self._is_idle and table.count(Role.CONSUMER) else ""


_RATIO_REASONS = {
    "admission": "{grown} messages piled up within {passed_s:.0f} s: more is produced than consumed, which"
    " placement cannot fix; throttle the producers or start more consumers",
    "consumers": "{grown} messages piled up within {passed_s:.0f} s and there is no consumer: start consumers",
    "none": "no message was ready within {passed_s:.0f} s and consumers were idle: more could be consumed than is"
    " produced; fewer consumers would do",
}


@dataclass(slots=True, frozen=True)
class OwnerMove:
    """A change of an ordinary queue's owner."""

    queue: int
    from_node: int
    to_node: int
    reason: str


def rebalance_owners(
    queues: Sequence[QueueLoad], nodes: Sequence[NodeLoad], *, most_moves: int = 100, epsilon: float = 0.05
) -> list[OwnerMove]:
    """Return the queues that should change their owner, the most useful move first.

    Queues whose owner is not among `nodes` go first. Others move from the fullest node to the emptiest, each time the
    queue that narrows the gap most, as long as it narrows by more than `epsilon` of the average. `load` of a node
    does not include these queues. Raises ClusterError if there is no node.
    """
    if not nodes:
        raise ClusterError("no node is left to serve the queues: start one")
    by_id = {node.node: node for node in nodes}
    loads = {node.node: node.load for node in nodes}
    owned: dict[int, list[QueueLoad]] = {node.node: [] for node in nodes}
    homeless = [queue for queue in queues if queue.owner not in by_id]
    for queue in queues:
        if queue.owner in by_id:
            loads[queue.owner] += queue.counted
            owned[queue.owner].append(queue)
    placed = assign(homeless, [NodeLoad(node.node, node.capacity, loads[node.node]) for node in nodes])
    moves = [
        OwnerMove(queue.queue, queue.owner, placed[queue.queue], "its node no longer serves queues")
        for queue in homeless
    ]
    for queue in homeless:
        loads[placed[queue.queue]] += queue.counted
    average = sum(loads.values()) / sum(node.capacity for node in nodes)
    while len(moves) < most_moves:
        ratio = {node: load / by_id[node].capacity for node, load in loads.items()}
        source, to = (
            max(ratio, key=lambda node: (ratio[node], -node)),
            min(ratio, key=lambda node: (ratio[node], node)),
        )
        gap = ratio[source] - ratio[to]
        inverse = 1 / by_id[source].capacity + 1 / by_id[to].capacity
        # Moving load l changes the gap to |gap - l·inverse|, so the best load is nearest to gap/inverse.
        best = min(owned[source], key=lambda queue: (abs(gap - queue.counted * inverse), queue.queue), default=None)
        if best is None or gap - abs(gap - best.counted * inverse) <= epsilon * average:
            break
        owned[source].remove(best)
        loads[source] -= best.counted
        loads[to] += best.counted
        fullest, emptiest = 100 * ratio[source] / average, 100 * ratio[to] / average
        reason = f"node {source} is at {fullest:.0f} % of the average, node {to} at {emptiest:.0f} %"
        moves.append(OwnerMove(best.queue, source, to, reason))
    return moves
