"""All resources of the API, put together. The order matters where a path fits two routes: the first answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flyball.broker.management.api import (
    bindings,
    channels,
    connections,
    consumers,
    definitions,
    exchanges,
    fixed,
    gathering,
    health,
    limits,
    messages,
    nodes,
    overview,
    parked,
    permissions,
    policies,
    queues,
    users,
    vhosts,
)
from flyball.broker.management.api.context import ApiContext, ApiRoute
from flyball.broker.management.context import ConsoleContext

RESOURCES: Sequence[Callable[[ApiContext], list[ApiRoute]]] = (
    overview.routes,
    nodes.routes,
    connections.routes,
    channels.routes,
    consumers.routes,
    exchanges.routes,
    queues.routes,
    parked.routes,
    bindings.routes,
    vhosts.routes,
    health.routes,
    fixed.routes,
    limits.routes,
    users.routes,
    permissions.routes,
    policies.routes,
    definitions.routes,
    messages.routes,
)


def routes(console: ConsoleContext) -> list[ApiRoute]:
    """Return the routes of RabbitMQ's API for a node, and let other nodes ask it for what theirs need."""
    context = ApiContext(console.node, console.sampler, console.everywhere, console.login)
    gathering.install(context)
    nodes.install(context)
    return [route for resource in RESOURCES for route in resource(context)]
