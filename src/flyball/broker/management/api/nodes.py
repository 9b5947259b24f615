"""The nodes of the domain, as RabbitMQ's API shows those of a cluster. Each node creates its own document."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable, Mapping
from typing import Any

from starlette.responses import Response

import flyball
from flyball.broker.core.flow import NO_DISK, NO_MEMORY
from flyball.broker.management import inspection
from flyball.broker.management.api import domain_view
from flyball.broker.management.api.answers import not_found
from flyball.broker.management.api.context import ApiContext, Call, Right, Routes
from flyball.broker.management.api.statistics import OF_CHURN, detailed
from flyball.broker.management.totals import totals
from flyball.broker.settings import Address
from flyball.broker.store.registry import NodeState

DOCUMENT = "node_document"
# The request to other nodes.
MEMORY = "node_memory"

EXCHANGE_TYPES = [
    {"name": "direct", "description": "AMQP direct exchange, as per the AMQP specification", "enabled": True},
    {"name": "fanout", "description": "AMQP fanout exchange, as per the AMQP specification", "enabled": True},
    {"name": "headers", "description": "AMQP headers exchange, as per the AMQP specification", "enabled": True},
    {"name": "topic", "description": "AMQP topic exchange, as per the AMQP specification", "enabled": True},
]

AUTH_MECHANISMS = [
    {"name": "PLAIN", "description": "SASL PLAIN authentication mechanism", "enabled": True},
    {"name": "AMQPLAIN", "description": "QPid AMQPLAIN mechanism", "enabled": True},
]

# Listeners that RabbitMQ names differently.
PROTOCOLS = {"amqps": "amqp/ssl", "link": "clustering"}

OF_MEMORY = {"mem_used": "memory_bytes"}
OF_USE = {
    "fd_used": "open_files",
    "sockets_used": "connections",
    "disk_free": "disk_free_bytes",
    "gc_num": "collections",
    "context_switches": "context_switches",
    "msg_store_write_count": "store_appended",
}

KEYS: dict[str, Callable[[Mapping[str, Any]], Any]] = {"name": lambda document: document["name"]}


routes = Routes()


@routes.get("/nodes", Right.MONITORING, is_list=True)
async def list_all(call: Call) -> Response:
    """List the nodes of the domain."""
    return await call.many(await _all(call), dict, KEYS)


@routes.get("/nodes/{name}", Right.MONITORING)
async def show(call: Call) -> Response:
    """Return a node of the domain."""
    name = call.part("name")
    for found in await _all(call):
        if found["name"] == name:
            return call.one(found)
    raise not_found(f"no node {name!r}")


@routes.get("/nodes/{name}/memory", Right.MONITORING)
async def show_memory(call: Call) -> Response:
    """Return the memory breakdown of a node."""
    name = call.part("name")
    reported = await call.context.domain_nodes.ask_all(MEMORY)
    if name not in reported:
        raise not_found(f"no node {name!r}")
    return call.one(reported[name])


@routes.peer(MEMORY)
async def memory(context: ApiContext) -> dict[str, Any]:
    """Return the memory breakdown of this node, under RabbitMQ's names where they apply; `ledger` is Flyball's
    own.
    """
    node, broker = context.node, context.node.hub.broker
    ledger = broker.ledger
    node.resources.read_memory()
    rss_bytes = node.resources.memory_bytes
    known = ledger.total_bytes + broker.journal.pending_bytes
    return {
        "memory": {
            "connection_other": ledger.connections_bytes + ledger.links_bytes + ledger.http_bytes,
            "queue_procs": broker.engine.resident_bytes,
            "msg_index": broker.engine.absent_bytes,
            "mnesia": ledger.definitions_bytes,
            "other_proc": broker.journal.pending_bytes,
            "other_system": max(0, rss_bytes - known),
            "strategy": "rss",
            "total": {"rss": rss_bytes, "allocated": rss_bytes, "erlang": known},
            "ledger": {**ledger.report(), "vhosts": inspection.memory_by_vhost(node)},
        }
    }


async def _all(call: Call) -> list[dict[str, Any]]:
    """Return the documents of all nodes; one that does not answer is shown as not running."""
    reported = await call.context.domain_nodes.ask_all(DOCUMENT)
    silent = [_silent(name) for name in domain_view.nodes(call.node) if name not in reported]
    return sorted([*reported.values(), *silent], key=lambda found: str(found["name"]))


def _silent(name: str) -> dict[str, Any]:
    return {"name": name, "type": "disc", "running": False, "being_drained": False, "partitions": []}


@routes.peer(DOCUMENT)
async def document(context: ApiContext) -> dict[str, Any]:
    """Return this node as RabbitMQ's document."""
    node, sampler = context.node, context.sampler
    facts = inspection.node_facts(node)
    counted = await totals(node)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    counts: dict[str, Any] = {
        **{name: getattr(counted, name) for name in (*OF_CHURN.values(), "connections", "store_appended")},
        **{name: facts[name] for name in ("memory_bytes", "open_files", "disk_free_bytes")},
        "collections": sum(generation["collections"] for generation in gc.get_stats()),
        "context_switches": usage.ru_nvcsw + usage.ru_nivcsw,
    }
    known = {name: count for name, count in counts.items() if count is not None}
    rates = sampler.rates_of("node", facts["name"], known)
    return {
        "name": facts["name"],
        "type": "disc",
        "running": True,
        "being_drained": node.membership.state is NodeState.LEAVING,
        "os_pid": str(facts["pid"]),
        "uptime": int(facts["uptime_s"] * 1000),
        "processors": os.cpu_count(),
        "rates_mode": "basic",
        "mem_limit": facts["memory_limit_bytes"],
        "mem_alarm": NO_MEMORY in facts["alarms"],
        "mem_calculation_strategy": "rss",
        "fd_total": facts["open_files_limit"],
        "sockets_total": node.settings.max_connections,
        "disk_free_limit": facts["disk_free_limit_bytes"],
        "disk_free_alarm": NO_DISK in facts["alarms"],
        "db_dir": str(node.settings.data),
        "log_files": [],
        "config_files": [],
        "enabled_plugins": ["rabbitmq_management"],
        "applications": [{"name": "flyball", "description": "Flyball", "version": flyball.__version__}],
        "exchange_types": EXCHANGE_TYPES,
        "auth_mechanisms": AUTH_MECHANISMS,
        "contexts": contexts(facts),
        "partitions": [],
        "cluster_links": [],
        **detailed(OF_MEMORY, counts, rates),
        **detailed(OF_USE, counts, rates),
        **detailed(OF_CHURN, counts, rates),
    }


def contexts(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the HTTP listeners of a node."""
    about = {"node": facts["name"], "description": "Flyball Management", "path": "/", "ssl_opts": []}
    return [
        {**about, "ip": listener["ip_address"], "port": str(listener["port"])}
        for listener in listeners(facts)
        if listener["protocol"] == "http"
    ]


def listeners(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the listeners of a node."""
    addresses = {protocol: Address.parse(text) for protocol, text in facts["addresses"].items()}
    return [
        {
            "node": facts["name"],
            "protocol": PROTOCOLS.get(protocol, protocol),
            "ip_address": address.host,
            "port": address.port,
            "socket_opts": {},
        }
        for protocol, address in addresses.items()
    ]
