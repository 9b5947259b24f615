"""Shared parts of all resources of the API: the node, the user and its rights, and the declaration of routes.

A handler receives a `Call`. It returns a response, or raises a FlyballError, which is reported as in RabbitMQ.
"""

from __future__ import annotations

import asyncio
import enum
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from flyball.broker.core.authority import Authority
from flyball.broker.engine.access import DEFAULT_EXCHANGE, Access, Action
from flyball.broker.management.api.answers import answer, done, fields_of, only, problem
from flyball.broker.management.api.bodies import Bodies, document_in
from flyball.broker.management.api.listing import Keys, ListQuery, listing
from flyball.broker.management.domain_nodes import DomainNodes
from flyball.broker.management.login import ConsoleLogin
from flyball.broker.management.node_sampler import Sampler
from flyball.broker.node.node import Node
from flyball.broker.transport.http import is_from_console
from flyball.errors import FlyballError, NotPermitted
from flyball.model import User

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

PREFIX = "/api"

# Default size limit of a request's document.
MAX_BODY_BYTES = 1024 * 1024

# Maximum concurrent lists. Each list reads all objects of its kind, so more of them at once would not finish sooner.
MAX_CONCURRENT_LISTS = 2

# Memory per item of a list until it is sent: its reference, or all facts reported by another node.
ITEM_BYTES = 200
FACTS_BYTES = 2000

# Path parameters in which `amq.default` stands for the default exchange.
EXCHANGE_PARTS = ("exchange", "source", "destination")


class Right(enum.StrEnum):
    """The right that a resource needs: one of RabbitMQ's tags, or any login."""

    ANY_USER = "any user"
    MANAGEMENT = "management"
    POLICYMAKER = "policymaker"
    MONITORING = "monitoring"
    ADMINISTRATOR = "administrator"


# Tags that grant each right.
TAGS: Mapping[Right, frozenset[str]] = {
    Right.MANAGEMENT: frozenset({"management", "policymaker", "monitoring", "administrator"}),
    Right.POLICYMAKER: frozenset({"policymaker", "administrator"}),
    Right.MONITORING: frozenset({"monitoring", "administrator"}),
    Right.ADMINISTRATOR: frozenset({"administrator"}),
}


def has_right(user: User, right: Right) -> bool:
    return right is Right.ANY_USER or not TAGS[right].isdisjoint(user.tags)


def check_right(user: User, right: Right) -> None:
    """Raise NotPermitted unless the user has the right."""
    if not has_right(user, right):
        raise NotPermitted(f"user '{user.name}' lacks the tag {right}")


@dataclass(frozen=True, slots=True)
class Body:
    """Schema of a request's document: field names and JSON Schema types."""

    fields: Mapping[str, str]
    needed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class About:
    """Documentation of a route."""

    right: Right
    summary: str
    is_list: bool = False
    body: Body | None = None
    # Query parameters and their descriptions.
    query: Mapping[str, str] = field(default_factory=dict)
    # Media type of the response.
    media_type: str = "application/json"


class ApiRoute(Route):
    """A route whose path parameters may contain encoded slashes: `/api/queues/%2F/a%2Fb` has two."""

    def __init__(
        self, path: str, endpoint: Callable[[Request], Awaitable[Response]], method: str, about: About
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.about = about

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        # Match the raw path: decoded, a slash in a name looks like a separator. An empty parameter means the default
        # exchange, as some clients send it.
        raw = scope.get("raw_path") or scope["path"].encode()
        path = raw.decode("ascii", "replace").replace("//", f"/{DEFAULT_EXCHANGE}/")
        match, found = super().matches({**scope, "path": path})
        if "path_params" in found:
            found["path_params"] = {name: unquote(part) for name, part in found["path_params"].items()}
        return match, found


class ApiContext:
    """The node with its sampler, peers and login, and the requests in progress."""

    def __init__(self, node: Node, sampler: Sampler, domain_nodes: DomainNodes, login: ConsoleLogin) -> None:
        self.node = node
        self.sampler = sampler
        self.domain_nodes = domain_nodes
        self.login = login
        self.bodies = Bodies(node.hub.broker.ledger)
        self.making_lists = asyncio.Semaphore(MAX_CONCURRENT_LISTS)
        # Called when the node stops, before pending requests have to finish.
        self.on_stop: list[Callable[[], None]] = []

    @property
    def name(self) -> str:
        """The node's name in its domain."""
        return self.node.hub.peering.name

    @property
    def access(self) -> Access:
        return self.node.hub.authority.access

    def guarded(self, handler: Handler, right: Right) -> Callable[[Request], Awaitable[Response]]:
        """Wrap a handler: check the user's right, and turn errors into responses."""

        async def checked(request: Request, user: User) -> Response:
            try:
                check_right(user, right)
                return await handler(Call(self, request, user))
            except FlyballError as error:
                return problem(error, is_console=is_from_console(request))
            finally:
                self.bodies.let_go(request)

        return self.login.required(checked)


class Routes:
    """The routes of a resource, declared at their handlers, and the handlers of requests from peers."""

    def __init__(self, prefix: str = PREFIX, media_type: str = "application/json") -> None:
        self._prefix = prefix
        self._media_type = media_type
        self._declared: list[tuple[str, str, Handler, About]] = []
        self._answers: list[tuple[str, PeerAnswer]] = []

    def get(
        self,
        path: str,
        right: Right = Right.MANAGEMENT,
        *,
        is_list: bool = False,
        is_long: bool = False,
        query: Mapping[str, str] | None = None,
    ) -> Declare[Handler]:
        """Declare a GET handler. Its docstring's first line becomes its description; lists and long responses are
        limited.
        """
        return lambda handler: self._declare(
            "GET", path, handler, right, is_list=is_list, is_long=is_list or is_long, query=query
        )

    def put(self, path: str, right: Right = Right.MANAGEMENT, body: Body | None = None) -> Declare[Handler]:
        return lambda handler: self._declare("PUT", path, handler, right, body=body)

    def post(self, path: str, right: Right = Right.MANAGEMENT, body: Body | None = None) -> Declare[Handler]:
        return lambda handler: self._declare("POST", path, handler, right, body=body)

    def delete(
        self, path: str, right: Right = Right.MANAGEMENT, query: Mapping[str, str] | None = None
    ) -> Declare[Handler]:
        return lambda handler: self._declare("DELETE", path, handler, right, query=query)

    def peer(self, what: str) -> Declare[PeerAnswer]:
        """Declare the handler of a request that any node may send, including this one; see `DomainNodes.provide`."""

        def declare(answer: PeerAnswer) -> PeerAnswer:
            self._answers.append((what, answer))
            return answer

        return declare

    def made(self, context: ApiContext) -> list[ApiRoute]:
        """Return the routes for a node, and register the handlers of peers' requests."""
        for what, reported in self._answers:
            context.domain_nodes.provide(what, functools.partial(reported, context))
        return [
            ApiRoute(self._prefix + path, context.guarded(handler, about.right), method, about)
            for method, path, handler, about in self._declared
        ]

    def _declare(
        self,
        method: str,
        path: str,
        handler: Handler,
        right: Right,
        *,
        is_list: bool = False,
        is_long: bool = False,
        body: Body | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Handler:
        summary = (handler.__doc__ or "").strip().partition("\n")[0]
        about = About(right, summary, is_list, body, query or {}, self._media_type)
        self._declared.append((method, path, _list_slots(handler) if is_long else handler, about))
        return handler


class Call:
    """A request of an authorized user."""

    def __init__(self, context: ApiContext, request: Request, user: User) -> None:
        self.context = context
        self.request = request
        self.user = user

    @property
    def node(self) -> Node:
        return self.context.node

    # Input

    def part(self, name: str) -> str:
        """Return a decoded path parameter."""
        text: str = self.request.path_params[name]
        return "" if name in EXCHANGE_PARTS and text == DEFAULT_EXCHANGE else text

    @property
    def vhost(self) -> str:
        """The vhost in the path. Raises VhostNotFound, and NotPermitted if the user may not access it."""
        vhost = self.part("vhost")
        self.access.check_vhost(vhost)
        if not self.sees(vhost):
            raise NotPermitted(f"user '{self.user.name}' has no permission in vhost '{vhost}'")
        return vhost

    async def document(self, max_bytes: int = MAX_BODY_BYTES, *, is_rich: bool = False) -> dict[str, Any]:
        """Return the JSON object of the request; empty without a body. Raises InvalidArgument, Refused.

        `max_bytes` limits the whole; without `is_rich`, everything but strings is limited to MAX_BODY_BYTES.
        """
        content = await self.context.bodies.read(self.request, max_bytes)
        return await document_in(content, max_bytes if is_rich else MAX_BODY_BYTES)

    @property
    def vhosts(self) -> list[str]:
        """The vhost in the path, or all visible ones, sorted. Raises the errors of `vhost`."""
        return [self.vhost] if "vhost" in self.request.path_params else self.visible_vhosts()

    # Permissions

    @property
    def access(self) -> Access:
        return self.context.access

    def has(self, right: Right) -> bool:
        return has_right(self.user, right)

    def sees(self, vhost: str) -> bool:
        """Whether the user may see objects of a vhost."""
        return self.has(Right.MONITORING) or self.access.may_enter(self.user.name, vhost)

    def visible_vhosts(self) -> list[str]:
        """Return the visible vhosts, sorted."""
        return sorted(vhost for vhost in self.access.vhosts if self.sees(vhost))

    def check(self, vhost: str, action: Action, name: str, what: str) -> None:
        """Raise NotPermitted unless the user has the permission for the queue or exchange."""
        if not self.access.may(self.user.name, vhost, action, name):
            raise NotPermitted(f"access to {what} in vhost '{vhost}' refused for user '{self.user.name}'")

    # Changes

    @property
    def authority(self) -> Authority:
        return self.node.hub.authority

    async def changed(self, *, is_new: bool = False) -> Response:
        """Respond to a change once the other nodes have applied it, so that it is visible on every node."""
        await self.node.hub.peering.followed()
        return done(201 if is_new else 204)

    # Responses

    def one(self, document: Mapping[str, Any]) -> Response:
        """Return one document, reduced to the wanted columns."""
        return answer(only(document, fields_of(ListQuery.of(self.request.query_params).columns)))

    async def many(self, items: Sequence[T], document: Callable[[T], Mapping[str, Any]], keys: Keys) -> Response:
        """Return documents of the items, sorted, reduced and paged as requested; see `listing`."""
        query = ListQuery.of(self.request.query_params)
        response = await listing(query, items, document, keys)
        count = min(len(items), query.page_size) if query.page else len(items)
        are_facts = count > 0 and isinstance(items[0], Mapping)
        self.context.bodies.hold(response, count * (FACTS_BYTES if are_facts else ITEM_BYTES))
        return response


Handler = Callable[[Call], Awaitable[Response]]


PeerAnswer = Callable[..., Awaitable[Any]]
Declare = Callable[[F], F]


def _list_slots(handler: Handler) -> Handler:
    """Limit the concurrency of a handler with a long response. Refuse it while too much data is unsent."""

    async def waited(call: Call) -> Response:
        async with call.context.making_lists:
            call.context.bodies.check()
            return await handler(call)

    return waited
