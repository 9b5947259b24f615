"""Unauthenticated clients with bad HTTP can use up neither the node's memory nor its files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from flyball.broker.settings import Address
from flyball.broker.transport import http_protocol
from flyball.broker.transport.http import make_app, serving

LIMIT_S = 60.0

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def with_server(test: Callable[[Callable[[], Awaitable[Streams]]], Awaitable[bytes]], maximum: int = 10) -> bytes:
    """Run a test that gets a function which connects to an application; return what it returns."""
    found: list[bytes] = []

    async def body(request: Request) -> Response:
        return PlainTextResponse(await request.body())

    async def after(request: Request) -> Response:
        """Answer after that many turns of the loop."""
        for _ in range(request.path_params["turns"]):
            await asyncio.sleep(0)
        return PlainTextResponse("late")

    async def run() -> None:
        app = make_app([Route("/", body, methods=["GET", "POST"]), Route("/after/{turns:int}", after)])
        async with asyncio.timeout(LIMIT_S), serving(app, Address("127.0.0.1", 0), maximum) as address:
            writers: list[asyncio.StreamWriter] = []

            async def connect() -> Streams:
                reader, writer = await asyncio.open_connection(*address)
                writers.append(writer)
                return reader, writer

            try:
                found.append(await test(connect))
            finally:
                for writer in writers:
                    writer.close()

    uvloop.run(run())
    return found[0]


async def said(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the connection is closed, however it is."""
    found = bytearray()
    try:
        while data := await reader.read(65536):
            found += data
    except ConnectionResetError:
        pass
    return bytes(found)


async def sent(writer: asyncio.StreamWriter, data: bytes) -> None:
    try:
        writer.write(data)
        await writer.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass


def test_a_head_without_end_is_refused_before_much_of_it_is_kept() -> None:
    async def test(connect: Callable[[], Awaitable[Streams]]) -> bytes:
        reader, writer = await connect()
        await sent(writer, b"GET / HTTP/1.1\r\nlong: " + b"x" * http_protocol.MAX_HEAD_BYTES)
        return await said(reader)

    assert with_server(test).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("beginning", [b"GET /", CHUNKED + b"0\r\ntrailer: "])
def test_neither_a_line_nor_trailers_are_kept_without_end(beginning: bytes) -> None:
    async def test(connect: Callable[[], Awaitable[Streams]]) -> bytes:
        reader, writer = await connect()
        await sent(writer, beginning)
        async with asyncio.TaskGroup() as tasks:
            ending = tasks.create_task(said(reader))
            while not ending.done():
                await sent(writer, b"x" * 8192)
                await asyncio.sleep(0)
        return ending.result()

    assert b" 200 " not in with_server(test)


def test_a_long_body_in_small_chunks_is_no_long_head() -> None:
    count = http_protocol.MAX_HEAD_BYTES // 4

    async def test(connect: Callable[[], Awaitable[Streams]]) -> bytes:
        reader, writer = await connect()
        await sent(
            writer, CHUNKED.replace(b"host", b"connection: close\r\nhost") + b"1\r\nx\r\n" * count + b"0\r\n\r\n"
        )
        return await said(reader)

    assert with_server(test).endswith(b"x" * count)


@pytest.mark.parametrize("beginning", [b"", b"GET / HT"])
def test_who_takes_too_long_for_a_request_is_cut_off(beginning: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.1)

    async def test(connect: Callable[[], Awaitable[Streams]]) -> bytes:
        reader, writer = await connect()
        await sent(writer, beginning)
        return await said(reader)

    assert with_server(test) == b""


@pytest.mark.parametrize("beginning", [b"\r\n", b"GET / HT"])
def test_who_takes_too_long_for_a_further_request_is_cut_off(
    beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(connect: Callable[[], Awaitable[Streams]]) -> bytes:
        reader, writer = await connect()
        await sent(writer, GET)
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        monkeypatch.setattr(http_protocol, "HEAD_S", 0.1)
        await sent(writer, beginning)
        return await said(reader)

    assert with_server(test) == b""


def test_a_request_that_takes_longer_to_answer_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[asyncio.TimerHandle | None] = []
    wait_for_head = http_protocol.BoundedProtocol._wait_for_head

    def noted(protocol: http_protocol.BoundedProtocol) -> None:
        wait_for_head(protocol)
        timers.append(protocol._timer)

    monkeypatch.setattr(http_protocol.BoundedProtocol, "_wait_for_head", noted)

    async def test(connect: Callable[[], Awaitable[Streams]]) -> bytes:
        reader, writer = await connect()
        await sent(writer, b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 1\r\n\r\n")
        # There is no event when the node has read the head.
        while not timers or timers[0] is None or not timers[0].cancelled():  # noqa: ASYNC110
            await asyncio.sleep(0)
        await sent(writer, b"x")
        found = await said(reader)
        assert len(timers) == 1
        return found

    assert b" 200 " in with_server(test)


def test_connections_beyond_those_that_are_told_to_ask_again_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "SPARE_CONNECTIONS", 1)

    async def test(connect: Callable[[], Awaitable[Streams]]) -> bytes:
        *_, (reader, writer), (surplus, _) = [await connect() for _ in range(4)]
        assert await said(surplus) == b""
        await sent(writer, GET.replace(b"host", b"connection: close\r\nhost"))
        return await said(reader)

    assert b" 503 " in with_server(test, maximum=1)


@pytest.mark.parametrize("follows", [b"", CHUNKED, b"nonsense\r\n\r\n", b"GET /" + b"x" * 100_000])
def test_a_client_that_goes_while_it_is_answered_leaves_no_traceback(
    follows: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(connect: Callable[[], Awaitable[Streams]]) -> bytes:
        for turns in range(1, 20):
            reader, writer = await connect()
            await sent(writer, b"GET /after/%d HTTP/1.1\r\nhost: x\r\n\r\n" % turns * 3 + follows)
            writer.write_eof()
            await said(reader)
        return b""

    with_server(test)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_connection_cannot_pile_up_requests() -> None:
    async def test(connect: Callable[[], Awaitable[Streams]]) -> bytes:
        reader, writer = await connect()
        await sent(writer, GET * 1000)
        return await said(reader)

    assert b" 400 " in with_server(test)


def test_more_headers_than_anybody_needs_are_refused() -> None:
    async def test(connect: Callable[[], Awaitable[Streams]]) -> bytes:
        reader, writer = await connect()
        await sent(writer, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (http_protocol.MAX_HEADERS + 1) + b"\r\n")
        return await said(reader)

    assert with_server(test).startswith(b"HTTP/1.1 400 ")


def test_heads_that_are_not_finished_take_a_bounded_amount_together(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = http_protocol.UnfinishedHeads(20_000)
    monkeypatch.setattr(http_protocol, "_heads", heads)

    async def test(connect: Callable[[], Awaitable[Streams]]) -> bytes:
        first, first_writer = await connect()
        await sent(first_writer, b"GET / HTTP/1.1\r\nlong: " + b"x" * 12_000)
        while not heads.total_bytes:  # noqa: ASYNC110
            await asyncio.sleep(0)
        _, second_writer = await connect()
        await sent(second_writer, b"GET / HTTP/1.1\r\nlong: " + b"x" * 12_000)
        # The one that has been unfinished for longest goes; others are served.
        assert await said(first) == b""
        assert 12_000 < heads.total_bytes <= 20_000
        reader, writer = await connect()
        await sent(writer, GET.replace(b"host", b"connection: close\r\nhost"))
        return await said(reader)

    assert with_server(test).startswith(b"HTTP/1.1 200 ")
    assert heads.total_bytes == 0
