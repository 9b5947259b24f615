"""What an administrator can tell a node to do: a table of commands, whatever protocol they come by.

Whoever calls has made sure that the one who asks may manage the node.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

from pydantic import ConfigDict, ValidationError, validate_call

from flyball.broker.core.arguments import invalid_argument
from flyball.broker.management.status import queues_of_all
from flyball.broker.transport.connection import Hub
from flyball.errors import InvalidArgument
from flyball.model import DEFAULT_VHOST, Permission, Policy

# Commands come as JSON: what is not of the right type is refused, not converted.
_checked = validate_call(config=ConfigDict(arbitrary_types_allowed=True, strict=True))


# Users


@_checked
async def add_user(hub: Hub, name: str, password: str | None = None, tags: list[str] | None = None) -> None:
    await hub.authority.add_user(name, password, tags or ())


@_checked
async def put_user(
    hub: Hub, name: str, tags: list[str], password: str | None = None, password_hash: str | None = None
) -> None:
    await hub.authority.put_user(name, tags, password=password, password_hash=password_hash)


@_checked
async def delete_user(hub: Hub, name: str) -> None:
    await hub.authority.delete_user(name)


@_checked
async def change_password(hub: Hub, name: str, password: str | None) -> None:
    await hub.authority.change_password(name, password)


@_checked
async def set_tags(hub: Hub, name: str, tags: list[str]) -> None:
    await hub.authority.set_tags(name, tags)


@_checked
async def list_users(hub: Hub) -> list[dict[str, Any]]:
    return [
        {"name": user.name, "tags": list(user.tags), "has_password": user.password_hash is not None}
        for user in hub.authority.access.users
    ]


# Virtual hosts


@_checked
async def add_vhost(hub: Hub, name: str) -> None:
    await hub.authority.add_vhost(name)


@_checked
async def delete_vhost(hub: Hub, name: str) -> None:
    await hub.authority.delete_vhost(name)


@_checked
async def list_vhosts(hub: Hub) -> list[dict[str, Any]]:
    return [{"name": vhost} for vhost in hub.authority.access.vhosts]


# Limits


@_checked
async def set_vhost_limits(hub: Hub, vhost: str, limits: dict[str, Any]) -> None:
    """Let just these limits hold for a virtual host."""
    await hub.authority.set_vhost_limits(vhost, limits)


@_checked
async def set_user_limits(hub: Hub, user: str, limits: dict[str, Any]) -> None:
    """Let just these limits hold for a user."""
    await hub.authority.set_user_limits(user, limits)


# Permissions


@_checked
async def set_permission(
    hub: Hub, user: str, vhost: str = DEFAULT_VHOST, configure: str = "", write: str = "", read: str = ""
) -> None:
    await hub.authority.set_permission(Permission(user, vhost, configure, write, read))


@_checked
async def clear_permission(hub: Hub, user: str, vhost: str = DEFAULT_VHOST) -> None:
    await hub.authority.clear_permission(user, vhost)


@_checked
async def list_permissions(hub: Hub, user: str | None = None, vhost: str | None = None) -> list[dict[str, Any]]:
    """Return all permissions, or those of one user, or those in one virtual host."""
    return [
        asdict(permission)
        for permission in hub.authority.access.permissions
        if user in (None, permission.user) and vhost in (None, permission.vhost)
    ]


# Policies


@_checked
async def set_policy(
    hub: Hub,
    name: str,
    pattern: str,
    definition: dict[str, Any],
    vhost: str = DEFAULT_VHOST,
    apply_to: str = "all",
    priority: int = 0,
) -> None:
    await hub.authority.set_policy(Policy(name, pattern, definition, vhost, apply_to, priority))


@_checked
async def clear_policy(hub: Hub, name: str, vhost: str = DEFAULT_VHOST) -> None:
    await hub.authority.clear_policy(vhost, name)


@_checked
async def list_policies(hub: Hub, vhost: str | None = None) -> list[dict[str, Any]]:
    """Return the policies of all virtual hosts, or of one, those first that go before others."""
    policies = hub.authority.policies
    return [asdict(policy) for policy in (policies.all() if vhost is None else policies.of_vhost(vhost))]


# Queues


@_checked
async def list_queues(hub: Hub) -> list[dict[str, Any]]:
    """Return the queues of all nodes, what they hold, and whose they are."""
    return await queues_of_all(hub)


# Topics


@_checked
async def create_topic(hub: Hub, name: str, parent: str | None = None, vhost: str = DEFAULT_VHOST) -> None:
    await hub.topics.create(name, parent, vhost)


@_checked
async def set_parent(hub: Hub, name: str, parent: str | None, vhost: str = DEFAULT_VHOST) -> None:
    await hub.topics.set_parent(name, parent, vhost)


@_checked
async def delete_topic(hub: Hub, name: str, vhost: str = DEFAULT_VHOST) -> None:
    await hub.topics.delete(name, vhost)


@_checked
async def list_topics(hub: Hub, vhost: str | None = None) -> list[dict[str, Any]]:
    """Return the topics of all virtual hosts, or of one."""
    return [{"name": topic.name, "vhost": topic.vhost, "parent": topic.parent} for topic in hub.topics.all(vhost)]


@_checked
async def list_subscriptions(hub: Hub, name: str, vhost: str = DEFAULT_VHOST) -> list[dict[str, Any]]:
    return await hub.topics.list_subscriptions(name, vhost)


@_checked
async def unsubscribe(hub: Hub, name: str, subscription: str, vhost: str = DEFAULT_VHOST) -> None:
    await hub.topics.unsubscribe(name, subscription, vhost)


Command = Callable[..., Awaitable[Any]]

COMMANDS: dict[str, Command] = {
    "user.add": add_user,
    "user.delete": delete_user,
    "user.list": list_users,
    "user.password": change_password,
    "user.put": put_user,
    "user.tags": set_tags,
    "vhost.add": add_vhost,
    "vhost.delete": delete_vhost,
    "vhost.list": list_vhosts,
    "vhost.limits": set_vhost_limits,
    "user.limits": set_user_limits,
    "permission.set": set_permission,
    "permission.clear": clear_permission,
    "permission.list": list_permissions,
    "policy.set": set_policy,
    "policy.clear": clear_policy,
    "policy.list": list_policies,
    "queue.list": list_queues,
    "topic.create": create_topic,
    "topic.parent": set_parent,
    "topic.delete": delete_topic,
    "topic.list": list_topics,
    "topic.subscriptions": list_subscriptions,
    "topic.unsubscribe": unsubscribe,
}
"""Each takes the hub and named arguments, and returns what JSON can say."""

FOR_EVERYBODY = frozenset(command for command in COMMANDS if command.startswith(("queue.", "topic.")))
"""Commands that need no administrator: who may create queues may list them, and create topics."""

# Commands that need no token either, in the default virtual host: they change nothing that is there.
FOR_ALL_CLIENTS = frozenset({"queue.list", "topic.create", "topic.list", "topic.subscriptions"})


def needs_owner(command: str, arguments: Mapping[str, Any]) -> bool:
    """Whether only the node's owner may have this done."""
    return command not in FOR_ALL_CLIENTS or arguments.get("vhost") not in (None, DEFAULT_VHOST)


async def manage_for_all(hub: Hub, command: str, arguments: Mapping[str, Any]) -> Any:
    """Carry out a command that does not need the owner: it concerns the default virtual host only."""
    if command == "topic.list":
        arguments = {**arguments, "vhost": DEFAULT_VHOST}
    found = await manage(hub, command, arguments)
    return [queue for queue in found if queue["vhost"] == DEFAULT_VHOST] if command == "queue.list" else found


async def manage(hub: Hub, command: str, arguments: Mapping[str, Any]) -> Any:
    """Carry out a command of the table, or of another part of the node. Raises their errors, and InvalidArgument."""
    try:
        if command in COMMANDS:
            found = await COMMANDS[command](hub, **arguments)
        elif command in hub.commands:
            found = await hub.commands[command](**arguments)
        else:
            raise InvalidArgument(f"there is no command {command!r}")
    except ValidationError as error:
        raise invalid_argument(command, error) from None
    if found is None:
        # It has nothing to tell, so it has changed something, which is to hold wherever one looks next.
        await hub.peering.followed()
    return found


def read_command(document: bytes) -> tuple[str, dict[str, Any]]:
    """Return the command and its arguments that a JSON object names. Raises InvalidArgument."""
    try:
        found = json.loads(document)
        # JSON can spell half a character, which no answer could repeat.
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise InvalidArgument("a command is a JSON object in UTF-8") from None
    if not isinstance(found, dict) or not isinstance(found.get("command"), str):
        raise InvalidArgument('a command is a JSON object with the key "command"')
    return found.pop("command"), found
