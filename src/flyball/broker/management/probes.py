"""Probes for load balancers, containers and service managers: no login, no I/O, and no facts about the node.

Each answer is a status and, if it is 503, one of a few fixed reasons. Details are in the health checks, which need a
login.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from flyball.broker.management import inspection
from flyball.broker.management.api.context import ApiContext
from flyball.broker.node.node import Node
from flyball.broker.store.registry import NodeState


def routes(context: ApiContext) -> Sequence[BaseRoute]:
    """Return the routes of the probes."""

    async def show_live(_: Request) -> Response:
        """Answer: the event loop turns."""
        return _answer(None)

    async def show_ready(_: Request) -> Response:
        """Answer whether the node serves clients."""
        return _answer(obstacle(context.node))

    return [Route("/health/live", show_live, methods=["GET"]), Route("/health/ready", show_ready, methods=["GET"])]


def obstacle(node: Node) -> str | None:
    """Return why the node does not serve clients, or None if it does."""
    hub = node.hub
    if hub.is_stopping:
        return "the node is stopping"
    if node.membership.state is not NodeState.UP:
        return "the node is starting"
    if not hub.holds_lease:
        return "the node has lost its lease"
    return "the store does not answer" if inspection.store_is_failing(node) else None


def _answer(reason: str | None) -> Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    if reason is None:
        return JSONResponse({"status": "ok"}, headers=headers)
    return JSONResponse({"status": "failed", "reason": reason}, 503, headers)
