"""Connections in RabbitMQ's API: listed and closed."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from starlette.responses import Response

from flyball.broker.management import inspection
from flyball.broker.management.api import channels, domain_view
from flyball.broker.management.api.answers import done, not_found
from flyball.broker.management.api.context import ApiContext, Call, Right, Routes
from flyball.broker.management.api.statistics import OF_BYTES, Facts, detailed, rates_of
from flyball.errors import NotPermitted

CLOSE = "close_connection"

# RabbitMQ's default reason.
DEFAULT_REASON = "Closed via management plugin"

KEYS = {name: itemgetter(name) for name in ("name", "user", "vhost", "node", "protocol", "channels", "state")}

routes = Routes()


@routes.get("/connections", is_list=True)
async def list_all(call: Call) -> Response:
    """List the connections of all nodes; without the tag monitoring, the user's own."""
    return await _listed(call, await domain_view.connections(call))


@routes.get("/vhosts/{vhost}/connections", is_list=True)
async def list_of_vhost(call: Call) -> Response:
    """List the connections to a vhost."""
    vhost = call.vhost
    return await _listed(call, [found for found in await domain_view.connections(call) if found["vhost"] == vhost])


@routes.get("/connections/username/{user}", is_list=True)
async def list_of_user(call: Call) -> Response:
    """List the connections of a user."""
    return await _listed(call, await _of_user(call))


@routes.delete("/connections/username/{user}")
async def close_of_user(call: Call) -> Response:
    """Close all connections of a user; the header X-Reason gives the reason."""
    for found in await _of_user(call):
        await _close(call, found)
    return done()


@routes.get("/connections/{name}")
async def show(call: Call) -> Response:
    """Return a connection."""
    return call.one(document(call.context, await _found(call)))


@routes.delete("/connections/{name}")
async def close(call: Call) -> Response:
    """Close a connection; the header X-Reason gives the reason."""
    await _close(call, await _found(call))
    return done()


@routes.get("/connections/{name}/channels", is_list=True)
async def list_channels(call: Call) -> Response:
    """List the channels of a connection."""
    name = (await _found(call))["name"]
    found = [each for each in await domain_view.channels(call) if each["connection_details"]["name"] == name]
    return await channels.listed(call, found)


async def _listed(call: Call, found: Sequence[Facts]) -> Response:
    return await call.many(found, lambda each: document(call.context, each), KEYS)


async def _of_user(call: Call) -> list[Facts]:
    user = call.part("user")
    return [found for found in await domain_view.connections(call) if found["user_who_performed_action"] == user]


async def _found(call: Call) -> Facts:
    name = call.part("name")
    for found in await domain_view.connections(call):
        if found["name"] == name:
            return found
    raise not_found(f"no connection {name!r}")


async def _close(call: Call, found: Facts) -> None:
    """Close a connection on its node: connection names are only unique per node."""
    if found["user_who_performed_action"] != call.user.name and not call.has(Right.ADMINISTRATOR):
        raise NotPermitted(f"user '{call.user.name}' may only close its own connections")
    reason = call.request.headers.get("x-reason") or DEFAULT_REASON
    await call.context.domain_nodes.ask_node(found["node"], CLOSE, {"name": found["name"], "reason": reason})


@routes.peer(CLOSE)
async def close_here(context: ApiContext, name: str, reason: str) -> bool:
    """Close a connection with a reason. Return False if no connection has that name."""
    found = next((each for each in inspection.clients(context.node) if each.name == name), None)
    if found is not None:
        found.expel(reason)
    return found is not None


def document(context: ApiContext, reported: Facts) -> dict[str, Any]:
    """Return a connection's document with rates."""
    rates = rates_of(context.sampler, "connection", (reported["node"], reported["name"]), reported, OF_BYTES)
    found = {**reported, **detailed(OF_BYTES, reported, rates)}
    if "connection_name" in reported["client_properties"]:
        found["user_provided_name"] = reported["client_properties"]["connection_name"]
    return found
