"""Describes queues, connections, channels, consumers and the node as plain dictionaries, without changing anything.

Long lists are made in slices, so that messaging continues; nothing is computed unless requested. Connections,
channels and consumers have the fields of RabbitMQ's API, without rates; queues and nodes, which serve several
documents, have Flyball's.
"""

from __future__ import annotations

import itertools
import math
import os
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any, TypeVar

from flyball.broker.core.flow import NO_DISK, NO_MEMORY, NO_STORE
from flyball.broker.engine.consumer import Consumer
from flyball.broker.engine.queue import QueueState
from flyball.broker.management.slices import next_slice
from flyball.broker.node.node import Node
from flyball.broker.protocols.amqp.channel import Channel
from flyball.broker.protocols.amqp.connection import State
from flyball.broker.protocols.amqp.consumers import AmqpConsumer
from flyball.broker.protocols.amqp.session import AmqpSession
from flyball.broker.transport.connection import Connection
from flyball.model import DEFAULT_VHOST, Queue

# Items of a list per turn of the event loop: one or two milliseconds.
SLICE = 200

# With more unacked messages than this, their bytes are not summed: this many take a millisecond.
MAX_MEASURED = 20_000

Facts = dict[str, Any]
T = TypeVar("T")

_STARTED_AT_S = time.time()

PROTOCOLS = {"amqp": "AMQP 0-9-1", "telesto": "Telesto", "thorbang": "ThorBangMQ"}

# Counters of a queue, summed over the members of a clustered one.
COUNTS: Mapping[str, Callable[[QueueState], int]] = {
    "ready": len,
    "unacked": attrgetter("unacked_count"),
    "messages": lambda state: len(state) + state.unacked_count,
    "parked": lambda state: len(state.parked),
    "consumers": lambda state: len(state.consumers),
    "published": attrgetter("arrived"),
    "delivered": attrgetter("delivered"),
    "delivered_no_ack": attrgetter("delivered_no_ack"),
    "got": attrgetter("got"),
    "got_no_ack": attrgetter("got_no_ack"),
    "redelivered": attrgetter("redelivered"),
    "acknowledged": attrgetter("acknowledged"),
}


# Queues


def queue_facts(node: Node, state: QueueState) -> Facts:
    """Return the facts of a queue of this node."""
    queue = state.queue
    owner = node.topology.owner_of(state)
    ready, unacked = len(state), state.unacked_count
    now_s = time.time()
    head = state.head
    return {
        **declared(queue),
        "node": node.hub.peering.name,
        "type": "quorum" if state.traits.is_quorum else "classic",
        "state": "running",
        # COUNTS, inlined: there may be ten thousand queues.
        "ready": ready,
        "unacked": unacked,
        "messages": ready + unacked,
        "parked": len(state.parked),
        "consumers": len(state.consumers),
        "published": state.arrived,
        "delivered": state.delivered,
        "delivered_no_ack": state.delivered_no_ack,
        "got": state.got,
        "got_no_ack": state.got_no_ack,
        "redelivered": state.redelivered,
        "acknowledged": state.acknowledged,
        "ready_bytes": state.ready_bytes if state.knows_bytes else None,
        "unacked_bytes": _unacked_bytes(state),
        "in_memory": ready - state.absent,
        "active_consumer": _tag_of(state.active),
        "exclusive_consumer": _exclusive_tag(node, state),
        "owner": owner.name if isinstance(owner, Connection) else None,
        "idle_since_s": state.idle_since_s(now_s),
        "head_age_s": None if head is None else max(0.0, now_s - head.arrived_us / 1e6),
    }


def declared(queue: Queue) -> Facts:
    """Return the declaration of a queue."""
    return {
        "id": queue.id,
        "vhost": queue.vhost,
        "name": queue.name,
        "durable": queue.durable,
        "exclusive": queue.exclusive,
        "auto_delete": queue.auto_delete,
        "arguments": plain(queue.arguments),
        "member": queue.member,
    }


def parked_list(state: QueueState, limit: int) -> list[Facts]:
    """Return the parked messages, the earliest first."""
    return [
        {
            "id": parked.message.id,
            "reason": parked.reason,
            "problem": parked.problem,
            "parked_at_s": parked.at_us / 1e6,
            "body_bytes": parked.message.body_bytes,
        }
        for parked in itertools.islice(state.parked.values(), limit)
    ]


def _unacked_bytes(state: QueueState) -> int | None:
    """Return the bytes of unacked messages; None if there are too many to sum."""
    if len(state.unacked) > MAX_MEASURED:
        return None
    return sum([message.body_bytes for message in state.unacked.values() if message.id not in state.parked])


def _exclusive_tag(node: Node, state: QueueState) -> str | None:
    is_alone = node.topology.has_exclusive_consumer(state)
    return _tag_of(next(iter(state.consumers.values()), None)) if is_alone else None


def _tag_of(consumer: Consumer | None) -> str | None:
    if consumer is None:
        return None
    owner = consumer.owner
    return owner.tag if isinstance(owner, AmqpConsumer) else str(consumer.id)


# Connections


def connection_document(node: Node, connection: Connection) -> Facts:
    """Return a connection's document, without rates."""
    peer, here = connection.extra("peername") or ("", 0), connection.extra("sockname") or ("", 0)
    cipher, protocol, _ = connection.extra("cipher") or ("", "", 0)
    session = connection if isinstance(connection, AmqpSession) else None
    user = "" if session is None else session.user.name
    subject = None if session is None else session.certificate_name
    return {
        "name": connection.name,
        "node": node.hub.peering.name,
        "type": "network",
        "protocol": PROTOCOLS[connection.PROTOCOL.name.lower()],
        "user": user or _client_name(node, connection),
        "user_who_performed_action": user,
        # Protocols without vhosts use the default one.
        "vhost": (session.vhost if session is not None else "") or DEFAULT_VHOST,
        "state": "running" if session is None else _state_of(session),
        "host": here[0],
        "port": here[1],
        "peer_host": peer[0],
        "peer_port": peer[1],
        "peer_cert_subject": "" if subject is None else f"CN={subject}",
        "ssl": bool(cipher),
        "ssl_protocol": protocol,
        "ssl_cipher": cipher,
        "auth_mechanism": (session.mechanism if session is not None else "") or None,
        "client_properties": {} if session is None else plain(session.client_properties),
        "connected_at": int(connection.connected_at_s * 1000),
        "timeout": 0 if session is None else session.heartbeat_s,
        "frame_max": 0 if session is None else session.frame_max,
        "channel_max": 0 if session is None else session.channel_max,
        "channels": 0 if session is None else len(session.channels),
        "recv_oct": connection.read_bytes,
        "send_oct": connection.written_bytes,
    }


def _client_name(node: Node, connection: Connection) -> str:
    """Return the name of the connection's registered client, in protocols that have clients."""
    engine = node.hub.broker.engine
    return engine.client(connection.client_id).name if engine.has_client(connection.client_id) else ""


def memory_by_vhost(node: Node) -> dict[str, Facts]:
    """Return the memory used by each vhost."""
    found: dict[str, Facts] = {
        vhost: {"definitions_bytes": size, "connections_bytes": 0, "unacked_bytes": 0}
        for vhost, size in node.topology.definitions_bytes_by_vhost().items()
    }
    for connection in node.hub.connections:
        # The research protocols use the default vhost only.
        vhost = connection.vhost if isinstance(connection, AmqpSession) else DEFAULT_VHOST
        if vhost in found and not connection.is_link:
            found[vhost]["connections_bytes"] += connection.held_bytes()
            found[vhost]["unacked_bytes"] += connection.unacked_bytes
    return found


def _state_of(session: AmqpSession) -> str:
    if session.state is State.RUNNING:
        if session.is_blocked:
            return "blocked"
        return "flow" if session.waits_for_credit else "running"
    return "closing" if session.state in (State.CLOSING, State.FAILED) else "starting"


def clients(node: Node) -> list[Connection]:
    """Return all connections of clients, without links, oldest first."""
    found = [connection for connection in node.hub.connections if not connection.is_link]
    return sorted(found, key=lambda connection: connection.number)


# Channels and consumers


async def channel_totals(node: Node) -> dict[str, int]:
    """Return the totals of all channels, and the number of publishing ones."""
    unacked = unconfirmed = uncommitted = uncommitted_acks = consumers = publishers = 0
    sessions = [connection for connection in node.hub.connections if isinstance(connection, AmqpSession)]
    async for channel in in_slices(channel for session in sessions for channel in session.channels):
        deliveries, publisher = channel.deliveries, channel.publisher
        unacked += len(deliveries.unacked)
        consumers += len(deliveries.consumers)
        if publisher.taken:
            publishers += 1
            unconfirmed += publisher.unconfirmed
            uncommitted += channel.uncommitted
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
    """Yield the channels of a connection: there may be thousands."""
    if isinstance(connection, AmqpSession):
        for channel in connection.channels:
            yield _channel_document(node, connection, channel)


def _channel_document(node: Node, session: AmqpSession, channel: Channel) -> Facts:
    deliveries, publisher = channel.deliveries, channel.publisher
    peer = session.extra("peername") or ("", 0)
    return {
        "name": f"{session.name} ({channel.number})",
        "number": channel.number,
        "node": node.hub.peering.name,
        "user": session.user.name,
        "user_who_performed_action": session.user.name,
        "vhost": session.vhost,
        "state": "closing" if channel.is_closing else "flow" if session.waits_for_credit else "running",
        "connection_details": {"name": session.name, "peer_host": peer[0], "peer_port": peer[1]},
        "confirm": publisher.is_confirming,
        "transactional": channel.transaction is not None,
        "prefetch_count": window(deliveries.prefetch),
        "global_prefetch_count": deliveries.window.limit,
        "consumer_count": len(deliveries.consumers),
        "messages_unacknowledged": len(deliveries.unacked),
        "messages_unconfirmed": publisher.unconfirmed,
        "messages_uncommitted": channel.uncommitted,
        "acks_uncommitted": channel.uncommitted_acks,
        "message_stats": {
            "publish": publisher.taken,
            "confirm": publisher.confirmed,
            "return_unroutable": publisher.returned,
            "deliver_get": deliveries.last_tag,
            "ack": deliveries.acknowledged,
            "redeliver": deliveries.redelivered,
        },
    }


def consumers_of(node: Node, connection: Connection, queue: Sequence[str] = ()) -> Iterator[Facts | None]:
    """Yield the consumers of a connection: there may be thousands.

    With a vhost and queue name, consumers of other queues yield None, so that the caller can count its turns.
    """
    place = tuple(queue)
    if isinstance(connection, AmqpSession):
        for channel in connection.channels:
            for consumer in list(channel.deliveries.consumers.values()):
                is_wanted = not place or (consumer.queue.vhost, consumer.queue.name) == place
                yield _consumer_document(node, connection, channel, consumer) if is_wanted else None


def _consumer_document(node: Node, session: AmqpSession, channel: Channel, consumer: AmqpConsumer) -> Facts:
    peer = session.extra("peername") or ("", 0)
    inner = consumer.engine_consumer
    is_active = inner is not None and not inner.is_standby
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": consumer.queue.name, "vhost": consumer.queue.vhost},
        "ack_required": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "prefetch_count": window(consumer.prefetch),
        "arguments": plain(consumer.arguments),
        "active": is_active,
        "activity_status": "up" if is_active else "waiting",
        "channel_details": {
            "name": f"{session.name} ({channel.number})",
            "number": channel.number,
            "node": node.hub.peering.name,
            "user": session.user.name,
            "connection_name": session.name,
            "peer_host": peer[0],
            "peer_port": peer[1],
        },
    }


def window(prefetch: float) -> float:
    """Return a prefetch window as RabbitMQ does: 0 is unlimited."""
    if math.isinf(prefetch):
        return 0
    return int(prefetch) if prefetch == int(prefetch) else prefetch


# The node


def node_facts(node: Node) -> Facts:
    """Return the facts of the process and its environment."""
    hub, broker, settings = node.hub, node.hub.broker, node.settings
    flow = hub.reports["flow"]()
    used = resource.getrusage(resource.RUSAGE_SELF)
    now_s = time.time()
    return {
        "name": hub.peering.name,
        "pid": os.getpid(),
        "started_at_s": _STARTED_AT_S,
        "uptime_s": now_s - _STARTED_AT_S,
        "memory_bytes": node.resources.memory_bytes,
        "memory_limit_bytes": int(settings.memory_bytes),
        "resident_limit_bytes": broker.engine.resident_limit_bytes,
        "cpu_s": used.ru_utime + used.ru_stime,
        "open_files": node.resources.open_files,
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "disk_free_bytes": node.resources.disk_free_bytes,
        "disk_free_limit_bytes": 0 if node.disk is None else node.disk.limit_bytes,
        "max_connections": settings.max_connections,
        "last_commit_s": broker.journal.last_commit_s,
        "store_is_failing": store_is_failing(node),
        "flow": flow,
        "alarms": alarms(node, flow),
        "addresses": {protocol: str(address) for protocol, address in node.addresses.items()},
    }


def store_is_failing(node: Node) -> bool:
    """Whether the store is failing. An idle node detects this when it renews its lease."""
    broker = node.hub.broker
    return broker.journal.failing_since is not None or broker.store.problem is not None


def alarms(node: Node, flow: Mapping[str, Any] | None = None) -> list[str]:
    """Return the node's active alarms as text; usually none."""
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
    if not node.hub.holds_lease:
        found.append("the node has lost its lease")
    return found


def latencies(node: Node) -> dict[str, Facts]:
    """Return latencies of requests by phase and kind: see `Latencies.summary`. Empty without a trace."""
    recorder = node.hub.recorder
    return {} if recorder is None else recorder.latencies.summary()


# Internals


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items; yield to other tasks after each slice."""
    for number, item in enumerate(items, 1):
        yield item
        if number % SLICE == 0:
            await next_slice()


def plain(value: Any) -> Any:
    """Convert a value of an AMQP table to JSON values."""
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
    """Replace surrogates, which stand for invalid UTF-8 of a peer."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
