"""Static files of the web console, with security headers. The pages get their data from `/api`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

INDEX = "index.html"
NOT_FOUND = "not-found.html"

# File types that are served; other files of the folder are not.
CONTENT_TYPES: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file with its headers."""

    body: bytes
    content_type: str
    etag: str

    def answer(self, request: Request, status: int = 200) -> Response:
        """Send the file, or 304 if the client has this version."""
        headers = {**SECURITY_HEADERS, "Cache-Control": "no-cache", "ETag": self.etag}
        if status == 200 and self.etag in _etags(request):
            return Response(status_code=304, headers=headers)
        return Response(self.body, status, {**headers, "Content-Type": self.content_type})


def load_assets() -> dict[str, Asset]:
    """Load the console's files, by path below its folder."""
    return {
        name: _asset(name, file.read_bytes())
        for name, file in _walk(files("flyball.broker.management.console") / "web", "")
    }


def routes() -> list[BaseRoute]:
    """Return the routes of the console. Put them last: the final one matches everything."""
    assets = load_assets()

    async def index(request: Request) -> Response:
        return assets[INDEX].answer(request)

    async def file(request: Request) -> Response:
        found = assets.get(request.path_params["path"])
        if found is None:
            raise HTTPException(404)
        return found.answer(request)

    async def not_found(request: Request) -> Response:
        return assets[NOT_FOUND].answer(request, 404)

    return [
        Route("/", index, methods=["GET"]),
        Route("/web/{path:path}", file, methods=["GET"]),
        _PageRoute("/{path:path}", not_found, methods=["GET"]),
    ]


class _PageRoute(Route):
    """A route for browsers: unknown API paths get the API's own errors."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["path"].startswith(("/api", "/metrics")):
            return Match.NONE, {}
        return super().matches(scope)


def _etags(request: Request) -> set[str]:
    return {etag.strip().removeprefix("W/") for etag in request.headers.get("if-none-match", "").split(",")}


def _asset(name: str, body: bytes) -> Asset:
    suffix = name[name.rindex(".") :]
    return Asset(body, CONTENT_TYPES[suffix], f'"{hashlib.sha256(body).hexdigest()[:20]}"')


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(tuple(CONTENT_TYPES)):
            yield prefix + entry.name, entry
