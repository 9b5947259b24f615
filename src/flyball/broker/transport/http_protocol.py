"""What stands between the sockets of HTTP and the application: bounds on what a client sends before it is known.

Knows nothing of what is asked. A body is bounded by whoever reads it.
"""

from __future__ import annotations

import asyncio

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

# A client has so long for the line and the headers of a request.
HEAD_S = 10.0

# A client that reads nothing of its answer for so long is cut off: what the answer holds is kept from others.
WRITE_STALL_S = 30.0

MAX_HEAD_BYTES = 16 * 1024

# As RabbitMQ's HTTP server has it. Each header is objects of its own, many times as large as a short one.
MAX_HEADERS = 100

# What a header of an unfinished head takes beside its octets.
HEADER_BYTES = 250

# What the unfinished heads of all connections may take together: nobody has logged in before a head is complete.
MAX_UNFINISHED_BYTES = 32 * 1024 * 1024

# So many requests of a connection may wait for the one before them.
MAX_WAITING = 16

# Connections beyond those that are served: their requests are refused in words, further ones are just closed.
SPARE_CONNECTIONS = 100

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class UnfinishedHeads:
    """What the heads that are not complete take. Beyond the limit those go that have been unfinished for longest."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        self._bytes_of: dict[BoundedProtocol, int] = {}

    def note(self, connection: BoundedProtocol, size_bytes: int) -> None:
        """A connection has sent so much of a head that is not complete."""
        self.total_bytes += size_bytes - self._bytes_of.get(connection, 0)
        self._bytes_of[connection] = size_bytes
        while self.total_bytes > self.limit_bytes:
            oldest = next(iter(self._bytes_of))
            self.forget(oldest)
            oldest.transport.abort()

    def forget(self, connection: BoundedProtocol) -> None:
        """The head of a connection is complete, or the connection gone."""
        self.total_bytes -= self._bytes_of.pop(connection, 0)


_heads = UnfinishedHeads(MAX_UNFINISHED_BYTES)


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection that takes too long for the head of a request, sends too long a one, or is one too many."""

    _timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    # The request that the application is busy with; those behind it wait in `pipeline`.
    _answered: RequestResponseCycle | None = None
    # Sent since the end of a head, of a message, or since a part of a body.
    _bytes_without_end = 0
    _header_count = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency + SPARE_CONNECTIONS:
            transport.abort()
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._end_stall()
        _heads.forget(self)
        self._give_up()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        # The transport is closed on return, and connection_lost comes only in the next turn of the loop.
        self._give_up()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(WRITE_STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_stall()
        super().resume_writing()

    def _end_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _give_up(self) -> None:
        """Mark all requests under way as those of a client that is gone, before they are answered.

        uvicorn marks the last one only: an answer to one before it would be written to a closed transport, and the
        traceback would be logged.
        """
        for cycle in (self._answered, self.cycle, *(waiting for waiting, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        self._bytes_without_end += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            self._give_up()
            return
        is_idle = self.cycle is None or self.cycle.response_complete
        if self._bytes_without_end > MAX_HEAD_BYTES and not self.transport.is_closing():
            if is_idle:
                self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif is_idle:
            self._wait_for_head()
            if self._bytes_without_end:
                _heads.note(self, self._bytes_without_end + HEADER_BYTES * self._header_count)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        if self._header_count > MAX_HEADERS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._bytes_without_end = 0
        self._header_count = 0
        self._stop_waiting()
        _heads.forget(self)
        if len(self.pipeline) >= MAX_WAITING:
            raise ValueError("too many requests wait for the one before them")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._bytes_without_end = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._bytes_without_end = 0
        super().on_message_complete()

    def _wait_for_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
