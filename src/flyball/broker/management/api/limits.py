"""Limits of virtual hosts and users: how many connections, queues and channels they may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from flyball.broker.management.api.answers import done, not_found
from flyball.broker.management.api.context import ApiContext, ApiRoute, Body, Call, Right
from flyball.errors import InvalidArgument

COMPONENT = "vhost-limits"
NAME = "limits"
"""What RabbitMQ keeps the limits of a virtual host under, as a parameter."""

Entry = tuple[str, Mapping[str, int]]
"""A virtual host or a user, and its limits."""

_BODY = Body({"value": "integer"}, ("value",))


def routes(context: ApiContext) -> list[ApiRoute]:
    admin, maker = Right.ADMINISTRATOR, Right.POLICYMAKER
    return [
        context.get("/vhost-limits", list_vhost_limits, is_list=True),
        context.get("/vhost-limits/{vhost}", show_vhost_limits, is_list=True),
        context.put("/vhost-limits/{vhost}/{name}", set_vhost_limit, admin, _BODY),
        context.delete("/vhost-limits/{vhost}/{name}", clear_vhost_limit, admin),
        context.get("/user-limits", list_user_limits, is_list=True),
        context.get("/user-limits/{user}", show_user_limits, is_list=True),
        context.put("/user-limits/{user}/{name}", set_user_limit, admin, _BODY),
        context.delete("/user-limits/{user}/{name}", clear_user_limit, admin),
        context.get("/parameters", list_parameters, maker, is_list=True),
        context.get("/parameters/{component}", list_parameters, maker, is_list=True),
        context.get("/parameters/{component}/{vhost}", list_parameters, maker, is_list=True),
        context.get("/parameters/{component}/{vhost}/{name}", show_parameter, maker),
    ]


# Virtual hosts


async def list_vhost_limits(call: Call) -> Response:
    """List the limits of all virtual hosts that the user sees."""
    return await _listed(call, "vhost", _visible(call))


async def show_vhost_limits(call: Call) -> Response:
    """List the limits of a virtual host: one entry, or none."""
    vhost = call.vhost
    call.context.access.check_vhost(vhost)
    return await _listed(call, "vhost", [each for each in _visible(call) if each[0] == vhost])


async def set_vhost_limit(call: Call) -> Response:
    """Set a limit of a virtual host, max-connections or max-queues; below 0 is none."""
    vhost = call.vhost
    call.context.access.check_vhost(vhost)
    value = await _value(call)
    limits = {**call.authority.vhost_limits.of(vhost), call.part("name"): value}
    await call.authority.set_vhost_limits(vhost, limits)
    await call.followed()
    return done()


async def clear_vhost_limit(call: Call) -> Response:
    """Remove a limit of a virtual host; it is no error if there is none."""
    vhost = call.vhost
    limits = call.authority.vhost_limits.of(vhost)
    limits.pop(call.part("name"), None)
    await call.authority.set_vhost_limits(vhost, limits)
    await call.followed()
    return done()


# Users


async def list_user_limits(call: Call) -> Response:
    """List the limits of all users."""
    return await _listed(call, "user", call.authority.user_limits.all())


async def show_user_limits(call: Call) -> Response:
    """List the limits of a user: one entry, or none."""
    user = call.context.access.user(call.part("user")).name
    limits = call.authority.user_limits.of(user)
    return await _listed(call, "user", [(user, limits)] if limits else [])


async def set_user_limit(call: Call) -> Response:
    """Set a limit of a user, max-connections or max-channels; below 0 is none."""
    user = call.context.access.user(call.part("user")).name
    value = await _value(call)
    limits = {**call.authority.user_limits.of(user), call.part("name"): value}
    await call.authority.set_user_limits(user, limits)
    await call.followed()
    return done()


async def clear_user_limit(call: Call) -> Response:
    """Remove a limit of a user; it is no error if there is none."""
    user = call.part("user")
    limits = call.authority.user_limits.of(user)
    limits.pop(call.part("name"), None)
    await call.authority.set_user_limits(user, limits)
    await call.followed()
    return done()


# As parameters


async def list_parameters(call: Call) -> Response:
    """List the parameters: the limits of virtual hosts. There are no others."""
    wanted = call.request.path_params
    found = _visible(call) if wanted.get("component", COMPONENT) == COMPONENT else []
    if "vhost" in wanted:
        call.context.access.check_vhost(call.vhost)
        found = [each for each in found if each[0] == call.vhost]
    return await call.many(found, parameter_of, {"vhost": lambda entry: entry[0]})


async def show_parameter(call: Call) -> Response:
    """Show a parameter: the limits of a virtual host."""
    limits = call.authority.vhost_limits.of(call.vhost)
    if (call.part("component"), call.part("name")) != (COMPONENT, NAME) or not limits:
        raise not_found(f"{call.request.url.path} does not exist: Flyball has {COMPONENT} only")
    return call.one(parameter_of((call.vhost, limits)))


def parameter_of(entry: Entry) -> dict[str, Any]:
    """Return the limits of a virtual host in the form of RabbitMQ's parameters."""
    vhost, limits = entry
    return {"value": dict(limits), "vhost": vhost, "component": COMPONENT, "name": NAME}


def _visible(call: Call) -> list[Entry]:
    visible = frozenset(call.visible_vhosts())
    return [each for each in call.authority.vhost_limits.all() if each[0] in visible]


async def _listed(call: Call, kind: str, found: Sequence[Entry]) -> Response:
    return await call.many(
        found, lambda entry: {kind: entry[0], "value": dict(entry[1])}, {kind: lambda entry: entry[0]}
    )


async def _value(call: Call) -> object:
    document = await call.document()
    if "value" not in document:
        raise InvalidArgument("the field 'value' is missing")
    return document["value"]
