"""Permissions: what users may do in virtual hosts. There are none by topics: lists of those are empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from starlette.responses import Response

from flyball.broker.management.api import fields
from flyball.broker.management.api.answers import answer, done, not_found
from flyball.broker.management.api.context import ApiContext, ApiRoute, Body, Call, Right
from flyball.errors import InvalidArgument
from flyball.model import Permission

_PATTERNS = ("configure", "write", "read")
_BODY = Body(dict.fromkeys(_PATTERNS, "string"), _PATTERNS)


def routes(context: ApiContext) -> list[ApiRoute]:
    admin = Right.ADMINISTRATOR
    return [
        context.get("/permissions", list_permissions, admin, is_list=True),
        context.get("/vhosts/{vhost}/permissions", list_permissions_in_vhost, admin, is_list=True),
        context.get("/users/{user}/permissions", list_permissions_of_user, admin, is_list=True),
        context.get("/permissions/{vhost}/{user}", show_permission, admin),
        context.put("/permissions/{vhost}/{user}", set_permission, admin, _BODY),
        context.delete("/permissions/{vhost}/{user}", clear_permission, admin),
        context.get("/topic-permissions", list_topic_permissions, admin, is_list=True),
        context.get("/vhosts/{vhost}/topic-permissions", list_topic_permissions_in_vhost, admin, is_list=True),
        context.get("/users/{user}/topic-permissions", list_topic_permissions_of_user, admin, is_list=True),
        context.get("/topic-permissions/{vhost}/{user}", show_topic_permission, admin),
        context.put("/topic-permissions/{vhost}/{user}", refuse_topic_permission, admin),
        context.delete("/topic-permissions/{vhost}/{user}", show_topic_permission, admin),
    ]


async def list_permissions(call: Call) -> Response:
    """List all permissions."""
    return await _listed(call, call.context.access.permissions)


async def list_permissions_in_vhost(call: Call) -> Response:
    """List what users may do in a virtual host."""
    vhost = call.vhost
    return await _listed(call, [found for found in call.context.access.permissions if found.vhost == vhost])


async def list_permissions_of_user(call: Call) -> Response:
    """List what a user may do in virtual hosts."""
    user = call.context.access.user(call.part("user"))
    return await _listed(call, [found for found in call.context.access.permissions if found.user == user.name])


async def show_permission(call: Call) -> Response:
    """Show what a user may do in a virtual host."""
    return call.one(asdict(_found(call)))


async def set_permission(call: Call) -> Response:
    """Let a user do just this in a virtual host."""
    vhost, user = call.vhost, call.context.access.user(call.part("user")).name
    document = await call.document()
    is_new = call.context.access.find_permission(user, vhost) is None
    patterns = {pattern: fields.text(document, pattern) for pattern in _PATTERNS}
    await call.authority.set_permission(Permission(user, vhost, **patterns))
    await call.followed()
    return done(201 if is_new else 204)


async def clear_permission(call: Call) -> Response:
    """Shut a user out of a virtual host."""
    permission = _found(call)
    await call.authority.clear_permission(permission.user, permission.vhost)
    await call.followed()
    return done()


async def list_topic_permissions(call: Call) -> Response:
    """List the permissions by topics: there are none."""
    return answer([])


async def list_topic_permissions_in_vhost(call: Call) -> Response:
    """List the permissions by topics in a virtual host: there are none."""
    _ = call.vhost
    return answer([])


async def list_topic_permissions_of_user(call: Call) -> Response:
    """List the permissions by topics of a user: there are none."""
    call.context.access.user(call.part("user"))
    return answer([])


async def refuse_topic_permission(call: Call) -> Response:
    """Refuse a permission by topics: there are none."""
    raise InvalidArgument(
        "Flyball has no permissions by topics: who may write to a topic exchange may use every routing key;"
        " give permissions on exchanges instead"
    )


async def show_topic_permission(call: Call) -> Response:
    """Find a permission by topics: there is none."""
    raise not_found("there are no permissions by topics")


def _found(call: Call) -> Permission:
    vhost, user = call.vhost, call.context.access.user(call.part("user")).name
    found = call.context.access.find_permission(user, vhost)
    if found is None:
        raise not_found(f"user '{user}' has no permission in vhost '{vhost}'")
    return found


async def _listed(call: Call, permissions: Sequence[Permission]) -> Response:
    return await call.many(permissions, asdict, {"name": lambda permission: permission.user})
