"""ASGI middleware: trailing slashes, and responses that can abort their connections."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from flyball.broker.engine.access import DEFAULT_EXCHANGE

PREFIXES = (b"/api/", b"/metrics/")

# Key in the request's scope of the function that aborts its connection: ASGI has no message for that.
KEY = "flyball.abort"


def cuttable(app: ASGIApp) -> ASGIApp:
    """Return an application whose responses can `cut` their connections, if the server is uvicorn."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        # uvicorn's `send` is a method of the object that holds the transport. Without it the connection is closed,
        # not aborted.
        transport = getattr(getattr(send, "__self__", None), "transport", None)
        if transport is not None:
            scope[KEY] = transport.abort
        await app(scope, receive, send)

    return wrapped


def cut(scope: Scope) -> bool:
    """Abort the connection of a request; unsent data is lost. Return False if that is not possible."""
    abort: Callable[[], None] | None = scope.get(KEY)
    if abort is None:
        return False
    abort()
    return True


def without_trailing_slash(app: ASGIApp) -> ASGIApp:
    """Return an application that ignores a trailing slash in API paths, as RabbitMQ does."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw: bytes = scope.get("raw_path") or scope["path"].encode()
            if raw.endswith(b"/") and raw.startswith(PREFIXES):
                path = _served(raw)
                scope = {**scope, "raw_path": path, "path": unquote(path)}
        await app(scope, receive, send)

    return wrapped


def _served(raw: bytes) -> bytes:
    # `/api/exchanges/%2F//` has an empty name between the last two slashes: the default exchange.
    if raw.endswith(b"//"):
        raw = raw.replace(b"//", f"/{DEFAULT_EXCHANGE}/".encode())
    return raw.removesuffix(b"/")
