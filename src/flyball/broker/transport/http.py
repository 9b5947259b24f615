"""The base of the HTTP interfaces: authentication, error responses and the server.

Routes are passed to `make_app`. A handler receives its user and raises Flyball's errors.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from flyball import errors
from flyball.broker.core.attempts import TooManyAttempts
from flyball.broker.core.authority import Authority
from flyball.broker.core.supervisor import Supervisor
from flyball.broker.settings import Address
from flyball.broker.transport.connection import is_loopback
from flyball.broker.transport.http_protocol import BoundedProtocol
from flyball.faults import Faults
from flyball.model import User

LISTEN_BACKLOG = 1024
# Timeout of requests in progress when the node stops.
CLOSE_TIMEOUT_S = 1

CONSOLE_HEADER = "x-requested-with"
# The value of this header in requests of the web console, which has its own login form.
CONSOLE = "flyball-console"

# The status of errors. The first type of an error's MRO that is listed applies.
STATUS_OF: Mapping[type[errors.FlyballError], int] = {
    errors.QueueNotFound: 404,
    errors.ExchangeNotFound: 404,
    errors.VhostNotFound: 404,
    errors.UserNotFound: 404,
    errors.PolicyNotFound: 404,
    errors.TopicNotFound: 404,
    errors.ClientNotFound: 404,
    errors.LoopNotFound: 404,
    errors.ModelNotFound: 404,
    errors.ModelConflict: 409,
    errors.NotSwitchable: 409,
    errors.TooManyLoops: 429,
    errors.MemoryLimitReached: 503,
    errors.NotPermitted: 403,
    errors.RequestError: 400,
    errors.NotAdmitted: 503,
    errors.ClusterError: 503,
    errors.StoreError: 503,
    errors.FlyballError: 500,
}

ADVICE_OF: Mapping[type[errors.FlyballError], str] = {
    errors.QueueNotFound: "See `flyball domain show`, or create it with `flyball domain cluster create`.",
    errors.VhostNotFound: "See `flyball vhost list`.",
    errors.UserNotFound: "See `flyball user list`.",
    errors.PolicyNotFound: "See `flyball policy list`.",
    errors.NotPermitted: "Log in as another user, or see `flyball permission list`.",
    errors.NotAdmitted: "Retry in a few seconds.",
    errors.ClusterError: "Retry in a few seconds; see `flyball domain show`.",
    errors.StoreError: "Retry in a few seconds; see the node's log.",
}

# The values of `error`: RabbitMQ's, and Flyball's where it has none.
WORD_OF: Mapping[int, str] = {
    400: "bad_request",
    401: "not_authorised",
    403: "not_authorised",
    404: "Object Not Found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    429: "too_many_requests",
    500: "internal_error",
    503: "unavailable",
}

Endpoint = Callable[[Request], Awaitable[Response]]
Handler = Callable[[Request, User], Awaitable[Response]]


class Login:
    """HTTP basic authentication."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority

    def required(self, handler: Handler) -> Endpoint:
        """Wrap a handler so that the response without a valid login is a 401."""

        async def checked(request: Request) -> Response:
            user = await self.user_of(request)
            return not_logged_in(request) if user is None else await handler(request, user)

        # The docstring is the route's description.
        checked.__doc__ = handler.__doc__
        return checked

    async def user_of(self, request: Request) -> User | None:
        """Return the authenticated user of a request, or None."""
        given = basic_of(request)
        if given is None:
            return None
        host = "" if request.client is None else request.client.host
        try:
            return await self.authority.log_in(*given, host, is_loopback(host))
        except (TooManyAttempts, errors.NotAdmitted):
            return None


def basic_of(request: Request) -> tuple[str, str] | None:
    """Return the name and password in a request's basic authentication, or None."""
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:
        # Invalid base64 or UTF-8, or characters beyond ASCII.
        return None
    return (name, password) if colon else None


def is_from_console(request: Request) -> bool:
    """Whether the request is from the web console."""
    return request.headers.get(CONSOLE_HEADER) == CONSOLE


def not_logged_in(request: Request) -> JSONResponse:
    """Return a 401 that makes a browser prompt for a password; not for the console, which has its own form."""
    challenge = {"WWW-Authenticate": 'Basic realm="flyball", charset="UTF-8"'}
    return problem(
        401,
        "authentication failed: no login, or wrong name or password",
        "Send the name and password of a user; see `flyball user list`.",
        headers=None if is_from_console(request) else challenge,
    )


def problem(
    status: int,
    reason: str,
    advice: str,
    headers: Mapping[str, str] | None = None,
    *,
    error: str | None = None,
    kind: str | None = None,
) -> JSONResponse:
    """Return an error response with the reason and advice for the user.

    For programs, `error` is a keyword and `kind` the name of one of Flyball's errors.
    """
    word = WORD_OF.get(status, "error") if error is None else error
    return JSONResponse(
        {"error": word, "reason": reason, "advice": advice, **({} if kind is None else {"kind": kind})},
        status,
        {**(headers or {}), "x-content-type-options": "nosniff"},
    )


def make_app(routes: Sequence[BaseRoute], middleware: Sequence[Middleware] = ()) -> Starlette:
    """Return an application that converts errors of its handlers into error responses."""
    return Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            errors.FlyballError: _error_response,
            HTTPException: _http_error_response,
            ClientDisconnect: _ignore_disconnect,
        },
    )


def _error_response(request: Request, error: Exception) -> Response:
    kinds = type(error).__mro__
    status = next(STATUS_OF[kind] for kind in kinds if kind in STATUS_OF)
    advice = next((ADVICE_OF[kind] for kind in kinds if kind in ADVICE_OF), "See the documentation of the request.")
    return problem(status, str(error), advice, kind=type(error).__name__)


def _http_error_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these"
    path = request.url.path
    known = {404: f"path {path} not found", 405: f"{request.method} is not allowed for {path}"}
    text = known.get(error.status_code, error.detail)
    return problem(error.status_code, text, "See the documentation of the HTTP interface.", error.headers)


def _ignore_disconnect(request: Request, error: Exception) -> Response:
    """Respond to a client that disconnected during its request, to avoid a traceback."""
    return Response(status_code=400)


class _Server(uvicorn.Server):
    """A server that does not handle signals: the node does."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp,
    address: Address,
    max_connections: int,
    supervisor: Supervisor | None = None,
    inherited: socket.socket | None = None,
) -> AsyncIterator[Address]:
    """Serve the application in this event loop; yield the address. Raises OSError if it is not available.

    An `inherited` socket is used instead of the address. Above `max_connections` the response is a 503; see
    `http_protocol` for connections that are closed without one.
    """
    listener = _listen(address) if inherited is None else inherited
    with contextlib.closing(listener):
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            http=BoundedProtocol,
            # uvicorn would trust every client on this machine, and those listed in an environment variable: see
            # `http_peers`.
            proxy_headers=False,
            # uvicorn refuses at this number, including the requesting connection.
            limit_concurrency=max_connections + 1,
            timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
            ws="none",
        )
        servers: list[_Server] = []

        async def serve() -> None:
            # A failed server cannot be reused; its socket can.
            servers.append(_Server(config))
            await servers[-1].serve([listener])

        async with asyncio.TaskGroup() as tasks:
            keep = Supervisor(tasks, Faults()) if supervisor is None else supervisor.within(tasks)
            task = keep.keep("http", serve)
            try:
                yield Address(*listener.getsockname()[:2])
            finally:
                if servers:
                    servers[-1].should_exit = True
                    await asyncio.wait((task,), timeout=10 * CLOSE_TIMEOUT_S)
                task.cancel()


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(LISTEN_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        # Common with several nodes on a machine, since HTTP is on by default.
        text = f"cannot listen on {address} (--http): {error.strerror}; choose another address or --http off"
        raise OSError(error.errno, text) from error
    return listener
