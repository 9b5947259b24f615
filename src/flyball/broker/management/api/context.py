"""What all resources of the API share: the node, who asks and what that one may see, and how a route is declared.

A handler gets a `Call` and returns a response, or raises an error of Flyball, which is told as RabbitMQ tells it.
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

# So long is the document of a request at most, unless the resource allows more.
MAX_BODY_BYTES = 1024 * 1024

# Lists that are made at the same time. Each is made of everything that there is to list, and more of them at once
# would be ready no sooner.
MAX_CONCURRENT_LISTS = 2

# What a list holds of an item until it is sent: what names it in a list, or all the facts that a node has told of it.
ITEM_BYTES = 200
FACTS_BYTES = 2000

# The parts of a path where `amq.default` stands for the exchange without a name.
EXCHANGE_PARTS = ("exchange", "source", "destination")


class Right(enum.StrEnum):
    """What a user needs to ask for a resource: a tag. Those of RabbitMQ, and one for everybody who may log in."""

    ANYBODY = "anybody"
    MANAGEMENT = "management"
    POLICYMAKER = "policymaker"
    MONITORING = "monitoring"
    ADMINISTRATOR = "administrator"


# The tags that give a right.
TAGS: Mapping[Right, frozenset[str]] = {
    Right.MANAGEMENT: frozenset({"management", "policymaker", "monitoring", "administrator"}),
    Right.POLICYMAKER: frozenset({"policymaker", "administrator"}),
    Right.MONITORING: frozenset({"monitoring", "administrator"}),
    Right.ADMINISTRATOR: frozenset({"administrator"}),
}


def has_right(user: User, right: Right) -> bool:
    return right is Right.ANYBODY or not TAGS[right].isdisjoint(user.tags)


def check_right(user: User, right: Right) -> None:
    """Raise NotPermitted unless the user has the right."""
    if not has_right(user, right):
        raise NotPermitted(f"user '{user.name}' has not the tag {right}")


@dataclass(frozen=True, slots=True)
class Body:
    """What the document of a request holds: names of fields, and of each its type in the words of JSON Schema."""

    fields: Mapping[str, str]
    needed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class About:
    """What there is to say of a route."""

    right: Right
    summary: str
    is_list: bool = False
    body: Body | None = None
    # The parameters after the question mark, and what they mean.
    query: Mapping[str, str] = field(default_factory=dict)
    # Of the answer.
    media_type: str = "application/json"


class ApiRoute(Route):
    """A route whose parts of the path may hold anything, encoded: `/api/queues/%2F/a%2Fb` has two."""

    def __init__(
        self, path: str, endpoint: Callable[[Request], Awaitable[Response]], method: str, about: About
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.about = about

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        # What is decoded already does not tell a slash in a name from one between two. Where a name is left out, it
        # is that of the default exchange, which some write so.
        raw = scope.get("raw_path") or scope["path"].encode()
        path = raw.decode("ascii", "replace").replace("//", f"/{DEFAULT_EXCHANGE}/")
        match, found = super().matches({**scope, "path": path})
        if "path_params" in found:
            found["path_params"] = {name: unquote(part) for name, part in found["path_params"].items()}
        return match, found


class ApiContext:
    """A node, what is known of its past, who asks the others, who guards it all, and what is being answered."""

    def __init__(self, node: Node, sampler: Sampler, domain_nodes: DomainNodes, login: ConsoleLogin) -> None:
        self.node = node
        self.sampler = sampler
        self.domain_nodes = domain_nodes
        self.login = login
        self.bodies = Bodies(node.hub.broker.ledger)
        self.making_lists = asyncio.Semaphore(MAX_CONCURRENT_LISTS)
        # Called when the node stops, before requests that are under way have to end.
        self.on_stop: list[Callable[[], None]] = []

    @property
    def name(self) -> str:
        """The node's name in its domain."""
        return self.node.hub.peering.name

    @property
    def access(self) -> Access:
        return self.node.hub.authority.access

    def guarded(self, handler: Handler, right: Right) -> Callable[[Request], Awaitable[Response]]:
        """Make a handler one for all requests: only users with the right get to it, and errors are told."""

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
    """The routes of a resource, each declared at its handler, and what other nodes may ask of this one."""

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
        """Declare a handler for GET. What its docstring begins with describes it; lists and long answers wait."""
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
        """Declare what answers other nodes, and this one, that ask for `what`; see `DomainNodes.provide`."""

        def declare(answer: PeerAnswer) -> PeerAnswer:
            self._answers.append((what, answer))
            return answer

        return declare

    def made(self, context: ApiContext) -> list[ApiRoute]:
        """Return the routes for a node, and let other nodes ask it for what they need."""
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
    """One request of a user who has the right to make it."""

    def __init__(self, context: ApiContext, request: Request, user: User) -> None:
        self.context = context
        self.request = request
        self.user = user

    @property
    def node(self) -> Node:
        return self.context.node

    # What is asked

    def part(self, name: str) -> str:
        """Return a part of the path, decoded."""
        text: str = self.request.path_params[name]
        return "" if name in EXCHANGE_PARTS and text == DEFAULT_EXCHANGE else text

    @property
    def vhost(self) -> str:
        """The virtual host in the path. Raises VhostNotFound, and NotPermitted if the user may not see it."""
        vhost = self.part("vhost")
        self.access.check_vhost(vhost)
        if not self.sees(vhost):
            raise NotPermitted(f"user '{self.user.name}' has no permission in vhost '{vhost}'")
        return vhost

    async def document(self, max_bytes: int = MAX_BODY_BYTES, *, is_rich: bool = False) -> dict[str, Any]:
        """Return the JSON object of the request, an empty one if there is none. Raises InvalidArgument, Refused.

        `max_bytes` may be texts; of all else there are at most MAX_BODY_BYTES, unless `is_rich`.
        """
        content = await self.context.bodies.read(self.request, max_bytes)
        return await document_in(content, max_bytes if is_rich else MAX_BODY_BYTES)

    @property
    def vhosts(self) -> list[str]:
        """The virtual host in the path, or all that the user sees, sorted. Raises as `vhost` does."""
        return [self.vhost] if "vhost" in self.request.path_params else self.visible_vhosts()

    # What the user may do

    @property
    def access(self) -> Access:
        return self.context.access

    def has(self, right: Right) -> bool:
        return has_right(self.user, right)

    def sees(self, vhost: str) -> bool:
        """Whether the user may know what is in a virtual host."""
        return self.has(Right.MONITORING) or self.access.may_enter(self.user.name, vhost)

    def visible_vhosts(self) -> list[str]:
        """Return the virtual hosts that the user sees, sorted."""
        return sorted(vhost for vhost in self.access.vhosts if self.sees(vhost))

    def check(self, vhost: str, action: Action, name: str, what: str) -> None:
        """Raise NotPermitted unless the user may do that to the queue or exchange of that name."""
        if not self.access.may(self.user.name, vhost, action, name):
            raise NotPermitted(f"access to {what} in vhost '{vhost}' refused for user '{self.user.name}'")

    # Changes

    @property
    def authority(self) -> Authority:
        return self.node.hub.authority

    async def changed(self, *, is_new: bool = False) -> Response:
        """Answer when the other nodes know what was changed: it has to hold wherever one looks next."""
        await self.node.hub.peering.followed()
        return done(201 if is_new else 204)

    # Answers

    def one(self, document: Mapping[str, Any]) -> Response:
        """Answer with one document, or what is wanted of it."""
        return answer(only(document, fields_of(ListQuery.of(self.request.query_params).columns)))

    async def many(self, items: Sequence[T], document: Callable[[T], Mapping[str, Any]], keys: Keys) -> Response:
        """Answer with documents of the items, in order, cut down and in pages as the request says: see `listing`."""
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
    """Make a handler, whose answer is long, wait while others are made. It is refused if too many are unsent."""

    async def waited(call: Call) -> Response:
        async with call.context.making_lists:
            call.context.bodies.check()
            return await handler(call)

    return waited
