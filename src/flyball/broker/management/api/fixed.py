"""What RabbitMQ's API knows and Flyball does not have: empty lists, so that tools which ask for all of it go on."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from flyball.broker.management.api.answers import answer, not_found
from flyball.broker.management.api.context import About, ApiContext, ApiRoute, Call, Right

EMPTY = (
    ("/extensions", Right.MANAGEMENT),
    ("/global-parameters", Right.POLICYMAKER),
    ("/federation-links", Right.MONITORING),
    ("/federation-links/{vhost}", Right.MONITORING),
    ("/feature-flags", Right.MANAGEMENT),
)
"""Paths of lists, and who may ask for them."""

MISSING = (("/global-parameters/{name}", Right.POLICYMAKER),)
"""Paths of single things, of which there are none."""


def routes(context: ApiContext) -> list[ApiRoute]:
    about = About(Right.ANYBODY, (show_auth.__doc__ or "").strip())
    return [
        *(context.get(path, list_nothing, right, is_list=True) for path, right in EMPTY),
        *(context.get(path, show_nothing, right) for path, right in MISSING),
        # Who wants to log in asks for this before.
        ApiRoute("/auth", show_auth, "GET", about),
    ]


async def list_nothing(call: Call) -> Response:
    """An empty list: there is nothing of the kind."""
    if "vhost" in call.request.path_params:
        call.context.access.check_vhost(call.vhost)
    return await call.many([], dict, {})


async def show_nothing(call: Call) -> Response:
    """Not found: there is nothing of the kind."""
    raise not_found(f"{call.request.url.path} does not exist: Flyball has nothing of the kind")


async def show_auth(request: Request) -> Response:
    """How to log in: with name and password, not with OAuth."""
    return answer({"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""})
