"""What stands between the sockets of HTTP and the application: bounds on what a client sends before it is known.

Knows nothing of what is asked. A body is bounded by whoever reads it.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 10.0
"""A client has so long for the line and the headers of a request."""

MOST_HEAD_BYTES = 64 * 1024

MOST_WAITING = 16
"""So many requests of a connection may wait for the one before them."""

SPARE_CONNECTIONS = 100
"""Connections beyond those that are served: their requests are refused in words, further ones are just closed."""

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection that takes too long for the head of a request, sends too long a one, or is one too many."""

    _timer: asyncio.TimerHandle | None = None
    _bytes_without_end = 0
    """Sent since the end of a head, of a message, or since a part of a body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency + SPARE_CONNECTIONS:
            transport.abort()
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._bytes_without_end += len(data)
        super().data_received(data)
        is_idle = self.cycle is None or self.cycle.response_complete
        if self._bytes_without_end > MOST_HEAD_BYTES and not self.transport.is_closing():
            if is_idle:
                self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif is_idle:
            self._wait_for_head()

    def on_headers_complete(self) -> None:
        self._bytes_without_end = 0
        self._stop_waiting()
        if len(self.pipeline) >= MOST_WAITING:
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
