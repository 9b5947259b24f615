"""Real nodes with real sockets and stores, started and stopped by a test: in a thread here, or as a process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pytest
import uvloop

from flyball.broker.core.authority import Authority
from flyball.broker.management.part import console_part
from flyball.broker.node.node import Node, NodePart, running
from flyball.broker.settings import Address, ServeSettings, load_settings
from flyball.broker.store.interface import Batch
from flyball.broker.store.memory import MemoryStore
from flyball.client.api import Api, place_at
from flyball.model import Permission

T = TypeVar("T")

_folder = tempfile.TemporaryDirectory(prefix="flyball-token-")

# The token of all nodes that tests start: their clients in this process find it by the environment.
TOKEN_FILE = Path(_folder.name) / "admin.token"

os.environ["FLYBALL_TOKEN_FILE"] = str(TOKEN_FILE)

ANSWER_LIMIT_S = 60.0

# Every listener of messages on a port that the system chooses, and no console.
EPHEMERAL = {**dict.fromkeys(("amqp", "telesto", "thorbang"), "127.0.0.1:0"), "http": "off"}


def with_api(**flags: Any) -> dict[str, Any]:
    """Return these flags, with which a node has an HTTP API as well."""
    return {"parts": [console_part()], "http": "127.0.0.1:0", **flags}


class RunningNode:
    """A node on free ports of the loopback address, with further parts."""

    def __init__(self, data: Path, *, parts: Sequence[NodePart] = (), **flags: object) -> None:
        defaults = {"data": str(data), "token_file": str(TOKEN_FILE), **EPHEMERAL, "trace": "off"}
        self._settings: ServeSettings = load_settings({**defaults, **flags}, {})
        self._parts = parts
        self._thread = threading.Thread(target=self._main, name="node")
        self._started = threading.Event()
        self._connections: list[socket.socket] = []
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self.node: Node

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the node as SIGTERM would."""
        for connection in self._connections:
            connection.close()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def call(self, function: Callable[[Node], T]) -> T:
        """Run a function in the node's thread and return what it returns."""

        async def run() -> T:
            return function(self.node)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(ANSWER_LIMIT_S)

    def run(self, function: Callable[[Node], Coroutine[Any, Any, T]]) -> T:
        """Run what a function of the node begins in its thread, and return what comes of it."""
        return asyncio.run_coroutine_threadsafe(function(self.node), self._loop).result(ANSWER_LIMIT_S)

    def administer(self, change: Callable[[Authority], Coroutine[Any, Any, T]]) -> T:
        """Have something changed by the node's authority."""
        return self.run(lambda node: change(node.hub.authority))

    def allow_all(self, user: str, vhost: str) -> None:
        """Let a user do everything in a virtual host."""
        self.administer(lambda authority: authority.set_permission(Permission(user, vhost, ".*", ".*", ".*")))

    def wait_until(self, condition: Callable[[Node], bool]) -> None:
        """Return when the condition holds; it is looked at after every turn of the node's loop."""

        async def wait() -> None:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                # There is no event for an arbitrary condition.
                while not condition(self.node):  # noqa: ASYNC110
                    await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(wait(), self._loop).result()

    def address(self, protocol: str) -> Address:
        return self.node.addresses[protocol]

    @property
    def url(self) -> str:
        """Of its HTTP API; see `with_api`."""
        return f"http://{self.address('http')}"

    def api(self) -> Api:
        """Return what asks the node's HTTP API as its owner."""
        return Api(place_at(self.url))

    def connect(self, protocol: str) -> socket.socket:
        """Connect to a listener; the connection is closed with the node at the latest."""
        connection = socket.create_connection(self.address(protocol), timeout=ANSWER_LIMIT_S)
        self.own(connection)
        return connection

    def own(self, connection: socket.socket) -> None:
        """Close the connection with the node."""
        self._connections.append(connection)

    def disown(self, connection: socket.socket) -> None:
        """Leave it to the test to close the connection."""
        self._connections.remove(connection)

    def _main(self) -> None:
        try:
            uvloop.run(self._run())
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with running(self._settings, self._parts) as self.node:
            self._started.set()
            await self._stop.wait()


class Gate:
    """Holds back what the memory stores of all nodes commit, while it is closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_open = asyncio.Event()
        self._is_open.set()
        commit = MemoryStore.commit

        async def commit_when_open(store: MemoryStore, batch: Batch, *, again: bool = False) -> None:
            await self._is_open.wait()
            await commit(store, batch, again=again)

        monkeypatch.setattr(MemoryStore, "commit", commit_when_open)
        self._limits_s: tuple[float, float] | None = None

    def close(self, node: RunningNode, time_limit_s: float | None = None) -> None:
        """Close it; until it is open again, requests of that node wait for the store for its time limit only."""

        def begin(node: Node) -> None:
            self._is_open.clear()
            if time_limit_s is not None:
                journal = node.hub.broker.journal
                self._limits_s = journal._time_limit_s, journal._tick_s
                journal._time_limit_s, journal._tick_s = time_limit_s, time_limit_s / 20

        node.call(begin)

    def open(self, node: RunningNode) -> None:
        def end(node: Node) -> None:
            self._is_open.set()
            if self._limits_s is not None:
                node.hub.broker.journal._time_limit_s, node.hub.broker.journal._tick_s = self._limits_s
                self._limits_s = None

        node.call(end)


class ServeProcess:
    """`flyball serve` as a process of its own, on free ports by default."""

    def __init__(self, data: Path, **flags: object) -> None:
        settings = {"data": data, "token_file": TOKEN_FILE, **EPHEMERAL, "trace": "off", **flags}
        self._command = [sys.executable, "-m", "flyball", "serve"]
        for name, value in settings.items():
            self._command += ["--" + name.replace("_", "-"), str(value)]
        self._addresses: dict[str, Address] = {}
        self._process: subprocess.Popen[str] | None = None
        self._connections: list[socket.socket] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for connection in self._connections:
            connection.close()

    @property
    def pid(self) -> int:
        return self._running.pid

    def start(self) -> None:
        """Start it and return when it serves. Raises StartFailed with what it has said."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment()
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            name, _, address = line.strip().partition(" on ")
            if address:
                self._addresses[name] = Address.parse(address)
            if line.startswith("ready"):
                return
        raise StartFailed(*self.wait())

    def address(self, protocol: str) -> Address:
        """Where it listens, or did when it ran."""
        return self._addresses[protocol]

    def connect(self, protocol: str) -> socket.socket:
        """Connect to a listener; the connection is closed with this object at the latest."""
        connection = socket.create_connection(self.address(protocol), timeout=ANSWER_LIMIT_S)
        self._connections.append(connection)
        return connection

    def signal(self, number: int) -> None:
        self._running.send_signal(number)

    def wait(self) -> tuple[int, str]:
        """Wait until it has ended; return its exit code and what it wrote to stderr."""
        process = self._running
        _, complaints = process.communicate(timeout=ANSWER_LIMIT_S)
        self._process = None
        return process.returncode, complaints

    def stop(self) -> tuple[int, str]:
        """Stop it as an administrator would."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it without a warning, if it runs. An embedded PostgreSQL follows by itself."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    @property
    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "it is not running"
        return self._process


class StartFailed(Exception):
    """The process ended before it served."""

    def __init__(self, code: int, complaints: str) -> None:
        super().__init__(f"exit code {code}: {complaints}")
        self.code = code
        self.complaints = complaints


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("FLYBALL_")}
