"""Protocol drivers of the lab's clients: a session for each protocol."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

from flyball.errors import LabError
from flyball.lab.drivers.amqp import AmqpLink, AmqpSession
from flyball.lab.drivers.http import HttpLink, HttpSession
from flyball.lab.drivers.session import ANY_RECEIVER, CONNECT_LIMIT_S, QueueRef, Received, Session, Target
from flyball.lab.drivers.telesto import TelestoLink, TelestoSession
from flyball.lab.drivers.thorbang import ThorBangLink, ThorBangSession

__all__ = [
    "ANY_RECEIVER",
    "PROTOCOLS",
    "AmqpSession",
    "HttpSession",
    "QueueRef",
    "Received",
    "Session",
    "Target",
    "connect",
    "connect_amqp",
]

_Link = TypeVar("_Link", bound=asyncio.Protocol)


async def _thorbang(target: Target) -> Session:
    return ThorBangSession(await _open(target, ThorBangLink))


async def _telesto(target: Target) -> Session:
    return TelestoSession(await _open(target, TelestoLink), lambda: _open(target, TelestoLink))


async def _amqp(target: Target) -> Session:
    return await connect_amqp(target)


async def connect_amqp(target: Target, *, is_transactional: bool = False) -> AmqpSession:
    """Open a session of AMQP. Raises LabError and OSError."""
    link = await _open(target, AmqpLink)
    try:
        await link.log_in(target, is_transactional=is_transactional)
    except BaseException:
        await link.hang_up()
        raise
    return AmqpSession(link)


async def _http(target: Target) -> Session:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return HttpSession(f"{host}:{target.port}", lambda: _open(target, HttpLink))


async def _open(target: Target, make_link: Callable[[], _Link]) -> _Link:
    transport, link = await asyncio.get_running_loop().create_connection(make_link, target.host, target.port)
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


_CONNECT: dict[str, Callable[[Target], Awaitable[Session]]] = {
    "thorbang": _thorbang,
    "telesto": _telesto,
    "amqp": _amqp,
    "http": _http,
}

# The protocols of brokers, which support all methods of a session.
PROTOCOLS = ("thorbang", "telesto", "amqp")


async def connect(protocol: str, target: Target) -> Session:
    """Open a session with a server. Raises LabError if the server is unreachable or refuses the login.

    A session of http connects at its first request.
    """
    try:
        async with asyncio.timeout(CONNECT_LIMIT_S):
            return await _CONNECT[protocol](target)
    except TimeoutError:
        reason = f"no answer within {CONNECT_LIMIT_S:.0f} s"
    except (OSError, LabError) as error:
        reason = str(error)
    raise LabError(f"cannot connect to {target.name} on {target.host}:{target.port}: {reason}")
