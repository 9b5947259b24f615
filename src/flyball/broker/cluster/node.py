"""A node of a domain: the broker node with its agent and leader."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence

import flyball
from flyball.broker.cluster import commands
from flyball.broker.cluster.administration import DomainAdministration
from flyball.broker.cluster.agent import Agent
from flyball.broker.cluster.domain_placement import DomainPlacement
from flyball.broker.cluster.leader import Leader
from flyball.broker.cluster.models import ModelChanges
from flyball.broker.cluster.provisioners import Provisioner, Surroundings, load_provisioners
from flyball.broker.node.node import Node, NodePart
from flyball.broker.node.node import running as running_alone
from flyball.broker.node.process import prepare_process
from flyball.broker.node.service_manager import NO_MANAGER, ServiceManager
from flyball.broker.settings import ServeSettings, listener_names
from flyball.errors import Fenced, StoreError, StoreInUse, StoreRewound, StoreUnavailable

log = logging.getLogger(__name__)

# Interval between attempts to rejoin while the store is unavailable.
REJOIN_S = 0.5

# Longer than PostgreSQL needs to detect a vanished client: 25 s with the keepalives of the session.
IN_USE_LIMIT_S = 60.0


async def serve(
    settings: ServeSettings, parts: Sequence[NodePart] = (), manager: ServiceManager = NO_MANAGER
) -> None:
    """Run a node with additional parts until SIGINT or SIGTERM, and print its addresses.

    A node that was fenced, because its lease expired, disconnects its clients and rejoins as soon as the store
    allows.
    """
    prepare_process(settings)
    manager.check_names(listener_names(settings))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop.set)
    async with asyncio.TaskGroup() as tasks:
        watchdog = tasks.create_task(manager.beat())
        try:
            failure = await _serve_and_rejoin(settings, stop, parts, manager)
        finally:
            watchdog.cancel()
    if failure is not None:
        raise failure


async def _serve_and_rejoin(
    settings: ServeSettings, stop: asyncio.Event, parts: Sequence[NodePart], manager: ServiceManager
) -> StoreError | None:
    """Serve until `stop`. Return why the node could not start or rejoin, if it could not."""
    rejoining = _Rejoining()
    # Raised after the handler: Python versions differ in whether `except*` wraps what is raised in it in a group.
    failure: StoreError | None = None
    while failure is None and not stop.is_set():
        try:
            await _serve_until(settings, stop, parts, manager)
        except* Fenced as group:
            rejoining.begin()
            if isinstance(_first(group), StoreRewound):
                log.warning("the store was restored to an earlier state; rejoining with a new epoch")
            else:
                log.warning("node fenced: lease expired; rejoining with a new epoch")
            print("joining again", flush=True)
            manager.notify("STATUS=joining again")
        except* (StoreUnavailable, StoreInUse) as group:
            error = _first(group)
            if rejoining.may_retry(error):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REJOIN_S):
                        await stop.wait()
            else:
                failure = error
    return failure


class _Rejoining:
    """Retry policy of a fenced node that tries to rejoin."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._logged: set[str] = set()

    def begin(self) -> None:
        self._began_s = time.monotonic()
        self._logged.clear()

    def may_retry(self, error: StoreError) -> bool:
        """Return whether a retry can help. Never before the node has served: at startup the operator sees the error.

        The session that holds the node's name may be its own old one, which the server has not timed out yet; after
        IN_USE_LIMIT_S it must be another process, which only an operator can stop.
        """
        if self._began_s is None:
            return False
        if isinstance(error, StoreInUse) and time.monotonic() - self._began_s > IN_USE_LIMIT_S:
            return False
        # Log each reason once, not each attempt.
        if str(error) not in self._logged:
            self._logged.add(str(error))
            log.warning("rejoin failed; retrying: %s", error)
        return True


def _first(group: BaseExceptionGroup[StoreError]) -> StoreError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, StoreError), "only StoreError is caught"
    return error


async def _serve_until(
    settings: ServeSettings, stop: asyncio.Event, parts: Sequence[NodePart], manager: ServiceManager
) -> None:
    async with running(settings, stop, parts, manager) as node:
        place = f" in {settings.data}" if settings.store.kind == "embedded" else ""
        print(f"flyball {flyball.__version__}, store {settings.store.redacted}{place}", flush=True)
        for name, address in node.addresses.items():
            print(f"{name} on {address}", flush=True)
        print("ready; press Ctrl-C to stop", flush=True)
        manager.notify("READY=1\nSTATUS=serving")
        await stop.wait()
        print("stopping", flush=True)
        manager.notify("STOPPING=1\nSTATUS=stopping")


@contextlib.asynccontextmanager
async def running(
    settings: ServeSettings,
    stop: asyncio.Event | None = None,
    parts: Sequence[NodePart] = (),
    manager: ServiceManager = NO_MANAGER,
) -> AsyncIterator[Node]:
    """Start a node with its agent and additional parts; on exit finish the running requests and stop.

    `stop` is set when the domain releases the node.
    """

    @contextlib.asynccontextmanager
    async def governed(node: Node) -> AsyncIterator[None]:
        surroundings = Surroundings(node.store_url, settings.data, _shared_flags(settings))
        provisioners = load_provisioners(settings.provisioners, surroundings)
        async with attached(node, provisioners, asyncio.Event() if stop is None else stop):
            yield

    async with running_alone(settings, [governed, *parts], manager) as node:
        yield node


@contextlib.asynccontextmanager
async def attached(
    node: Node, provisioners: Mapping[str, Provisioner], stop: asyncio.Event
) -> AsyncIterator[tuple[Agent, Leader]]:
    """Attach a node to its domain: as agent, and as a candidate for leader. `stop` is set when the domain releases
    it.
    """
    agent = Agent(node, stop)
    placement = DomainPlacement(agent)
    node.hub.placement = placement
    async with asyncio.TaskGroup() as tasks:
        leader = Leader(agent, provisioners, tasks)
        commands.install(node.hub, DomainAdministration(agent, leader, placement, provisioners).run)
        ModelChanges(agent, leader.decision_log)
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
    """Return the flags that another node on this machine needs to connect to this one."""
    files = {
        "--link-tls-cert": settings.link_tls_cert,
        "--link-tls-key": settings.link_tls_key,
        "--link-tls-ca": settings.link_tls_ca,
    }
    return tuple(text for flag, path in files.items() if path is not None for text in (flag, str(path.absolute())))
