"""A relay between a client and a broker that a test can cut and freeze."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class Relay:
    """Hands on bytes both ways, over connections that `cut` ends without a word."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        # Each of the next connections is cut when this many bytes of the broker have gone through.
        self.budgets: list[int] = []
        # Number of connections made without a budget.
        self.whole = 0
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        port = self._server.sockets[0].getsockname()[1]
        return f"amqp://guest:guest@127.0.0.1:{port}/"

    def cut(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.transport.abort()

    def freeze(self) -> None:
        """Forward nothing until `thaw`, without closing."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def close(self) -> None:
        """End all connections and take no new ones."""
        self._server.close()
        self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onwards = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        budget = self.budgets.pop(0) if self.budgets else None
        self.whole += budget is None
        self._writers |= {writer, onwards[1]}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hand_on(reader, onwards[1], None))
            tasks.create_task(self._hand_on(onwards[0], writer, budget))
        self._writers -= {writer, onwards[1]}

    async def _hand_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget_bytes: int | None
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                if budget_bytes is not None:
                    data = data[:budget_bytes]
                    budget_bytes -= len(data)
                writer.write(data)
                await writer.drain()
                if budget_bytes == 0:
                    break
        writer.close()
