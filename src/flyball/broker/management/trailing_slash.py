"""Paths of the API with a slash at their end mean the same as without: RabbitMQ serves both, clients use both."""

from __future__ import annotations

from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from flyball.broker.engine.access import DEFAULT_EXCHANGE

PREFIXES = (b"/api/", b"/metrics/")


def without_trailing_slash(app: ASGIApp) -> ASGIApp:
    """Return an application that takes a slash at the end of a path of the API away. It redirects nobody."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw: bytes = scope.get("raw_path") or scope["path"].encode()
            if raw.endswith(b"/") and raw.startswith(PREFIXES):
                path = _served(raw)
                scope = {**scope, "raw_path": path, "path": unquote(path)}
        await app(scope, receive, send)

    return wrapped


def _served(raw: bytes) -> bytes:
    # In `/api/exchanges/%2F//` the name between the last two slashes is left out: that of the default exchange.
    if raw.endswith(b"//"):
        raw = raw.replace(b"//", f"/{DEFAULT_EXCHANGE}/".encode())
    return raw.removesuffix(b"/")
