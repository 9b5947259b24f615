"""A node of a domain: the node itself, and what governs it together with others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence

import flyball
from flyball.broker.cluster import commands
from flyball.broker.cluster.agent import Agent
from flyball.broker.cluster.domain_placement import DomainPlacement
from flyball.broker.cluster.governor import DomainGovernor
from flyball.broker.cluster.leader import Leader
from flyball.broker.cluster.provisioners import Provisioner, Surroundings, load_provisioners
from flyball.broker.node.node import Node, NodePart
from flyball.broker.node.node import running as running_alone
from flyball.broker.node.process import prepare_process
from flyball.broker.settings import ServeSettings
from flyball.errors import Fenced, StoreError, StoreInUse, StoreRewound, StoreUnavailable

log = logging.getLogger(__name__)

# The interval at which a node that cannot join again, since the store is unavailable, retries.
REJOIN_S = 0.5

# Longer than PostgreSQL takes to notice that a session's machine has vanished: 25 s by the session's keepalives.
IN_USE_LIMIT_S = 60.0


async def serve(settings: ServeSettings, parts: Sequence[NodePart] = ()) -> None:
    """Run a node and further parts until SIGINT or SIGTERM, and tell on standard output where it listens.

    A node whose place others have taken, because it did not show for too long, drops its clients and joins again, as
    soon as the store lets it.
    """
    prepare_process(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop.set)
    rejoining = _Rejoining()
    # Raised after the handler: some versions of Python wrap what an `except*` raises in a group, others do not.
    failure: StoreError | None = None
    while failure is None and not stop.is_set():
        try:
            await _serve_until(settings, stop, parts)
        except* Fenced as group:
            rejoining.begin()
            if isinstance(_first(group), StoreRewound):
                log.warning("the store has gone back in time: the node joins again as a new one")
            else:
                log.warning("others have taken this node's place: it joins again as a new one")
            print("joining again", flush=True)
        except* (StoreUnavailable, StoreInUse) as group:
            error = _first(group)
            if rejoining.may_retry(error):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REJOIN_S):
                        await stop.wait()
            else:
                failure = error
    if failure is not None:
        raise failure


class _Rejoining:
    """A node that has served and was fenced: how long it tries to join again."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._logged: set[str] = set()

    def begin(self) -> None:
        self._began_s = time.monotonic()
        self._logged.clear()

    def may_retry(self, error: StoreError) -> bool:
        """Tell whether trying again can help. Not before the node has served: then its operator is there to be told.

        Whoever has the node's name may be a session of its own past that the server has not noticed to be gone; after
        a while it can only be another process, which an operator has to stop.
        """
        if self._began_s is None:
            return False
        if isinstance(error, StoreInUse) and time.monotonic() - self._began_s > IN_USE_LIMIT_S:
            return False
        # Once per reason, not per attempt.
        if str(error) not in self._logged:
            self._logged.add(str(error))
            log.warning("cannot join again yet: %s", error)
        return True


def _first(group: BaseExceptionGroup[StoreError]) -> StoreError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, StoreError), "nothing else was caught"
    return error


async def _serve_until(settings: ServeSettings, stop: asyncio.Event, parts: Sequence[NodePart]) -> None:
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
    settings: ServeSettings, stop: asyncio.Event | None = None, parts: Sequence[NodePart] = ()
) -> AsyncIterator[Node]:
    """Start a node, its part in the domain and further parts; on leaving finish the requests under way, and stop.

    `stop` is set when the domain lets the node go.
    """

    @contextlib.asynccontextmanager
    async def governed(node: Node) -> AsyncIterator[None]:
        surroundings = Surroundings(node.store_url, settings.data, _shared_flags(settings))
        provisioners = load_provisioners(settings.provisioners, surroundings)
        async with attached(node, provisioners, asyncio.Event() if stop is None else stop):
            yield

    async with running_alone(settings, [governed, *parts]) as node:
        yield node


@contextlib.asynccontextmanager
async def attached(
    node: Node, provisioners: Mapping[str, Provisioner], stop: asyncio.Event
) -> AsyncIterator[tuple[Agent, Leader]]:
    """Let a node govern, and be governed, together with the others. `stop` is set when they let it go."""
    agent = Agent(node, stop)
    placement = DomainPlacement(agent)
    node.hub.placement = placement
    async with asyncio.TaskGroup() as tasks:
        leader = Leader(agent, provisioners, tasks)
        commands.install(node.hub, DomainGovernor(agent, leader, placement, provisioners).run)
        node.hub.reports["domain"] = leader.report
        supervisor = node.supervisor.within(tasks)
        long_lived = {"cluster agent": agent.balancer.run, "cluster leader": leader.run}
        state = [supervisor.keep(name, run) for name, run in long_lived.items()]
        try:
            yield agent, leader
        finally:
            for task in state:
                task.cancel()


def _shared_flags(settings: ServeSettings) -> tuple[str, ...]:
    """Return the flags that a node on this machine needs to be linked with this one."""
    files = {
        "--link-tls-cert": settings.link_tls_cert,
        "--link-tls-key": settings.link_tls_key,
        "--link-tls-ca": settings.link_tls_ca,
    }
    return tuple(text for flag, path in files.items() if path is not None for text in (flag, str(path.absolute())))
