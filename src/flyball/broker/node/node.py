"""A node: wires its store, broker and listeners together, and starts and stops them in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from flyball.broker.core.authority import Authority
from flyball.broker.core.broker import Broker
from flyball.broker.core.definitions import Definitions
from flyball.broker.core.queues import Queues
from flyball.broker.core.supervisor import Supervisor
from flyball.broker.core.topics import Topics
from flyball.broker.core.topology import Topology
from flyball.broker.models.registry import Models
from flyball.broker.node.activity import TRACES_SHARE, Activity
from flyball.broker.node.cpu import CpuClock
from flyball.broker.node.data_folder import check_data_folder
from flyball.broker.node.disk import DiskReserve
from flyball.broker.node.housekeeping import Reclaimer, keep_house
from flyball.broker.node.listeners import address_of, advertised, client_listeners, link_listener, listen
from flyball.broker.node.loops import add_node_loops
from flyball.broker.node.name import node_name
from flyball.broker.node.owner import owner_token
from flyball.broker.node.resources import Resources
from flyball.broker.node.rewind import write_again_from_memory
from flyball.broker.node.service_manager import NO_MANAGER, ServiceManager
from flyball.broker.node.stores import open_store, open_when_ready
from flyball.broker.node.throttle import Throttle, operations_of
from flyball.broker.peering.change_feed import ChangeFeed
from flyball.broker.peering.domain import Domain
from flyball.broker.peering.link import Identity, LinkSession, Peers, connecting
from flyball.broker.peering.link.followers import CATCH_UP, Followers
from flyball.broker.peering.link.ownership import Ownership
from flyball.broker.peering.membership import Membership
from flyball.broker.peering.remote import Remotes
from flyball.broker.protocols.amqp import AmqpContext, AmqpSettings, amqp_context
from flyball.broker.settings import Address, ServeSettings
from flyball.broker.store.interface import Store
from flyball.broker.transport.connection import Hub, Services
from flyball.broker.transport.tls import LinkTls, link_tls
from flyball.broker.transport.tls_listener import TlsListener
from flyball.errors import StoreError
from flyball.faults import Faults
from flyball.files import make_private_folder
from flyball.model import TOKEN_FILE, Snapshot
from flyball.trace.recorder import Recorder

log = logging.getLogger(__name__)

# The kinds of definitions that AMQP does not have: clustered queues, provisioned nodes, topics, and models.
KINDS = ("cluster", "node", "topic", "model")


@dataclass(slots=True, frozen=True)
class Assembly:
    """The components of a node, from the hub to its membership."""

    hub: Hub
    topology: Topology
    definitions: Definitions
    models: Models
    membership: Membership
    peers: Peers
    remotes: Remotes
    amqp: AmqpContext
    recorder: Recorder | None
    activity: Activity | None
    secured: LinkTls | None
    journal: asyncio.Task[None]
    disk_alarm: _DiskAlarm
    throttle: Throttle | None


@dataclass(slots=True, frozen=True)
class Background:
    """The long-lived tasks of a node besides the journal."""

    member: asyncio.Task[None]
    others: Sequence[asyncio.Task[None]]


class Node:
    """A running node: its addresses, and its components for use by parts."""

    def __init__(
        self,
        settings: ServeSettings,
        assembly: Assembly,
        store_url: str,
        addresses: dict[str, Address],
        supervisor: Supervisor,
        disk: DiskReserve | None,
        manager: ServiceManager = NO_MANAGER,
    ) -> None:
        self.settings = settings
        # Passes listening sockets to the node and its parts.
        self.manager = manager
        # Supervises the long-lived tasks of parts.
        self.supervisor = supervisor
        self.hub = assembly.hub
        self.topology = assembly.topology
        self.definitions = assembly.definitions
        self.models = assembly.models
        self.membership = assembly.membership
        self.peers = assembly.peers
        self.remotes = assembly.remotes
        self.amqp = assembly.amqp
        # Records activity and loop samples in the traces; None without traces.
        self.activity = assembly.activity
        # The URL by which other nodes reach the same store; empty if they cannot. May contain a password.
        self.store_url = store_url
        # The address of each protocol's listener; a part may add its own.
        self.addresses = addresses
        # The resources that the process uses; a part refreshes them.
        self.resources = Resources(settings.data)
        # The disk of the embedded store; None for other stores.
        self.disk = disk


# An extension that runs while a node serves, injected by the caller.
NodePart = Callable[[Node], AbstractAsyncContextManager[None]]


@contextlib.asynccontextmanager
async def running(
    settings: ServeSettings, parts: Sequence[NodePart] = (), manager: ServiceManager = NO_MANAGER
) -> AsyncIterator[Node]:
    """Start a node with the store of its settings, then its parts; see `serving`."""
    check_data_folder(settings)
    make_private_folder(settings.data)
    faults = Faults()
    disk = DiskReserve(settings.data, settings.disk_free_bytes) if settings.store.kind == "embedded" else None
    async with (
        open_store(settings, faults, disk) as (store, store_url),
        serving(settings, store, parts, store_url=store_url, faults=faults, disk=disk, manager=manager) as node,
    ):
        yield node


@contextlib.asynccontextmanager
async def serving(
    settings: ServeSettings,
    store: Store,
    parts: Sequence[NodePart] = (),
    *,
    store_url: str = "",
    faults: Faults | None = None,
    disk: DiskReserve | None = None,
    manager: ServiceManager = NO_MANAGER,
) -> AsyncIterator[Node]:
    """Start a node on a store, then its parts; on exit finish requests in progress, commit everything and stop.

    The store is opened here and closed by the caller.
    """
    faults = Faults() if faults is None else faults
    async with asyncio.TaskGroup() as tasks:
        supervisor = Supervisor(tasks, faults)
        assembly = await _assemble(settings, store, supervisor, tasks, faults, disk)
        background = _start_background(settings, assembly, supervisor, disk)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(partial(_note_escaped, faults))
        servers: list[asyncio.Server | TlsListener] = []
        try:
            addresses = await _listen(settings, store, assembly, supervisor, servers, manager)
            if assembly.recorder is not None and assembly.activity is not None:
                assembly.recorder.start()
                assembly.activity.start()
            node = Node(settings, assembly, store_url, addresses, supervisor, disk, manager)
            async with contextlib.AsyncExitStack() as entered:
                for part in parts:
                    await entered.enter_async_context(part(node))
                await assembly.membership.serve(advertised(node.addresses, settings))
                yield node
        finally:
            for server in servers:
                server.close()
            await _shut_down(settings, store, assembly, background)
            loop.set_exception_handler(None)
            if assembly.recorder is not None and assembly.activity is not None:
                await assembly.activity.end()
                await asyncio.to_thread(assembly.activity.stop)
                await asyncio.to_thread(assembly.recorder.stop)


async def _assemble(
    settings: ServeSettings,
    store: Store,
    supervisor: Supervisor,
    tasks: asyncio.TaskGroup,
    faults: Faults,
    disk: DiskReserve | None,
) -> Assembly:
    """Open the store and build the components on it, from the broker to the membership in the domain."""
    snapshot = await open_when_ready(store)
    broker = _new_broker(settings, store, snapshot, tasks, faults)
    await broker.start()
    journal = supervisor.keep("journal", broker.journal.run)
    token = owner_token(settings.token_file or settings.data / TOKEN_FILE)
    authority = Authority(
        broker.journal, snapshot.definitions, loopback_users=settings.loopback_users, owner_token=token
    )
    await authority.start()
    topology = Topology(broker, authority, snapshot.definitions, snapshot.elsewhere)
    definitions = Definitions(broker.journal, KINDS, snapshot.definitions)
    await topology.start()
    queues = Queues(topology)
    broker.retention.watch_expiries()
    recorder = _recorder(settings)
    throttle = None if settings.pace_per_s is None else Throttle(settings.pace_per_s, partial(operations_of, broker))
    services = Services(
        broker,
        authority,
        Topics(queues, definitions),
        recorder,
        max_connections=settings.max_connections,
        max_unauthenticated=settings.max_unauthenticated,
        before_flush=None if throttle is None else throttle.catch_up,
    )
    hub = Hub(services, tasks)
    feed = ChangeFeed(broker, authority, topology, definitions, snapshot.version)
    models = Models(definitions, broker.ledger.charge_definition, feed.catch_up)
    secured = link_tls(settings)
    membership, remotes = _join_domain(settings, hub, topology, feed, secured)
    amqp = amqp_context(queues, _amqp_settings(settings))
    hub.reports["ledger"] = broker.ledger.report
    hub.reports["supervisor"] = supervisor.report
    hub.reports["flow"] = amqp.flow.report
    activity = _activity(settings, broker)
    add_node_loops(
        hub.loops,
        node_name(settings),
        amqp.flow,
        broker.listing_limiter.admission,
        None if activity is None else activity.record,
    )
    disk_alarm = _DiskAlarm(broker, membership, disk)
    membership.on_nodes.append(disk_alarm.note)
    await membership.start()
    return Assembly(
        hub,
        topology,
        definitions,
        models,
        membership,
        remotes.peers,
        remotes,
        amqp,
        recorder,
        activity,
        secured,
        journal,
        disk_alarm,
        throttle,
    )


def _start_background(
    settings: ServeSettings, assembly: Assembly, supervisor: Supervisor, disk: DiskReserve | None
) -> Background:
    """Start the long-lived tasks besides the journal."""
    hub = assembly.hub
    broker = hub.broker
    member = supervisor.keep("membership", assembly.membership.run)
    others = [supervisor.keep("housekeeping", partial(keep_house, hub, assembly.models))]
    if disk is not None:
        reclaim = Reclaimer(broker, disk.is_low).reclaim
        others.append(supervisor.keep("disk", partial(disk.watch, assembly.disk_alarm.note, reclaim)))
    if assembly.activity is not None:
        others.append(supervisor.keep("activity recorder", assembly.activity.run))
    if assembly.throttle is not None:
        others.append(supervisor.keep("throttle", assembly.throttle.run))
    return Background(member, others)


async def _listen(
    settings: ServeSettings,
    store: Store,
    assembly: Assembly,
    supervisor: Supervisor,
    servers: list[asyncio.Server | TlsListener],
    manager: ServiceManager,
) -> dict[str, Address]:
    """Open all ports; return their addresses. Open servers are in `servers` even if a later port fails."""
    hub, amqp = assembly.hub, assembly.amqp
    listeners = client_listeners(settings, hub, amqp)
    if store.registry.is_shared and settings.link is not None:
        new_link = partial(LinkSession, hub, assembly.peers, assembly.topology, amqp.intake, amqp.replies.send)
        listeners.append(link_listener(settings.link, new_link, assembly.secured))
    addresses: dict[str, Address] = {}
    for listener in listeners:
        server = await listen(listener, hub, supervisor, manager.inherited(listener.name))
        servers.append(server)
        addresses[listener.name] = address_of(server.sockets[0])
    return addresses


async def _shut_down(settings: ServeSettings, store: Store, assembly: Assembly, background: Background) -> None:
    """Finish requests in progress, commit everything, and leave the domain: the reverse of the assembly."""
    hub = assembly.hub
    broker = hub.broker
    await _finish(hub, settings.store_time_limit_s)
    for task in background.others:
        task.cancel()
    broker.quiesce()
    await broker.journal.stop()
    # The task may have failed, and wait for its restart.
    assembly.journal.cancel()
    background.member.cancel()
    if store.is_rewound:
        await write_again_from_memory(broker)
    assembly.peers.stop()
    with contextlib.suppress(StoreError):
        await assembly.membership.leave()
    hub.stop()
    await broker.stop()


def _new_broker(
    settings: ServeSettings, store: Store, snapshot: Snapshot, tasks: asyncio.TaskGroup, faults: Faults
) -> Broker:
    broker = Broker(
        store,
        snapshot,
        time_limit_s=settings.store_time_limit_s,
        resident_limit_bytes=settings.resident_bytes,
        max_message_bytes=settings.max_message_bytes,
        tasks=tasks,
        faults=faults,
        memory_limit_bytes=settings.memory_bytes,
    )
    broker.is_clustered = store.registry.is_clustered
    return broker


def _join_domain(
    settings: ServeSettings, hub: Hub, topology: Topology, feed: ChangeFeed, secured: LinkTls | None
) -> tuple[Membership, Remotes]:
    """Build the membership and the remote queues, and connect sessions to the other nodes."""
    registry = hub.broker.store.registry
    identity = Identity(registry.node_id, registry.epoch, registry.secret)
    connect = connecting(None if secured is None else secured.caller)
    remotes = Remotes(topology, feed, partial(Peers, hub, identity, connect=connect))
    peers = remotes.peers
    membership = Membership(hub, topology, feed, peers, lease_s=settings.lease_s)
    peers.commands.update(Ownership(topology).commands)
    peers.commands[CATCH_UP] = feed.catch_up
    followers = Followers(peers, lambda: [other.id for other in membership.others])
    hub.queues.peering = Domain(node_name(settings), remotes, membership, followers)
    return membership, remotes


class _DiskAlarm:
    """Blocks publishers when any node is low on disk: all nodes write to one store."""

    def __init__(self, broker: Broker, membership: Membership, disk: DiskReserve | None) -> None:
        self._broker = broker
        self._membership = membership
        self._disk = disk
        if disk is not None:
            disk.check()
            broker.is_low_on_disk = disk.is_low

    def note(self, _: object) -> None:
        is_low_here = self._disk is not None and self._disk.is_low
        others = self._membership.others
        self._broker.is_low_on_disk = is_low_here or any(other.report.get("low_on_disk") for other in others)


def _amqp_settings(settings: ServeSettings) -> AmqpSettings:
    return AmqpSettings(
        channel_max=settings.amqp_channel_max,
        max_channels=settings.max_channels,
        frame_max_bytes=settings.amqp_frame_max_bytes,
        heartbeat_s=settings.amqp_heartbeat_s,
        max_message_bytes=settings.max_message_bytes,
        consumer_timeout_s=settings.amqp_consumer_timeout_s,
        memory_bytes=settings.memory_bytes,
    )


def _recorder(settings: ServeSettings) -> Recorder | None:
    if not settings.trace:
        return None
    return Recorder(
        settings.data / "traces",
        node_name(settings),
        sample_ratio=settings.trace_sample_ratio,
        most_per_s=settings.trace_most_per_s,
        keep_bytes=int(settings.trace_keep_bytes * (1 - TRACES_SHARE)),
    )


def _activity(settings: ServeSettings, broker: Broker) -> Activity | None:
    if not settings.trace:
        return None
    cpu = CpuClock(settings.data, has_server=settings.store.kind == "embedded")
    return Activity(settings.data / "traces", node_name(settings), settings.trace_keep_bytes, broker, cpu)


async def _finish(hub: Hub, limit_s: float) -> None:
    """Wait up to `limit_s` for requests in progress, then disconnect the clients."""
    try:
        async with asyncio.timeout(limit_s):
            await hub.drain()
    except TimeoutError:
        log.error("stopping with unfinished requests: their clients get no response limit_s=%.0f", limit_s)
    for connection in list(hub.connections):
        connection.disconnect()


def _note_escaped(faults: Faults, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Record an exception that a callback of the event loop did not catch."""
    error = context.get("exception")
    if isinstance(error, Exception):
        faults.note(f"event loop: {context.get('message', 'callback')[:100]}", error)
    else:
        loop.default_exception_handler(context)
