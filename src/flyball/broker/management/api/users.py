"""Users and their tags. Passwords are never returned; administrators see hashes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from starlette.responses import Response

from flyball.broker.core.authority import Authority
from flyball.broker.management.api import fields
from flyball.broker.management.api.context import Body, Call, Right, Routes
from flyball.errors import InvalidArgument
from flyball.model import User

# Name of Flyball's hashing algorithm, in RabbitMQ's field.
HASHING_ALGORITHM = "flyball_argon2id"

KEYS = {"name": attrgetter("name")}

_BODY = Body(
    {"tags": "string", "password": "string", "password_hash": "string", "hashing_algorithm": "string"}, ("tags",)
)


routes = Routes()


@routes.get("/users", Right.ADMINISTRATOR, is_list=True)
async def list_users(call: Call) -> Response:
    """List the users."""
    return await call.many(call.access.users, documents_of(call.authority), KEYS)


@routes.get("/users/without-permissions", Right.ADMINISTRATOR, is_list=True)
async def list_users_without_permissions(call: Call) -> Response:
    """List the users without permissions in any vhost."""
    access = call.access
    having = {permission.user for permission in access.permissions}
    found = [user for user in access.users if user.name not in having]
    return await call.many(found, documents_of(call.authority), KEYS)


@routes.get("/users/{name}", Right.ADMINISTRATOR)
async def show_user(call: Call) -> Response:
    """Return a user."""
    return call.one(documents_of(call.authority)(call.access.user(call.part("name"))))


@routes.put("/users/{name}", Right.ADMINISTRATOR, _BODY)
async def put_user(call: Call) -> Response:
    """Create a user, or change its password and tags; without a password only a certificate login works."""
    name = call.part("name")
    document = await call.document()
    tags = _tags_in(document)
    is_new = call.access.find_user(name) is None
    await call.authority.put_user(name, tags, **secret_of(document))
    return await call.changed(is_new=is_new)


@routes.delete("/users/{name}", Right.ADMINISTRATOR)
async def delete_user(call: Call) -> Response:
    """Delete a user; its connections and sessions are closed."""
    await call.authority.delete_user(call.part("name"))
    return await call.changed()


@routes.post("/users/bulk-delete", Right.ADMINISTRATOR, Body({"users": "array"}, ("users",)))
async def delete_users(call: Call) -> Response:
    """Delete several users; names that do not exist are ignored."""
    for name in fields.names(await call.document(), "users"):
        if call.access.find_user(name) is not None:
            await call.authority.delete_user(name)
    return await call.changed()


# RabbitMQ changes password and tags only together.


@routes.put("/flyball/users/{name}/password", Right.ADMINISTRATOR, Body({"password": "string"}, ("password",)))
async def change_password(call: Call) -> Response:
    """Change a user's password; null removes it, so that only a certificate login works."""
    document = await call.document()
    if "password" not in document:
        raise InvalidArgument("missing field 'password': use a string, or null for none")
    password = None if document["password"] is None else fields.text(document, "password")
    await call.authority.change_password(call.part("name"), password)
    return await call.changed()


@routes.put("/flyball/users/{name}/tags", Right.ADMINISTRATOR, Body({"tags": "array"}, ("tags",)))
async def set_tags(call: Call) -> Response:
    """Replace the tags of a user."""
    await call.authority.set_tags(call.part("name"), _tags_in(await call.document()))
    return await call.changed()


def _tags_in(document: fields.Document) -> list[str]:
    if document.get("tags") is None:
        raise InvalidArgument("missing field 'tags': use a list, which may be empty")
    return fields.names(document, "tags")


def documents_of(authority: Authority) -> Callable[[User], dict[str, Any]]:
    """Return a function from a user to its document, with limits."""
    return lambda user: {
        "name": user.name,
        "password_hash": base64.b64encode((user.password_hash or "").encode()).decode(),
        "hashing_algorithm": HASHING_ALGORITHM,
        "tags": list(user.tags),
        "limits": dict(authority.user_limits.of(user.name)),
    }


def secret_of(document: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the password or password hash in a document. Raises InvalidArgument for unsupported ones."""
    if document.get("password") is not None:
        return {"password": fields.text(document, "password")}
    encoded = fields.text(document, "password_hash", "")
    if not encoded:
        return {"password": None}
    algorithm = fields.text(document, "hashing_algorithm", "")
    if algorithm != HASHING_ALGORITHM:
        raise InvalidArgument(
            f"Flyball cannot verify a password_hash of {algorithm or 'RabbitMQ'}: use a password,"
            f" or a {HASHING_ALGORITHM} hash that a Flyball node exported"
        )
    try:
        return {"password_hash": base64.b64decode(encoded, validate=True).decode()}
    except (binascii.Error, ValueError):
        raise InvalidArgument("field 'password_hash' is not valid base64") from None
