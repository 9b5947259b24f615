"""Writes the Prometheus metrics of a node, in slices, so that messaging continues."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from platform import python_version
from types import SimpleNamespace
from typing import Any, TypeVar

import flyball
from flyball.broker.core.flow import NO_DISK, NO_MEMORY
from flyball.broker.engine.queue import QueueState
from flyball.broker.management import inspection
from flyball.broker.management.api import domain_view
from flyball.broker.management.api.context import ApiContext
from flyball.broker.management.metrics import flyball as flyball_metrics
from flyball.broker.management.metrics import tables
from flyball.broker.management.metrics.exposition import UNTYPED, Family, Metric, labels, metrics
from flyball.broker.management.slices import next_slice
from flyball.broker.management.totals import totals
from flyball.broker.node.node import Node
from flyball.broker.protocols.amqp import RABBITMQ_VERSION
from flyball.broker.protocols.amqp.channel import Channel
from flyball.broker.protocols.amqp.session import AmqpSession
from flyball.broker.store.registry import NodeState
from flyball.broker.transport.connection import Connection

T = TypeVar("T")

# Samples per turn of the event loop: well below a millisecond.
SLICE = 400

RABBITMQ = "rabbitmq_"
DETAILED = "rabbitmq_detailed_"

BUILD = Family("rabbitmq_build_info", UNTYPED, "Compatible RabbitMQ version, and the runtime")
IDENTITY = Family("rabbitmq_identity_info", UNTYPED, "Names of the node and its domain")

_BUILD_LABELS = labels(
    rabbitmq_version=RABBITMQ_VERSION,
    prometheus_plugin_version=flyball.__version__,
    prometheus_client_version=version("prometheus-client"),
    erlang_version=python_version(),
)


def _all(table: Mapping[str, Sequence[T]]) -> list[T]:
    return list(chain.from_iterable(table.values()))


_OF_NODE = [*metrics(RABBITMQ, _all(tables.RABBITMQ_NODE)), *tables.RABBITMQ_COUNTS, *tables.RABBITMQ_GLOBAL]
_OF_QUEUES = [*metrics(RABBITMQ, _all(tables.RABBITMQ_QUEUES)), *tables.OWN_QUEUES]
_OF_CHANNELS = [*metrics(RABBITMQ, _all(tables.RABBITMQ_CHANNELS)), *tables.OWN_CHANNELS]
_OF_CONNECTIONS = metrics(RABBITMQ, _all(tables.RABBITMQ_CONNECTIONS))


async def aggregated(context: ApiContext) -> AsyncIterator[str]:
    """Write the aggregated metrics: the size does not depend on the number of queues."""
    numbers = await numbers_of(context.node)
    yield _of_node(numbers, [*_OF_NODE, *tables.RABBITMQ_SUMS, *tables.OWN, *tables.PROCESS])
    async for text in flyball_metrics.texts(context):
        yield text
    yield _identity(context)


async def per_object(context: ApiContext) -> AsyncIterator[str]:
    """Write the metrics of the node and of each queue, channel and connection."""
    numbers = await numbers_of(context.node)
    yield _of_node(numbers, [*_OF_NODE, *tables.OWN])
    async for text in flyball_metrics.texts(context):
        yield text
    async for text in samples_of(_queues(context), tables.queue_labels, _OF_QUEUES):
        yield text
    async for text in samples_of(_channels(context), tables.channel_labels, _OF_CHANNELS):
        yield text
    async for text in samples_of(_connections(context), tables.connection_labels, _OF_CONNECTIONS):
        yield text
    yield _identity(context)


async def detailed(context: ApiContext, families: Collection[str], vhosts: Collection[str]) -> AsyncIterator[str]:
    """Write the selected families; with vhosts, only their queues.

    Unknown families are ignored, as in RabbitMQ.
    """

    def wanted(table: Mapping[str, Sequence[T]]) -> list[T]:
        return [row for family, rows in table.items() if family in families for row in rows]

    if of_this := wanted(tables.RABBITMQ_NODE):
        yield _of_node(await numbers_of(context.node), metrics(DETAILED, of_this))
    queues = [state for state in _queues(context) if not vhosts or state.queue.vhost in vhosts]
    of_queues = metrics(DETAILED, wanted(tables.RABBITMQ_QUEUES))
    of_channels = metrics(DETAILED, wanted(tables.RABBITMQ_CHANNELS))
    of_connections = metrics(DETAILED, wanted(tables.RABBITMQ_CONNECTIONS))
    async for text in samples_of(queues, tables.queue_labels, of_queues):
        yield text
    async for text in samples_of(_channels(context), tables.channel_labels, of_channels):
        yield text
    async for text in samples_of(_connections(context), tables.connection_labels, of_connections):
        yield text
    yield _identity(context)


# Sources


async def numbers_of(node: Node) -> SimpleNamespace:
    """Return the current numbers of the node, each under one name."""
    # Not the last sample, which is up to a second old: rates would jitter.
    counted = await totals(node)
    facts = inspection.node_facts(node)
    recorder = node.hub.recorder
    channels = await inspection.channel_totals(node)
    numbers = {
        **counted.by_name(),
        "messages": counted.ready + counted.unacked,
        "sent": counted.delivered + counted.delivered_no_ack + counted.got + counted.got_no_ack,
        **facts,
        **facts["flow"],
        **{f"channel_{name}": value for name, value in channels.items()},
        "is_low_on_memory": NO_MEMORY in facts["alarms"],
        "is_low_on_disk": NO_DISK in facts["alarms"],
        "alarms": len(facts["alarms"]),
        "holds_lease": node.hub.holds_lease,
        "is_leaving": node.membership.state is NodeState.LEAVING,
        "trace_dropped": None if recorder is None else recorder.dropped,
        "trace_failures": None if recorder is None else recorder.failures,
    }
    return SimpleNamespace(**numbers)


def _queues(context: ApiContext) -> Sequence[QueueState]:
    return context.node.hub.broker.engine.queues


def _connections(context: ApiContext) -> list[Connection]:
    return [connection for connection in context.node.hub.connections if not connection.is_link]


def _channels(context: ApiContext) -> list[Channel]:
    sessions = [each for each in context.node.hub.connections if isinstance(each, AmqpSession)]
    return [channel for session in sessions for channel in session.channels]


# Text


def _of_node(numbers: SimpleNamespace, metrics: Iterable[Metric]) -> str:
    return "".join([metric.family.text([(metric.labels, metric.read(numbers))]) for metric in metrics])


async def samples_of(things: Sequence[T], label: Callable[[T], str], metrics: Sequence[Metric]) -> AsyncIterator[str]:
    """Write metrics of many objects: all samples of a metric are adjacent, as the format requires."""
    if not things or not metrics:
        return
    named: list[tuple[str, Any]] = []
    for part in _slices(things):
        named += [(label(thing), thing) for thing in part]
        await next_slice()
    for metric in metrics:
        family, read = metric.family, metric.read
        head = family.head
        for some in _slices(named):
            yield head + family.lines([(which, read(thing)) for which, thing in some])
            head = ""
            await next_slice()


def _slices(items: Sequence[T]) -> Iterable[Sequence[T]]:
    return (items[begin : begin + SLICE] for begin in range(0, len(items), SLICE))


def _identity(context: ApiContext) -> str:
    """Return the identity metric that dashboards join with all others."""
    domain = next(iter(domain_view.nodes(context.node)), context.name)
    identity = labels(rabbitmq_node=context.name, rabbitmq_cluster=domain, rabbitmq_cluster_permanent_id=domain)
    return BUILD.text([(_BUILD_LABELS, 1)]) + IDENTITY.text([(identity, 1)])
