from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import uvloop
from bench.chaos.proxy import Proxy, Server

LIMIT_S = 20.0


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Wire:
    """A proxy and those who have connected through it."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> Streams:
        streams = await asyncio.open_connection("127.0.0.1", self.proxy.port)
        self._writers.append(streams[1])
        return streams

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def wired(server: Server | None) -> AsyncIterator[Wire]:
    async with asyncio.timeout(LIMIT_S), Proxy(server) as proxy:
        wire = Wire(proxy)
        try:
            yield wire
        finally:
            wire.close()


@asynccontextmanager
async def wired_to_echo() -> AsyncIterator[Wire]:
    listener = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    async with wired(listener.sockets[0].getsockname()[:2]) as wire:
        yield wire
    listener.close()


async def say(streams: Streams, text: bytes) -> bytes:
    reader, writer = streams
    writer.write(text)
    return await reader.readexactly(len(text))


async def is_ended(streams: Streams) -> bool:
    try:
        return await streams[0].read(1) == b""
    except ConnectionResetError:
        return True


def test_bytes_and_their_end_pass_both_ways() -> None:
    async def main() -> None:
        async with wired_to_echo() as wire:
            streams = await wire.connect()
            assert await say(streams, b"hello") == b"hello"
            streams[1].write_eof()
            assert await is_ended(streams)

    uvloop.run(main())


def test_a_cut_ends_all_connections_and_lets_none_in_until_it_is_healed() -> None:
    async def main() -> None:
        async with wired_to_echo() as wire:
            streams = await wire.connect()
            await say(streams, b"hello")
            wire.proxy.cut()
            assert await is_ended(streams)
            assert await is_ended(await wire.connect())
            wire.proxy.heal()
            assert await say(await wire.connect(), b"again") == b"again"

    uvloop.run(main())


def test_what_a_silent_cut_swallowed_never_arrives() -> None:
    async def main() -> None:
        async with wired_to_echo() as wire:
            old = await wire.connect()
            await say(old, b"hello")
            wire.proxy.cut(silently=True)
            old[1].write(b"lost")
            new = await wire.connect()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await old[0].read(1)
            wire.proxy.heal()
            assert await is_ended(old)
            assert await is_ended(new)
            assert await say(await wire.connect(), b"again") == b"again"

    uvloop.run(main())


def test_a_proxy_whose_server_is_gone_ends_the_connection() -> None:
    async def main() -> None:
        async with wired(("127.0.0.1", 1)) as wire:
            assert await is_ended(await wire.connect())

    uvloop.run(main())


def test_the_server_may_be_a_local_socket_and_may_change(tmp_path: Path) -> None:
    async def main() -> None:
        listener = await asyncio.get_running_loop().create_unix_server(Echo, tmp_path / "socket")
        async with wired(None) as wire:
            assert await is_ended(await wire.connect())
            wire.proxy.server = tmp_path / "socket"
            assert await say(await wire.connect(), b"hello") == b"hello"
        listener.close()

    uvloop.run(main())


def test_bytes_can_be_made_late() -> None:
    async def main() -> None:
        async with wired_to_echo() as wire:
            streams = await wire.connect()
            wire.proxy.delay_s = 0.02
            began = asyncio.get_running_loop().time()
            await say(streams, b"hello")
            assert asyncio.get_running_loop().time() - began >= 0.03

    uvloop.run(main())
