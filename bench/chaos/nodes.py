"""Systems under stress: nodes as real processes, the PostgreSQL that they share, and the wires between them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote

import psutil

from bench.chaos.proxy import HOST, Proxy
from flyball.broker.store.postgres.embedded import SOCKET_NAME, EmbeddedPostgres
from flyball.errors import LabError

PROTOCOLS = ("amqp",)
START_LIMIT_S = 180.0


class NodeProcess:
    """`flyball serve` as a process. Its stderr is in a file next to its data."""

    def __init__(self, name: str, folder: Path, flags: Mapping[str, object]) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        settings = {
            "data": folder / name,
            "name": name,
            "thorbang": "off",
            "http": "127.0.0.1:0",
            "trace": "off",
            **flags,
        }
        self._command = [sys.executable, "-m", "flyball", "serve"]
        for key, value in settings.items():
            self._command += ["--" + key.replace("_", "-"), str(value)]
        self._process: asyncio.subprocess.Process | None = None
        # Where it listens itself, by protocol.
        self.addresses: dict[str, tuple[str, int]] = {}
        # Called with its addresses, by protocol, whenever it has begun to serve: it may join again by itself.
        self.on_ready: Callable[[dict[str, tuple[str, int]]], None] = lambda addresses: None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start it and return when it serves. Raises LabError if it does not."""
        # Settings of the caller's environment, such as the token file of its own node, are not this node's.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FLYBALL_")}
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        is_ready = asyncio.Event()
        listening = tasks.create_task(self._listen(self._process, is_ready))
        waiting = tasks.create_task(is_ready.wait())
        await asyncio.wait((listening, waiting), timeout=START_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not is_ready.is_set():
            raise LabError(f"node {self.name} did not start: {self.last_words()}")

    async def _listen(self, process: asyncio.subprocess.Process, is_ready: asyncio.Event) -> None:
        """Read what it prints until it ends."""
        assert process.stdout is not None
        addresses = {}
        async for line in process.stdout:
            protocol, _, address = line.decode().strip().partition(" on ")
            host, _, port = address.rpartition(":")
            if port.isdigit():
                addresses[protocol] = (host, int(port))
            if line.startswith(b"ready"):
                self.addresses = addresses
                self.on_ready(addresses)
                is_ready.set()

    def last_words(self) -> str:
        lines = self.log_path.read_text().splitlines()
        return lines[-1] if lines else "it has said nothing"

    def send(self, number: int) -> None:
        if self.is_running:
            assert self._process is not None
            self._process.send_signal(number)

    async def kill(self) -> None:
        """End it without a warning, if it runs."""
        self.send(signal.SIGKILL)
        await self.wait()

    async def stop(self) -> int:
        """End it as an administrator would; return its exit code."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        return await self.wait()

    async def wait(self) -> int:
        if self._process is None:
            return 0
        return await self._process.wait()


class Site:
    """Some nodes that share a PostgreSQL, each with wires of its own to it and to its clients."""

    def __init__(self, folder: Path, names: list[str], flags: Mapping[str, object]) -> None:
        # A fast shutdown while PostgreSQL recovers never ends: both faults may happen at the same time.
        self.postgres = EmbeddedPostgres(folder / "store", connections=20 + 20 * len(names), stop_limit_s=1.0)
        self.names = names
        self.nodes: dict[str, NodeProcess] = {}
        self.store_wires: dict[str, Proxy] = {}
        # The way from all others to a node.
        self.link_wires: dict[str, Proxy] = {}
        # By node and protocol.
        self.client_wires: dict[tuple[str, str], Proxy] = {}
        self._folder = folder
        self._flags = flags
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exits:
            await self.postgres.start()
            exits.push_async_callback(self.postgres.stop)
            self._tasks = await exits.enter_async_context(asyncio.TaskGroup())
            watching = self._tasks.create_task(self.postgres.supervise())
            exits.callback(watching.cancel)
            for name in self.names:
                await self._wire(name, exits)
            # One after the other: the first makes the tables.
            for name in self.names:
                exits.push_async_callback(self.nodes[name].kill)
                await self.start(name)
            self._exits = exits.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._exits.aclose()

    async def _wire(self, name: str, exits: AsyncExitStack) -> None:
        socket_folder = self.postgres.dsn.partition("host=")[2]
        wire = await exits.enter_async_context(Proxy(Path(unquote(socket_folder)) / SOCKET_NAME))
        self.store_wires[name] = wire
        host = f"127.0.1.{len(self.store_wires)}"
        flags = {
            "store": f"postgresql://postgres@{HOST}:{wire.port}/postgres",
            **dict.fromkeys((*PROTOCOLS, "link"), f"{host}:0"),
        }
        if can_wire_links():
            link = self.link_wires[name] = await exits.enter_async_context(Proxy(host=host))
            # The node itself listens to IPv6 only, and so others come to the wire when they use what it advertises.
            link.server = ("::1", link.port)
            flags |= {"link": f"[::]:{link.port}", "advertise": host}
        node = self.nodes[name] = NodeProcess(name, self._folder, {**flags, **self._flags})
        for protocol in PROTOCOLS:
            self.client_wires[name, protocol] = await exits.enter_async_context(Proxy())

        def wire_clients(addresses: dict[str, tuple[str, int]]) -> None:
            for protocol in PROTOCOLS:
                self.client_wires[name, protocol].server = addresses[protocol]

        node.on_ready = wire_clients

    async def start(self, name: str) -> None:
        """Start a node; its clients reach it where they did before. Raises LabError if it does not start."""
        await self.nodes[name].start(self._tasks)

    def address(self, name: str, protocol: str) -> str:
        """Where clients reach a node, for as long as the site is open."""
        return f"{HOST}:{self.client_wires[name, protocol].port}"

    def backends(self) -> list[int]:
        """Return the processes of PostgreSQL that serve clients."""
        if self.postgres.pid is None:
            return []
        return [child.pid for child in psutil.Process(self.postgres.pid).children() if _serves_client(child)]


def can_wire_links() -> bool:
    """Whether the links between nodes can be cut: that takes IPv6 on this machine."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def _serves_client(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return bool(words) and words[0].startswith("postgres: postgres postgres")


def postmaster_signal(site: Site, number: int) -> None:
    """Send PostgreSQL a signal; it is restarted when it has ended."""
    if site.postgres.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(site.postgres.pid, number)
