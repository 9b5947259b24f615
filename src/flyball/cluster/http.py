"""The HTTP side of a node: where a client belongs, and what the domain looks like, as JSON.

More routes are given to `make_app`; each handler gets its user and raises the errors that all of Flyball knows. What
is answered comes from whoever governs the domain; nothing here decides.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from flyball import errors
from flyball.engine.access import Action
from flyball.model import DEFAULT_VHOST, User
from flyball.server.authority import Authority
from flyball.server.connection import is_loopback
from flyball.server.node import Node, Part, node_name
from flyball.server.placement import NoPlaceYet, PlaceRequest, Role
from flyball.server.settings import Address

log = logging.getLogger(__name__)

LISTEN_BACKLOG = 1024
FAREWELL_S = 1
"""Requests that are under way when the node stops have so long."""

ROLES = ("producer", "consumer", "client")
"""A `client` is taken for whichever of the others helps the queue more."""

STATUS_OF: Mapping[type[errors.FlyballError], int] = {
    errors.QueueNotFound: 404,
    errors.VhostNotFound: 404,
    errors.NotPermitted: 403,
    errors.RequestError: 400,
    errors.ClusterError: 503,
    errors.StoreError: 503,
    errors.FlyballError: 500,
}
"""How HTTP tells errors: the first of an error's types that is here has its status."""

ADVICE_OF: Mapping[type[errors.FlyballError], str] = {
    errors.QueueNotFound: "See `flyball domain show`, or create it with `flyball domain cluster create`.",
    errors.VhostNotFound: "See `flyball vhost list`.",
    errors.NotPermitted: "Log in as another user, or see `flyball permission list`.",
    errors.ClusterError: "Ask again in some seconds; see `flyball domain show`.",
    errors.StoreError: "Ask again in some seconds; see the node's log.",
}


@dataclass(frozen=True, slots=True)
class PlaceQuery:
    """Who looks for a place."""

    vhost: str
    queue_name: str
    role: str
    """One of ROLES."""
    client_name: str = ""
    session_id: str = ""
    """That of an earlier answer, if the client could not go there."""
    avoid: str = ""
    """The name of a node that the client cannot reach."""


@dataclass(frozen=True, slots=True)
class PlaceAnswer:
    """Where it belongs."""

    node: str
    addresses: Mapping[str, str]
    """Where the node listens, by protocol."""
    session_id: str = ""


class Places(Protocol):
    """What a node knows of its domain."""

    async def place(self, query: PlaceQuery) -> PlaceAnswer:
        """Raises ClusterError if no node can take it at present, RequestError if none ever will."""
        ...

    async def ended(self, session_id: str) -> None:
        """A client that was placed is gone again, or never got there."""
        ...

    async def domain(self) -> Mapping[str, Any]:
        """Return the tree of the domain."""
        ...


class NodePlaces:
    """What a node itself knows: its placement, and the commands of its domain once it has some."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def place(self, query: PlaceQuery) -> PlaceAnswer:
        request = PlaceRequest(
            query.vhost,
            query.queue_name,
            Role[query.role.upper()],
            query.client_name,
            query.session_id,
            query.avoid,
            arrives=False,
        )
        found = await self._node.hub.placement.place(request)
        if isinstance(found, NoPlaceYet):
            raise errors.ClusterError(f"no place yet: {found.reason}")
        # Without a name it is where it was asked.
        addresses = found.addresses if found.node else self._addresses
        return PlaceAnswer(found.node or self._name, addresses, found.session_id)

    async def ended(self, session_id: str) -> None:
        self._node.hub.placement.left(session_id, _Gone(), orderly=True)

    async def domain(self) -> Mapping[str, Any]:
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
        return {protocol: str(address) for protocol, address in self._node.addresses.items()}


class _Gone:
    """The connection of a client that is not there any more, or never was."""

    requests = 0

    def ask_to_move(self, session_id: str, node: str, address: str, queue_id: int, deadline_s: float) -> None:
        """Nobody hears it."""


def http_part(routes: Sequence[BaseRoute] = ()) -> Part:
    """Return what serves HTTP beside a node, if its settings say so."""

    @contextlib.asynccontextmanager
    async def part(node: Node) -> AsyncIterator[None]:
        if node.settings.http is None:
            yield
            return
        app = make_app(node.hub.authority, NodePlaces(node), routes)
        async with serving(app, node.settings.http) as address:
            node.addresses["http"] = address
            yield

    return part


Handler = Callable[[Request, User], Awaitable[Response]]


class Login:
    """Lets those in who say a right name and password (basic authentication)."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    def required(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Make a handler for users one for all requests: others are asked to log in."""

        async def checked(request: Request) -> Response:
            user = await self._user_of(request)
            if user is None:
                return problem(
                    401,
                    "not logged in, or name or password are not right",
                    "Give the name and password of a user; see `flyball user list`.",
                    headers={"WWW-Authenticate": 'Basic realm="flyball", charset="UTF-8"'},
                )
            return await handler(request, user)

        return checked

    async def _user_of(self, request: Request) -> User | None:
        scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        if not colon:
            return None
        peer_is_loopback = request.client is not None and is_loopback(request.client.host)
        return await self._authority.authenticate(name, password, peer_is_loopback)


def problem(status: int, error: str, advice: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the answer that says what is wrong and what to do about it."""
    return JSONResponse({"error": error, "advice": advice}, status, headers)


def make_app(authority: Authority, places: Places, routes: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the application: the routes of this module and those given."""
    login = Login(authority)
    handlers = _Handlers(authority, places)
    own = [
        Route("/api/place", login.required(handlers.place), methods=["GET"]),
        Route("/api/place", login.required(handlers.end), methods=["DELETE"]),
        Route("/api/domain", login.required(handlers.domain), methods=["GET"]),
    ]
    return Starlette(
        routes=[*own, *routes],
        exception_handlers={errors.FlyballError: _tell_error, HTTPException: _tell_http_error},
    )


class _Handlers:
    def __init__(self, authority: Authority, places: Places) -> None:
        self._authority = authority
        self._places = places

    async def place(self, request: Request, user: User) -> Response:
        """Tell where a client of a queue shall connect."""
        query = _query_of(request, user)
        self._check(user, query)
        found = await self._places.place(query)
        host, port = _best_address(found.addresses)
        answer = {
            "node": found.node,
            "host": host,
            "port": port,
            "amqp": found.addresses.get("amqp"),
            "telesto": found.addresses.get("telesto"),
            "session": found.session_id,
        }
        return JSONResponse(answer)

    async def end(self, request: Request, user: User) -> Response:
        """Note that a client which was placed is gone."""
        await self._places.ended(_needed(request, "session"))
        return Response(status_code=204)

    async def domain(self, request: Request, user: User) -> Response:
        """Tell the tree of the domain, to those who have a tag."""
        if not user.tags:
            raise errors.NotPermitted(f"user '{user.name}' has no tag and may not see the domain")
        return JSONResponse(dict(await self._places.domain()))

    def _check(self, user: User, query: PlaceQuery) -> None:
        access = self._authority.access
        access.check_vhost(query.vhost)
        wanted = {"producer": (Action.WRITE,), "consumer": (Action.READ,), "client": (Action.WRITE, Action.READ)}
        may = [access.may(user.name, query.vhost, action, query.queue_name) for action in wanted[query.role]]
        if not any(may):
            raise errors.NotPermitted(
                f"user '{user.name}' may not be a {query.role} of queue '{query.queue_name}' in vhost '{query.vhost}'"
            )


def _query_of(request: Request, user: User) -> PlaceQuery:
    role = request.query_params.get("role", "client")
    if role not in ROLES:
        raise errors.InvalidArgument(f"role {role!r} is none: give {', '.join(ROLES)}")
    return PlaceQuery(
        vhost=request.query_params.get("vhost", DEFAULT_VHOST),
        queue_name=_needed(request, "queue"),
        role=role,
        client_name=user.name,
        session_id=request.query_params.get("session", ""),
        avoid=request.query_params.get("avoid", ""),
    )


def _needed(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if not value:
        raise errors.InvalidArgument(f"the parameter {name!r} is missing")
    return value


def _best_address(addresses: Mapping[str, str]) -> tuple[str | None, int | None]:
    """Return host and port for a client that does not tell its protocol."""
    for protocol in ("amqp", "telesto"):
        if protocol in addresses:
            return Address.parse(addresses[protocol])
    return None, None


def _tell_error(request: Request, error: Exception) -> Response:
    kinds = type(error).__mro__
    status = next(STATUS_OF[kind] for kind in kinds if kind in STATUS_OF)
    advice = next((ADVICE_OF[kind] for kind in kinds if kind in ADVICE_OF), "See the documentation of the request.")
    return problem(status, str(error), advice)


def _tell_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these"
    known = {404: f"there is no {request.url.path}", 405: f"{request.url.path} cannot be asked by {request.method}"}
    text = known.get(error.status_code, error.detail)
    return problem(error.status_code, text, "See the documentation of the HTTP interface.", error.headers)


class _Server(uvicorn.Server):
    """Leaves signals to the node."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(app: Starlette, address: Address) -> AsyncIterator[Address]:
    """Serve the application in this loop and tell where. Raises OSError when the address cannot be had."""
    listener = _listen(address)
    with contextlib.closing(listener):
        config = uvicorn.Config(
            app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=FAREWELL_S, ws="none"
        )
        server = _Server(config)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(server.serve([listener]))
            try:
                yield Address(*listener.getsockname()[:2])
            finally:
                server.should_exit = True
                await asyncio.wait((task,))


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(LISTEN_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
