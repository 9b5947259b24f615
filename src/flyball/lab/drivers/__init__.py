"""How the clients of the lab speak to servers: a session for each protocol."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from flyball.errors import LabError
from flyball.lab.drivers.session import CONNECT_LIMIT_S, NOBODY, Exchange, QueueRef, Received, Session, Target
from flyball.lab.drivers.thorbang import ThorBangLink, ThorBangSession

__all__ = ["NOBODY", "PROTOCOLS", "QueueRef", "Received", "Session", "Target", "connect"]


async def _connect_thorbang(target: Target) -> Session:
    link = ThorBangLink()
    await _open(target, link)
    return ThorBangSession(link)


async def _open(target: Target, link: Exchange) -> None:
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: link, target.host, target.port)
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


_CONNECT: dict[str, Callable[[Target], Awaitable[Session]]] = {
    "thorbang": _connect_thorbang,
}

PROTOCOLS = tuple(_CONNECT)


async def connect(protocol: str, target: Target) -> Session:
    """Open a session with a server. Raises LabError when there is none, or none that lets us in."""
    try:
        async with asyncio.timeout(CONNECT_LIMIT_S):
            return await _CONNECT[protocol](target)
    except TimeoutError:
        reason = f"no answer within {CONNECT_LIMIT_S:.0f} s"
    except OSError as error:
        reason = error.strerror or str(error)
    raise LabError(f"cannot connect to {target.name} on {target.host}:{target.port}: {reason}")
