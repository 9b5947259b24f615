"""A wire that can be cut: passes bytes between clients and one server, at once, delayed or not at all.

Independent of the bytes' meaning. Bytes that were in progress when it was cut never arrive.
"""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Self, cast

HOST = "127.0.0.1"

# An address, or the socket of a server on this machine.
Server = tuple[str, int] | Path


class Proxy:
    """Listens on a port of its own while its context is open; the server behind it may change meanwhile.

    A side that has ended its half of a connection has ended the whole.
    """

    def __init__(self, server: Server | None = None, host: str = HOST) -> None:
        self.server = server
        self.host = host
        self.port = 0
        # How much later bytes arrive, each way; holds for those that come from now on.
        self.delay_s = 0.0
        self.is_cut = False
        self._is_silent = False
        self._ends: set[_End] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    @property
    def is_mute(self) -> bool:
        """Whether bytes are swallowed."""
        return self.is_cut and self._is_silent

    async def __aenter__(self) -> Self:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._listener = await asyncio.get_running_loop().create_server(lambda: _End(self), self.host, 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()
        self.drop()
        # What went wrong while it was open is not the proxy's, and goes on as it is.
        await self._tasks.__aexit__(None, None, None)

    def drop(self) -> None:
        """End every connection at once; new ones are served."""
        for task in self._connecting:
            task.cancel()
        for end in self._ends:
            end.abort()

    def cut(self, *, silently: bool = False) -> None:
        """Let nothing pass. Clients notice it at once, or, if silently, only by a timeout."""
        self.is_cut = True
        self._is_silent = silently
        if not silently:
            self.drop()

    def heal(self) -> None:
        """Serve again. Connections that were cut do not come back to life."""
        if self.is_cut:
            self.is_cut = False
            self.drop()

    def opened(self, end: _End) -> None:
        """An end says that its connection is open; if it has no other side yet, that is to be the server."""
        self._ends.add(end)
        if self.is_cut:
            if not self._is_silent:
                end.abort()
        elif end.other is None:
            end.other = _End(self, end)
            task = self._tasks.create_task(self._connect(end, end.other))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def ended(self, end: _End) -> None:
        self._ends.discard(end)

    async def _connect(self, near: _End, far: _End) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self.server is None:
                raise ConnectionRefusedError
            if isinstance(self.server, Path):
                await loop.create_unix_connection(lambda: far, str(self.server))
            else:
                await loop.create_connection(lambda: far, *self.server)
        except OSError:
            # There is no server: the client learns it by the end of its connection.
            near.abort()


class _End(asyncio.Protocol):
    """One of the two connections of a passage, and what is to be written there."""

    def __init__(self, proxy: Proxy, other: _End | None = None) -> None:
        self.other = other
        self._proxy = proxy
        self._transport: asyncio.Transport | None = None
        # What is to be written, in its order; nothing at all is the end.
        self._late: deque[bytes] = deque()
        self._due_s = 0.0
        # What came from the other side before this one was connected.
        self._early: list[bytes] = []
        self._is_new = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._is_new = False
        self._proxy.opened(self)
        early, self._early = self._early, []
        for data in early:
            self.take(data)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and not self._proxy.is_mute:
            self.other.take(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._proxy.ended(self)
        if self.other is not None and not self._proxy.is_mute:
            self.other.take(b"")

    def pause_writing(self) -> None:
        if self.other is not None and self.other._transport is not None:
            self.other._transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other._transport is not None:
            self.other._transport.resume_reading()

    def take(self, data: bytes) -> None:
        """Write this when it is due."""
        if self._is_new:
            self._early.append(data)
            return
        loop = asyncio.get_running_loop()
        self._late.append(data)
        self._due_s = max(self._due_s, loop.time() + self._proxy.delay_s)
        if self._due_s > loop.time():
            loop.call_at(self._due_s, self._write_next)
        else:
            self._write_next()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _write_next(self) -> None:
        data = self._late.popleft()
        if self._transport is None or self._proxy.is_mute:
            return
        if data:
            self._transport.write(data)
        else:
            self._transport.close()
