"""HTTP endpoints for placement and for the state of the domain, as JSON. Decisions are made elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flyball import errors
from flyball.broker.core.authority import Authority
from flyball.broker.core.placement import NoPlaceYet, Place, PlaceRequest, Role
from flyball.broker.engine.access import Action
from flyball.broker.node.listeners import advertised
from flyball.broker.node.name import node_name
from flyball.broker.node.node import Node
from flyball.broker.settings import Address
from flyball.broker.transport.http import Login
from flyball.model import DEFAULT_VHOST, User

# Users with one of these tags may read the domain: it contains queues of all vhosts, and users.
SEERS = frozenset({"monitoring", "administrator"})

_ACTIONS = {
    Role.PRODUCER: (Action.WRITE,),
    Role.CONSUMER: (Action.READ,),
    # Such a client gets the role in shorter supply.
    Role.CLIENT: (Action.WRITE, Action.READ),
}

_ROLES = {role.name.lower(): role for role in _ACTIONS}


class NodePlaces:
    """Placement and state of the domain as this node knows them."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def place(self, request: PlaceRequest) -> Place:
        """Return a client's place. Raises ClusterError if no node has room now, RequestError if none ever will."""
        found = await self._node.hub.placement.place(request)
        if isinstance(found, NoPlaceYet):
            raise errors.ClusterError(f"no member available yet: {found.reason}")
        # A place without a node name is this node.
        return found if found.node else replace(found, node=self._name, addresses=self._addresses)

    async def ended(self, session_id: str, user_name: str) -> None:
        """Release the place of a client that has disconnected, or never connected."""
        await self._node.hub.placement.ended(session_id, user_name)

    async def domain(self) -> Mapping[str, Any]:
        """Return the tree of the domain."""
        show = self._node.hub.commands.get("domain.show")
        if show is not None:
            facts: Mapping[str, Any] = await show()
            return facts
        return {"leader": self._name, "nodes": [{"name": self._name, "state": "up", "addresses": self._addresses}]}

    @property
    def _name(self) -> str:
        return node_name(self._node.settings)

    @property
    def _addresses(self) -> dict[str, str]:
        return advertised(self._node.addresses, self._node.settings)


def placement_routes(login: Login, places: NodePlaces) -> list[Route]:
    """Return the routes for placement and for the state of the domain."""
    handlers = _Handlers(login.authority, places)
    return [
        Route("/api/place", login.required(handlers.place), methods=["GET"]),
        Route("/api/place", login.required(handlers.end), methods=["DELETE"]),
        Route("/api/domain", login.required(handlers.domain), methods=["GET"]),
    ]


class _Handlers:
    def __init__(self, authority: Authority, places: NodePlaces) -> None:
        self._authority = authority
        self._places = places

    async def place(self, request: Request, user: User) -> Response:
        """Return the node that a client of a queue should connect to."""
        wanted = _place_request(request, user)
        self._check(wanted)
        found = await self._places.place(wanted)
        host, port = _best_address(found.addresses)
        answer = {
            "node": found.node,
            "host": host,
            "port": port,
            "amqp": found.addresses.get("amqp"),
            "session": found.session_id,
        }
        return JSONResponse(answer)

    async def end(self, request: Request, user: User) -> Response:
        """Release the place of a client that has gone."""
        await self._places.ended(_needed(request, "session"), user.name)
        return Response(status_code=204)

    async def domain(self, request: Request, user: User) -> Response:
        """Return the state of the domain, for users who may read all of it."""
        if not SEERS.intersection(user.tags):
            raise errors.NotPermitted(f"user '{user.name}' lacks the tag monitoring and may not read the domain")
        return JSONResponse(dict(await self._places.domain()))

    def _check(self, wanted: PlaceRequest) -> None:
        access, user, vhost, queue_name = self._authority.access, wanted.client_name, wanted.vhost, wanted.queue_name
        access.check_vhost(vhost)
        if not any(access.may(user, vhost, action, queue_name) for action in _ACTIONS[wanted.role]):
            role = wanted.role.name.lower()
            raise errors.NotPermitted(f"user '{user}' may not be a {role} of queue '{queue_name}' in vhost '{vhost}'")


def _place_request(request: Request, user: User) -> PlaceRequest:
    role = request.query_params.get("role", "client")
    if role not in _ROLES:
        raise errors.InvalidArgument(f"unknown role {role!r}: use {', '.join(_ROLES)}")
    return PlaceRequest(
        vhost=request.query_params.get("vhost", DEFAULT_VHOST),
        queue_name=_needed(request, "queue"),
        role=_ROLES[role],
        client_name=user.name,
        session_id=request.query_params.get("session", ""),
        avoid=request.query_params.get("avoid", ""),
        arrives=request.query_params.get("arrives") == "true",
    )


def _needed(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if not value:
        raise errors.InvalidArgument(f"missing parameter {name!r}")
    return value


def _best_address(addresses: Mapping[str, str]) -> tuple[str | None, int | None]:
    """Return host and port for a client that does not name its protocol."""
    return Address.parse(addresses["amqp"]) if "amqp" in addresses else (None, None)
