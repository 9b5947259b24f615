"""What RabbitMQ's API knows and Flyball does not have: empty lists, so that tools which ask for all of it go on."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from flyball.broker.management.api.answers import answer, not_found
from flyball.broker.management.api.context import PREFIX, About, ApiRoute, Call, Right, Routes
from flyball.errors import InvalidArgument

# Paths of lists, and who may ask for them.
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
    """An empty list: there is nothing of the kind."""
    if "vhost" in call.request.path_params:
        call.access.check_vhost(call.vhost)
    if "user" in call.request.path_params:
        call.access.user(call.part("user"))
    return await call.many([], dict, {})


for path, right in LISTS.items():
    routes.get(path, right, is_list=True)(list_nothing)


@routes.get("/global-parameters/{name}", Right.POLICYMAKER)
async def show_nothing(call: Call) -> Response:
    """Not found: there is nothing of the kind."""
    raise not_found(f"{call.request.url.path} does not exist: Flyball has nothing of the kind")


@routes.get(TOPIC_PERMISSION, Right.ADMINISTRATOR)
@routes.delete(TOPIC_PERMISSION, Right.ADMINISTRATOR)
async def show_topic_permission(call: Call) -> Response:
    """Find a permission by topics: there is none."""
    raise not_found("there are no permissions by topics")


@routes.put(TOPIC_PERMISSION, Right.ADMINISTRATOR)
async def refuse_topic_permission(call: Call) -> Response:
    """Refuse a permission by topics: there are none."""
    raise InvalidArgument(
        "Flyball has no permissions by topics: who may write to a topic exchange may use every routing key;"
        " give permissions on exchanges instead"
    )


@routes.get(OPERATOR_POLICY)
@routes.delete(OPERATOR_POLICY, Right.ADMINISTRATOR)
async def show_operator_policy(call: Call) -> Response:
    """Show a policy of an operator: there is none."""
    raise not_found("there are no policies of operators")


@routes.put(OPERATOR_POLICY, Right.ADMINISTRATOR)
async def refuse_operator_policy(call: Call) -> Response:
    """Refuse a policy of an operator: there are none."""
    raise InvalidArgument("Flyball has no policies of operators: set a policy with a higher priority instead")


async def show_auth(request: Request) -> Response:
    """How to log in: with name and password, not with OAuth."""
    return answer({"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""})


# Who wants to log in asks for this before.
AUTH = ApiRoute(PREFIX + "/auth", show_auth, "GET", About(Right.ANYBODY, (show_auth.__doc__ or "").strip()))
