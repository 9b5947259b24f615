"""What a node tells those who look on: its totals, queues, connections, channels and consumers as plain dictionaries.

It reads and changes nothing. Long lists are made in slices, so that messages do not wait for them; nothing is
computed unless somebody asks. The words are Flyball's own: whoever speaks to RabbitMQ's tools translates them.
"""

from __future__ import annotations

import itertools
import math
import os
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import flyball
from flyball.broker.core.flow import NO_DISK, NO_MEMORY, NO_STORE
from flyball.broker.engine.consumer import Consumer
from flyball.broker.engine.counts import COUNTED
from flyball.broker.engine.queue import WorkingQueue
from flyball.broker.management.slices import next_slice
from flyball.broker.node.node import Node
from flyball.broker.protocols.amqp.channel import Channel
from flyball.broker.protocols.amqp.consuming import AmqpConsumer
from flyball.broker.protocols.amqp.handshake import State
from flyball.broker.protocols.amqp.session import AmqpSession
from flyball.broker.protocols.telesto.session import TelestoSession
from flyball.broker.transport.connection import Connection
from flyball.model import DEFAULT_VHOST

SLICE = 200
"""After so many items of a list others have their turn: that takes less than a millisecond or two."""

MOST_MEASURED = 20_000
"""Of a queue with more messages that are out nobody knows their bytes: to look at so many takes a millisecond."""

Facts = dict[str, Any]
T = TypeVar("T")

_counts_of = attrgetter(*COUNTED)

_STARTED_AT_S = time.time()

GAUGES = (
    "connections",
    "channels",
    "consumers",
    "queues",
    "exchanges",
    "ready",
    "unacked",
    "parked",
    "ready_bytes",
    "resident_bytes",
    "indexes_bytes",
    "connections_bytes",
    "links_bytes",
    "definitions_bytes",
    "held_bytes",
    "pending_changes",
    "pending_bytes",
)
"""Those of the totals that go up and down; the others only count up while the node runs."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What happened on the node since it started, and what it holds now."""

    at_s: float = 0.0
    """When, in seconds since 1970."""
    published: int = 0
    """By clients of this node, whatever became of them."""
    confirmed: int = 0
    routed: int = 0
    """Arrived in queues of this node; one that goes to several counts for each."""
    unroutable_returned: int = 0
    unroutable_dropped: int = 0
    delivered: int = 0
    """To consumers that acknowledge."""
    delivered_no_ack: int = 0
    got: int = 0
    got_no_ack: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    requeued: int = 0
    dropped: int = 0
    """Expired, rejected, delivered too often or too many."""
    handed_over: int = 0
    """To other members of clustered queues."""
    get_empty: int = 0
    connections_opened: int = 0
    connections_closed: int = 0
    channels_opened: int = 0
    channels_closed: int = 0
    queues_declared: int = 0
    queues_created: int = 0
    queues_deleted: int = 0
    store_commits: int = 0
    store_failures: int = 0
    store_appended: int = 0
    store_removed: int = 0
    store_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    faults: int = 0
    """Exceptions that nobody expected: defects of the node, each confined to what has met it."""
    task_restarts: int = 0
    connections: int = 0
    channels: int = 0
    consumers: int = 0
    queues: int = 0
    exchanges: int = 0
    ready: int = 0
    unacked: int = 0
    parked: int = 0
    """Could not be dead-lettered: kept for an operator."""
    ready_bytes: int = 0
    """Without those of messages that were found at the start, in queues that have not been empty since."""
    resident_bytes: int = 0
    indexes_bytes: int = 0
    """What the places in indexes take of messages that are not in memory."""
    connections_bytes: int = 0
    """What connections hold beside messages."""
    links_bytes: int = 0
    """What links hold that other nodes have not read or answered."""
    definitions_bytes: int = 0
    held_bytes: int = 0
    """What is held of the limit of memory: see `core.memory`."""
    pending_changes: int = 0
    pending_bytes: int = 0


COUNTERS = tuple(field.name for field in fields(Totals) if field.name not in ("at_s", *GAUGES))

_METERED = (
    "published",
    "confirmed",
    "get_empty",
    "connections_opened",
    "connections_closed",
    "channels_opened",
    "channels_closed",
    "queues_declared",
    "read_bytes",
    "written_bytes",
)
"""Those that the broker counts under the same names."""


async def totals(node: Node) -> Totals:
    """Return the totals. The counters never fall behind what an earlier call has told."""
    hub = node.hub
    broker = hub.broker
    engine, journal, meters = broker.engine, broker.journal, broker.meters
    # Both now: a queue that is deleted while others are counted is still counted once.
    queues, counts = engine.queues, list(_counts_of(engine.gone))
    ready = unacked = parked = ready_bytes = consumers = 0
    for start in range(0, len(queues), SLICE):
        if start:
            await next_slice()
        part = queues[start : start + SLICE]
        # This is done every second, and there may be 10,000 queues: a loop in Python would take thrice as long.
        counts = [sum(column) for column in zip(counts, *map(_counts_of, part), strict=True)]
        ready += sum(map(len, part))
        unacked += sum([len(working.out) for working in part])
        parked += sum([len(working.parked) for working in part])
        ready_bytes += sum([working.ready_bytes for working in part])
        consumers += sum([len(working.consumers) for working in part])
    counted: dict[str, Any] = dict(zip(COUNTED, counts, strict=True))
    return Totals(
        at_s=time.time(),
        **{name: getattr(meters, name) for name in _METERED},
        routed=counted.pop("arrived"),
        unroutable_returned=meters.returned,
        unroutable_dropped=meters.unroutable,
        **counted,
        queues_created=engine.queues_created,
        queues_deleted=engine.queues_deleted,
        store_commits=journal.commits,
        store_failures=journal.failures,
        store_appended=journal.rows_appended,
        store_removed=journal.rows_removed,
        store_bytes=journal.bytes_committed,
        faults=broker.faults.count,
        task_restarts=node.supervisor.restarts,
        connections=meters.connections_opened - meters.connections_closed,
        channels=meters.channels_opened - meters.channels_closed,
        consumers=consumers,
        queues=len(queues),
        exchanges=node.topology.exchange_count,
        ready=ready,
        unacked=unacked - parked,
        parked=parked,
        ready_bytes=ready_bytes,
        resident_bytes=engine.resident_bytes,
        indexes_bytes=engine.absent_bytes,
        connections_bytes=broker.ledger.connections_bytes,
        links_bytes=broker.ledger.links_bytes,
        definitions_bytes=broker.ledger.definitions_bytes,
        held_bytes=broker.ledger.level_bytes,
        pending_changes=journal.pending_count,
        pending_bytes=journal.pending_bytes,
    )


# Queues


async def queue_list(node: Node) -> list[Facts]:
    """Return the queues that this node serves."""
    return [queue_facts(node, working) async for working in in_slices(node.hub.broker.engine.queues)]


def queue_facts(node: Node, working: WorkingQueue) -> Facts:
    """Return what there is to say about a queue of this node."""
    queue = working.queue
    policy = node.hub.authority.policies.for_queue(queue.vhost, queue.name)
    owner = node.topology.owner_of(working)
    ready, unacked = len(working), working.unacked
    now_s = time.time()
    head = working.head
    return {
        "id": queue.id,
        "vhost": queue.vhost,
        "name": queue.name,
        "node": node.hub.peering.name,
        "durable": queue.durable,
        "exclusive": queue.exclusive,
        "auto_delete": queue.auto_delete,
        "arguments": plain(queue.arguments),
        "type": "quorum" if working.traits.is_quorum else "classic",
        "policy": None if policy is None else policy.name,
        "member": queue.member,
        "state": "running",
        "ready": ready,
        "unacked": unacked,
        "messages": ready + unacked,
        "parked": len(working.parked),
        "ready_bytes": working.ready_bytes if working.knows_bytes else None,
        "unacked_bytes": _unacked_bytes(working),
        "in_memory": ready - working.absent,
        "consumers": len(working.consumers),
        "active_consumer": _tag_of(working.active),
        "exclusive_consumer": _exclusive_tag(node, working),
        "owner": owner.name if isinstance(owner, Connection) else None,
        "idle_since_s": working.idle_since_s(now_s),
        "head_age_s": None if head is None else max(0.0, now_s - head.arrived_us / 1e6),
        "published": working.arrived,
        "delivered": working.delivered,
        "delivered_no_ack": working.delivered_no_ack,
        "got": working.got,
        "got_no_ack": working.got_no_ack,
        "redelivered": working.redelivered,
        "acknowledged": working.acknowledged,
        "requeued": working.requeued,
        "dropped": working.dropped,
    }


def parked_list(working: WorkingQueue, limit: int) -> list[Facts]:
    """Return the messages that could not be dead-lettered, the one that was parked first at the head."""
    return [
        {
            "id": parked.message.id,
            "reason": parked.reason,
            "problem": parked.problem,
            "parked_at_s": parked.at_us / 1e6,
            "body_bytes": parked.message.body_bytes,
        }
        for parked in itertools.islice(working.parked.values(), limit)
    ]


def _unacked_bytes(working: WorkingQueue) -> int | None:
    """Return what the bodies of the messages hold that are out; None if they are too many to look at them all."""
    if len(working.out) > MOST_MEASURED:
        return None
    return sum([message.body_bytes for message in working.out.values() if message.id not in working.parked])


def _exclusive_tag(node: Node, working: WorkingQueue) -> str | None:
    is_alone = node.topology.has_exclusive_consumer(working)
    return _tag_of(next(iter(working.consumers.values()), None)) if is_alone else None


def _tag_of(consumer: Consumer | None) -> str | None:
    if consumer is None:
        return None
    owner = consumer.owner
    return owner.tag if isinstance(owner, AmqpConsumer) else str(consumer.id)


def exchange_published(node: Node) -> dict[tuple[str, str], int]:
    """Return how many messages clients of this node have published to each exchange, by virtual host and name."""
    return node.hub.broker.meters.exchanges


# Connections


async def connection_list(node: Node) -> list[Facts]:
    """Return the connections of clients, in the order in which they came."""
    return [connection_facts(node, connection) async for connection in in_slices(_clients(node))]


def connection_facts(node: Node, connection: Connection) -> Facts:
    """Return what there is to say about a connection."""
    peer, here = connection.extra("peername") or ("", 0), connection.extra("sockname") or ("", 0)
    cipher = connection.extra("cipher")
    engine = node.hub.broker.engine
    facts: Facts = {
        "name": connection.name,
        "node": node.hub.peering.name,
        "protocol": connection.PROTOCOL.name.lower(),
        "peer_host": peer[0],
        "peer_port": peer[1],
        "host": here[0],
        "port": here[1],
        "user": None,
        "vhost": None,
        "client_id": connection.client_id,
        "client_name": engine.client(connection.client_id).name if engine.has_client(connection.client_id) else None,
        "state": "running",
        "channels": 0,
        "consumers": 0,
        "client_properties": {},
        "connected_at_s": connection.connected_at_s,
        "tls": cipher is not None,
        "tls_protocol": cipher[1] if cipher else None,
        "tls_cipher": cipher[0] if cipher else None,
        "certificate_name": None,
        "heartbeat_s": 0,
        "frame_max": 0,
        "channel_max": 0,
        "read_bytes": connection.read_bytes,
        "written_bytes": connection.written_bytes,
        "in_flight": connection.in_flight,
        "held_bytes": connection.held_bytes(),
        "unacked_bytes": connection.unacked_bytes,
        "is_held_back": connection.is_held_back,
        "auth_mechanism": None,
    }
    if isinstance(connection, AmqpSession):
        facts |= _amqp_facts(connection)
    elif isinstance(connection, TelestoSession):
        facts |= {"consumers": len(connection.consumers), "frame_max": connection.answer_max}
    return facts


def memory_by_vhost(node: Node) -> dict[str, Facts]:
    """Return what each virtual host takes of the node's memory."""
    found: dict[str, Facts] = {
        vhost: {"definitions_bytes": size, "connections_bytes": 0, "unacked_bytes": 0}
        for vhost, size in node.topology.definitions_bytes_by_vhost().items()
    }
    for connection in node.hub.connections:
        # The research protocols know but one.
        vhost = connection.vhost if isinstance(connection, AmqpSession) else DEFAULT_VHOST
        if vhost in found and not connection.is_link:
            found[vhost]["connections_bytes"] += connection.held_bytes()
            found[vhost]["unacked_bytes"] += connection.unacked_bytes
    return found


def _amqp_facts(session: AmqpSession) -> Facts:
    channels = session.channels
    return {
        "user": session.user.name or None,
        "vhost": session.vhost or None,
        "state": _state_of(session),
        "channels": len(channels),
        "consumers": sum(len(channel.deliveries.consumers) for channel in channels),
        "client_properties": plain(session.client_properties),
        "certificate_name": session.certificate_name,
        "heartbeat_s": session.heartbeat_s,
        "frame_max": session.frame_max,
        "channel_max": session.channel_max,
        "auth_mechanism": session.mechanism or None,
    }


def _state_of(session: AmqpSession) -> str:
    if session.state is State.RUNNING:
        if session.is_blocked:
            return "blocked"
        return "flow" if session.waits_for_credit else "running"
    return "closing" if session.state in (State.CLOSING, State.FAILED) else "starting"


def find_connection(node: Node, name: str) -> Connection | None:
    """Return the connection of a client that has the name."""
    return next((connection for connection in _clients(node) if connection.name == name), None)


def close_connection(node: Node, name: str, reason: str) -> bool:
    """End a connection and tell its client why. False if there is none of that name."""
    found = find_connection(node, name)
    if found is not None:
        found.expel(reason)
    return found is not None


def _clients(node: Node) -> list[Connection]:
    """Return all connections but those of other nodes, in the order in which they came."""
    found = [connection for connection in node.hub.connections if not connection.is_link]
    return sorted(found, key=lambda connection: connection.number)


# Channels and consumers


async def channel_list(node: Node) -> list[Facts]:
    """Return the channels of all connections."""
    return [facts async for facts in in_slices(_of_all(node, channels_of))]


async def channel_totals(node: Node) -> dict[str, int]:
    """Return what all channels together have under way, and how many of them have published."""
    unacked = unconfirmed = uncommitted = uncommitted_acks = consumers = publishers = 0
    sessions = [connection for connection in node.hub.connections if isinstance(connection, AmqpSession)]
    async for channel in in_slices(channel for session in sessions for channel in session.channels):
        deliveries, publisher = channel.deliveries, channel.publisher
        unacked += len(deliveries.unsettled)
        consumers += len(deliveries.consumers)
        if publisher.taken:
            publishers += 1
            unconfirmed += publisher.unconfirmed
            uncommitted += len(publisher.transaction or ())
        uncommitted_acks += channel.uncommitted_acks
    return {
        "unacked": unacked,
        "unconfirmed": unconfirmed,
        "uncommitted": uncommitted,
        "uncommitted_acks": uncommitted_acks,
        "consumers": consumers,
        "publishers": publishers,
    }


def channels_of(node: Node, connection: Connection) -> Iterator[Facts]:
    """Tell of the channels of a connection, one after the other: there may be thousands."""
    if isinstance(connection, AmqpSession):
        for channel in connection.channels:
            yield _channel_facts(node, connection, channel)


def _channel_facts(node: Node, session: AmqpSession, channel: Channel) -> Facts:
    deliveries, publisher = channel.deliveries, channel.publisher
    state = "closing" if channel.is_closing else "flow" if session.waits_for_credit else "running"
    return {
        "connection": session.name,
        "name": f"{session.name} ({channel.number})",
        "node": node.hub.peering.name,
        "number": channel.number,
        "user": session.user.name,
        "vhost": session.vhost,
        "peer_host": (session.extra("peername") or ("", 0))[0],
        "peer_port": (session.extra("peername") or ("", 0))[1],
        "state": state,
        "prefetch": window(deliveries.prefetch),
        "shared_prefetch": deliveries.window.limit,
        "unacked": len(deliveries.unsettled),
        "unconfirmed": publisher.unconfirmed,
        "uncommitted": len(publisher.transaction or ()),
        "uncommitted_acks": channel.uncommitted_acks,
        "confirms": publisher.is_confirming,
        "transactional": channel.settling is not None,
        "consumers": len(deliveries.consumers),
        "published": publisher.taken,
        "confirmed": publisher.confirmed,
        "returned": publisher.returned,
        "delivered": deliveries.last_tag,
        "acknowledged": deliveries.acknowledged,
        "redelivered": deliveries.redelivered,
    }


async def consumer_list(node: Node, queue: Sequence[str] = ()) -> list[Facts]:
    """Return the consumers of all connections; their queues may be on other nodes. See `consumers_of`."""
    found = _of_all(node, lambda node, connection: consumers_of(node, connection, queue))
    return [facts async for facts in in_slices(found) if facts is not None]


def consumers_of(node: Node, connection: Connection, queue: Sequence[str] = ()) -> Iterator[Facts | None]:
    """Tell of the consumers of a connection, one after the other: there may be thousands.

    If a virtual host and the name of a queue are given there is None in the place of those of other queues, so that
    whoever counts turns counts them, too.
    """
    place = tuple(queue)
    if isinstance(connection, AmqpSession):
        for channel in connection.channels:
            for consumer in list(channel.deliveries.consumers.values()):
                is_wanted = not place or (consumer.queue.vhost, consumer.queue.name) == place
                yield _amqp_consumer_facts(node, connection, channel, consumer) if is_wanted else None
    elif isinstance(connection, TelestoSession):
        for one in list(connection.consumers.values()):
            facts = _telesto_consumer_facts(node, connection, one)
            yield facts if not place or (facts["queue_vhost"], facts["queue"]) == place else None


def _of_all(node: Node, of: Callable[[Node, Connection], Iterator[T]]) -> Iterator[T]:
    return chain.from_iterable(of(node, connection) for connection in _clients(node))


def _amqp_consumer_facts(node: Node, session: AmqpSession, channel: Channel, consumer: AmqpConsumer) -> Facts:
    engine_consumer = consumer.engine_consumer
    return {
        "tag": consumer.tag,
        "connection": session.name,
        "channel": f"{session.name} ({channel.number})",
        "channel_number": channel.number,
        "peer_host": (session.extra("peername") or ("", 0))[0],
        "peer_port": (session.extra("peername") or ("", 0))[1],
        "node": node.hub.peering.name,
        "protocol": "amqp",
        "user": session.user.name,
        "queue": consumer.queue.name,
        "queue_vhost": consumer.queue.vhost,
        "queue_id": consumer.queue.id,
        "ack_required": not consumer.no_ack,
        "prefetch": window(consumer.prefetch),
        "exclusive": consumer.exclusive,
        "priority": consumer.priority,
        "arguments": plain(consumer.arguments),
        "active": engine_consumer is not None and not engine_consumer.is_standby,
        "unacked": 0 if engine_consumer is None else len(engine_consumer.leases),
    }


def _telesto_consumer_facts(node: Node, session: TelestoSession, consumer: Consumer) -> Facts:
    working = node.hub.broker.engine.find_working(consumer.queue_id)
    peer = session.extra("peername") or ("", 0)
    return {
        "tag": str(consumer.id),
        "connection": session.name,
        "channel": session.name,
        "channel_number": 0,
        "peer_host": peer[0],
        "peer_port": peer[1],
        "node": node.hub.peering.name,
        "protocol": "telesto",
        "user": None,
        "queue": "" if working is None else working.queue.name,
        "queue_vhost": "" if working is None else working.queue.vhost,
        "queue_id": consumer.queue_id,
        "ack_required": not consumer.keeps_none,
        "prefetch": window(consumer.credit.prefetch),
        "exclusive": False,
        "priority": consumer.priority,
        "arguments": {},
        "active": not consumer.is_standby,
        "unacked": len(consumer.leases),
    }


def window(prefetch: float) -> float:
    """Return how many messages may be under way; 0 stands for any number."""
    if math.isinf(prefetch):
        return 0
    return int(prefetch) if prefetch == int(prefetch) else prefetch


# The node


def node_facts(node: Node) -> Facts:
    """Return what there is to say about the process and its surroundings."""
    hub, broker, settings = node.hub, node.hub.broker, node.settings
    flow = hub.reports["flow"]()
    used = resource.getrusage(resource.RUSAGE_SELF)
    now_s = time.time()
    return {
        "name": hub.peering.name,
        "version": flyball.__version__,
        "pid": os.getpid(),
        "started_at_s": _STARTED_AT_S,
        "uptime_s": now_s - _STARTED_AT_S,
        "memory_bytes": node.usage.memory_bytes,
        "memory_limit_bytes": int(settings.memory_bytes),
        "resident_limit_bytes": broker.engine.resident_limit_bytes,
        "cpu_s": used.ru_utime + used.ru_stime,
        "open_files": node.usage.open_files,
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "disk_free_bytes": node.usage.disk_free_bytes,
        "disk_free_limit_bytes": 0 if node.disk is None else node.disk.limit_bytes,
        "max_connections": settings.max_connections,
        "store": {
            "kind": settings.store.kind,
            "name": settings.store.redacted,
            "commits": broker.journal.commits,
            "failures": broker.journal.failures,
            "pending_changes": broker.journal.pending_count,
            "pending_bytes": broker.journal.pending_bytes,
            "last_commit_s": broker.journal.last_commit_s,
            "is_failing": broker.journal.failing_since is not None or broker.store.problem is not None,
            "problem": broker.store.problem,
        },
        "flow": flow,
        "alarms": alarms(node, flow),
        "addresses": {protocol: str(address) for protocol, address in node.addresses.items()},
    }


def alarms(node: Node, flow: Mapping[str, Any] | None = None) -> list[str]:
    """Return what keeps the node from working as it should, in words; usually nothing."""
    flow = node.hub.reports["flow"]() if flow is None else flow
    found: list[str] = []
    if flow["under_pressure"] and flow["memory"]["rate_bytes_per_s"] == 0:
        found.append(NO_MEMORY)
    if flow["is_low_on_disk"]:
        found.append(NO_DISK)
    if flow["under_pressure"] and flow["commit_queue"]["rate_bytes_per_s"] == 0:
        found.append(NO_STORE)
    broker = node.hub.broker
    if broker.store.problem is not None:
        found.append(f"the store does not answer: {broker.store.problem}")
    elif broker.journal.failing_since is not None:
        found.append("the store does not answer")
    if not node.hub.may_speak:
        found.append("the node has lost its lease")
    return found


def latencies(node: Node) -> dict[str, Facts]:
    """Return how long the phases of requests take, by kind: see `Latencies.told`. Without a trace nothing."""
    recorder = node.hub.recorder
    return {} if recorder is None else recorder.latencies.told()


# Inside


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Give out the items; after some of them others have their turn."""
    for number, item in enumerate(items, 1):
        yield item
        if number % SLICE == 0:
            await next_slice()


def plain(value: Any) -> Any:
    """Return a value of AMQP as JSON can say it."""
    match value:
        case None | bool() | int():
            return value
        case str():
            return _text(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return value.decode(errors="replace")
        case Decimal():
            return float(value)
        case datetime():
            return int(value.timestamp())
        case Mapping():
            return {_text(str(name)): plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case _:
            return str(value)


def _text(text: str) -> str:
    """Return the text with a mark in the place of octets that are none: peers may send any."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
