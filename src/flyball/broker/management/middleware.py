"""What surrounds the application: paths with a slash at their end, and responses that can cut their connections."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from flyball.broker.engine.access import DEFAULT_EXCHANGE

PREFIXES = (b"/api/", b"/metrics/")

# What cuts the connection of a request, in its scope: ASGI has no word for that.
KEY = "flyball.abort"


def cuttable(app: ASGIApp) -> ASGIApp:
    """Return an application whose responses can `cut` their connections, if the server is uvicorn."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        # uvicorn's `send` is a method of what holds the transport. Without it nothing is cut, only closed.
        transport = getattr(getattr(send, "__self__", None), "transport", None)
        if transport is not None:
            scope[KEY] = transport.abort
        await app(scope, receive, send)

    return wrapped


def cut(scope: Scope) -> bool:
    """End the connection of a request at once; what was not read is lost. Return False if it cannot be."""
    abort: Callable[[], None] | None = scope.get(KEY)
    if abort is None:
        return False
    abort()
    return True


def without_trailing_slash(app: ASGIApp) -> ASGIApp:
    """Return an application that takes a slash at the end of a path of the API away: RabbitMQ serves both."""

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
