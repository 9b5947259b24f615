"""An HTTP connection to a node's API: sequential requests, or a stream of events.

Built on asyncio and h11 only; `flyball.client.api` is the blocking counterpart. It handles addresses and credentials,
not resources.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import json
import ssl
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes, urlencode, urlsplit

import h11

DEFAULT_PORT = 15672
LONGEST_ANSWER_BYTES = 64 * 1024
READ_BYTES = 64 * 1024
# Size limit of an event.
MOST_EVENT_BYTES = 16 * 2**20
# Exceptions that mean that the node is unreachable, or that the server does not respond like a node.
AWAY = (OSError, EOFError, TimeoutError, h11.ProtocolError, ValueError)

GUEST = ("guest", b"guest")

_ERRORS = 400


class Refused(ValueError):
    """The response has an error status."""

    def __init__(self, status: int, document: Any = None) -> None:
        facts = document if isinstance(document, dict) else {}
        self.status = status
        # The name of the node's error class, such as `QueueNotFound`; may be empty.
        self.kind = str(facts.get("kind", ""))
        # Whether the response is from a Flyball node; otherwise it is another server.
        self.is_from_node = bool(facts)
        no_reason = "not a Flyball node" if status == 404 else "refused"
        self.reason = str(facts.get("reason") or facts.get("error") or no_reason)
        super().__init__(f"status {status}: {self.reason}")


class Answer(NamedTuple):
    """A successful response."""

    status: int
    # None without a body.
    document: Any


class Place:
    """Address and credentials of a node."""

    def __init__(self, url: str, default: tuple[str, bytes] = GUEST) -> None:
        """Without a user in the URL the `default` user and password apply.

        Raises ValueError, without the address, as it may contain a password.
        """
        wanted = "use http://user:password@host:15672 or https://..."
        try:
            parts = urlsplit(url)
            port = parts.port or DEFAULT_PORT
        except ValueError:
            raise ValueError(f"invalid port in the address: {wanted}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"invalid address: {wanted}")
        self.host, self.port = parts.hostname, port
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.prefix = parts.path.rstrip("/")
        host = f"[{self.host}]" if ":" in self.host else self.host
        # Without credentials.
        self.shown = f"{parts.scheme}://{host}:{port}"
        # Whether the URL has credentials.
        self.has_user = parts.username is not None
        if self.has_user:
            default = unquote(parts.username or ""), unquote_to_bytes(parts.password or "")
        self.user, self.password = default
        token = base64.b64encode(self.user.encode() + b":" + self.password).decode()
        self.headers = [
            ("Host", f"{host}:{port}"),
            ("Authorization", f"Basic {token}"),
            ("Content-Type", "application/json"),
        ]

    @property
    def is_loopback(self) -> bool:
        """Whether the address is on this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class Line:
    """A connection for sequential requests; opened on demand."""

    def __init__(self, place: Place, *, longest_answer_bytes: int = LONGEST_ANSWER_BYTES) -> None:
        self._place = place
        self._longest_answer_bytes = longest_answer_bytes
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._protocol = h11.Connection(h11.CLIENT)

    async def ask(self, method: str, path: str, document: Any = None) -> Answer:
        """Send a request with an optional document. Raises one of AWAY, which includes Refused."""
        try:
            reader = await self._send(method, path, b"" if document is None else json.dumps(document).encode())
            status = await self._status(reader)
            body = await self._rest(reader)
        except BaseException:
            # A late answer must not be read as that of the next request.
            self.close()
            raise
        if self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE:
            self._protocol.start_next_cycle()
        else:
            self.close()
        return Answer(status, _document(status, body))

    async def get(self, path: str) -> Any:
        """Return a document. Raises one of AWAY."""
        return (await self.ask("GET", path)).document

    async def chunks(self, path: str, media_type: str) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of a long response. Raises one of AWAY, also if it is truncated."""
        reader = await self._send("GET", path, b"", ("Accept", media_type))
        status = await self._status(reader)
        if status >= _ERRORS:
            answer = await self._rest(reader)
            self.close()
            _document(status, answer)
        while part := await self._part(reader):
            yield part
        self.close()

    async def events(self, path: str) -> AsyncGenerator[Any, None]:
        """Yield the documents of server-sent events until the stream ends. Raises one of AWAY."""
        rest = b""
        async with contextlib.aclosing(self.chunks(path, "text/event-stream")) as chunks:
            async for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: "):
                        yield json.loads(line.removeprefix(b"data: "))
                if len(rest) > MOST_EVENT_BYTES:
                    raise ValueError(f"event exceeds {MOST_EVENT_BYTES} bytes")

    async def _send(self, method: str, path: str, body: bytes, *more: tuple[str, str]) -> asyncio.StreamReader:
        if self._streams is not None and self._streams[0].at_eof():
            # After some idle seconds the node may have closed it: reconnect.
            self.close()
        if self._streams is None:
            self._protocol = h11.Connection(h11.CLIENT)
            self._streams = await asyncio.open_connection(self._place.host, self._place.port, ssl=self._place.tls)
        reader, writer = self._streams
        headers = [*self._place.headers, *more, ("Content-Length", str(len(body)))]
        protocol = self._protocol
        request = protocol.send(h11.Request(method=method, target=self._place.prefix + path, headers=headers)) or b""
        content = (protocol.send(h11.Data(data=body)) or b"") + (protocol.send(h11.EndOfMessage()) or b"")
        writer.write(request + content)
        await writer.drain()
        return reader

    async def _status(self, reader: asyncio.StreamReader) -> int:
        """Return the status of the response."""
        while not isinstance(event := await self._event(reader), h11.Response):
            pass
        return event.status_code

    async def _rest(self, reader: asyncio.StreamReader) -> bytes:
        """Return the whole body."""
        body = bytearray()
        while part := await self._part(reader):
            body += part
            if len(body) > self._longest_answer_bytes:
                raise ValueError(f"response exceeds {self._longest_answer_bytes} bytes")
        return bytes(body)

    async def _part(self, reader: asyncio.StreamReader) -> bytes:
        """Return the next part of the body; empty at its end."""
        event = await self._event(reader)
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def _event(self, reader: asyncio.StreamReader) -> h11.Event:
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            self._protocol.receive_data(await reader.read(READ_BYTES))
        if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
            raise EOFError("connection closed within the response")
        return event

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


def path_of(*parts: str, **query: object) -> str:
    """Return a path below /api with its query: `path_of("queues", "/", "a/b")`. Segments may contain any
    character.
    """
    path = "/api/" + "/".join(quote(part, safe="") for part in parts)
    return f"{path}?{urlencode(query)}" if query else path


def reason_of(error: BaseException) -> str:
    """Return a short reason why a node cannot be reached."""
    match error:
        case TimeoutError():
            return "the node does not answer"
        case ConnectionRefusedError():
            return "connection refused"
        case h11.ProtocolError():
            return "the response is not HTTP, or is truncated"
        case OSError(strerror=str(text)):
            return text.lower()
        case _:
            return str(error) or type(error).__name__


def _document(status: int, body: bytes) -> Any:
    """Return the response document. Raises Refused, or ValueError for invalid JSON."""
    if status < _ERRORS:
        return json.loads(body) if body else None
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    raise Refused(status, document)
