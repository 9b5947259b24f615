"""HTTP for the clients of the lab: its decoder, and its sessions against a real server of few words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from flyball.errors import LabError
from flyball.lab.drivers import HttpSession, Target, connect
from flyball.lab.drivers.http import Answer, AnswerDecoder

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Note:  a \r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
EARLY = b"HTTP/1.1 100 Continue\r\n\r\n"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 503 Service Unavailable\r\n\r\nno"


def decoded(data: bytes, step: int) -> list[Answer]:
    decoder, answers = AnswerDecoder(), []
    for start in range(0, len(data), step):
        decoder.feed(data[start : start + step])
        while (answer := decoder.next_answer()) is not None:
            answers.append(answer)
    return answers


@given(st.integers(1, 200))
def test_answers_are_the_same_however_their_bytes_come(step: int) -> None:
    found = decoded(PLAIN + EARLY + CHUNKED + EMPTY + PLAIN, step)
    assert [(answer.status, answer.body) for answer in found] == [
        (200, b"hello"),
        (200, b"hello"),
        (204, b""),
        (200, b"hello"),
    ]
    assert found[0].headers == {"content-length": "5", "x-note": "a"}


def test_an_answer_without_length_ends_with_the_connection() -> None:
    decoder = AnswerDecoder()
    decoder.feed(UNTIL_CLOSE)
    assert decoder.next_answer() is None
    assert decoder.end() == Answer(503, {}, b"no")
    assert decoder.end() is None


def test_an_answer_that_is_cut_is_told_from_a_whole_one() -> None:
    decoder = AnswerDecoder()
    decoder.feed(PLAIN[:-1])
    assert decoder.next_answer() is None
    with pytest.raises(LabError, match="in the middle of an answer"):
        decoder.end()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"220 mail.example ESMTP\r\n\r\n", "not an HTTP/1.1 answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: some\r\n\r\n", "not an HTTP/1.1 answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "longer than"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n", "not an HTTP/1.1 answer"),
        (b"x" * 70_000, "not an HTTP/1.1 answer"),
        (b"HTTP/1.1 200 OK\r\nX-Note: " + b"x" * 70_000, "longer than"),
    ],
)
def test_what_is_no_answer_is_shown(data: bytes, complaint: str) -> None:
    with pytest.raises(LabError, match=complaint):
        decoded(data, len(data))


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            head += await reader.readexactly(int(line.split(b":")[1]))
    return head


class Site:
    """A server that does as its test says, and remembers what it was asked."""

    def __init__(self, *replies: bytes | None, keeps: bool = True) -> None:
        """Answer with `replies` in turn; None closes the connection without a word."""
        self.asked: list[bytes] = []
        self.connections = 0
        self.was_asked = asyncio.Event()
        self.has_lost = asyncio.Event()
        self._replies = list(replies)
        self._keeps = keeps

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.asked.append(await read_request(reader))
                self.was_asked.set()
                reply = self._replies.pop(0)
                if reply is None:
                    break
                writer.write(reply)
                if not self._keeps:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            self.has_lost.set()
        finally:
            writer.close()


def visit(make: Callable[[], Site], visits: Callable[[HttpSession, Site], Awaitable[None]]) -> Site:
    async def main() -> Site:
        site = make()
        server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            session = await connect("http", Target(name="site", host=host, port=port))
            assert isinstance(session, HttpSession)
            async with asyncio.timeout(60):
                await visits(session, site)
            await session.close()
        return site

    return uvloop.run(main())


def test_a_kept_connection_serves_one_page_after_the_other() -> None:
    async def visits(session: HttpSession, site: Site) -> None:
        assert (await session.fetch("GET", "/a")).body == b"hello"
        assert (await session.fetch("POST", "/b", {"name": "ä b"})).status == 204
        assert session.sent_ns < session.answered_ns

    site = visit(lambda: Site(PLAIN, EMPTY), visits)
    assert site.connections == 1
    assert site.asked[0].startswith(b"GET /a HTTP/1.1\r\nHost: 127.0.0.1:")
    assert site.asked[1].endswith(b"\r\n\r\nname=%C3%A4+b")


def test_a_connection_for_each_page_is_closed_after_it() -> None:
    async def visits(session: HttpSession, site: Site) -> None:
        for _ in range(2):
            await session.fetch("GET", "/", keeps_alive=False)

    site = visit(lambda: Site(PLAIN, PLAIN), visits)
    assert site.connections == 2
    assert b"Connection: close\r\n" in site.asked[0]


def test_a_kept_connection_that_the_server_has_closed_is_made_anew() -> None:
    async def visits(session: HttpSession, site: Site) -> None:
        await session.fetch("GET", "/1")
        assert (await session.fetch("GET", "/2")).status == 200

    site = visit(lambda: Site(PLAIN, None, PLAIN), visits)
    assert [asked.split()[1] for asked in site.asked] == [b"/1", b"/2", b"/2"]


def test_a_server_that_hangs_up_is_an_error_of_the_connection() -> None:
    async def visits(session: HttpSession, site: Site) -> None:
        with pytest.raises(ConnectionError, match="closed the connection"):
            await session.fetch("GET", "/")
        with pytest.raises(ConnectionError, match="in the middle"):
            await session.fetch("GET", "/")

    visit(lambda: Site(None, PLAIN[:-2], keeps=False), visits)


def test_whoever_does_not_wait_any_more_hangs_up() -> None:
    async def visits(session: HttpSession, site: Site) -> None:
        fetching = asyncio.ensure_future(session.fetch("GET", "/slow"))
        await site.was_asked.wait()
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        await site.has_lost.wait()

    visit(lambda: Site(b""), visits)


def test_a_site_has_no_queues() -> None:
    async def visits(session: HttpSession, site: Site) -> None:
        with pytest.raises(LabError, match="no queues"):
            await session.create_queue("queue")

    visit(Site, visits)
