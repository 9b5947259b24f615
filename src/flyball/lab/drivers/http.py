"""HTTP/1.1 for the clients of the lab: one request in flight, over a persistent connection or one per request.

Supports what application servers send: lengths, chunks, and bodies that end with the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar, NamedTuple, NoReturn, cast
from urllib.parse import urlencode

import httptools

from flyball.errors import LabError
from flyball.lab.drivers.session import SHOWN_BYTES, QueueRef, Received, Session
from flyball.trace.schema import Protocol

HEAD_LIMIT_BYTES = 64 * 1024
BODY_LIMIT_BYTES = 64 * 2**20


class Answer(NamedTuple):
    """A server's answer. Header names are in lower case; of duplicates the last counts."""

    status: int
    headers: dict[str, str]
    body: bytes


class AnswerDecoder:
    """Decodes bytes into answers. Raises LabError, with an excerpt, for anything else."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._answers: deque[Answer] = deque()
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        # Bytes received before the head was complete.
        self._head_bytes = 0
        self._is_begun = False
        self._has_head = False

    @property
    def is_empty(self) -> bool:
        """Whether no incomplete answer has been received."""
        return not self._is_begun

    def feed(self, data: bytes) -> None:
        """Parse received bytes."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise LabError(f"not an HTTP/1.1 answer: {data[:SHOWN_BYTES]!r} ({error})") from error
        if not self._has_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT_BYTES:
                raise LabError(f"the head of an answer is longer than {HEAD_LIMIT_BYTES} bytes")
        elif max(len(self._body), int(self._headers.get("content-length", 0))) > BODY_LIMIT_BYTES:
            raise LabError(f"an answer is longer than {BODY_LIMIT_BYTES} bytes")

    def next_answer(self) -> Answer | None:
        """Return the next complete answer, None until more is fed."""
        return self._answers.popleft() if self._answers else None

    def end(self) -> Answer | None:
        """Return the answer that ends with the connection, None without one. Raises LabError if it is truncated."""
        if not self._is_begun:
            return None
        if not self._has_head or {"content-length", "transfer-encoding"} & self._headers.keys():
            raise LabError("the server closed the connection in the middle of an answer")
        self._is_begun = False
        return self._answer()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self._headers = {}
        self._body.clear()
        self._head_bytes = 0
        self._is_begun, self._has_head = True, False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self._is_begun = False
        # Status 1xx announces an answer, but is not one yet.
        if self._parser.get_status_code() >= 200:
            self._answers.append(self._answer())

    def _answer(self) -> Answer:
        return Answer(self._parser.get_status_code(), self._headers, bytes(self._body))


class HttpLink(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self.is_open = False
        # Whether nothing was received since the last request.
        self.is_unheard = True
        self._decoder = AnswerDecoder()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer] | None = None

    async def ask(self, request: bytes) -> Answer:
        """Send a request and return its answer. Raises ConnectionError if the connection ends first."""
        if self._transport is None or not self.is_open:
            raise ConnectionError("the connection is closed")
        self._waiter = asyncio.get_running_loop().create_future()
        self.is_unheard = True
        self._transport.write(request)
        return await self._waiter

    def hang_up(self) -> None:
        """Abort the connection, whatever is in progress. May be called twice."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self.is_unheard = False
        try:
            self._decoder.feed(data)
            answer = self._decoder.next_answer()
        except LabError as error:
            self._fail(error)
            return
        if answer is not None:
            if answer.headers.get("connection", "").lower() == "close":
                self.is_open = False
            self._give(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        try:
            answer = self._decoder.end() if error is None else None
        except LabError as cut:
            self._fail(ConnectionError(str(cut)))
            return
        if answer is None:
            reason = f": {error}" if error else ""
            self._fail(ConnectionError(f"the server closed the connection{reason}"))
        else:
            self._give(answer)

    def _give(self, answer: Answer) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)


class HttpSession(Session):
    """One visitor of a site. It connects at its first request, and again whenever the connection has ended."""

    protocol: ClassVar[Protocol] = Protocol.HTTP

    def __init__(self, host: str, open_link: Callable[[], Awaitable[HttpLink]]) -> None:
        """Use the server that `open_link` connects to; `host` is its name in the Host header."""
        super().__init__()
        self._host = host
        self._open_link = open_link
        self._link: HttpLink | None = None

    async def fetch(
        self, method: str, path: str, form: Mapping[str, object] | None = None, *, keeps_alive: bool = True
    ) -> Answer:
        """Request a page, with a form in the body if given, and return the answer, whatever its status.

        Raises OSError if the server is unreachable or closes the connection, LabError if its answer is not HTTP.
        After an error or a cancellation the connection is closed: a late answer would be mistaken for that of the
        next request.
        """
        request = self._request(method, path, form, keeps_alive)
        self.sent_ns = time.perf_counter_ns()
        try:
            answer = await self._ask(request)
        except BaseException:
            self._hang_up()
            raise
        finally:
            self.answered_ns = time.perf_counter_ns()
        if not keeps_alive:
            self._hang_up()
        return answer

    async def _ask(self, request: bytes) -> Answer:
        kept = self._link
        if kept is not None and kept.is_open:
            try:
                return await kept.ask(request)
            except ConnectionError:
                # A server may close an idle connection at any time, even while a request is on its way: retry once.
                if not kept.is_unheard:
                    raise
        self._link = await self._open_link()
        return await self._link.ask(request)

    def _request(self, method: str, path: str, form: Mapping[str, object] | None, keeps_alive: bool) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nAccept: text/html\r\n"
        if not keeps_alive:
            head += "Connection: close\r\n"
        if form is None:
            return f"{head}\r\n".encode("latin-1")
        body = urlencode(form).encode()
        head += f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(body)}\r\n"
        return f"{head}\r\n".encode("latin-1") + body

    def _hang_up(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.hang_up()

    async def identify(self, address: int) -> None:
        self.address = address

    async def close(self) -> None:
        self._hang_up()

    async def create_queue(self, name: str) -> QueueRef:
        _refuse()

    async def create_client(self, name: str, number: int) -> int:
        _refuse()

    async def put(self, queue: QueueRef, receiver: int, body: bytes, context: int = 0) -> None:
        _refuse()

    async def take(
        self, queue: QueueRef, context: int = 0, *, by_time: bool = True, unaddressed: bool = False
    ) -> Received | None:
        _refuse()


def _refuse() -> NoReturn:
    raise LabError("http is for sites, which have no queues: give a workload of sites, as auction, or thorbang")
