"""Vhosts with their totals, in RabbitMQ's API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.responses import Response

from flyball.broker.management.api import domain_view
from flyball.broker.management.api.answers import done, in_slices
from flyball.broker.management.api.context import ApiContext, Body, Call, Right, Routes
from flyball.broker.management.api.statistics import (
    OF_BYTES,
    OF_LENGTH,
    OF_QUEUE,
    Facts,
    detailed,
    message_stats,
    rates_of,
)
from flyball.broker.management.inspection import COUNTS
from flyball.model import DEFAULT_VHOST, OWNER, Permission

COUNTED = (*OF_LENGTH.values(), *OF_QUEUE.values(), *OF_BYTES.values())

# Counters summed over queues. A message routed to two queues was published once.
OF_QUEUES = tuple(name for name in COUNTED if name in COUNTS and name != "published")

KEYS: dict[str, Callable[[Facts], Any]] = {"name": lambda facts: facts["name"]}


routes = Routes()


@routes.get("/vhosts", is_list=True)
async def list_all(call: Call) -> Response:
    """List all visible vhosts."""
    found = await sums(call, call.visible_vhosts())
    return await call.many(found, lambda facts: document(call.context, facts), KEYS)


@routes.get("/vhosts/{vhost}")
async def show(call: Call) -> Response:
    """Return a vhost."""
    (facts,) = await sums(call, [call.vhost])
    return call.one(document(call.context, facts))


async def sums(call: Call, vhosts: Sequence[str]) -> list[Facts]:
    """Return the totals of the vhosts, over all nodes."""
    found: dict[str, dict[str, Any]] = {vhost: {"name": vhost, **dict.fromkeys(COUNTED, 0)} for vhost in vhosts}

    async for some in in_slices(await domain_view.queues(call, found.keys())):
        for queue in some:
            total = found[queue.vhost]
            for name in OF_QUEUES:
                total[name] += queue.count(name) or 0
    async for others in in_slices(await call.context.domain_nodes.list_all("connections")):
        for facts in others:
            if facts["vhost"] in found:
                for name in OF_BYTES:
                    found[facts["vhost"]][name] += facts[name]
    for (vhost, _), published in (await domain_view.published_by_exchange(call)).items():
        if vhost in found:
            found[vhost]["published"] += published
    return list(found.values())


def document(context: ApiContext, facts: Facts) -> dict[str, Any]:
    """Return a vhost as RabbitMQ's document."""
    name = facts["name"]
    description = "Default virtual host" if name == DEFAULT_VHOST else ""
    rates = rates_of(context.sampler, "vhost", name, facts, OF_LENGTH, OF_QUEUE, OF_BYTES)
    return {
        "name": name,
        "description": description,
        "tags": [],
        "default_queue_type": "classic",
        "metadata": {"description": description, "tags": []},
        "tracing": False,
        "cluster_state": {
            node: "running" for node, record in domain_view.nodes(context.node).items() if record.is_live
        },
        **detailed(OF_LENGTH, facts, rates),
        **detailed(OF_BYTES, facts, rates),
        "message_stats": message_stats(OF_QUEUE, facts, rates),
    }


# Changes


@routes.put("/vhosts/{name}", Right.ADMINISTRATOR, Body({"description": "string", "tags": "string"}))
async def add_vhost(call: Call) -> Response:
    """Create a vhost, with full permissions for the user; an existing one is unchanged."""
    name = call.part("name")
    await call.document()
    if call.access.has_vhost(name):
        return done()
    await call.authority.add_vhost(name)
    if call.user.name != OWNER:
        await call.authority.set_permission(Permission(call.user.name, name, ".*", ".*", ".*"))
    return await call.changed(is_new=True)


@routes.delete("/vhosts/{name}", Right.ADMINISTRATOR)
async def delete_vhost(call: Call) -> Response:
    """Delete a vhost with all its contents."""
    await call.authority.delete_vhost(call.part("name"))
    return await call.changed()
