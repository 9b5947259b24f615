"""Flyball's own part of the API, below /api/flyball: what RabbitMQ has no word for.

Loops and admission, the domain and why it changes, topics, clients, the node's status, experiments and reports, and
the stream that shows them live.
"""

from __future__ import annotations

from flyball.broker.management.api.context import ApiContext, ApiRoute
from flyball.broker.management.context import ConsoleContext
from flyball.broker.management.own import (
    admission,
    clients,
    domain,
    experiments,
    loops,
    messages,
    reports,
    status,
    stream,
    topics,
    users,
)

__all__ = ["routes"]


def routes(context: ConsoleContext) -> list[ApiRoute]:
    """Return all routes, and let the other nodes of the domain ask for what they show."""
    api = ApiContext(context.node, context.sampler, context.everywhere, context.login)
    admissions = admission.Admissions(context.node)
    context.sampler.on_sample.append(admissions.tick)
    return [
        *stream.routes(api, admissions, context.on_stop),
        *loops.routes(api),
        *admission.routes(api, admissions),
        *domain.routes(api),
        *clients.routes(api),
        *topics.routes(api),
        *users.routes(api),
        *status.routes(api),
        *messages.routes(api),
        *experiments.routes(api),
        *reports.routes(api),
    ]
