"""Carries out commands by their names: the steps of a plan for the domain, and what other parts of the node offer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from flyball.broker.transport.connection import Hub
from flyball.errors import InvalidArgument


async def manage(hub: Hub, command: str, arguments: Mapping[str, Any]) -> Any:
    """Carry out a command. Raises its errors, and InvalidArgument if there is no such command."""
    topics: dict[str, Callable[..., Awaitable[Any]]] = {
        "topic.create": hub.topics.create,
        "topic.parent": hub.topics.set_parent,
        "topic.delete": hub.topics.delete,
    }
    run = topics.get(command) or hub.commands.get(command)
    if run is None:
        raise InvalidArgument(f"there is no command {command!r}")
    found = await run(**arguments)
    if found is None:
        # It has nothing to tell, so it has changed something, which is to hold wherever one looks next.
        await hub.peering.followed()
    return found
