"""The manager of a large domain: how well it places clients, and what that costs.

    python -m bench.placement                                   # 1,000 nodes, 1,000,000 clients, some minutes
    python -m bench.placement --nodes 50 --clients 20000 --json # seconds

Nodes of three sizes have a member each of one clustered queue. Clients join until all are there; then a half leaves
and joins again in random order, while nodes die, come back and the rebalancer works; then a half leaves. No client is
really asked to move or to connect: it is the manager that is measured, in one process and one thread.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from tests.broker.cluster.snapshots import member_of, snapshot_of

from flyball.broker.cluster.decisions import MemberPlacement, Move
from flyball.broker.cluster.manager import Manager
from flyball.broker.cluster.names import cluster_key
from flyball.broker.cluster.options import ClusterOptions, Role

ORDERS = cluster_key("/", "orders")
SIZES = (0.5, 1.0, 2.0)
# Joins and leaves within a second of the simulation.
TICK_EVERY = 1000


@dataclass(slots=True)
class Phase:
    """Result of one part of the simulation."""

    name: str
    events: int
    elapsed_s: float
    join_p50_us: float
    join_p99_us: float
    leave_p50_us: float
    tick_p50_ms: float
    tick_p99_ms: float
    decisions: int
    moves: int
    # Largest load of a member against its capacity.
    fullest: float
    emptiest: float
    potential: float
    # No placement of this number of whole clients has less.
    potential_at_best: float

    @property
    def events_per_s(self) -> float:
        return self.events / self.elapsed_s


@dataclass(slots=True)
class Result:
    """The whole simulation."""

    nodes: int
    clients: int
    seed: int
    phases: list[Phase] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        values = asdict(self)
        for phase, values_of_phase in zip(self.phases, values["phases"], strict=True):
            values_of_phase["events_per_s"] = phase.events_per_s
            values_of_phase["decisions_per_s"] = phase.decisions / phase.elapsed_s
        return values


class Simulation:
    """One clustered queue with a member on each node."""

    def __init__(self, nodes: int, clients: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clients = clients
        self.manager = Manager()
        sizes = [SIZES[number % len(SIZES)] for number in range(nodes)]
        # Full by four fifths when all are there: a producer counts two, a consumer one.
        self.options = ClusterOptions(
            producer_weight=2.0,
            capacity=clients * 4 / 3 / sum(sizes) / 0.8,
            max_members=nodes,
            most_moves=20,
            cool_down_s=60.0,
        )
        self.manager.set_cluster(ORDERS, self.options, 0.0)
        for node, size in enumerate(sizes, 1):
            self.manager.node_up(node, 0.0, epoch=1, capacity=size)
            self.manager.member_added(ORDERS, node, node, 0.0, is_fixed=True)
        self.sizes = sizes
        self.now = 0.0
        self.here: list[str] = []
        self.joined = 0
        self._joins_ns: list[int] = []
        self._leaves_ns: list[int] = []
        self._ticks_ns: list[int] = []
        self._moves = 0
        self._since_tick = 0

    def join(self) -> None:
        self.joined += 1
        session = str(self.joined)
        role = Role.PRODUCER if self.joined % 3 == 0 else Role.CONSUMER
        begun = time.perf_counter_ns()
        answer = self.manager.join(ORDERS, role, self.now, session=session)
        self._joins_ns.append(time.perf_counter_ns() - begun)
        assert isinstance(answer, MemberPlacement)
        self.manager.arrived(session, self.now)
        self.here.append(session)
        self._count()

    def leave(self) -> None:
        place = self.chance.randrange(len(self.here))
        self.here[place], self.here[-1] = self.here[-1], self.here[place]
        session = self.here.pop()
        begun = time.perf_counter_ns()
        self.manager.leave(session, self.now)
        self._leaves_ns.append(time.perf_counter_ns() - begun)
        self._count()

    def lose_a_node(self) -> None:
        """A node dies, its clients come again at once, and it is back later."""
        node = self.chance.randrange(len(self.sizes)) + 1
        before = len(self.here)
        lost = {session for session in self.here if member_of(self.manager, session) == node}
        self.manager.node_gone(node, self.now)
        self.here = [session for session in self.here if session not in lost]
        for _ in range(before - len(self.here)):
            self.join()
        self.manager.node_up(node, self.now, epoch=self.joined, capacity=self.sizes[node - 1])
        self.manager.member_added(ORDERS, node, node, self.now, is_fixed=True)

    def _count(self) -> None:
        self._since_tick += 1
        if self._since_tick >= TICK_EVERY:
            self._since_tick = 0
            self.tick()

    def tick(self) -> None:
        self.now += 1.0
        begun = time.perf_counter_ns()
        self.manager.tick(self.now)
        self._ticks_ns.append(time.perf_counter_ns() - begun)
        for decision in self.manager.take_decisions():
            if isinstance(decision, Move):
                self._moves += 1
                self.manager.arrived(decision.session, self.now)

    def measure(self, name: str, act: Callable[[], None]) -> Phase:
        """Run a part and return what it cost and how clients are placed after it."""
        self._joins_ns, self._leaves_ns, self._ticks_ns, self._moves = [], [], [], 0
        decided, begun = self.manager.decided, time.perf_counter()
        act()
        elapsed_s = time.perf_counter() - begun
        if not self._ticks_ns:
            self.tick()
        snapshot = snapshot_of(self.manager, ORDERS, self.now)
        loads = [member["load"] for member in snapshot["members"]]
        return Phase(
            name=name,
            events=len(self._joins_ns) + len(self._leaves_ns),
            elapsed_s=elapsed_s,
            join_p50_us=_percentile(self._joins_ns, 50) / 1e3,
            join_p99_us=_percentile(self._joins_ns, 99) / 1e3,
            leave_p50_us=_percentile(self._leaves_ns, 50) / 1e3,
            tick_p50_ms=_percentile(self._ticks_ns, 50) / 1e6,
            tick_p99_ms=_percentile(self._ticks_ns, 99) / 1e6,
            decisions=self.manager.decided - decided,
            moves=self._moves,
            fullest=max(loads),
            emptiest=min(loads),
            potential=snapshot["potential"],
            potential_at_best=self._potential_at_best(snapshot),
        )

    def _potential_at_best(self, snapshot: dict[str, Any]) -> float:
        capacities = np.array([member["capacity"] for member in snapshot["members"]])
        return sum(least_potential(snapshot[f"{role}s"], self.options.weight(role), capacities) for role in Role)


def least_potential(clients: int, weight: float, capacities: NDArray[np.float64]) -> float:
    """Return the least part of the potential that whole clients of one role can have.

    It is a sum of convex functions of whole numbers, so giving each client to where it costs least is optimal.
    """
    counts = np.floor(clients * capacities / capacities.sum() - 1).clip(0)
    for _ in range(clients - int(counts.sum())):
        counts[((counts + 0.5) / capacities).argmin()] += 1
    share = clients / capacities.sum()
    return float(weight * weight * (capacities * (counts / capacities - share) ** 2).sum())


def _percentile(values: list[int], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else 0.0


def simulate(
    nodes: int, clients: int, seed: int = 1, on_progress: Callable[[int], None] = lambda done: None
) -> Result:
    """Run all parts; `on_progress` is called for clients that came or went."""
    simulation = Simulation(nodes, clients, seed)
    result = Result(nodes, clients, seed)
    step = max(1, clients // 100)

    def repeat(count: int, act: Callable[[], None]) -> None:
        for number in range(1, count + 1):
            act()
            if number % step == 0:
                on_progress(step)

    def churn() -> None:
        for number in range(1, clients // 2 + 1):
            simulation.leave()
            simulation.join()
            if number % step == 0:
                on_progress(2 * step)
            if number % max(1, clients // 20) == 0:
                simulation.lose_a_node()

    def settle() -> None:
        for _ in range(600):
            simulation.tick()

    result.phases.append(simulation.measure("all join", lambda: repeat(clients, simulation.join)))
    result.phases.append(simulation.measure("leave and join, nodes die", churn))
    result.phases.append(simulation.measure("half leave", lambda: repeat(clients // 2, simulation.leave)))
    result.phases.append(simulation.measure("10 min of rebalancing", settle))
    return result


def show(result: Result, console: Console) -> None:
    table = Table(title=f"{result.nodes:,} nodes, {result.clients:,} clients")
    for column in ("", "events/s", "join p50/p99 µs", "leave µs", "tick p50/p99 ms", "decisions/s", "moves"):
        table.add_column(column, justify="right" if column else "left")
    table.add_column("N/C max/min", justify="right")
    table.add_column("Φ / best", justify="right")
    for phase in result.phases:
        table.add_row(
            phase.name,
            f"{phase.events_per_s:,.0f}",
            f"{phase.join_p50_us:.1f} / {phase.join_p99_us:.1f}",
            f"{phase.leave_p50_us:.1f}",
            f"{phase.tick_p50_ms:.1f} / {phase.tick_p99_ms:.1f}",
            f"{phase.decisions / phase.elapsed_s:,.1f}",
            f"{phase.moves:,}",
            f"{phase.fullest:.4f} / {phase.emptiest:.4f}",
            f"{phase.potential:.4g} / {phase.potential_at_best:.4g}",
        )
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("joins and leaves", total=int(options.clients * 2.5))
        result = simulate(
            options.nodes, options.clients, options.seed, lambda done: progress.update(task, advance=done)
        )
    if options.json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        show(result, Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
