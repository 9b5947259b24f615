"""The clients that are registered, as the protocols of the research have them, and whether they are connected."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from flyball.broker.management.api.answers import mapped, stream
from flyball.broker.management.api.context import ApiContext, ApiRoute, Call, Right
from flyball.broker.node.node import Node
from flyball.model import Client, ClientMode

MODES = {ClientMode.FULL: "full", ClientMode.READ_ONLY: "read only"}


def routes(context: ApiContext) -> list[ApiRoute]:
    here = _Here(context.node)
    context.everywhere.provide("client_connections", here.connections)
    return [context.get("/flyball/clients", list_clients, Right.MONITORING)]


class _Here:
    def __init__(self, node: Node) -> None:
        self._hub = node.hub

    async def connections(self) -> list[dict[str, Any]]:
        """Return the connections of this node that have said which client they are."""

        def document(connection: Any) -> dict[str, Any]:
            return {
                "client_id": connection.client_id,
                "protocol": connection.PROTOCOL.name.lower(),
                "peer": connection.peer,
                "node": self._hub.company.name,
            }

        return await mapped([each for each in self._hub.connections if each.client_id], document)


async def list_clients(call: Call) -> Response:
    """The registered clients, and by which connections they are here."""
    connections: dict[int, list[dict[str, Any]]] = {}
    for each in await call.context.everywhere.list_all("client_connections"):
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
