"""All resources of the API. The order matters where a path matches two routes: the first one wins."""

from __future__ import annotations

from collections.abc import Sequence

from flyball.broker.management import metrics
from flyball.broker.management.api import (
    absent,
    bindings,
    channels,
    connections,
    definitions,
    domain_view,
    exchanges,
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
from flyball.broker.management.api.context import ApiContext, ApiRoute, Routes
from flyball.broker.management.flyball_api import (
    admission,
    clients,
    domain,
    experiments,
    loops,
    models,
    reports,
    status,
    stream,
    topics,
)
from flyball.broker.management.flyball_api import messages as browsing

RESOURCES: Sequence[Routes] = (
    domain_view.routes,
    overview.routes,
    nodes.routes,
    connections.routes,
    channels.routes,
    exchanges.routes,
    queues.routes,
    parked.routes,
    bindings.routes,
    vhosts.routes,
    health.routes,
    absent.routes,
    limits.routes,
    users.routes,
    permissions.routes,
    policies.routes,
    definitions.routes,
    messages.routes,
    loops.routes,
    domain.routes,
    models.routes,
    clients.routes,
    topics.routes,
    status.routes,
    browsing.routes,
    experiments.routes,
    reports.routes,
    metrics.routes,
)


def routes(context: ApiContext) -> list[ApiRoute]:
    """Return all routes for a node, and register their answers for peers."""
    admissions = admission.Admissions(context.node)
    context.sampler.on_sample.append(admissions.tick)
    of_this = (stream.routes(context, admissions), admission.routes(context, admissions))
    return [absent.AUTH, *(route for resource in (*RESOURCES, *of_this) for route in resource.made(context))]
