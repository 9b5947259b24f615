"""Executes API requests through an AMQP client inside the node, with the rights of the requesting user."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from flyball.broker.management.api.context import Call
from flyball.broker.node.node import Node
from flyball.broker.protocols.amqp.direct import CHANNEL, DirectChannel, direct_channel
from flyball.broker.wire.amqp import Method
from flyball.model import Queue

__all__ = ["CHANNEL", "DirectChannel", "channel", "find_queue", "has_exchange", "has_queue", "perform"]

M = TypeVar("M", bound=Method)


def channel(call: Call, vhost: str, *, is_trusted: bool = False) -> AbstractAsyncContextManager[DirectChannel]:
    """Open a channel for the requesting user; see `direct_channel`."""
    client = call.request.client
    peer = None if client is None else (client.host, client.port)
    return direct_channel(call.node.hub, call.node.amqp, call.user, vhost, peer=peer, is_trusted=is_trusted)


async def perform(call: Call, vhost: str, method: Method, answer: type[M]) -> M:
    """Execute a method for the requesting user, and return its response."""
    async with channel(call, vhost) as inside:
        return await inside.call(method, answer)


def find_queue(node: Node, vhost: str, name: str) -> Queue | None:
    """Return the queue of that name, on any node."""
    state = node.topology.engine.find_queue(name, vhost)
    found = node.topology.directory.find(vhost, name) if state is None else state
    return None if found is None else found.queue


async def has_queue(node: Node, vhost: str, name: str) -> bool:
    """Return whether the queue exists on any node; asks peers for queues just created."""
    if find_queue(node, vhost, name) is None:
        await node.hub.peering.catch_up()
    return find_queue(node, vhost, name) is not None


async def has_exchange(node: Node, vhost: str, name: str) -> bool:
    """Return whether the exchange exists; asks peers for exchanges just created."""
    if node.topology.router(vhost).find(name) is None:
        await node.hub.peering.catch_up()
    return node.topology.router(vhost).find(name) is not None
