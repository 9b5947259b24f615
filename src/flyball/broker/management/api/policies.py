"""Policies: settings for all queues or exchanges with matching names."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from starlette.responses import Response

from flyball.broker.management.api import fields
from flyball.broker.management.api.context import Body, Call, Right, Routes
from flyball.errors import NotPermitted, PolicyNotFound
from flyball.model import Policy

_BODY = Body(
    {"pattern": "string", "definition": "object", "apply-to": "string", "priority": "integer"},
    ("pattern", "definition"),
)


routes = Routes()


@routes.get("/policies", is_list=True)
@routes.get("/policies/{vhost}", is_list=True)
async def list_policies(call: Call) -> Response:
    """List the visible policies, or those of a vhost, in order of precedence."""
    found = [policy for vhost in call.vhosts for policy in call.authority.policies.of_vhost(vhost)]
    return await call.many(found, document_of, {"name": attrgetter("name")})


@routes.get("/policies/{vhost}/{name}")
async def show_policy(call: Call) -> Response:
    """Return a policy."""
    return call.one(document_of(_found(call)))


@routes.put("/policies/{vhost}/{name}", Right.POLICYMAKER, _BODY)
async def set_policy(call: Call) -> Response:
    """Create or replace a policy."""
    _check_change(call)
    vhost, name = call.vhost, call.part("name")
    document = await call.document()
    is_new = call.authority.policies.find(vhost, name) is None
    await call.authority.set_policy(Policy(name=name, vhost=vhost, **settings_of(document)))
    return await call.changed(is_new=is_new)


@routes.delete("/policies/{vhost}/{name}", Right.POLICYMAKER)
async def clear_policy(call: Call) -> Response:
    """Delete a policy."""
    _check_change(call)
    policy = _found(call)
    await call.authority.clear_policy(policy.vhost, policy.name)
    return await call.changed()


def settings_of(document: fields.Document) -> dict[str, Any]:
    """Return the settings of a policy in a document. Raises InvalidArgument."""
    return {
        "pattern": fields.text(document, "pattern"),
        "definition": fields.table(document, "definition"),
        "apply_to": fields.text(document, "apply-to", "all"),
        "priority": fields.number(document, "priority", 0),
    }


def document_of(policy: Policy) -> dict[str, Any]:
    """Return a policy's document."""
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": dict(policy.definition),
        "priority": policy.priority,
    }


def _check_change(call: Call) -> None:
    """Raise NotPermitted for users with the tag monitoring only: they may read, not change."""
    vhost = call.vhost
    if not (call.has(Right.ADMINISTRATOR) or call.access.may_enter(call.user.name, vhost)):
        raise NotPermitted(f"user '{call.user.name}' has no permission in vhost '{vhost}'")


def _found(call: Call) -> Policy:
    vhost, name = call.vhost, call.part("name")
    found = call.authority.policies.find(vhost, name)
    if found is None:
        raise PolicyNotFound(name, vhost)
    return found
