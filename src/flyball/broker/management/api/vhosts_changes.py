"""Virtual hosts added and deleted. What there are is told in `vhosts`."""

from __future__ import annotations

from starlette.responses import Response

from flyball.broker.management.api.answers import done
from flyball.broker.management.api.context import ApiContext, ApiRoute, Body, Call, Right
from flyball.broker.management.commands import manage


def routes(context: ApiContext) -> list[ApiRoute]:
    admin = Right.ADMINISTRATOR
    return [
        context.put("/vhosts/{name}", add_vhost, admin, Body({"description": "string", "tags": "string"})),
        context.delete("/vhosts/{name}", delete_vhost, admin),
    ]


async def add_vhost(call: Call) -> Response:
    """Add a virtual host, where the user may do everything then; one that exists stays as it is."""
    name, hub = call.part("name"), call.node.hub
    await call.document()
    if call.context.access.has_vhost(name):
        return done()
    await manage(hub, "vhost.add", {"name": name})
    everything = dict.fromkeys(("configure", "write", "read"), ".*")
    await manage(hub, "permission.set", {"user": call.user.name, "vhost": name, **everything})
    return done(201)


async def delete_vhost(call: Call) -> Response:
    """Delete a virtual host and all that is in it."""
    await manage(call.node.hub, "vhost.delete", {"name": call.part("name")})
    return done()
