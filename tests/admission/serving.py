"""A real server in the process of a test, clients that can hang up, and a database as busy as the test says."""

from __future__ import annotations

import asyncio
import functools
import http.client
import io
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.message import Message
from typing import Any, ParamSpec

import uvicorn
import uvloop
from starlette.applications import Starlette

from flyball.admission.admission import Admission
from flyball.admission.asgi import AdmissionMiddleware
from flyball.admission.meter import Hold, Meter

P = ParamSpec("P")

PATIENCE_S = 60


def on_uvloop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a coroutine."""

    @functools.wraps(test)
    def run(*args: P.args, **options: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test(*args, **options))

    return run


class Database:
    """A sensor, and a pool of one connection: while that is busy, no request is admitted."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.meter.size_of(self, 1)

    def take(self) -> Hold:
        """Take the connection. End the hold to release it."""
        hold = self.meter.ask()
        hold.got()
        return hold

    def query(self) -> None:
        """Take the connection and release it at once."""
        self.take().end()


class _Server(uvicorn.Server):
    """Says when it is up, and stops without being asked ten times a second whether it should."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()
        self.may_stop = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    async def main_loop(self) -> None:
        await self.may_stop.wait()


@asynccontextmanager
async def serve(app: Any, **options: Any) -> AsyncIterator[int]:
    """Serve an application on a free port; yield the port."""
    config = uvicorn.Config(
        app, log_config=None, access_log=False, timeout_graceful_shutdown=int(PATIENCE_S), **options
    )
    server = _Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve([listening]))
        await server.is_up.wait()
        try:
            yield listening.getsockname()[1]
        finally:
            server.may_stop.set()


@dataclass(frozen=True)
class Response:
    status: int
    headers: Message
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


class Client:
    """One connection, for one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str) -> None:
        self._reader = reader
        self.writer = writer
        self._method = method

    async def response(self) -> Response:
        """Wait for the whole response."""
        data = await self._reader.read()
        await self.hang_up()
        found = http.client.HTTPResponse(_Bytes(data), method=self._method)  # type: ignore[arg-type]
        found.begin()
        with found:
            return Response(found.status, found.headers, found.read())

    async def first_bytes(self) -> bytes:
        """Wait for the first bytes of the response."""
        return await self._reader.read(1)

    async def hang_up(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def begin(
    port: int, path: str, method: str = "GET", headers: Sequence[tuple[str, str]] = (), body: bytes = b""
) -> Client:
    """Send a request and do not wait for its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"{method} {path} HTTP/1.1", "host: test", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body:
        lines.append(f"content-length: {len(body)}")
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()
    return Client(reader, writer, method)


async def ask(port: int, path: str, method: str = "GET", **options: Any) -> Response:
    """Send a request and return its answer."""
    return await (await begin(port, path, method, **options)).response()


async def until(is_so: Callable[[], bool]) -> None:
    """Let the event loop go on until something is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110 - no event says when a request waits
            await asyncio.sleep(0)


def waiting(admission: Admission) -> int:
    """Return how many wait."""
    return sum(admission.gate.waiting)


def count(admission: Admission, what: str) -> int:
    """Return how many requests of all classes were served, failed, refused and so on."""
    return sum(getattr(counts, what) for counts in admission.counts)


def found_in(app: Starlette) -> AdmissionMiddleware:
    """Return the middleware in an application, which is made ready to serve for that."""
    inside: Any = app.build_middleware_stack()
    app.middleware_stack = inside
    while not isinstance(inside, AdmissionMiddleware):
        inside = inside.app
    return inside
