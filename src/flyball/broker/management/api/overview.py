"""The overview of RabbitMQ's API: versions, totals, rates, listeners."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

import flyball
from flyball.broker.management.api import domain_view, nodes, vhosts
from flyball.broker.management.api.answers import answer
from flyball.broker.management.api.context import Call, Right, Routes
from flyball.broker.management.api.statistics import (
    OF_CHURN,
    OF_LENGTH,
    OF_NODE,
    OF_QUEUE,
    detailed,
    message_stats,
    rates_of,
)
from flyball.broker.protocols.amqp import RABBITMQ_VERSION

routes = Routes()


@routes.get("/overview")
async def show(call: Call) -> Response:
    """Return versions, totals and rates of all nodes; without the tag monitoring, of visible objects."""
    found = _about(call)
    if call.has(Right.MONITORING):
        found |= await _of_all(call)
    else:
        found |= await _of_visible(call)
    return call.one(found)


@routes.get("/cluster-name")
async def show_name(call: Call) -> Response:
    """Return the name of the domain: that of its oldest node."""
    return answer({"name": _name(call)})


def _name(call: Call) -> str:
    return next(iter(domain_view.nodes(call.node)), call.node.hub.peering.name)


def _about(call: Call) -> dict[str, Any]:
    python = platform.python_version()
    return {
        "management_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "product_name": "Flyball",
        "product_version": flyball.__version__,
        "erlang_version": python,
        "erlang_full_version": f"Python {sys.version}".replace("\n", " "),
        "release_series_support_status": "supported",
        "cluster_name": _name(call),
        "node": call.node.hub.peering.name,
        "rates_mode": "basic",
        "sample_retention_policies": {"global": [300], "basic": [300], "detailed": [300]},
        "exchange_types": nodes.EXCHANGE_TYPES,
        "disable_stats": False,
        "enable_queue_totals": False,
        "statistics_db_event_queue": 0,
    }


async def _of_all(call: Call) -> dict[str, Any]:
    counts, rates = await domain_view.totals(call)
    reported = await call.context.domain_nodes.ask_all("node")
    objects = {
        **{name: counts[name] for name in ("channels", "connections", "consumers")},
        "exchanges": domain_view.exchange_count(call.node, call.visible_vhosts()),
        "queues": domain_view.queue_count(call.node),
    }
    return {
        "message_stats": message_stats(OF_NODE, counts, rates),
        "churn_rates": detailed(OF_CHURN, counts, rates),
        "queue_totals": _lengths(call, "", counts),
        "object_totals": objects,
        "listeners": [listener for facts in reported.values() for listener in nodes.listeners(facts)],
        "contexts": [context for facts in reported.values() for context in nodes.contexts(facts)],
    }


async def _of_visible(call: Call) -> dict[str, Any]:
    visible = call.visible_vhosts()
    reported = await vhosts.sums(call, visible)
    counts = domain_view.summed([{name: each[name] for name in vhosts.COUNTED} for each in reported])
    counts = {**dict.fromkeys(vhosts.COUNTED, 0), **counts}
    rates = rates_of(call.context.sampler, "overview", call.user.name, counts, OF_QUEUE)
    objects = {
        "channels": len(await domain_view.channels(call)),
        "connections": len(await domain_view.connections(call)),
        "consumers": len(await domain_view.consumers(call, visible)),
        "exchanges": domain_view.exchange_count(call.node, visible),
        "queues": len(await domain_view.queues(call, visible)),
    }
    return {
        "message_stats": message_stats(OF_QUEUE, counts, rates),
        "queue_totals": _lengths(call, call.user.name, counts),
        "object_totals": objects,
    }


def _lengths(call: Call, key: str, counts: Mapping[str, float]) -> dict[str, Any]:
    lengths = {**counts, "messages": counts["ready"] + counts["unacked"]}
    reported = detailed(OF_LENGTH, lengths, rates_of(call.context.sampler, "lengths", key, lengths, OF_LENGTH))
    return {**reported, "messages_parked": counts.get("parked", 0)}
