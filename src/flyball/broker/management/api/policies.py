"""Policies: settings for all queues or exchanges whose names fit. There are none of operators."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from flyball.broker.management.api import fields
from flyball.broker.management.api.answers import answer, done, not_found
from flyball.broker.management.api.context import ApiContext, ApiRoute, Body, Call, Right
from flyball.errors import InvalidArgument, NotPermitted, PolicyNotFound
from flyball.model import Policy

_BODY = Body(
    {"pattern": "string", "definition": "object", "apply-to": "string", "priority": "integer"},
    ("pattern", "definition"),
)


def routes(context: ApiContext) -> list[ApiRoute]:
    maker = Right.POLICYMAKER
    return [
        context.get("/policies", list_policies, is_list=True),
        context.get("/policies/{vhost}", list_policies_in_vhost, is_list=True),
        context.get("/policies/{vhost}/{name}", show_policy),
        context.put("/policies/{vhost}/{name}", set_policy, maker, _BODY),
        context.delete("/policies/{vhost}/{name}", clear_policy, maker),
        context.get("/operator-policies", list_operator_policies, is_list=True),
        context.get("/operator-policies/{vhost}", list_operator_policies_in_vhost, is_list=True),
        context.get("/operator-policies/{vhost}/{name}", show_operator_policy),
        context.put("/operator-policies/{vhost}/{name}", refuse_operator_policy, Right.ADMINISTRATOR),
        context.delete("/operator-policies/{vhost}/{name}", show_operator_policy, Right.ADMINISTRATOR),
    ]


async def list_policies(call: Call) -> Response:
    """List the policies of all virtual hosts that the user sees."""
    policies = call.authority.policies
    found = [policy for vhost in call.visible_vhosts() for policy in policies.of_vhost(vhost)]
    return await call.many(found, document_of, {"name": lambda policy: policy.name})


async def list_policies_in_vhost(call: Call) -> Response:
    """List the policies of a virtual host, those first that go before others."""
    found = call.authority.policies.of_vhost(call.vhost)
    return await call.many(found, document_of, {"name": lambda policy: policy.name})


async def show_policy(call: Call) -> Response:
    """Show a policy."""
    return call.one(document_of(_found(call)))


async def set_policy(call: Call) -> Response:
    """Add a policy, or change it."""
    _check_change(call)
    vhost, name = call.vhost, call.part("name")
    document = await call.document()
    is_new = call.authority.policies.find(vhost, name) is None
    await call.authority.set_policy(Policy(name=name, vhost=vhost, **settings_of(document)))
    await call.followed()
    return done(201 if is_new else 204)


async def clear_policy(call: Call) -> Response:
    """Delete a policy."""
    _check_change(call)
    policy = _found(call)
    await call.authority.clear_policy(policy.vhost, policy.name)
    await call.followed()
    return done()


async def list_operator_policies(call: Call) -> Response:
    """List the policies of operators: there are none."""
    return answer([])


async def list_operator_policies_in_vhost(call: Call) -> Response:
    """List the policies of operators in a virtual host: there are none."""
    _ = call.vhost
    return answer([])


async def show_operator_policy(call: Call) -> Response:
    """Show a policy of an operator: there is none."""
    raise not_found("there are no policies of operators")


async def refuse_operator_policy(call: Call) -> Response:
    """Refuse a policy of an operator: there are none."""
    raise InvalidArgument("Flyball has no policies of operators: set a policy with a higher priority instead")


def settings_of(document: fields.Document) -> dict[str, Any]:
    """Return what a document says of a policy, beside its name. Raises InvalidArgument."""
    return {
        "pattern": fields.text(document, "pattern"),
        "definition": fields.table(document, "definition"),
        "apply_to": fields.text(document, "apply-to", "all"),
        "priority": fields.number(document, "priority", 0),
    }


def document_of(policy: Policy) -> dict[str, Any]:
    """Return what is told of a policy."""
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": dict(policy.definition),
        "priority": policy.priority,
    }


def _check_change(call: Call) -> None:
    """Raise NotPermitted for who may see the virtual host only, which the tag monitoring is enough for."""
    vhost = call.vhost
    if not (call.has(Right.ADMINISTRATOR) or call.context.access.may_enter(call.user.name, vhost)):
        raise NotPermitted(f"user '{call.user.name}' has no permission in vhost '{vhost}'")


def _found(call: Call) -> Policy:
    vhost, name = call.vhost, call.part("name")
    found = call.authority.policies.find(vhost, name)
    if found is None:
        raise PolicyNotFound(name, vhost)
    return found
