"""The peer of an HTTP request, behind trusted proxies, and the check of its Host header.

DNS rebinding: any site can have a name that resolves to this machine. A browser here would consider the node part of
that site, whose scripts could send requests as `guest`. Therefore clients on this machine are served only under the
node's own names.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Sequence
from typing import cast

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from flyball.broker.settings import ServeSettings
from flyball.broker.transport.http import problem

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


def behind(app: ASGIApp, proxies: Sequence[str], names: Collection[str] = ()) -> ASGIApp:
    """Return an application that honours X-Forwarded-For and X-Forwarded-Proto of these proxies only.

    Without a proxy, clients on this machine are served if the Host header is an address, localhost or one of `names`.
    """
    inner = cast("ASGIApp", ProxyHeadersMiddleware(app, list(proxies))) if proxies else app  # type: ignore[arg-type]
    networks = [ipaddress.ip_network(proxy) for proxy in proxies]
    known = {name.lower() for name in names}

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        peer = _peer_of(scope)
        if peer is not None:
            scope["client"] = (str(peer), scope["client"][1])
            if peer.is_loopback and not any(peer in network for network in networks):
                name = _name_asked(scope)
                if not _is_own(name, known):
                    await _unknown(name)(scope, receive, send)
                    return
        await inner(scope, receive, send)

    return asked


def own_names(settings: ServeSettings) -> set[str]:
    """Return the host names of the node."""
    machine = socket.gethostname()
    found = {machine, machine.partition(".")[0], settings.advertise, settings.http and settings.http.host}
    return {name for name in found if name}


def _name_asked(scope: Scope) -> str:
    """Return the host of the Host header without its port; empty if the header is missing."""
    text = Headers(scope=scope).get("host", "").lower()
    host, bracket, _ = text.partition("]")
    return host.removeprefix("[") if bracket else text.partition(":")[0].rstrip(".")


def _is_own(name: str, known: Collection[str]) -> bool:
    if not name or name == "localhost" or name.endswith(".localhost") or name in known:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _unknown(name: str) -> Response:
    return problem(
        403,
        f"unknown host name {name!r} in the Host header",
        "Use localhost or an address; or start the node with --advertise NAME, or --http-proxies behind a proxy.",
        error="forbidden",
    )


def _peer_of(scope: Scope) -> Ip | None:
    """Return the address of the connected peer; convert an IPv4-mapped address to IPv4."""
    try:
        peer = ipaddress.ip_address(scope["client"][0])
    except (KeyError, TypeError, ValueError):
        return None
    mapped = peer.ipv4_mapped if isinstance(peer, ipaddress.IPv6Address) else None
    return mapped or peer
