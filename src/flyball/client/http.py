"""One connection to a node's HTTP side, for asking one thing after the other, or for listening to its events.

Over asyncio and h11 only. Knows where a node is and who asks, nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import unquote, urlsplit

import h11

DEFAULT_PORT = 15672
LONGEST_ANSWER_BYTES = 64 * 1024
READ_BYTES = 64 * 1024
MOST_EVENT_BYTES = 16 * 2**20
"""An event of a stream is not longer."""
AWAY = (OSError, EOFError, TimeoutError, h11.ProtocolError, ValueError)
"""How it shows that a node is away, or does not want to hear of it."""

_ERRORS = 400


class Refused(ValueError):
    """The node has answered, and does not do it."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"status {status}: {reason}")
        self.status = status
        self.reason = reason


class Place:
    """Where a node is, and who we are there."""

    def __init__(self, url: str) -> None:
        """Raises ValueError, which leaves the address out: it may hold a password."""
        wanted = "an address is http://user:password@host:15672, or https://..."
        try:
            parts = urlsplit(url)
            port = parts.port or DEFAULT_PORT
        except ValueError:
            raise ValueError(f"{wanted}; this one has no right port") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(wanted)
        self.host, self.port = parts.hostname, port
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.prefix = parts.path.rstrip("/")
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.shown = f"{parts.scheme}://{host}:{port}"
        """Without user and password."""
        self.user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
        token = base64.b64encode(f"{self.user}:{password}".encode()).decode()
        self.headers = [
            ("Host", f"{host}:{port}"),
            ("Authorization", f"Basic {token}"),
            ("Content-Type", "application/json"),
        ]


class Line:
    """A connection to a node for one request after the other; it is opened when it is needed."""

    def __init__(self, place: Place, *, longest_answer_bytes: int = LONGEST_ANSWER_BYTES) -> None:
        self._place = place
        self._longest_answer_bytes = longest_answer_bytes
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._protocol = h11.Connection(h11.CLIENT)

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send a document; return status and body of the answer. Raises OSError, EOFError, h11.ProtocolError."""
        return await self._ask("POST", path, body)

    async def get(self, path: str) -> Any:
        """Return the document that the node answers with. Raises one of AWAY."""
        status, body = await self._ask("GET", path, b"")
        return _document(status, body)

    async def events(self, path: str) -> AsyncGenerator[Any, None]:
        """Yield the documents of server-sent events until the node ends the stream. Raises one of AWAY."""
        reader = await self._send("GET", path, b"")
        status, answer, rest = 0, b"", b""
        while True:
            match self._protocol.next_event():
                case h11.NEED_DATA:
                    self._protocol.receive_data(await reader.read(READ_BYTES))
                case h11.Response(status_code=code):
                    status = code
                case h11.Data(data=data) if status >= _ERRORS:
                    answer += bytes(data)
                case h11.Data(data=data):
                    *lines, rest = (rest + bytes(data)).split(b"\n")
                    for line in lines:
                        if line.startswith(b"data: "):
                            yield json.loads(line.removeprefix(b"data: "))
                case h11.EndOfMessage():
                    self.close()
                    _document(status, answer)
                    return
                case _:
                    raise EOFError("the connection ended in mid-answer")
            if len(rest) + len(answer) > MOST_EVENT_BYTES:
                raise ValueError(f"an event of more than {MOST_EVENT_BYTES} bytes")

    async def _ask(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        answer = await self._answer(await self._send(method, path, body))
        if self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE:
            self._protocol.start_next_cycle()
        else:
            self.close()
        return answer

    async def _send(self, method: str, path: str, body: bytes) -> asyncio.StreamReader:
        if self._streams is not None and self._streams[0].at_eof():
            # Who was silent for some seconds is not waited for.
            self.close()
        if self._streams is None:
            self._protocol = h11.Connection(h11.CLIENT)
            self._streams = await asyncio.open_connection(self._place.host, self._place.port, ssl=self._place.tls)
        reader, writer = self._streams
        headers = [*self._place.headers, ("Content-Length", str(len(body)))]
        protocol = self._protocol
        request = protocol.send(h11.Request(method=method, target=self._place.prefix + path, headers=headers)) or b""
        content = (protocol.send(h11.Data(data=body)) or b"") + (protocol.send(h11.EndOfMessage()) or b"")
        writer.write(request + content)
        await writer.drain()
        return reader

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        status, body = 0, b""
        while True:
            match self._protocol.next_event():
                case h11.NEED_DATA:
                    self._protocol.receive_data(await reader.read(READ_BYTES))
                case h11.Response(status_code=code):
                    status = code
                case h11.Data(data=data):
                    body += data
                    if len(body) > self._longest_answer_bytes:
                        raise ValueError(f"an answer of more than {self._longest_answer_bytes} bytes")
                case h11.EndOfMessage():
                    return status, body
                case _:
                    raise EOFError("the connection ended in mid-answer")

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


def reason_in(answer: Any) -> str:
    """Return why a node does not do something."""
    if isinstance(answer, dict):
        return str(answer.get("reason") or answer.get("error") or "refused")
    return "refused"


def _document(status: int, body: bytes) -> Any:
    """Return what a node has answered. Raises Refused, or ValueError if it is no JSON."""
    if status < _ERRORS:
        return json.loads(body) if body else None
    try:
        reason = reason_in(json.loads(body))
    except ValueError:
        reason = "this is no node of Flyball" if status == 404 else "refused"
    raise Refused(status, reason)
