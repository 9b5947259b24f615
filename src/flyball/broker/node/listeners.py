"""The listeners of a node: their addresses and the factories of their sessions."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flyball.broker.core.supervisor import Supervisor
from flyball.broker.protocols.amqp import AmqpContext, AmqpSession
from flyball.broker.protocols.telesto import TelestoSession
from flyball.broker.protocols.thorbang import ThorBangSession
from flyball.broker.settings import Address, ServeSettings
from flyball.broker.transport.connection import Connection, Hub, is_loopback
from flyball.broker.transport.tls import LinkTls, client_tls
from flyball.broker.transport.tls_listener import TlsListener, listening_sockets
from flyball.model import Order

log = logging.getLogger(__name__)

LISTEN_BACKLOG = 1024

# Wildcard addresses, to which peers cannot connect.
EVERYWHERE = ("0.0.0.0", "::")


@dataclass(slots=True, frozen=True)
class Listener:
    """An address to listen on, and the factory of its sessions."""

    name: str
    address: Address
    factory: Callable[[], Connection]
    tls: ssl.SSLContext | None = None
    knows_passwords: bool = False


def client_listeners(settings: ServeSettings, hub: Hub, amqp_context: AmqpContext) -> list[Listener]:
    time_order = Order.NEWEST if settings.telesto_time_order == "newest" else Order.OLDEST
    found: list[Listener] = []
    if settings.amqp is not None:
        found.append(Listener("amqp", settings.amqp, lambda: AmqpSession(hub, amqp_context), knows_passwords=True))
    if settings.amqps is not None:
        tls = client_tls(settings)
        found.append(Listener("amqps", settings.amqps, lambda: AmqpSession(hub, amqp_context), tls, True))
    if settings.telesto is not None:
        found.append(Listener("telesto", settings.telesto, lambda: TelestoSession(hub, time_order)))
    if settings.thorbang is not None:
        found.append(
            Listener("thorbang", settings.thorbang, lambda: ThorBangSession(hub, settings.thorbang_max_request_bytes))
        )
    return found


def link_listener(address: Address, new_link: Callable[[], Connection], secured: LinkTls | None) -> Listener:
    """Return the listener for other nodes of the domain."""
    if secured is None and not is_loopback(address.host):
        log.warning(
            "link listens on %s without TLS: traffic between nodes can be read and changed; set --link-tls-cert and"
            " --link-tls-ca",
            address,
        )
    return Listener("link", address, new_link, None if secured is None else secured.listener, knows_passwords=True)


async def listen(
    listener: Listener, hub: Hub, supervisor: Supervisor, inherited: socket.socket | None = None
) -> asyncio.Server | TlsListener:
    """Start listening, on an inherited socket if given. The supervisor runs the task that accepts TLS peers."""
    if not listener.knows_passwords and not is_loopback(listener.address.host):
        log.warning(
            "%s listens on %s and has no authentication: anyone who can connect has full access",
            listener.name,
            listener.address,
        )
    loop = asyncio.get_running_loop()
    host, port = listener.address
    try:
        if listener.tls is None and inherited is not None:
            return await loop.create_server(listener.factory, sock=inherited, backlog=LISTEN_BACKLOG)
        if listener.tls is None:
            return await loop.create_server(listener.factory, host, port, backlog=LISTEN_BACKLOG)
        if inherited is not None:
            sockets = [inherited]
        else:
            sockets = await asyncio.to_thread(listening_sockets, host, port, LISTEN_BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
        raise OSError(error.errno, f"cannot listen on {listener.address} (--{listener.name}): {reason}") from error
    secured = TlsListener(hub, sockets, listener.factory, listener.tls)
    secured.start(supervisor, f"{listener.name} listener")
    return secured


def address_of(listening: socket.socket) -> Address:
    host, port = listening.getsockname()[:2]
    return Address(host, port)


def advertised(addresses: Mapping[str, Address], settings: ServeSettings) -> dict[str, str]:
    """Return the addresses of the node's listeners for other machines, by protocol."""
    host = settings.advertise or socket.gethostname()
    return {
        name: str(Address(host, address.port) if address.host in EVERYWHERE else address)
        for name, address in addresses.items()
    }
