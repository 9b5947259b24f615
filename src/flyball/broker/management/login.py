"""Login to the API and the console: HTTP basic authentication, or a session with a cookie.

Cross-site requests are refused. Permissions are checked elsewhere.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from flyball.broker.core.attempts import TooManyAttempts
from flyball.broker.core.authority import Authority
from flyball.broker.core.refusals import why_refused
from flyball.broker.management.sessions import Sessions
from flyball.broker.settings import Address
from flyball.broker.transport.connection import is_loopback
from flyball.broker.transport.http import (
    CONSOLE,
    CONSOLE_HEADER,
    Endpoint,
    Handler,
    Login,
    basic_of,
    is_from_console,
    not_logged_in,
    problem,
)
from flyball.errors import NotAdmitted
from flyball.model import OWNER, User

log = logging.getLogger(__name__)

# Prefix of the session cookie's name; see `cookie_of`.
COOKIE = "flyball_session"

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Values of Sec-Fetch-Site for requests from pages of another origin.
OTHER_SITES = frozenset({"cross-site", "same-site"})

MAX_LOGIN_BYTES = 16 * 1024
# Time limit for receiving a login.
READ_S = 10.0


class _Refused(Exception):
    """A refused request, with its response."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


class ConsoleLogin(Login):
    """Authenticates users by password or session."""

    def __init__(
        self,
        authority: Authority,
        node: str = "",
        listeners: Mapping[str, Address] | None = None,
        *,
        sessions: Sessions | None = None,
    ) -> None:
        """`node` is the node's name, `listeners` are its addresses by protocol."""
        super().__init__(authority)
        self._node = node
        self._listeners = {} if listeners is None else listeners
        self._sessions = Sessions(authority.access) if sessions is None else sessions

    def required(self, handler: Handler) -> Endpoint:
        """Wrap a handler so that it requires a login."""

        @functools.wraps(handler)
        async def checked(request: Request) -> Response:
            try:
                user = await self.user_of(request)
            except _Refused as refused:
                return refused.response
            if user is None:
                return not_logged_in(request)
            return await handler(request, user)

        return checked

    async def user_of(self, request: Request) -> User | None:
        """Return the authenticated user. Raises _Refused."""
        _check_origin(request)
        if "authorization" in request.headers:
            said = basic_of(request)
            return None if said is None else await self._authenticated(request, *said)
        token = request.cookies.get(cookie_of(request))
        if token is None:
            return None
        if request.method not in SAFE_METHODS and not is_from_console(request):
            # A form on another site cannot set a header (CSRF).
            reason = f"a request with a session needs the header {CONSOLE_HEADER}: {CONSOLE}"
            raise _forbidden(reason, "Send the header, or use basic authentication.")
        user = self._sessions.user_of(token)
        if user is None or not (_peer_is_loopback(request) or user.name not in self.authority.loopback_users):
            return None
        return user

    def still_knows(self, request: Request, user: User) -> bool:
        """Return whether a user's session or password is still valid."""
        if "authorization" not in request.headers:
            return self._sessions.user_of(request.cookies.get(cookie_of(request), "")) is not None
        now = self.authority.access.current(user)
        return now is not None and now.password_hash == user.password_hash

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes for login, logout and the current user."""
        return [
            Route("/api/login", self._log_in, methods=["POST"]),
            Route("/api/login", self._log_out, methods=["DELETE"]),
            Route("/api/whoami", self.required(self._show_user), methods=["GET"]),
        ]

    async def _log_in(self, request: Request) -> Response:
        """Log in and start a session."""
        try:
            _check_origin(request)
            said = await _credentials_in(request)
            user = None if said is None else await self._authenticated(request, *said)
        except _Refused as refused:
            return refused.response
        if said is None:
            advice = 'Send {"name": ..., "password": ...} as JSON.'
            return problem(400, "the login must be a JSON object with name and password", advice)
        if user is None or user.name == OWNER:
            # The owner token is for programs that can read its file: a browser would store it.
            return not_logged_in(request)
        response = Response(status_code=204)
        response.set_cookie(
            cookie_of(request),
            self._sessions.begin(user),
            httponly=True,
            samesite="strict",
            path="/",
            secure=request.url.scheme == "https",
        )
        return response

    async def _log_out(self, request: Request) -> Response:
        """Log out: end the session, if there is one."""
        try:
            _check_origin(request)
        except _Refused as refused:
            return refused.response
        self._sessions.end(request.cookies.get(cookie_of(request), ""))
        response = Response(status_code=204)
        response.delete_cookie(cookie_of(request), path="/", httponly=True, samesite="strict")
        return response

    async def _show_user(self, request: Request, user: User) -> Response:
        """Return the logged-in user with its permissions, and the node's listeners."""
        permissions = [
            {
                "vhost": permission.vhost,
                "configure": permission.configure,
                "write": permission.write,
                "read": permission.read,
            }
            for permission in self.authority.access.permissions_of(user.name)
        ]
        facts = {"name": user.name, "tags": list(user.tags), "permissions": permissions}
        listeners = {protocol: str(address) for protocol, address in self._listeners.items()}
        return JSONResponse({**facts, "node": self._node, "listeners": listeners})

    async def _authenticated(self, request: Request, name: str, password: str) -> User | None:
        address = "" if request.client is None else request.client.host
        is_local = _peer_is_loopback(request)
        try:
            user = await self.authority.log_in(name, password, address, is_local)
        except (TooManyAttempts, NotAdmitted) as error:
            wait_s = math.ceil(error.retry_after_s)
            raise _Refused(
                problem(429, str(error), "Wait before the next attempt.", {"Retry-After": str(wait_s)})
            ) from None
        if user is None:
            # Only a user's name: people type passwords into that field.
            known = repr(name) if name == OWNER or self.authority.access.find_user(name) is not None else "unknown"
            reason = why_refused(self.authority, name, is_local)
            log.warning("login refused peer=%s user=%s mechanism=HTTP reason=%s", address, known, reason)
        return user


def cookie_of(request: Request) -> str:
    """Return the name of the session cookie for the requested address.

    Browsers send a host's cookies to all of its ports: with a common name, a login at one node would end the session
    at another node on the same host.
    """
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isdecimal() else COOKIE


def _check_origin(request: Request) -> None:
    """Refuse a change requested by a page of another site."""
    if request.method in SAFE_METHODS:
        return
    if _is_foreign(request) or request.headers.get("sec-fetch-site") in OTHER_SITES:
        raise _forbidden("the request comes from another site", "Use the console at its own address.")


def _forbidden(reason: str, advice: str) -> _Refused:
    return _Refused(problem(403, reason, advice, error="forbidden"))


def _is_foreign(request: Request) -> bool:
    """Return whether the browser reports a cross-site request."""
    origin = request.headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower()
    except ValueError:
        return True


def _peer_is_loopback(request: Request) -> bool:
    return request.client is not None and is_loopback(request.client.host)


async def _credentials_in(request: Request) -> tuple[str, str] | None:
    """Return name and password from the JSON body; None if they are missing."""
    content = bytearray()
    try:
        async with asyncio.timeout(READ_S):
            async for chunk in request.stream():
                content += chunk
                if len(content) > MAX_LOGIN_BYTES:
                    return None
        found: Any = json.loads(content)
    except (TimeoutError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    name, password = found.get("name"), found.get("password")
    return (name, password) if isinstance(name, str) and isinstance(password, str) else None
