"""What RabbitMQ changes of users only together: the password without the tags, the tags without the password."""

from __future__ import annotations

from starlette.responses import Response

from flyball.broker.management.api import fields
from flyball.broker.management.api.answers import done
from flyball.broker.management.api.context import ApiContext, ApiRoute, Body, Call, Right
from flyball.errors import InvalidArgument


def routes(context: ApiContext) -> list[ApiRoute]:
    admin = Right.ADMINISTRATOR
    password, tags = Body({"password": "string"}, ("password",)), Body({"tags": "array"}, ("tags",))
    return [
        context.put("/flyball/users/{name}/password", change_password, admin, password),
        context.put("/flyball/users/{name}/tags", set_tags, admin, tags),
    ]


async def change_password(call: Call) -> Response:
    """Give a user another password; null for none: it can log in with a certificate only then."""
    document = await call.document()
    if "password" not in document:
        raise InvalidArgument("the field 'password' is missing: give a text, or null for none")
    password = None if document["password"] is None else fields.text(document, "password")
    await call.authority.change_password(call.part("name"), password)
    await call.followed()
    return done()


async def set_tags(call: Call) -> Response:
    """Give a user just these tags."""
    document = await call.document()
    if document.get("tags") is None:
        raise InvalidArgument("the field 'tags' is missing: give a list, it may be empty")
    await call.authority.set_tags(call.part("name"), fields.names(document, "tags"))
    await call.followed()
    return done()
