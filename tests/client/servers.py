"""A proxy that misbehaves on demand: it cuts connections, and loses what the node says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable


class Proxy:
    """Passes bytes on to a node; `cut` breaks its connections."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.address = ""
        self.accepted = 0
        # Whether what the node says is lost.
        self.swallows_answers = False

    def cut(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
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
                if to_node or not self.swallows_answers:
                    writer.write(data)
        except OSError:
            pass
        finally:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def proxy(target: str) -> AsyncIterator[Proxy]:
    made = Proxy(target)
    async with _listening(made.serve) as made.address:
        yield made
        made.cut()


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
