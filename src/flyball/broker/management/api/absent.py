"""Resources of RabbitMQ's API that Flyball does not have: empty lists, so that tools which query all of it work."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from flyball.broker.management.api.answers import answer, not_found
from flyball.broker.management.api.context import PREFIX, About, ApiRoute, Call, Right, Routes
from flyball.errors import InvalidArgument

# Paths of lists, and the right that each needs.
LISTS = {
    "/extensions": Right.MANAGEMENT,
    "/global-parameters": Right.POLICYMAKER,
    "/federation-links": Right.MONITORING,
    "/federation-links/{vhost}": Right.MONITORING,
    "/feature-flags": Right.MANAGEMENT,
    "/topic-permissions": Right.ADMINISTRATOR,
    "/vhosts/{vhost}/topic-permissions": Right.ADMINISTRATOR,
    "/users/{user}/topic-permissions": Right.ADMINISTRATOR,
    "/operator-policies": Right.MANAGEMENT,
    "/operator-policies/{vhost}": Right.MANAGEMENT,
}

TOPIC_PERMISSION = "/topic-permissions/{vhost}/{user}"
OPERATOR_POLICY = "/operator-policies/{vhost}/{name}"

routes = Routes()


async def list_nothing(call: Call) -> Response:
    """List the objects of a kind that Flyball does not have: always empty."""
    if "vhost" in call.request.path_params:
        call.access.check_vhost(call.vhost)
    if "user" in call.request.path_params:
        call.access.user(call.part("user"))
    return await call.many([], dict, {})


for path, right in LISTS.items():
    routes.get(path, right, is_list=True)(list_nothing)


@routes.get("/global-parameters/{name}", Right.POLICYMAKER)
async def show_nothing(call: Call) -> Response:
    """Return 404 for an object of a kind that Flyball does not have."""
    raise not_found(f"{call.request.url.path} does not exist: Flyball does not support this resource")


@routes.get(TOPIC_PERMISSION, Right.ADMINISTRATOR)
@routes.delete(TOPIC_PERMISSION, Right.ADMINISTRATOR)
async def show_topic_permission(call: Call) -> Response:
    """Return 404 for a topic permission: Flyball has none."""
    raise not_found("Flyball has no topic permissions")


@routes.put(TOPIC_PERMISSION, Right.ADMINISTRATOR)
async def refuse_topic_permission(call: Call) -> Response:
    """Refuse a topic permission: Flyball has none."""
    raise InvalidArgument(
        "Flyball has no topic permissions: write permission on a topic exchange covers every routing key;"
        " set permissions on exchanges instead"
    )


@routes.get(OPERATOR_POLICY)
@routes.delete(OPERATOR_POLICY, Right.ADMINISTRATOR)
async def show_operator_policy(call: Call) -> Response:
    """Return 404 for an operator policy: Flyball has none."""
    raise not_found("Flyball has no operator policies")


@routes.put(OPERATOR_POLICY, Right.ADMINISTRATOR)
async def refuse_operator_policy(call: Call) -> Response:
    """Refuse an operator policy: Flyball has none."""
    raise InvalidArgument("Flyball has no operator policies: set a policy with a higher priority instead")


async def show_auth(request: Request) -> Response:
    """Return the login methods: name and password, not OAuth."""
    return answer({"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""})


# Needs no login: clients ask for this before they log in.
AUTH = ApiRoute(PREFIX + "/auth", show_auth, "GET", About(Right.ANY_USER, (show_auth.__doc__ or "").strip()))
