"""Runs commands by name: steps of a domain's plan, and commands registered by other parts of the node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from flyball.broker.transport.connection import Hub
from flyball.errors import InvalidArgument


async def manage(hub: Hub, command: str, arguments: Mapping[str, Any]) -> Any:
    """Run a command. Raises its errors, and InvalidArgument for an unknown command."""
    topics: dict[str, Callable[..., Awaitable[Any]]] = {
        "topic.create": hub.topics.create,
        "topic.parent": hub.topics.set_parent,
        "topic.delete": hub.topics.delete,
    }
    run = topics.get(command) or hub.commands.get(command)
    if run is None:
        raise InvalidArgument(f"unknown command {command!r}")
    found = await run(**arguments)
    if found is None:
        # A command without a result is a change, which must become visible on every node.
        await hub.peering.followed()
    return found
