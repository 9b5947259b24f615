"""One node: its store, broker and listeners wired together, started and stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from flyball.broker.core.authority import Authority
from flyball.broker.core.broker import Broker
from flyball.broker.core.company import Company
from flyball.broker.core.definitions import Definitions
from flyball.broker.core.supervisor import Supervisor
from flyball.broker.core.topics import Topics
from flyball.broker.core.topology import Topology
from flyball.broker.engine.engine import Engine
from flyball.broker.node.disk import DiskReserve
from flyball.broker.node.logs import configure_logging
from flyball.broker.node.loops import add_node_loops
from flyball.broker.node.owner import owner_token
from flyball.broker.node.pace import Pace, operations_of
from flyball.broker.node.usage import Usage
from flyball.broker.peering.link import LinkSession, Peers
from flyball.broker.peering.link.followers import CATCH_UP, Followers
from flyball.broker.peering.link.ownership import Ownership
from flyball.broker.peering.link.peers import connecting
from flyball.broker.peering.membership import Membership
from flyball.broker.peering.remote import Remotes
from flyball.broker.protocols import telesto
from flyball.broker.protocols.amqp import AmqpContext, AmqpSession, AmqpSettings
from flyball.broker.protocols.amqp.afar import Afar
from flyball.broker.protocols.thorbang import ThorBangSession
from flyball.broker.settings import Address, ServeSettings
from flyball.broker.store.interface import Store
from flyball.broker.store.memory import MemoryStore
from flyball.broker.store.null import NullStore
from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from flyball.broker.store.postgres.store import PostgresStore
from flyball.broker.transport.connection import Connection, Hub, is_loopback
from flyball.broker.transport.tls import client_tls, link_tls
from flyball.broker.wire.telesto import TOKEN_FILE
from flyball.errors import StoreError
from flyball.faults import Faults
from flyball.files import make_private_folder
from flyball.model import Message, Order
from flyball.trace.recorder import Recorder

log = logging.getLogger(__name__)

HOUSEKEEPING_S = 1.0

LISTEN_BACKLOG = 1024

EVERYWHERE = ("0.0.0.0", "::")
"""Who listens there is reached under any of the machine's addresses, but not under these."""

NAME_FILE = "node.name"
"""Keeps the name of a node that was not given one, in its data folder."""

TLS_HANDSHAKE_S = 10.0
"""A client that has not agreed on TLS by then is disconnected."""

HTTP_CONNECTIONS = 1000
"""So many are served at a time: whoever opens more takes no files from those who send messages."""

OTHER_FILES = 300
"""Files that are open beside connections: the store's, the trace's, the log."""


YOUNG_OBJECTS = 50_000
"""So many new objects start a garbage collection. Requests make no cycles, and waiting messages are many: looking
at all of them again and again would cost more than it finds."""

KINDS = ("cluster", "node", "topic")
"""What is declared beside what AMQP declares: clustered queues, nodes that were provisioned, and topics."""


class Node:
    """A node that serves: where it listens, and its parts for those who build on it."""

    def __init__(
        self,
        settings: ServeSettings,
        hub: Hub,
        topology: Topology,
        definitions: Definitions,
        membership: Membership,
        peers: Peers,
        remotes: Remotes,
        amqp: AmqpContext,
        store_url: str,
        addresses: dict[str, Address],
        supervisor: Supervisor,
        disk: DiskReserve | None,
    ) -> None:
        self.settings = settings
        self.supervisor = supervisor
        """What long-lived tasks of parts run under."""
        self.hub = hub
        self.topology = topology
        self.definitions = definitions
        self.membership = membership
        self.peers = peers
        self.remotes = remotes
        self.amqp = amqp
        self.afar = amqp.afar
        """What leads AMQP clients to queues of other nodes, where there can be others."""
        self.store_url = store_url
        """Where other nodes find the same store; empty where they cannot. May hold a password."""
        self.addresses = addresses
        """The address of each protocol's listener; a part may add its own."""
        self.usage = Usage(settings.data)
        """What the process uses of its machine; a part may look again."""
        self.disk = disk
        """The space of the embedded store; None where others keep the messages."""


Part = Callable[[Node], AbstractAsyncContextManager[None]]
"""Something that runs beside a node while it serves. It comes from above: this module knows none of them."""


def prepare_process(settings: ServeSettings) -> None:
    """Set up what all of the process shares: its log, its garbage collection, its limits."""
    # Whatever it writes is its owner's alone.
    os.umask(0o077)
    configure_logging(settings.log_level, settings.log_format, settings.log_file)
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
    _allow_open_files(settings.max_connections + HTTP_CONNECTIONS + OTHER_FILES)


def _allow_open_files(wanted: int) -> None:
    """Raise the limit on open files as far as the system lets us: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("only %d files may be open: fewer than max_connections; raise ulimit -n", allowed)


@contextlib.asynccontextmanager
async def running(settings: ServeSettings, parts: Sequence[Part] = ()) -> AsyncIterator[Node]:
    """Start a node with the store that its settings name, then its parts; see `serving`."""
    make_private_folder(settings.data)
    faults = Faults()
    disk = DiskReserve(settings.data, settings.disk_free_bytes) if settings.store.kind == "embedded" else None
    async with (
        _open_store(settings, faults, disk) as (store, store_url),
        serving(settings, store, parts, store_url=store_url, faults=faults, disk=disk) as node,
    ):
        yield node


@contextlib.asynccontextmanager
async def serving(
    settings: ServeSettings,
    store: Store,
    parts: Sequence[Part] = (),
    *,
    store_url: str = "",
    faults: Faults | None = None,
    disk: DiskReserve | None = None,
) -> AsyncIterator[Node]:
    """Start a node on a store, then its parts; on leaving finish the requests under way, commit everything and stop.

    The store is opened here, and closed by whoever has made it.
    """
    faults = Faults() if faults is None else faults
    async with asyncio.TaskGroup() as tasks:
        supervisor = Supervisor(tasks, faults)
        snapshot = await store.open()
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
        broker.in_company = store.registry.in_company
        await broker.start()
        journal = supervisor.keep("journal", broker.journal.run)
        authority = Authority(broker.journal, snapshot.definitions, loopback_users=settings.loopback_users)
        await authority.start()
        topology = Topology(broker, authority, snapshot.definitions, snapshot.elsewhere)
        definitions = Definitions(broker.journal, KINDS, snapshot.definitions)
        await topology.start()
        amqp_context = AmqpContext(topology, _amqp_settings(settings))
        broker.watch_expiries()
        recorder = _recorder(settings)
        topics = Topics(topology, definitions)
        hub = Hub(
            broker,
            authority,
            topics,
            recorder,
            settings.max_connections,
            tasks,
            max_unauthenticated=settings.max_unauthenticated,
        )
        hub.directory = topology.directory
        hub.reports["flow"] = amqp_context.flow.report
        hub.reports["ledger"] = broker.ledger.report
        hub.reports["supervisor"] = supervisor.report
        add_node_loops(hub.loops, node_name(settings), amqp_context.flow, broker.listings.admission)
        membership = Membership(hub, topology, definitions, lease_s=settings.lease_s, version=snapshot.version)
        registry = store.registry
        secured = link_tls(settings)
        peers = Peers(
            hub,
            registry.node_id,
            registry.epoch,
            registry.secret,
            connect=connecting(None if secured is None else secured.caller),
        )
        token = owner_token(settings.token_file or settings.data / TOKEN_FILE)
        hub.owner_keys = (token, registry.secret) if registry.secret else (token,)
        peers.commands.update(Ownership(topology).commands)
        peers.commands[CATCH_UP] = membership.catch_up
        remotes = Remotes(broker, topology.directory, peers)
        remotes.catch_up = membership.catch_up
        remotes.claim = membership.claim
        hub.company = topics.company = Company(
            address_of=membership.address_of,
            claim=membership.may_create,
            settle_name=remotes.settle_name,
            catch_up=membership.catch_up,
            followed=Followers(peers, lambda: [other.id for other in membership.others]).followed,
            put=remotes.put,
            forget=remotes.forget,
            read=remotes.read,
            delete_empty=remotes.delete_empty,
            delete_unused=partial(remotes.delete, if_unused=True, if_empty=False),
            ask_owners=remotes.ask_owners,
            name=node_name(settings),
            name_of=membership.name_of,
        )
        membership.on_nodes.append(peers.update)

        def note_disk(_: object) -> None:
            # All nodes write to one store: a disk that is full at one of them is full for all.
            broker.is_low_on_disk = (disk is not None and disk.is_low) or any(
                other.report.get("low_on_disk") for other in membership.others
            )

        membership.on_nodes.append(note_disk)
        if disk is not None:
            disk.check()
            broker.is_low_on_disk = disk.is_low
        membership.on_lapsed = peers.drop_links
        membership.on_placed = remotes.placed
        if registry.is_shared:
            afar = amqp_context.afar = Afar(amqp_context, remotes, hub)
            afar.is_in_company = lambda: broker.in_company
        await membership.start()
        member = supervisor.keep("membership", membership.run)
        beside = [supervisor.keep("housekeeping", partial(_keep_house, hub))]
        if disk is not None:
            beside.append(
                supervisor.keep("disk", partial(disk.watch, note_disk, _Reclaiming(broker, disk.is_low).reclaim))
            )
        if settings.pace_per_s is not None:
            pace = Pace(settings.pace_per_s, partial(operations_of, broker))
            hub.before_flush = pace.settle
            beside.append(supervisor.keep("pace", pace.run))
        servers: list[asyncio.Server] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(partial(_note_escaped, faults))
        try:
            addresses: dict[str, Address] = {}
            listeners = _listeners(settings, hub, amqp_context)
            if registry.is_shared and settings.link is not None:
                new_link = partial(LinkSession, hub, peers, topology, amqp_context.intake, amqp_context.reply)
                tls = None if secured is None else secured.listener
                listeners.append(Listener("link", settings.link, new_link, tls, knows_passwords=True))
                if tls is None and not is_loopback(settings.link.host):
                    log.warning(
                        "link listens on %s without TLS: what goes between nodes can be read and changed on its way;"
                        " give --link-tls-cert and --link-tls-ca",
                        settings.link,
                    )
            for listener in listeners:
                server = await _listen(listener)
                servers.append(server)
                addresses[listener.name] = _address_of(server.sockets[0])
            if recorder is not None:
                recorder.start()
            node = Node(
                settings,
                hub,
                topology,
                definitions,
                membership,
                peers,
                remotes,
                amqp_context,
                store_url,
                addresses,
                supervisor,
                disk,
            )
            async with contextlib.AsyncExitStack() as entered:
                for part in parts:
                    await entered.enter_async_context(part(node))
                await membership.serve(advertised(node.addresses, settings))
                yield node
        finally:
            for server in servers:
                server.close()
            await _finish(hub, settings.store_time_limit_s)
            for task in beside:
                task.cancel()
            broker.quiesce()
            await broker.journal.stop()
            # It may have failed just now, and wait to be started again.
            journal.cancel()
            member.cancel()
            if store.is_rewound:
                await _write_again(broker)
            peers.stop()
            with contextlib.suppress(StoreError):
                await membership.leave()
            hub.stop()
            await broker.stop()
            loop.set_exception_handler(None)
            if recorder is not None:
                await asyncio.to_thread(recorder.stop)


@contextlib.asynccontextmanager
async def _open_store(
    settings: ServeSettings, faults: Faults, disk: DiskReserve | None
) -> AsyncIterator[tuple[Store, str]]:
    """Give out the store that the settings name and its URL, with its server if that is ours, on that disk."""
    if disk is not None:
        postgres = EmbeddedPostgres(settings.data, max_wal_bytes=disk.wal_bytes, make_room=disk.make_room)
        await postgres.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                Supervisor(tasks, faults).keep("embedded PostgreSQL", postgres.supervise)
                store = PostgresStore(
                    postgres.dsn, node=node_name(settings), read_limit_s=settings.store_time_limit_s
                )
                try:
                    yield store, postgres.dsn
                finally:
                    await store.close()
                    await postgres.stop()
        finally:
            await postgres.stop()
        return
    store_of: dict[str, Callable[[], Store]] = {
        "postgresql": lambda: PostgresStore(
            settings.store.url, node=node_name(settings), read_limit_s=settings.store_time_limit_s
        ),
        "memory": MemoryStore,
        "null": NullStore,
    }
    other = store_of[settings.store.kind]()
    try:
        yield other, settings.store.url
    finally:
        await other.close()


@dataclass(slots=True, frozen=True)
class Listener:
    """A place where clients connect, and what serves them."""

    name: str
    address: Address
    factory: Callable[[], Connection]
    tls: ssl.SSLContext | None = None
    knows_passwords: bool = False


def _listeners(settings: ServeSettings, hub: Hub, amqp_context: AmqpContext) -> list[Listener]:
    time_order = Order.NEWEST if settings.telesto_time_order == "newest" else Order.OLDEST
    found: list[Listener] = []
    if settings.amqp is not None:
        found.append(Listener("amqp", settings.amqp, lambda: AmqpSession(hub, amqp_context), knows_passwords=True))
    if settings.amqps is not None:
        tls = client_tls(settings)
        found.append(Listener("amqps", settings.amqps, lambda: AmqpSession(hub, amqp_context), tls, True))
    if settings.telesto is not None:
        found.append(
            Listener(
                "telesto",
                settings.telesto,
                lambda: telesto.new_session(hub, time_order, settings.telesto_frame_max_bytes),
            )
        )
    if settings.thorbang is not None:
        found.append(
            Listener("thorbang", settings.thorbang, lambda: ThorBangSession(hub, settings.thorbang_max_request_bytes))
        )
    return found


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


async def _listen(listener: Listener) -> asyncio.Server:
    if not listener.knows_passwords and not is_loopback(listener.address.host):
        log.warning(
            "%s listens on %s and knows no passwords: everybody who reaches it may use it",
            listener.name,
            listener.address,
        )
    loop = asyncio.get_running_loop()
    host, port = listener.address
    return await loop.create_server(
        listener.factory,
        host,
        port,
        backlog=LISTEN_BACKLOG,
        ssl=listener.tls,
        ssl_handshake_timeout=TLS_HANDSHAKE_S if listener.tls is not None else None,
    )


def _address_of(listening: socket.socket) -> Address:
    host, port = listening.getsockname()[:2]
    return Address(host, port)


def advertised(addresses: Mapping[str, Address], settings: ServeSettings) -> dict[str, str]:
    """Return where others reach the listeners of a node, by protocol."""
    host = settings.advertise or socket.gethostname()
    return {
        name: str(Address(host, address.port) if address.host in EVERYWHERE else address)
        for name, address in addresses.items()
    }


def node_name(settings: ServeSettings) -> str:
    """Return the name of the node, in its traces and in its domain.

    Under another name it would be another node, and wait until this one is declared dead. So what a data folder of
    its own was first used with is kept there, though the machine be called otherwise later, as containers are.
    """
    if settings.name or settings.store.kind != "embedded":
        return settings.name or socket.gethostname()
    kept = settings.data / NAME_FILE
    if not kept.exists():
        kept.write_text(socket.gethostname())
    return kept.read_text().strip() or socket.gethostname()


def _recorder(settings: ServeSettings) -> Recorder | None:
    if not settings.trace:
        return None
    return Recorder(
        settings.data / "traces",
        node_name(settings),
        sample_ratio=settings.trace_sample_ratio,
        most_per_s=settings.trace_most_per_s,
        keep_bytes=settings.trace_keep_bytes,
    )


async def _finish(hub: Hub, limit_s: float) -> None:
    """Let the requests under way end, for so long at most, then let go of the clients."""
    try:
        async with asyncio.timeout(limit_s):
            await hub.drain()
    except TimeoutError:
        log.error("requests were still under way after %.0f s: their clients get no answer", limit_s)
    for connection in list(hub.connections):
        connection.disconnect()


def _note_escaped(faults: Faults, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Note what a callback of the event loop has raised, and nobody has caught."""
    error = context.get("exception")
    if isinstance(error, Exception):
        faults.note(f"event loop: {context.get('message', 'callback')[:100]}", error)
    else:
        loop.default_exception_handler(context)


async def _write_again(broker: Broker) -> None:
    """Save from memory what a store that has gone back in time does not have any more."""
    queues = [working.queue for working in broker.engine.queues if working.is_stored]
    messages, absent = in_memory(broker.engine)
    try:
        missing = await broker.store.write_again(queues, messages)
    except StoreError as error:
        log.error("messages=%d that were in memory could not be written again: %s", len(messages), error)
    else:
        log.error("wrote messages=%d again that the store had lost; not in memory, and unknown: %d", missing, absent)


def in_memory(engine: Engine) -> tuple[list[Message], int]:
    """Return the stored messages that are whole in memory, and how many more there are."""
    messages, absent = [], 0
    for working in engine.queues:
        if working.is_stored:
            known = (*working.oldest(0, len(working)), *working.out.values())
            stored = [message for message in known if message.persistent and message.stored]
            # One that is paged out has left its body to the store: without it, it must not take its own place.
            whole = [message for message in stored if not message.is_paged]
            messages += whole
            absent += working.absent + len(stored) - len(whole)
    return messages, absent


class _Reclaiming:
    """Gives the space of removed messages back, if any were removed since the last time."""

    def __init__(self, broker: Broker, was_low: bool) -> None:
        self._broker = broker
        # An earlier life of the node may have removed some.
        self._removed = -1 if was_low else 0

    async def reclaim(self) -> None:
        removed = self._broker.journal.rows_removed
        if removed != self._removed:
            # While the store is unavailable it is tried again later.
            with contextlib.suppress(StoreError):
                await self._broker.store.reclaim()
                self._removed = removed


async def _keep_house(hub: Hub) -> None:
    """Remove what deleted queues have left, then what is past its time and look at the loops, again and again."""
    with contextlib.suppress(StoreError):
        await hub.broker.store.sweep_orphans()
    while True:
        await asyncio.sleep(HOUSEKEEPING_S)
        # Each by itself: what fails in one of them must not keep the others from their turn.
        for place, look in (
            ("expiry", hub.broker.expire),
            ("loops", lambda: hub.loops.tick(time.time())),
            # Messages that were not stored when they came could not leave memory; if publishers wait, none follows.
            ("eviction", hub.broker.engine.evict),
            ("memory", hub.broker.ledger.tick),
            ("connections", lambda: hub.tick(time.monotonic())),
        ):
            try:
                look()
            except Exception as error:
                hub.faults.note(f"housekeeping: {place}", error)
