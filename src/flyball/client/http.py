"""One connection to a node's HTTP API, for one request after the other, or for a stream of events.

Over asyncio and h11 only; `flyball.client.api` has the same without asyncio. Knows where a node is and who asks,
nothing of what is asked.
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
# The longest event of a stream.
MOST_EVENT_BYTES = 16 * 2**20
# How it shows that a node is away, or does not want to hear of it.
AWAY = (OSError, EOFError, TimeoutError, h11.ProtocolError, ValueError)

GUEST = ("guest", b"guest")

_ERRORS = 400


class Refused(ValueError):
    """The request was answered, and is not carried out."""

    def __init__(self, status: int, document: Any = None) -> None:
        facts = document if isinstance(document, dict) else {}
        self.status = status
        # The name of the node's error, as `QueueNotFound`; empty if there is none.
        self.kind = str(facts.get("kind", ""))
        # Whether a node says so; otherwise it is another server.
        self.is_from_node = bool(facts)
        no_reason = "this is no node of Flyball" if status == 404 else "refused"
        self.reason = str(facts.get("reason") or facts.get("error") or no_reason)
        super().__init__(f"status {status}: {self.reason}")


class Answer(NamedTuple):
    """What a node has answered to a request that it has carried out."""

    status: int
    # None if there is none.
    document: Any


class Place:
    """Where a node is, and who we are there."""

    def __init__(self, url: str, default: tuple[str, bytes] = GUEST) -> None:
        """Without a user in the URL it is the `default` one, with that password.

        Raises ValueError, which leaves the address out: it may hold a password.
        """
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
        # Without user and password.
        self.shown = f"{parts.scheme}://{host}:{port}"
        # Whether the URL says who we are.
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
        """Whether the node is on this machine, by its address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class Line:
    """A connection to a node for one request after the other; it is opened when it is needed."""

    def __init__(self, place: Place, *, longest_answer_bytes: int = LONGEST_ANSWER_BYTES) -> None:
        self._place = place
        self._longest_answer_bytes = longest_answer_bytes
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._protocol = h11.Connection(h11.CLIENT)

    async def ask(self, method: str, path: str, document: Any = None) -> Answer:
        """Send a request, with a document if there is one. Raises one of AWAY, which Refused is as well."""
        try:
            reader = await self._send(method, path, b"" if document is None else json.dumps(document).encode())
            status = await self._status(reader)
            body = await self._rest(reader)
        except BaseException:
            # What comes late is not the answer to the next request.
            self.close()
            raise
        if self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE:
            self._protocol.start_next_cycle()
        else:
            self.close()
        return Answer(status, _document(status, body))

    async def get(self, path: str) -> Any:
        """Return the document that the node answers with. Raises one of AWAY."""
        return (await self.ask("GET", path)).document

    async def chunks(self, path: str, media_type: str) -> AsyncGenerator[bytes, None]:
        """Yield the parts of a long answer as they come. Raises one of AWAY, also if it is not complete."""
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
        """Yield the documents of server-sent events until the node ends the stream. Raises one of AWAY."""
        rest = b""
        async with contextlib.aclosing(self.chunks(path, "text/event-stream")) as chunks:
            async for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: "):
                        yield json.loads(line.removeprefix(b"data: "))
                if len(rest) > MOST_EVENT_BYTES:
                    raise ValueError(f"an event of more than {MOST_EVENT_BYTES} bytes")

    async def _send(self, method: str, path: str, body: bytes, *more: tuple[str, str]) -> asyncio.StreamReader:
        if self._streams is not None and self._streams[0].at_eof():
            # Who was silent for some seconds is not waited for.
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
        """Return the status of the answer, when it comes."""
        while not isinstance(event := await self._event(reader), h11.Response):
            pass
        return event.status_code

    async def _rest(self, reader: asyncio.StreamReader) -> bytes:
        """Return the whole body of the answer."""
        body = bytearray()
        while part := await self._part(reader):
            body += part
            if len(body) > self._longest_answer_bytes:
                raise ValueError(f"an answer of more than {self._longest_answer_bytes} bytes")
        return bytes(body)

    async def _part(self, reader: asyncio.StreamReader) -> bytes:
        """Return the next part of the body, an empty one at its end."""
        event = await self._event(reader)
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def _event(self, reader: asyncio.StreamReader) -> h11.Event:
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            self._protocol.receive_data(await reader.read(READ_BYTES))
        if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
            raise EOFError("the connection ended in mid-answer")
        return event

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


def path_of(*parts: str, **query: object) -> str:
    """Return a path below /api, and its query: `path_of("queues", "/", "a/b")`. Parts may hold any character."""
    path = "/api/" + "/".join(quote(part, safe="") for part in parts)
    return f"{path}?{urlencode(query)}" if query else path


def reason_of(error: BaseException) -> str:
    """Return in a few words why a node cannot be asked."""
    match error:
        case TimeoutError():
            return "the node does not answer"
        case ConnectionRefusedError():
            return "connection refused"
        case h11.ProtocolError():
            return "the answer is not HTTP, or it broke off"
        case OSError(strerror=str(text)):
            return text.lower()
        case _:
            return str(error) or type(error).__name__


def _document(status: int, body: bytes) -> Any:
    """Return what a node has answered. Raises Refused, or ValueError if it is no JSON."""
    if status < _ERRORS:
        return json.loads(body) if body else None
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    raise Refused(status, document)
