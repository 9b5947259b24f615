"""The relay: what goes through it arrives late, whole and in order, and one end learns of the other's."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from flyball.lab import relay as relay_module
from flyball.lab.relay import Relay

ROUND_TRIP_S = 0.04
BODY = bytes(range(256)) * 4096

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Talk = Callable[[Relay, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def through_a_relay(serve: Serve, talk: Talk, round_trip_s: float = ROUND_TRIP_S) -> None:
    """Let a client talk to a server through a relay."""

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with server, asyncio.timeout(30), Relay(host, port, round_trip_s) as relay:
            reader, writer = await asyncio.open_connection(relay.host, relay.port)
            try:
                await talk(relay, reader, writer)
            finally:
                writer.close()

    uvloop.run(run())


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(2**16):
        writer.write(data)
        await writer.drain()
    writer.close()


def test_an_answer_comes_a_round_trip_later_and_not_much_after_that() -> None:
    async def talk(relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(200):
            began = time.perf_counter()
            writer.write(b"?")
            await reader.readexactly(1)
            took_s = time.perf_counter() - began
            assert took_s >= ROUND_TRIP_S
            # A busy machine may hold up an answer, but not each of them.
            if took_s < 1.5 * ROUND_TRIP_S:
                return
        pytest.fail("no answer came in time")

    through_a_relay(echo, talk)


def test_bytes_that_follow_do_not_wait_for_the_answers_of_those_before() -> None:
    async def talk(relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began = time.perf_counter()
        for _ in range(100):
            writer.write(b"?")
            await asyncio.sleep(0)
        await reader.readexactly(100)
        # Those that wait for each other take at least as many round trips.
        assert time.perf_counter() - began < 100 * ROUND_TRIP_S

    through_a_relay(echo, talk)


def test_bytes_stay_unchanged_and_in_order_when_the_delay_becomes_shorter() -> None:
    async def talk(relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def write() -> None:
            for place in range(0, len(BODY), 5000):
                writer.write(BODY[place : place + 5000])
                await writer.drain()
                if place > len(BODY) / 2:
                    relay.round_trip_s = 0.0
            writer.write_eof()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            received = await reader.read(-1)
        assert received == BODY

    through_a_relay(echo, talk)


def test_a_side_that_has_said_all_still_hears_the_other() -> None:
    async def answer_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = await reader.read(-1)
        writer.write(question.upper())
        writer.close()

    async def talk(relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"what?")
        writer.write_eof()
        assert await reader.read(-1) == b"WHAT?"

    through_a_relay(answer_at_the_end, talk)


def test_what_a_server_said_before_it_closed_arrives_and_then_the_end() -> None:
    async def say_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"goodbye")
        writer.close()

    async def talk(relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read(-1) == b"goodbye"

    through_a_relay(say_and_close, talk)


def test_a_server_learns_that_its_client_is_gone_though_it_only_writes() -> None:
    is_gone = asyncio.Event()

    async def write_for_ever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while not writer.transport.is_closing():
                writer.write(b"*" * 1000)
                await writer.drain()
                await asyncio.sleep(0)
        is_gone.set()

    async def talk(relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1000)
        writer.transport.abort()
        await is_gone.wait()

    through_a_relay(write_for_ever, talk)


def test_without_a_server_the_connection_ends() -> None:
    async def run() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        server.close()
        await server.wait_closed()
        async with asyncio.timeout(30), Relay(host, port, 0.0) as relay:
            reader, writer = await asyncio.open_connection(relay.host, relay.port)
            assert await reader.read(-1) == b""
            writer.close()

    uvloop.run(run())


def test_a_sender_has_to_wait_when_too_much_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "MOST_BYTES", 100_000)

    async def talk(relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        written = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                while True:
                    writer.write(bytes(10_000))
                    await writer.drain()
                    written += 10_000
        # What the relay holds, and what the sockets on the way hold.
        assert relay.under_way_bytes < 1_000_000
        assert written < 20_000_000
        relay.round_trip_s = 0.0

    through_a_relay(echo, talk, round_trip_s=1000.0)
