"""Faults of a simulation and their times: planned from its seed alone, so that it can be shown and repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Kind(StrEnum):
    """Kind of fault."""

    # The process ends without a word; it is started again later.
    KILL = "kill"
    # Nothing of the process runs for a while, perhaps for longer than its lease.
    FREEZE = "freeze"
    CUT_STORE = "cut off from the database"
    # For all nodes.
    OUTAGE = "the database is away"
    # In silence: nothing gets through until it is healed.
    CUT_LINK = "cut between two nodes"
    BREAK_LINK = "break the connections between two nodes"
    BREAK_ALL = "break all connections of a node"
    SLOW = "slow network"
    SLOW_STORE = "slow database"
    FLAKY_STORE = "calls of the database fail now and then"
    STOP = "stop in good order"
    REBALANCE = "rebalance the queues"


WEIGHTS = {
    Kind.KILL: 4,
    Kind.FREEZE: 4,
    Kind.CUT_STORE: 3,
    Kind.OUTAGE: 2,
    Kind.CUT_LINK: 2,
    Kind.BREAK_LINK: 2,
    Kind.BREAK_ALL: 2,
    Kind.SLOW: 1,
    Kind.SLOW_STORE: 1,
    Kind.FLAKY_STORE: 2,
    Kind.STOP: 2,
    Kind.REBALANCE: 2,
}

# After all others messages may come again that a node, or a client, does not know to have been delivered.
HARMLESS = (Kind.SLOW, Kind.SLOW_STORE, Kind.FLAKY_STORE)


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    kind: Kind
    node: str
    # For what lies between two nodes.
    other: str
    lasts_s: float

    def __str__(self) -> str:
        place = f"{self.node} and {self.other}" if "two nodes" in self.kind else self.node
        place = "all" if self.kind is Kind.OUTAGE else place
        return f"{self.at_s:7.3f} s: {self.kind} ({place}), for {self.lasts_s:.3f} s"


def plan(chance: Random, nodes: Sequence[str], until_s: float, lease_s: float, pace: float = 1.0) -> list[Fault]:
    """Return faults, a few of which overlap; at a higher pace they come more often and last less long."""
    faults: list[Fault] = []
    at_s = chance.uniform(0.5, 3.0)
    while at_s < until_s:
        kind = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        node, other = chance.sample(nodes, 2)
        lasts_s = chance.choice((0.2, 0.6 * lease_s, 1.5 * lease_s, 3.0 * lease_s)) * chance.uniform(0.5, 1.2)
        lasts_s /= pace**0.5
        faults.append(Fault(at_s, kind, node, other, lasts_s))
        at_s += chance.choice((0.1, 1.0, 4.0, 8.0)) * chance.uniform(0.5, 1.5) / pace
    return faults
