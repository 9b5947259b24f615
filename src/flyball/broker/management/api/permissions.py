"""Permissions of users in vhosts."""

from __future__ import annotations

from dataclasses import asdict
from operator import attrgetter

from starlette.responses import Response

from flyball.broker.management.api import fields
from flyball.broker.management.api.answers import not_found
from flyball.broker.management.api.context import Body, Call, Right, Routes
from flyball.model import Permission

_PATTERNS = ("configure", "write", "read")
_BODY = Body(dict.fromkeys(_PATTERNS, "string"), _PATTERNS)


routes = Routes()


@routes.get("/permissions", Right.ADMINISTRATOR, is_list=True)
@routes.get("/vhosts/{vhost}/permissions", Right.ADMINISTRATOR, is_list=True)
@routes.get("/users/{user}/permissions", Right.ADMINISTRATOR, is_list=True)
async def list_permissions(call: Call) -> Response:
    """List all permissions, those in a vhost, or those of a user."""
    wanted: dict[str, str] = {}
    if "vhost" in call.request.path_params:
        wanted = {"vhost": call.vhost}
    elif "user" in call.request.path_params:
        wanted = {"user": call.access.user(call.part("user")).name}
    found = [each for each in call.access.permissions if wanted.items() <= asdict(each).items()]
    return await call.many(found, asdict, {"name": attrgetter("user")})


@routes.get("/permissions/{vhost}/{user}", Right.ADMINISTRATOR)
async def show_permission(call: Call) -> Response:
    """Return the permissions of a user in a vhost."""
    return call.one(asdict(_found(call)))


@routes.put("/permissions/{vhost}/{user}", Right.ADMINISTRATOR, _BODY)
async def set_permission(call: Call) -> Response:
    """Set the permissions of a user in a vhost."""
    vhost, user = call.vhost, call.access.user(call.part("user")).name
    document = await call.document()
    is_new = call.access.find_permission(user, vhost) is None
    patterns = {pattern: fields.text(document, pattern) for pattern in _PATTERNS}
    await call.authority.set_permission(Permission(user, vhost, **patterns))
    return await call.changed(is_new=is_new)


@routes.delete("/permissions/{vhost}/{user}", Right.ADMINISTRATOR)
async def clear_permission(call: Call) -> Response:
    """Remove the permissions of a user in a vhost."""
    permission = _found(call)
    await call.authority.clear_permission(permission.user, permission.vhost)
    return await call.changed()


def _found(call: Call) -> Permission:
    vhost, user = call.vhost, call.access.user(call.part("user")).name
    found = call.access.find_permission(user, vhost)
    if found is None:
        raise not_found(f"user '{user}' has no permission in vhost '{vhost}'")
    return found
