"""Faults of a site: each begins, lasts for a while and is healed. The order follows from a seed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from bench.chaos.nodes import Site, postmaster_signal

Healing = Callable[[], Awaitable[None]]
Begin = Callable[[Site, random.Random, str], Awaitable[Healing]]


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault."""

    name: str
    # Returns what heals it.
    begin: Begin
    least_leases: float
    # How long it lasts before it is healed.
    most_leases: float
    # Whether it makes sense with more than one node only.
    needs_others: bool = False


async def nothing() -> None:
    """Faults that heal by themselves."""


async def kill_node(site: Site, chance: random.Random, name: str) -> Healing:
    await site.nodes[name].kill()
    return lambda: site.start(name)


async def suspend_node(site: Site, chance: random.Random, name: str) -> Healing:
    node = site.nodes[name]
    node.send(signal.SIGSTOP)

    async def go_on() -> None:
        node.send(signal.SIGCONT)

    return go_on


async def stop_node(site: Site, chance: random.Random, name: str) -> Healing:
    await site.nodes[name].stop()
    return lambda: site.start(name)


async def restart_postgres_fast(site: Site, chance: random.Random, name: str) -> Healing:
    postmaster_signal(site, signal.SIGINT)
    return nothing


async def restart_postgres_immediately(site: Site, chance: random.Random, name: str) -> Healing:
    postmaster_signal(site, signal.SIGQUIT)
    return nothing


async def kill_backend(site: Site, chance: random.Random, name: str) -> Healing:
    """PostgreSQL takes the death of one of its processes for a crash, ends all sessions and recovers."""
    backends = site.backends()
    if backends:
        # Another fault may have ended all sessions since they were listed.
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(backends), signal.SIGKILL)
    return nothing


async def cut_store(site: Site, chance: random.Random, name: str) -> Healing:
    wire = site.store_wires[name]
    wire.cut(silently=chance.random() < 0.5)

    async def heal() -> None:
        wire.heal()

    return heal


async def cut_clients(site: Site, chance: random.Random, name: str) -> Healing:
    silently = chance.random() < 0.5
    wires = [wire for (node, _), wire in site.client_wires.items() if node == name]
    for wire in wires:
        wire.cut(silently=silently)

    async def heal() -> None:
        for wire in wires:
            wire.heal()

    return heal


async def cut_link(site: Site, chance: random.Random, name: str) -> Healing:
    """Other nodes can no longer reach the node; it can reach them."""
    wire = site.link_wires[name]
    wire.cut(silently=chance.random() < 0.5)

    async def heal() -> None:
        wire.heal()

    return heal


async def slow_store(site: Site, chance: random.Random, name: str) -> Healing:
    wire = site.store_wires[name]
    wire.delay_s = chance.uniform(0.02, 0.2)

    async def heal() -> None:
        wire.delay_s = 0.0

    return heal


CUT_LINK = FaultKind("cut a node off from other nodes", cut_link, 0.2, 2.0, needs_others=True)

KINDS = (
    FaultKind("kill -9", kill_node, 0.0, 2.5),
    FaultKind("suspend briefly", suspend_node, 0.1, 0.6),
    FaultKind("suspend beyond the lease", suspend_node, 1.5, 3.0, needs_others=True),
    FaultKind("stop", stop_node, 0.0, 1.0),
    FaultKind("restart PostgreSQL fast", restart_postgres_fast, 0.2, 0.4),
    FaultKind("restart PostgreSQL immediately", restart_postgres_immediately, 0.2, 0.4),
    FaultKind("kill a backend of PostgreSQL", kill_backend, 0.2, 0.4),
    FaultKind("cut a node off from PostgreSQL", cut_store, 0.2, 2.5),
    FaultKind("cut a node off from its clients", cut_clients, 0.2, 1.0),
    CUT_LINK,
    FaultKind("slow down the way to PostgreSQL", slow_store, 0.5, 1.5),
)


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault to come."""

    kind: FaultKind
    node: str
    # How long nothing happens before it.
    calm_s: float
    lasts_s: float
    seed: int


class Plan:
    """An endless row of faults that is the same for the same seed, nodes and lease."""

    def __init__(self, seed: int, nodes: list[str], lease_s: float, kinds: tuple[FaultKind, ...] = KINDS) -> None:
        self._chance = random.Random(seed)
        self._nodes = nodes
        self._lease_s = lease_s
        self._kinds = [kind for kind in kinds if len(nodes) > 1 or not kind.needs_others]
        self._bag: list[FaultKind] = []

    @property
    def kinds(self) -> int:
        """How many kinds of faults there are."""
        return len(self._kinds)

    def volley(self, count: int) -> list[Planned]:
        """Return the next faults that happen at the same time, none of a node that another one is about."""
        found: list[Planned] = [self.next()]
        while len(found) < min(count, len(self._nodes)):
            taken = {fault.node for fault in found}
            fault = self.next()
            free = [node for node in self._nodes if node not in taken]
            found.append(fault if fault.node in free else replace(fault, node=self._chance.choice(free)))
        return found

    def next(self) -> Planned:
        """Return the next fault. Every kind comes before one comes again."""
        chance = self._chance
        if not self._bag:
            self._bag = chance.sample(self._kinds, len(self._kinds))
        kind = self._bag.pop()
        return Planned(
            kind,
            chance.choice(self._nodes),
            calm_s=chance.uniform(0.3, 1.5),
            lasts_s=chance.uniform(kind.least_leases, kind.most_leases) * self._lease_s,
            seed=chance.randrange(2**32),
        )


async def inflict(site: Site, fault: Planned, has_begun: Callable[[], None]) -> None:
    """Let the fault happen, and heal it when it has lasted; a cancellation heals it at once."""
    heal = await fault.kind.begin(site, random.Random(fault.seed), fault.node)
    has_begun()
    try:
        await asyncio.sleep(fault.lasts_s)
    finally:
        await heal()
