"""Registered clients of the research protocols, and whether they are connected."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from flyball.broker.core.pending import Done, outcome
from flyball.broker.management.api import fields
from flyball.broker.management.api.answers import answer, mapped, stream
from flyball.broker.management.api.context import ApiContext, Body, Call, Right, Routes
from flyball.errors import ClientNotFound, InvalidArgument
from flyball.model import Client, ClientMode

MODES = {ClientMode.FULL: "full", ClientMode.READ_ONLY: "read only"}
_MODES = {name: mode for mode, name in MODES.items()}

# Digits of 2^31 - 1. Python limits the digits of parsed integers.
MAX_ID_DIGITS = 10


routes = Routes()


@routes.peer("client_connections")
async def connections_here(context: ApiContext) -> list[dict[str, Any]]:
    """Return the connections of this node that belong to registered clients."""

    def document(connection: Any) -> dict[str, Any]:
        return {
            "client_id": connection.client_id,
            "protocol": connection.PROTOCOL.name.lower(),
            "peer": connection.peer,
            "node": context.name,
        }

    return await mapped([each for each in context.node.hub.connections if each.client_id], document)


@routes.get("/flyball/clients", Right.MONITORING)
async def list_clients(call: Call) -> Response:
    """List the registered clients with their connections to this node."""
    connections: dict[int, list[dict[str, Any]]] = {}
    for each in await call.context.domain_nodes.list_all("client_connections"):
        connections.setdefault(each.pop("client_id"), []).append(each)

    def document(client: Client) -> dict[str, Any]:
        own = connections.get(client.id, [])
        return {
            "id": client.id,
            "name": client.name,
            "mode": MODES[client.mode],
            "connected": bool(own),
            "connections": own,
        }

    return stream(call.node.hub.broker.engine.clients, document)


@routes.put("/flyball/clients/{name}", Right.ADMINISTRATOR, Body({"mode": "string"}))
async def register_client(call: Call) -> Response:
    """Register a client with mode full or read only; the response has its id."""
    name, broker = call.part("name"), call.node.hub.broker
    mode = fields.text(await call.document(), "mode", MODES[ClientMode.FULL])
    if mode not in _MODES:
        raise InvalidArgument(f"unknown client mode {mode!r}: use {' or '.join(map(repr, _MODES))}")
    # Another node may just have registered it.
    await call.node.hub.peering.catch_up()
    registered: list[Client] = []

    def begin(done: Done) -> None:
        registered.append(broker.create_client(name, _MODES[mode], done))

    await outcome(begin)
    await call.node.hub.peering.followed()
    [client] = registered
    return answer({"id": client.id, "name": client.name, "mode": mode}, 201)


@routes.delete("/flyball/clients/{id}", Right.ADMINISTRATOR)
async def delete_client(call: Call) -> Response:
    """Delete a client by its id; its messages stay."""
    client_id = call.part("id")
    if not client_id.isdecimal() or not client_id.isascii() or len(client_id) > MAX_ID_DIGITS:
        raise ClientNotFound(client_id)
    await call.node.hub.peering.catch_up()
    await outcome(lambda done: call.node.hub.broker.delete_client(int(client_id), done))
    return await call.changed()
