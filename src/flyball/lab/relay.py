"""A simulated network delay: forwards bytes between clients and a server, delayed by half a round trip each way.

Order and content of the bytes are unchanged. Independent of protocols; memory is bounded by backpressure on a fast
sender.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from types import TracebackType
from typing import Self, cast

from flyball.lab.alarm import Alarm

HOST = "127.0.0.1"
# Bytes in transit in one direction of a connection before reading from its sender is paused.
MOST_BYTES = 4 * 2**20


class Relay:
    """Listens on a port of its own while its context is open, and connects each client to the server.

    When one side has closed, the other is closed as soon as everything in transit has arrived.
    """

    def __init__(self, host: str, port: int, round_trip_s: float) -> None:
        # May be changed at any time: it applies to bytes received from then on, which do not overtake earlier ones.
        self.round_trip_s = round_trip_s
        self.host = HOST
        self.port = 0
        self._server_address = host, port
        self._passages: set[asyncio.Task[None]] = set()
        self._ends: set[_End] = set()

    @property
    def under_way_bytes(self) -> int:
        """Number of bytes received and not forwarded yet."""
        return sum(end.under_way_bytes for end in self._ends)

    async def __aenter__(self) -> Self:
        self._alarm = Alarm()
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._server = await asyncio.get_running_loop().create_server(self._accept, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        for passage in self._passages:
            passage.cancel()
        try:
            # An exception in the context's body is not the relay's: it propagates unchanged.
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._alarm.close()

    def _accept(self) -> _End:
        near = _End(self)
        passage = self._tasks.create_task(self._connect(near))
        self._passages.add(passage)
        passage.add_done_callback(self._passages.discard)
        return near

    async def _connect(self, near: _End) -> None:
        """Connect a client with the server until both have closed."""
        far = _End(self)
        self._ends |= {near, far}
        try:
            await near.is_open.wait()
            await asyncio.get_running_loop().create_connection(lambda: far, *self._server_address)
            async with asyncio.TaskGroup() as directions:
                directions.create_task(near.pass_on_to(far))
                directions.create_task(far.pass_on_to(near))
        except OSError:
            # The server is unavailable: closing its connection notifies the client.
            near.close()
        except BaseException:
            near.abort()
            far.abort()
            raise
        else:
            near.close()
            far.close()
        finally:
            self._ends -= {near, far}

    def due_ns(self) -> int:
        """Return when bytes received now are to be forwarded."""
        return time.perf_counter_ns() + int(self.round_trip_s * 1e9 / 2)

    async def until(self, at_ns: int) -> None:
        await self._alarm.until(at_ns)


class _End(asyncio.Protocol):
    """One of the two connections of a passage, and its received bytes in transit."""

    def __init__(self, relay: Relay) -> None:
        self.is_open = asyncio.Event()
        self._relay = relay
        # Due times and data; empty data marks the end.
        self._under_way: deque[tuple[int, bytes]] = deque()
        self.under_way_bytes = 0
        self._has_come = asyncio.Event()
        self._takes_more = asyncio.Event()
        self._takes_more.set()
        self._is_held_up = False
        self._has_ended = False
        self._transport: asyncio.Transport | None = None
        # The other end, once the relay will forward nothing more from here.
        self._other: _End | None = None

    async def pass_on_to(self, other: _End) -> None:
        """Forward received bytes to the other end when they are due, until all are forwarded."""
        while True:
            while not self._under_way:
                self._has_come.clear()
                await self._has_come.wait()
            due_ns, data = self._under_way[0]
            await self._relay.until(due_ns)
            await other._takes_more.wait()
            self._under_way.popleft()
            if not data:
                self._other = other
                other._stop_reading(is_closed=self._transport is None)
                return
            other._write(data)
            self._note_gone(len(data))

    def close(self) -> None:
        """Close the connection after flushing its output."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Abort the connection, whatever is in transit."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_open.set()

    def data_received(self, data: bytes) -> None:
        self._under_way.append((self._relay.due_ns(), data))
        self.under_way_bytes += len(data)
        self._has_come.set()
        if self.under_way_bytes > MOST_BYTES and self._transport is not None:
            self._transport.pause_reading()
            self._is_held_up = True

    def eof_received(self) -> bool:
        self._end()
        # Half-closed: it may still receive what the other side sends.
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        # Data for this end has nowhere to go, and must not block the other direction.
        self._takes_more.set()
        if self._other is not None:
            self._other.close()
        self._end()

    def pause_writing(self) -> None:
        self._takes_more.clear()

    def resume_writing(self) -> None:
        self._takes_more.set()

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._under_way.append((self._relay.due_ns(), b""))
            self._has_come.set()

    def _note_gone(self, byte_count: int) -> None:
        self.under_way_bytes -= byte_count
        if self._is_held_up and self.under_way_bytes <= MOST_BYTES and self._transport is not None:
            self._transport.resume_reading()
            self._is_held_up = False

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _stop_reading(self, *, is_closed: bool) -> None:
        if self._transport is None:
            return
        if is_closed:
            self._transport.close()
        elif not self._transport.is_closing():
            self._transport.write_eof()
