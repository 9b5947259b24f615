"""Connections and how they are closed, as in RabbitMQ's API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.responses import Response

from flyball.broker.management.api import channels, gathering
from flyball.broker.management.api.answers import done, not_found
from flyball.broker.management.api.context import ApiContext, Call, Right, Routes
from flyball.broker.management.api.statistics import OF_BYTES, Facts, detailed, rates_of
from flyball.errors import NotPermitted
from flyball.model import DEFAULT_VHOST

PROTOCOLS = {"amqp": "AMQP 0-9-1", "telesto": "Telesto", "thorbang": "ThorBangMQ"}

DEFAULT_REASON = "Closed via management plugin"
"""What RabbitMQ says where nobody gives a reason."""

KEYS: dict[str, Callable[[Facts], Any]] = {
    "name": lambda facts: facts["name"],
    "user": lambda facts: facts["user"],
    "vhost": lambda facts: facts["vhost"],
    "node": lambda facts: facts["node"],
    "protocol": lambda facts: PROTOCOLS[facts["protocol"]],
    "channels": lambda facts: facts["channels"],
    "state": lambda facts: facts["state"],
}


routes = Routes()


@routes.get("/connections", is_list=True)
async def list_all(call: Call) -> Response:
    """All connections of all nodes; without the tag monitoring, the user's own."""
    return await _listed(call, await gathering.connections(call))


@routes.get("/vhosts/{vhost}/connections", is_list=True)
async def list_of_vhost(call: Call) -> Response:
    """The connections to a virtual host."""
    vhost = call.vhost
    return await _listed(call, [facts for facts in await gathering.connections(call) if _vhost(facts) == vhost])


@routes.get("/connections/username/{user}", is_list=True)
async def list_of_user(call: Call) -> Response:
    """The connections of a user."""
    return await _listed(call, await _of_user(call))


@routes.delete("/connections/username/{user}")
async def close_of_user(call: Call) -> Response:
    """Close all connections of a user; the header X-Reason may say why."""
    for facts in await _of_user(call):
        _check_closing(call, facts)
        await gathering.close_connection(call, facts, _reason(call))
    return done()


@routes.get("/connections/{name}")
async def show(call: Call) -> Response:
    """A connection."""
    return call.one(document(call.context, await _found(call)))


@routes.delete("/connections/{name}")
async def close(call: Call) -> Response:
    """Close a connection; the header X-Reason may say why."""
    facts = await _found(call)
    _check_closing(call, facts)
    await gathering.close_connection(call, facts, _reason(call))
    return done()


@routes.get("/connections/{name}/channels", is_list=True)
async def list_channels(call: Call) -> Response:
    """The channels of a connection."""
    name = (await _found(call))["name"]
    found = [facts for facts in await gathering.channels(call) if facts["connection"] == name]
    return await channels.listed(call, found)


async def _listed(call: Call, found: Sequence[Facts]) -> Response:
    return await call.many(found, lambda facts: document(call.context, facts), KEYS)


async def _of_user(call: Call) -> list[Facts]:
    user = call.part("user")
    return [facts for facts in await gathering.connections(call) if facts["user"] == user]


async def _found(call: Call) -> Facts:
    name = call.part("name")
    for facts in await gathering.connections(call):
        if facts["name"] == name:
            return facts
    raise not_found(f"no connection {name!r}")


def _check_closing(call: Call, facts: Facts) -> None:
    if facts["user"] != call.user.name and not call.has(Right.ADMINISTRATOR):
        raise NotPermitted(f"user '{call.user.name}' may close its own connections only")


def _reason(call: Call) -> str:
    return call.request.headers.get("x-reason") or DEFAULT_REASON


def _vhost(facts: Facts) -> str:
    """Return where a connection is; protocols that know no virtual hosts are in the default one."""
    return facts["vhost"] or DEFAULT_VHOST


def document(context: ApiContext, facts: Facts) -> dict[str, Any]:
    """Return a connection as RabbitMQ tells it."""
    rates = rates_of(context.sampler, "connection", (facts["node"], facts["name"]), facts, OF_BYTES)
    subject = facts["certificate_name"]
    found = {
        "name": facts["name"],
        "node": facts["node"],
        "type": "network",
        "protocol": PROTOCOLS[facts["protocol"]],
        "user": facts["user"] or facts["client_name"] or "",
        "user_who_performed_action": facts["user"] or "",
        "vhost": _vhost(facts),
        "state": facts["state"],
        "host": facts["host"],
        "port": facts["port"],
        "peer_host": facts["peer_host"],
        "peer_port": facts["peer_port"],
        "peer_cert_subject": "" if subject is None else f"CN={subject}",
        "ssl": facts["tls"],
        "ssl_protocol": facts["tls_protocol"] or "",
        "ssl_cipher": facts["tls_cipher"] or "",
        "auth_mechanism": facts["auth_mechanism"],
        "client_properties": facts["client_properties"],
        "connected_at": int(facts["connected_at_s"] * 1000),
        "timeout": facts["heartbeat_s"],
        "frame_max": facts["frame_max"],
        "channel_max": facts["channel_max"],
        "channels": facts["channels"],
        **detailed(OF_BYTES, facts, rates),
    }
    if "connection_name" in facts["client_properties"]:
        found["user_provided_name"] = facts["client_properties"]["connection_name"]
    return found
