"""What kind of request one is: a key of its method and the template of its path, "GET /items/{item_id}".

Costs are learned by key, so there must be few of them whatever clients ask for. A framework is imported only by the
key that needs it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

# What ASGI says of a connection.
Scope = MutableMapping[str, Any]
Key = Callable[[Scope], str]

# The template of all paths that the application does not know: whoever scans a site makes no new keys.
NO_ROUTE = "(no route)"

METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})

MOST_SEGMENTS = 8
MOST_SEGMENT_LETTERS = 40
REMEMBERED_PATHS = 4096
# Longer paths are not remembered: clients can make them as long as servers let them.
REMEMBERED_LETTERS = 256

_IDENTIFIER = re.compile(
    r"\d+"
    r"|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    r"|(?=[^/]*\d)[0-9a-fA-F]{12,}"
    r"|[^@]*@.*"
    rf"|.{{{MOST_SEGMENT_LETTERS + 1},}}"
)


def method_of(scope: Scope) -> str:
    """Return the method as far as keys tell them apart: HEAD is served as GET is, and clients can invent methods."""
    if scope["type"] == "websocket":
        return "WEBSOCKET"
    method: str = scope["method"]
    if method in METHODS:
        return method
    return "GET" if method == "HEAD" else "OTHER"


def path_of(scope: Scope) -> str:
    """Return the path below the place where the application is mounted."""
    path: str = scope["path"]
    root_path: str = scope.get("root_path", "")
    if root_path and path.startswith(root_path):
        below = path[len(root_path) :]
        if not below or below.startswith("/"):
            return below or "/"
    return path


def path_key(scope: Scope) -> str:
    """Return the key for any application: numbers, UUIDs, long hexadecimal, long texts and
    whatever has an @ in the path become `{}`.

    Names of things in the path stay, so an application that has them there needs a key that knows its routes.
    """
    path = path_of(scope)
    return f"{method_of(scope)} {_known_template(path) if len(path) <= REMEMBERED_LETTERS else _template(path)}"


def _template(path: str) -> str:
    segments = path.split("/")
    # The first is what precedes the leading slash: nothing.
    kept = ["{}" if _IDENTIFIER.fullmatch(segment) else segment for segment in segments[: MOST_SEGMENTS + 1]]
    return "/".join(kept) + ("/..." if len(segments) > len(kept) else "")


_known_template = functools.lru_cache(REMEMBERED_PATHS)(_template)


class RouteKey:
    """A key by the routes of an application. What a path led to is remembered, of the last so many paths."""

    def __init__(self, route_of: Callable[[str, str], str | None]) -> None:
        """`route_of` returns the template for a method (or WEBSOCKET) and a path, None if there is no route."""
        self._route_of = route_of
        self._keys: dict[tuple[str | None, str, str | None], str] = {}

    def __call__(self, scope: Scope) -> str:
        # Without a method it is a WebSocket.
        asked = scope.get("method"), scope["path"], scope.get("root_path")
        return self._keys.get(asked) or self._find(asked, scope)

    def _find(self, asked: tuple[str | None, str, str | None], scope: Scope) -> str:
        method = method_of(scope)
        template = self._route_of(method, path_of(scope))
        key = f"{method} {template or NO_ROUTE}"
        # Not those without a route: it may be added later, and they are cheap.
        if template is not None and len(asked[1]) <= REMEMBERED_LETTERS:
            if len(self._keys) >= REMEMBERED_PATHS:
                self._keys.clear()
            self._keys[asked] = key
        return key


@dataclass(frozen=True, slots=True)
class _Place:
    """One route of Starlette's, or what is mounted at a prefix."""

    pattern: re.Pattern[str]
    template: str
    # None of them: any.
    methods: frozenset[str]
    mounted: tuple[_Place, ...] | None

    def template_for(self, method: str, path: str) -> str | None:
        match = self.pattern.match(path)
        if match is None:
            return None
        if self.mounted is not None:
            inner = _first_template(self.mounted, method, "/" + match["path"])
            # What is mounted there may be no router: static files, another framework.
            return self.template + ("/{path}" if inner is None else inner)
        return self.template if not self.methods or method in self.methods else None


def _first_template(places: Sequence[_Place], method: str, path: str) -> str | None:
    for place in places:
        template = place.template_for(method, path)
        if template is not None:
            return template
    return None


def starlette_key(app: Any) -> Key:
    """Return a key by the routes of a Starlette or FastAPI application, or router.

    They are read at the first request, and again when their number has changed.
    """
    places: tuple[_Place, ...] = ()
    count = -1

    def route_of(method: str, path: str) -> str | None:
        nonlocal places, count
        template = _first_template(places, method, path)
        if template is None and len(app.routes) != count:
            places = tuple(_places(app.routes))
            count = len(app.routes)
            template = _first_template(places, method, path)
        return template

    return RouteKey(route_of)


def _places(routes: Sequence[Any]) -> Iterator[_Place]:
    for route in routes:
        if hasattr(route, "effective_route_contexts"):
            # A router that FastAPI has included: its routes as they are there, with the prefix.
            contexts = route.effective_route_contexts()
            yield from _places([getattr(context, "starlette_route", None) or context for context in contexts])
        elif hasattr(route, "path_regex"):
            pattern: re.Pattern[str] = route.path_regex
            is_mount = "path" in pattern.groupindex and hasattr(route, "routes")
            yield _Place(
                pattern,
                route.path if is_mount else route.path_format,
                _methods_of(route),
                tuple(_places(route.routes or ())) if is_mount else None,
            )
        elif hasattr(route, "routes"):
            # Routes for one host name. Whether it is the one that was asked for makes little difference to the key.
            yield from _places(route.routes or ())


def _methods_of(route: Any) -> frozenset[str]:
    if hasattr(route, "methods"):
        return frozenset(route.methods or ())
    # A mount takes any; of the others only those for WebSockets have no methods.
    return frozenset() if hasattr(route, "routes") else frozenset({"WEBSOCKET"})


def django_key(urls: str | None = None) -> Key:
    """Return a key by the URL patterns of a Django project: those of its settings, or of the module `urls`."""
    from django.urls import Resolver404, resolve

    def route_of(_: str, path: str) -> str | None:
        try:
            return "/" + str(resolve(path, urls).route)
        except Resolver404:
            return None

    return RouteKey(route_of)


def litestar_key(app: Any) -> Key:
    """Return a key by the routes of a Litestar application."""
    from litestar.exceptions import HTTPException

    def route_of(method: str, path: str) -> str | None:
        try:
            *_, template = app.asgi_router.handle_routing(
                path=path.rstrip("/") or "/", method=None if method == "WEBSOCKET" else method
            )
        except HTTPException:
            return None
        return str(template)

    return RouteKey(route_of)


def key_for(app: Any) -> Key:
    """Return the key that suits an application, which is looked for below what it is wrapped in, or `path_key`."""
    while app is not None:
        packages = {base.__module__.partition(".")[0] for base in type(app).__mro__}
        if "litestar" in packages and hasattr(app, "asgi_router"):
            return litestar_key(app)
        if "starlette" in packages and hasattr(app, "routes"):
            return starlette_key(app)
        if "django" in packages and hasattr(app, "resolve_request"):
            return django_key()
        app = getattr(app, "app", None)
    return path_key
