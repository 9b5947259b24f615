"""A node of a domain: the server's node, and what governs it together with others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Mapping, Sequence

import flyball
from flyball.cluster import commands
from flyball.cluster.agent import Agent
from flyball.cluster.governor import DomainGovernor
from flyball.cluster.leader import Leader
from flyball.cluster.placing import DomainPlacement
from flyball.cluster.provisioners import Provisioner, Surroundings, load_provisioners
from flyball.errors import Fenced, StoreUnavailable
from flyball.server import node as server
from flyball.server.node import Node, Part
from flyball.server.settings import ServeSettings

log = logging.getLogger(__name__)

REJOIN_S = 0.5
"""A node that cannot join again, since the store is away, tries so often."""


async def serve(settings: ServeSettings, parts: Sequence[Part] = ()) -> None:
    """Run a node and further parts until SIGINT or SIGTERM, and tell on standard output where it listens.

    A node whose place others have taken, because it did not show for too long, drops its clients and joins again, as
    soon as the store lets it.
    """
    server.prepare_process(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop.set)
    has_served = False
    while not stop.is_set():
        try:
            await _serve_until(settings, stop, parts)
        except* Fenced:
            has_served = True
            log.warning("others have taken this node's place: it joins again as a new one")
            print("joining again", flush=True)
        except* StoreUnavailable as unavailable:
            if not has_served:
                raise
            log.warning("cannot join again yet: %s", unavailable.exceptions[0])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REJOIN_S):
                    await stop.wait()


async def _serve_until(settings: ServeSettings, stop: asyncio.Event, parts: Sequence[Part]) -> None:
    async with running(settings, stop, parts) as node:
        place = f" in {settings.data}" if settings.store.kind == "embedded" else ""
        print(f"flyball {flyball.__version__}, store {settings.store.redacted}{place}", flush=True)
        for name, address in node.addresses.items():
            print(f"{name} on {address}", flush=True)
        print("ready; Ctrl-C stops it", flush=True)
        await stop.wait()
        print("stopping", flush=True)


@contextlib.asynccontextmanager
async def running(
    settings: ServeSettings, stop: asyncio.Event | None = None, parts: Sequence[Part] = ()
) -> AsyncIterator[Node]:
    """Start a node, its part in the domain and further parts; on leaving finish the requests under way, and stop.

    `stop` is set when the domain lets the node go.
    """

    @contextlib.asynccontextmanager
    async def governed(node: Node) -> AsyncIterator[None]:
        provisioners = load_provisioners(settings.provisioners, Surroundings(node.store_url, settings.data))
        async with attached(node, provisioners, asyncio.Event() if stop is None else stop):
            yield

    async with server.running(settings, [governed, *parts]) as node:
        yield node


@contextlib.asynccontextmanager
async def attached(
    node: Node, provisioners: Mapping[str, Provisioner], stop: asyncio.Event
) -> AsyncIterator[tuple[Agent, Leader]]:
    """Let a node govern, and be governed, together with the others. `stop` is set when they let it go."""
    agent = Agent(node, capacity=node.settings.capacity)
    agent.on_let_go = stop.set
    placement = DomainPlacement(agent)
    node.hub.placement = placement
    async with asyncio.TaskGroup() as tasks:
        leader = Leader(agent, provisioners, tasks)
        commands.install(node.hub, DomainGovernor(agent, leader, placement, provisioners).run)
        node.hub.reports["domain"] = leader.report
        working = [tasks.create_task(agent.run()), tasks.create_task(leader.run())]
        try:
            yield agent, leader
        finally:
            for task in working:
                task.cancel()
