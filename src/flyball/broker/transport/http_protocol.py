"""The HTTP protocol of uvicorn, with limits on the input of unauthenticated clients.

Bodies are limited by the handlers that read them.
"""

from __future__ import annotations

import asyncio
import logging

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from flyball.broker.transport.mixups import OPENING_BYTES, plain_text, spoken

log = logging.getLogger("flyball.server")

# Timeout of the request line and headers.
HEAD_S = 10.0

# Timeout of a client that does not read its response, which uses memory.
WRITE_STALL_S = 30.0

MAX_HEAD_BYTES = 16 * 1024

# The limit of RabbitMQ's HTTP server. A header consists of several objects, many times larger than its text.
MAX_HEADERS = 100

# Memory of a header of an incomplete head in addition to its bytes.
HEADER_BYTES = 250

# Limit of the incomplete heads of all connections: clients are not authenticated before a head is complete.
MAX_UNFINISHED_BYTES = 32 * 1024 * 1024

# Maximum number of pipelined requests of a connection.
MAX_WAITING = 16

# Number of connections above the limit whose requests are answered with a 503; further ones are closed.
SPARE_CONNECTIONS = 100

# For peers with another protocol.
_ADVICE = {
    "AMQP": "this is an HTTP port; AMQP is on the port of --amqp, 5672 by default",
    "AMQP 1.0": "this is an HTTP port, and only AMQP 0-9-1 is supported, on the port of --amqp, 5672 by default",
    "TLS": "this HTTP port has no TLS; use http:// or a proxy with TLS",
}

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class UnfinishedHeads:
    """The memory of incomplete heads. Above the limit the connections with the oldest heads are aborted."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        self._bytes_of: dict[BoundedProtocol, int] = {}

    def note(self, connection: BoundedProtocol, size_bytes: int) -> None:
        """Record the size of a connection's incomplete head."""
        self.total_bytes += size_bytes - self._bytes_of.get(connection, 0)
        self._bytes_of[connection] = size_bytes
        while self.total_bytes > self.limit_bytes:
            oldest = next(iter(self._bytes_of))
            self.forget(oldest)
            oldest.transport.abort()

    def forget(self, connection: BoundedProtocol) -> None:
        """Remove a connection that was closed, or whose head is complete."""
        self.total_bytes -= self._bytes_of.pop(connection, 0)


_heads = UnfinishedHeads(MAX_UNFINISHED_BYTES)


def _name_of(client: tuple[str, int] | None) -> str:
    return "unknown peer" if client is None else f"{client[0]}:{client[1]}"


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections with a slow or long head, and those above the limit."""

    _timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    # The request that the application is executing; later ones wait in `pipeline`.
    _answered: RequestResponseCycle | None = None
    # Bytes received since the last end of a head or message, or the last part of a body.
    _bytes_without_end = 0
    _header_count = 0
    _has_begun = False

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
        # The transport is closed on return, and connection_lost is called only in the next turn of the event loop.
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
        """Mark all requests in progress as disconnected.

        uvicorn marks only the last one: the response to an earlier one would be written to a closed transport, which
        logs a traceback.
        """
        for cycle in (self._answered, self.cycle, *(waiting for waiting, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            if (advice := _ADVICE.get(spoken(data[:OPENING_BYTES]) or "")) is not None:
                log.warning("dropped %s: %s", _name_of(self.client), advice)
                self.transport.write(plain_text(advice))
                self.transport.close()
                return
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
            raise ValueError("too many pipelined requests")
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
