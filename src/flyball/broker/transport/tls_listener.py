"""Listens for peers over TLS, and counts peers in the handshake as unauthenticated connections.

asyncio's servers do not report a peer before its handshake is complete: a few thousand silent peers would use up all
file descriptors of the process, and prevent all further connections, even to the store.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence

from flyball.broker.core.supervisor import Supervisor
from flyball.broker.transport.connection import Connection, Hub
from flyball.broker.transport.mixups import NOT_TLS

log = logging.getLogger("flyball.server")

# Timeout of the TLS handshake.
HANDSHAKE_S = 10.0

# Retry interval while no file descriptor is free; connections wait in the backlog.
RETRY_S = 0.1


class TlsListener:
    """The sockets on which a protocol is served over TLS."""

    def __init__(
        self,
        hub: Hub,
        sockets: Sequence[socket.socket],
        factory: Callable[[], Connection],
        context: ssl.SSLContext,
    ) -> None:
        self.sockets = sockets
        self._hub = hub
        self._factory = factory
        self._context = context
        self._task: asyncio.Task[None] | None = None

    def start(self, supervisor: Supervisor, name: str) -> None:
        """Accept peers until `close`."""
        self._task = supervisor.keep(name, self._run)
        # The sockets are closed only after the task has ended.
        self._task.add_done_callback(lambda _: self._close_sockets())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _close_sockets(self) -> None:
        for listening in self.sockets:
            listening.close()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for listening in self.sockets:
                tasks.create_task(self._accept(listening))

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        problem = ""
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                # The peer disconnected, or no file descriptor is free.
                if str(error) != problem:
                    problem = str(error)
                    log.warning("cannot accept TLS connections: %s", error.strerror)
                await asyncio.sleep(RETRY_S)
                continue
            problem = ""
            connection = self._factory()
            if not self._hub.entrance.admit_handshake(connection, str(address[0]), str(address[0])):
                accepted.close()
                continue
            connection.securing = self._hub.spawn(self._secure(connection, accepted, str(address[0])))
            if connection.securing is None:
                self._hub.entrance.end_handshake(connection)
                accepted.close()

    async def _secure(self, connection: Connection, accepted: socket.socket, address: str) -> None:
        """Perform the TLS handshake; `connection_made` is called on success."""
        loop = asyncio.get_running_loop()
        is_made = False
        try:
            await loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )
            is_made = True
        except OSError as error:
            if isinstance(error, ssl.SSLError) and error.reason in NOT_TLS:
                log.warning("dropped %s: this port speaks TLS, and the client does not", address)
            else:
                log.info("TLS handshake failed peer=%s: %s", address, error)
        finally:
            connection.securing = None
            if not is_made:
                self._hub.entrance.end_handshake(connection)


def listening_sockets(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Return sockets that listen on all addresses of a host. Raises OSError."""
    found: list[socket.socket] = []
    addresses = dict.fromkeys(
        (family, address)
        for family, _, _, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    )
    try:
        for family, address in addresses:
            listening = socket.create_server(address[:2], family=family, backlog=backlog)
            found.append(listening)
            listening.setblocking(False)
    except OSError:
        for listening in found:
            listening.close()
        raise
    return found
