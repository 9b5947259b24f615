"""Serves HTTP for a node: one application with all routes. The routes are defined in the modules that handle them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.routing import BaseRoute

from flyball.broker.cluster.http import NodePlaces, placement_routes
from flyball.broker.management import openapi, probes, resources
from flyball.broker.management.api.context import ApiContext
from flyball.broker.management.console import assets
from flyball.broker.management.domain_nodes import DomainNodes
from flyball.broker.management.login import ConsoleLogin
from flyball.broker.management.middleware import cuttable, without_trailing_slash
from flyball.broker.management.node_sampler import Sampler
from flyball.broker.node.node import Node, NodePart
from flyball.broker.node.process import HTTP_CONNECTIONS
from flyball.broker.transport.http import make_app, serving
from flyball.broker.transport.http_peers import behind, own_names


def _login(context: ApiContext) -> Sequence[BaseRoute]:
    return context.login.routes()


def _placement(context: ApiContext) -> list[BaseRoute]:
    return [*placement_routes(context.login, NodePlaces(context.node))]


RouteFactory = Callable[[ApiContext], Sequence[BaseRoute]]

# Route factories. The first route that matches a path wins.
FACTORIES: tuple[RouteFactory, ...] = (probes.routes, _login, _placement, resources.routes)


def console_part(factories: Sequence[RouteFactory] = FACTORIES) -> NodePart:
    """Return the node part that serves HTTP, unless the settings disable it.

    Requests of other nodes about this one are answered in any case.
    """

    @contextlib.asynccontextmanager
    async def part(node: Node) -> AsyncIterator[None]:
        sampler = Sampler(node)
        domain_nodes = DomainNodes(node, sampler)
        domain_nodes.install()
        async with asyncio.TaskGroup() as tasks:
            sampling = node.supervisor.within(tasks).keep("console sampling", sampler.run)
            try:
                login = ConsoleLogin(node.hub.authority, node.hub.peering.name, node.addresses)
                context = ApiContext(node, sampler, domain_nodes, login)
                # Factories also register answers for peers, which are needed without an HTTP listener.
                routes = [route for factory in factories for route in factory(context)]
                if node.settings.http is None:
                    yield
                    return
                served = make_app([*routes, *openapi.routes(routes), *assets.routes()])
                app = cuttable(without_trailing_slash(served))
                app = behind(app, node.settings.http_proxies, own_names(node.settings))
                inherited = node.manager.inherited("http")
                async with serving(app, node.settings.http, HTTP_CONNECTIONS, node.supervisor, inherited) as address:
                    node.addresses["http"] = address
                    # Flyball's own client uses it for operations that AMQP lacks.
                    node.amqp.server_properties["flyball_http_port"] = address.port
                    try:
                        yield
                    finally:
                        for stop in context.on_stop:
                            stop()
            finally:
                sampling.cancel()

    return part
