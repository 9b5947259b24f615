"""Who is at the other end of a request of HTTP: a client itself, or a proxy that says for whom it asks.

And whom it means to ask. Any site can have a name that leads to this machine: a browser here would take the node for
a part of that site, and let its scripts ask as `guest`. So a client of this machine is answered under the node's own
names only.
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
    """Return an application that believes these proxies, and nobody else, for whom they ask and whether by HTTPS.

    Without a proxy, clients of this machine are answered if they ask for an address, for localhost or for one of the
    names.
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
    """Return the names of a node's machine."""
    machine = socket.gethostname()
    found = {machine, machine.partition(".")[0], settings.advertise, settings.http and settings.http.host}
    return {name for name in found if name}


def _name_asked(scope: Scope) -> str:
    """Return the host that a request is meant for, without its port; an empty text if it names none."""
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
        f"this node does not know that it is called {name!r}",
        "Ask for localhost or an address; or start the node with --advertise NAME, or --http-proxies behind a proxy.",
        error="forbidden",
    )


def _peer_of(scope: Scope) -> Ip | None:
    """Return the address of who is connected, and one of IPv4 as such, however the system writes it."""
    try:
        peer = ipaddress.ip_address(scope["client"][0])
    except (KeyError, TypeError, ValueError):
        return None
    mapped = peer.ipv4_mapped if isinstance(peer, ipaddress.IPv6Address) else None
    return mapped or peer
