"""The kind of a request: a key of its method and path template, "GET /items/{item_id}".

Costs are learned by key, so the number of keys must be bounded for any client requests. Frameworks are imported only
by the key that needs them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

# The ASGI scope of a connection.
Scope = MutableMapping[str, Any]
Key = Callable[[Scope], str]

# The template of all paths without a route: a scanner must not create keys.
NO_ROUTE = "(no route)"

METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})

MOST_SEGMENTS = 8
MOST_SEGMENT_LETTERS = 40
CACHED_PATHS = 4096
# Longer paths are not cached: clients choose their length.
CACHED_LETTERS = 256

_IDENTIFIER = re.compile(
    r"\d+"
    r"|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    r"|(?=[^/]*\d)[0-9a-fA-F]{12,}"
    r"|[^@]*@.*"
    rf"|.{{{MOST_SEGMENT_LETTERS + 1},}}"
)


def method_of(scope: Scope) -> str:
    """Return the method for keys: HEAD counts as GET, and clients can invent methods."""
    if scope["type"] == "websocket":
        return "WEBSOCKET"
    method: str = scope["method"]
    if method in METHODS:
        return method
    return "GET" if method == "HEAD" else "OTHER"


def path_of(scope: Scope) -> str:
    """Return the path relative to the application's mount point."""
    path: str = scope["path"]
    root_path: str = scope.get("root_path", "")
    if root_path and path.startswith(root_path):
        below = path[len(root_path) :]
        if not below or below.startswith("/"):
            return below or "/"
    return path


def path_key(scope: Scope) -> str:
    """Return a key for any application: numbers, UUIDs, long hexadecimal or other long segments, and those with an @
    become `{}`.

    Other names in paths are kept, so an application that has such paths needs a key by its routes.
    """
    path = path_of(scope)
    return f"{method_of(scope)} {_known_template(path) if len(path) <= CACHED_LETTERS else _template(path)}"


def _template(path: str) -> str:
    segments = path.split("/")
    # The first part is empty: the path starts with a slash.
    kept = ["{}" if _IDENTIFIER.fullmatch(segment) else segment for segment in segments[: MOST_SEGMENTS + 1]]
    return "/".join(kept) + ("/..." if len(segments) > len(kept) else "")


_known_template = functools.lru_cache(CACHED_PATHS)(_template)


class RouteKey:
    """A key by an application's routes, with a bounded cache of paths."""

    def __init__(self, route_of: Callable[[str, str], str | None]) -> None:
        """`route_of` returns the template for a method (or WEBSOCKET) and a path, None without a route."""
        self._route_of = route_of
        self._keys: dict[tuple[str | None, str, str | None], str] = {}

    def __call__(self, scope: Scope) -> str:
        # WebSockets have no method.
        asked = scope.get("method"), scope["path"], scope.get("root_path")
        return self._keys.get(asked) or self._find(asked, scope)

    def _find(self, asked: tuple[str | None, str, str | None], scope: Scope) -> str:
        method = method_of(scope)
        template = self._route_of(method, path_of(scope))
        key = f"{method} {template or NO_ROUTE}"
        # Paths without a route are not cached: a route may be added later, and they are cheap.
        if template is not None and len(asked[1]) <= CACHED_LETTERS:
            if len(self._keys) >= CACHED_PATHS:
                self._keys.clear()
            self._keys[asked] = key
        return key


@dataclass(frozen=True, slots=True)
class _Place:
    """A Starlette route, or a mount at a prefix."""

    pattern: re.Pattern[str]
    template: str
    # Empty: any.
    methods: frozenset[str]
    mounted: tuple[_Place, ...] | None

    def template_for(self, method: str, path: str) -> str | None:
        match = self.pattern.match(path)
        if match is None:
            return None
        if self.mounted is not None:
            inner = _first_template(self.mounted, method, "/" + match["path"])
            # A mount need not be a router: static files, another framework.
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

    They are read at the first request, and again when their number changes.
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
            # A router included by FastAPI: its routes with the prefix.
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
            # Routes of a host name. Which host was requested hardly matters for the key.
            yield from _places(route.routes or ())


def _methods_of(route: Any) -> frozenset[str]:
    if hasattr(route, "methods"):
        return frozenset(route.methods or ())
    # A mount accepts any; routes without methods are WebSockets.
    return frozenset() if hasattr(route, "routes") else frozenset({"WEBSOCKET"})


def django_key(urls: str | None = None) -> Key:
    """Return a key by the URL patterns of a Django project: of its settings, or of the module `urls`."""
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
    """Return the key for an application, which may be wrapped in middleware; `path_key` if its framework is
    unknown.
    """
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
