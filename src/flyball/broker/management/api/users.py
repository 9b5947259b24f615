"""Users: who may log in, with which tags. Their passwords are told to nobody; administrators see hashes of them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

from starlette.responses import Response

from flyball.broker.core.authority import Authority
from flyball.broker.management.api import fields
from flyball.broker.management.api.answers import done
from flyball.broker.management.api.context import ApiContext, ApiRoute, Body, Call, Right
from flyball.errors import InvalidArgument
from flyball.model import User

HASHING_ALGORITHM = "flyball_argon2id"
"""The kind of our hashes, where RabbitMQ names its own."""

_BODY = Body(
    {"tags": "string", "password": "string", "password_hash": "string", "hashing_algorithm": "string"}, ("tags",)
)


def routes(context: ApiContext) -> list[ApiRoute]:
    admin = Right.ADMINISTRATOR
    return [
        context.get("/users", list_users, admin, is_list=True),
        context.get("/users/without-permissions", list_users_without_permissions, admin, is_list=True),
        context.get("/users/{name}", show_user, admin),
        context.put("/users/{name}", put_user, admin, _BODY),
        context.delete("/users/{name}", delete_user, admin),
        context.post("/users/bulk-delete", delete_users, admin, Body({"users": "array"}, ("users",))),
    ]


async def list_users(call: Call) -> Response:
    """List the users."""
    tell = documents_of(call.authority)
    return await call.many(call.context.access.users, tell, {"name": lambda user: user.name})


async def list_users_without_permissions(call: Call) -> Response:
    """List the users that may enter no virtual host."""
    access = call.context.access
    having = {permission.user for permission in access.permissions}
    found = [user for user in access.users if user.name not in having]
    return await call.many(found, documents_of(call.authority), {"name": lambda user: user.name})


async def show_user(call: Call) -> Response:
    """Show a user."""
    tell = documents_of(call.authority)
    return call.one(tell(call.context.access.user(call.part("name"))))


async def put_user(call: Call) -> Response:
    """Add a user, or change its password and tags; without a password it can log in with a certificate only."""
    name = call.part("name")
    document = await call.document()
    if document.get("tags") is None:
        raise InvalidArgument("the field 'tags' is missing: give a list, it may be empty")
    is_new = call.context.access.find_user(name) is None
    await call.authority.put_user(name, fields.names(document, "tags"), **secret_of(document))
    await call.followed()
    return done(201 if is_new else 204)


async def delete_user(call: Call) -> Response:
    """Delete a user; its connections and sessions end."""
    await call.authority.delete_user(call.part("name"))
    await call.followed()
    return done()


async def delete_users(call: Call) -> Response:
    """Delete several users; those that do not exist are no error."""
    for name in fields.names(await call.document(), "users"):
        if call.context.access.find_user(name) is not None:
            await call.authority.delete_user(name)
    await call.followed()
    return done()


def documents_of(authority: Authority) -> Callable[[User], dict[str, Any]]:
    """Return what tells of users, with their limits."""
    return lambda user: document_of(user, authority.user_limits.of(user.name))


def document_of(user: User, limits: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return what is told of a user."""
    password_hash = "" if user.password_hash is None else base64.b64encode(user.password_hash.encode()).decode()
    return {
        "name": user.name,
        "password_hash": password_hash,
        "hashing_algorithm": HASHING_ALGORITHM,
        "tags": list(user.tags),
        "limits": dict(limits or {}),
    }


def secret_of(document: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the password, or the hash of one, in a document. Raises InvalidArgument for what cannot be used."""
    if document.get("password") is not None:
        return {"password": fields.text(document, "password")}
    encoded = fields.text(document, "password_hash", "")
    if not encoded:
        return {"password": None}
    algorithm = fields.text(document, "hashing_algorithm", "")
    if algorithm != HASHING_ALGORITHM:
        raise InvalidArgument(
            f"a password_hash of {algorithm or 'RabbitMQ'} cannot be checked by Flyball: give a password,"
            f" or a hash of {HASHING_ALGORITHM} that was exported by a node of Flyball"
        )
    try:
        return {"password_hash": base64.b64decode(encoded, validate=True).decode()}
    except (binascii.Error, ValueError):
        raise InvalidArgument("the field 'password_hash' is not encoded in base64") from None
