"""Lets a response give up on a client that does not read: ASGI has no word for that, so it goes round it."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

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
