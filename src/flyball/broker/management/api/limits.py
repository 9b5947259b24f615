"""Limits of vhosts and users: connections, queues, channels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from starlette.responses import Response

from flyball.broker.management.api.answers import not_found
from flyball.broker.management.api.context import Body, Call, Right, Routes
from flyball.errors import InvalidArgument

COMPONENT = "vhost-limits"
# Name of RabbitMQ's parameter that holds the limits of a vhost.
NAME = "limits"

# A vhost or user, and its limits.
Entry = tuple[str, Mapping[str, int]]

_BODY = Body({"value": "integer"}, ("value",))

routes = Routes()


@routes.get("/vhost-limits", is_list=True)
@routes.get("/vhost-limits/{vhost}", is_list=True)
async def list_vhost_limits(call: Call) -> Response:
    """List the limits of all visible vhosts, or of one: one entry, or none."""
    return await _listed(call, "vhost", _visible(call))


@routes.get("/user-limits", is_list=True)
@routes.get("/user-limits/{user}", is_list=True)
async def list_user_limits(call: Call) -> Response:
    """List the limits of all users, or of one: one entry, or none."""
    found = call.authority.user_limits.all()
    if "user" in call.request.path_params:
        user = call.access.user(call.part("user")).name
        found = [entry for entry in found if entry[0] == user]
    return await _listed(call, "user", found)


@routes.put("/vhost-limits/{vhost}/{name}", Right.ADMINISTRATOR, _BODY)
@routes.put("/user-limits/{user}/{name}", Right.ADMINISTRATOR, _BODY)
async def set_limit(call: Call) -> Response:
    """Set a limit: max-connections; max-queues of a vhost; max-channels of a user. A negative value removes it."""
    limits, change = _changing(call)
    document = await call.document()
    if "value" not in document:
        raise InvalidArgument("missing field 'value'")
    await change({**limits, call.part("name"): document["value"]})
    return await call.changed()


@routes.delete("/vhost-limits/{vhost}/{name}", Right.ADMINISTRATOR)
@routes.delete("/user-limits/{user}/{name}", Right.ADMINISTRATOR)
async def clear_limit(call: Call) -> Response:
    """Remove a limit of a vhost or user, if there is one."""
    limits, change = _changing(call)
    await change({name: value for name, value in limits.items() if name != call.part("name")})
    return await call.changed()


def _changing(call: Call) -> tuple[Mapping[str, int], Callable[[Mapping[str, object]], Awaitable[None]]]:
    """Return the limits that the path names, and the function that changes them."""
    authority = call.authority
    if "user" in call.request.path_params:
        user = call.access.user(call.part("user")).name
        return authority.user_limits.of(user), partial(authority.set_user_limits, user)
    return authority.vhost_limits.of(call.vhost), partial(authority.set_vhost_limits, call.vhost)


# As parameters


@routes.get("/parameters", Right.POLICYMAKER, is_list=True)
@routes.get("/parameters/{component}", Right.POLICYMAKER, is_list=True)
@routes.get("/parameters/{component}/{vhost}", Right.POLICYMAKER, is_list=True)
async def list_parameters(call: Call) -> Response:
    """List the parameters: limits of vhosts only."""
    wanted = call.request.path_params
    found = _visible(call)
    if wanted.get("component", COMPONENT) != COMPONENT:
        found = []
    return await call.many(found, parameter_of, {"vhost": lambda entry: entry[0]})


@routes.get("/parameters/{component}/{vhost}/{name}", Right.POLICYMAKER)
async def show_parameter(call: Call) -> Response:
    """Return a parameter: the limits of a vhost."""
    limits = call.authority.vhost_limits.of(call.vhost)
    if (call.part("component"), call.part("name")) != (COMPONENT, NAME) or not limits:
        raise not_found(f"{call.request.url.path} does not exist: Flyball has {COMPONENT} only")
    return call.one(parameter_of((call.vhost, limits)))


def parameter_of(entry: Entry) -> dict[str, Any]:
    """Return the limits of a vhost as a RabbitMQ parameter."""
    vhost, limits = entry
    return {"value": dict(limits), "vhost": vhost, "component": COMPONENT, "name": NAME}


def _visible(call: Call) -> list[Entry]:
    visible = frozenset(call.vhosts)
    return [each for each in call.authority.vhost_limits.all() if each[0] in visible]


async def _listed(call: Call, kind: str, found: Sequence[Entry]) -> Response:
    return await call.many(
        found, lambda entry: {kind: entry[0], "value": dict(entry[1])}, {kind: lambda entry: entry[0]}
    )


async def _value(call: Call) -> object:
    document = await call.document()
    if "value" not in document:
        raise InvalidArgument("missing field 'value'")
    return document["value"]
