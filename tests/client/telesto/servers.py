"""Servers that misbehave on demand: a proxy that cuts connections, and one whose answers a test decides."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode


class Proxy:
    """Passes bytes on to a node, until it is told to cut."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.address = ""
        self.accepted = 0
        self.refuses = False
        """Whether new connections are closed at once."""
        self.swallows_answers = False
        """Whether what the node says is lost."""
        self.is_original = False
        """Whether it answers for a server that does not know the extension."""
        self.requested = asyncio.Event()
        """Set when bytes were passed on to the node."""
        self.refused = asyncio.Event()

    def cut(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            self.refused.set()
            writer.transport.abort()
            return
        self.accepted += 1
        try:
            if self.is_original:
                await _refuse_extension(reader, writer)
            node_reader, node_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, node_writer}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass(reader, node_writer, to_node=True))
                tasks.create_task(self._pass(node_reader, writer, to_node=False))
        finally:
            self._writers -= {writer, node_writer}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_node: bool) -> None:
        try:
            while data := await reader.read(65536):
                if to_node:
                    writer.write(data)
                    self.requested.set()
                elif not self.swallows_answers:
                    writer.write(data)
        except OSError:
            pass
        finally:
            writer.transport.abort()


async def _refuse_extension(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    length = int.from_bytes(await reader.readexactly(2), "big")
    request = await reader.readexactly(length)
    assert request[5:] == wire.EXTENSION_CLIENT_ID.to_bytes(4, "big", signed=True)
    packet_id = int.from_bytes(request[1:5], "big")
    writer.write(wire.encode(wire.Error(packet_id, ErrorCode.CLIENT_NOT_EXISTING, "no such client")))


@contextlib.asynccontextmanager
async def proxy(target: str) -> AsyncIterator[Proxy]:
    made = Proxy(target)
    async with _listening(made.serve) as made.address:
        yield made
        made.cut()


Answer = Callable[[wire.Packet], Iterable[wire.Packet | bytes]]


@contextlib.asynccontextmanager
async def scripted(answer: Answer) -> AsyncIterator[str]:
    """Serve with the answers that the function gives; bytes are sent as they are. A Welcome widens."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = wire.PacketDecoder()
        encode = wire.encode
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                decoder.feed(data)
                while (packet := decoder.next_packet()) is not None:
                    for reply in answer(packet):
                        writer.write(reply if isinstance(reply, bytes) else encode(reply))
                        if isinstance(reply, wire.Welcome):
                            decoder.widen(reply.frame_max)
                            encode = wire.encode_wide
        writer.transport.abort()

    async with _listening(serve) as address:
        yield address


def welcome(packet: wire.Packet, frame_max: int = 65536) -> list[wire.Packet]:
    """Answer the first two requests of a client that connects by name, and take it for anybody but the owner."""
    if isinstance(packet, wire.IdentifyClient):
        return [wire.Welcome(packet.packet_id, 1, frame_max, "scripted")]
    if isinstance(packet, wire.Join):
        return [wire.Joined(packet.packet_id, 7, packet.mode)]
    if isinstance(packet, wire.AskNonce):
        return [wire.Nonce(packet.packet_id, bytes(wire.NONCE_BYTES))]
    if isinstance(packet, wire.Prove):
        return [wire.Error(packet.packet_id, wire.ErrorCode.NOT_OWNER, "another token")]
    return []


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def _listening(serve: Serve) -> AsyncIterator[str]:
    """Listen on a free port; at the end all connections are over."""
    tasks: set[asyncio.Task[None]] = set()

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(tracked, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        left = list(tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        await server.wait_closed()
