"""Instructions that a node executes for one message, counted by callgrind: repeatable where time is not.

    python -m bench.instructions                                   # this checkout, about 3 minutes a core
    python -m bench.instructions --source OTHER/src --source src   # two checkouts, and the ratio of each to the first

A node on a memory store gets the frames of an AMQP client as bytes in its own process, on asyncio's event loop with a
clock that stands still while the node works: no socket, no limit of time and no random hash order. Each scenario runs
with few messages and with more, and the difference is divided by the number of messages between, so that starting up
does not count. The packages of `scripts/wheel-environment` are a source like any other.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import os
import re
import selectors
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Where a node has been made and where its settings are, in the order in which they are looked for.
NODES = ("flyball.broker.node.node", "flyball.server.node")
SETTINGS = ("flyball.broker.settings", "flyball.server.settings")

SCENARIOS = ("durable", "transient")

# Messages that the client sends at once, and that wait for their confirm or delivery before it sends more.
BURST = 20

BODY = bytes(range(256))
QUEUE = b"measured"

# A turn of the event loop takes this time by the node's clock.
TURN_S = 20e-6

# The most that passes in a turn without work: until a login is hashed in another thread no minutes must pass.
IDLE_S = 0.001


class Clock:
    """Time that passes only between turns of the event loop, and goes on towards the next timer when it is idle."""

    now_s = 1000.0

    def install(self) -> None:
        """Replace the clocks of the process: before anything of the node is imported."""
        time.monotonic = lambda: self.now_s
        time.perf_counter = lambda: self.now_s
        time.perf_counter_ns = lambda: int(self.now_s * 1e9)


class Selector(selectors.SelectSelector):
    """Waits no longer than a moment for files, and lets the clock pass instead."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0 if timeout == 0 else 0.0005)
        self._clock.now_s += TURN_S if ready or not timeout else min(timeout, IDLE_S)
        return ready


class Transport(asyncio.Transport):
    """The client's end of a connection: counts what the node confirms and delivers."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.waited_for: Callable[[], bool] = lambda: False
        self.woken: asyncio.Future[None] | None = None
        self.delivered = 0
        self.confirmed = 0
        self.received = b""

    def write(self, data: Any) -> None:
        data = bytes(data)
        self.received = data
        self.delivered += data.count(b"\x00\x3c\x00\x3c\x01c")
        at = data.rfind(b"\x00\x3c\x00\x50")
        if at >= 0:
            self.confirmed = struct.unpack_from(">Q", data, at + 4)[0]
        if self.woken is not None and not self.woken.done() and self.waited_for():
            self.woken.set_result(None)

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    async def wait(self, condition: Callable[[], bool]) -> None:
        if not condition():
            self.waited_for = condition
            self.woken = asyncio.get_running_loop().create_future()
            await self.woken

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


def _short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def _method(class_id: int, method_id: int, arguments: bytes = b"", channel: int = 1) -> bytes:
    return _frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


def _publish(properties: bytes) -> bytes:
    """Return the frames of one message to the measured queue."""
    header = struct.pack(">HHQ", 60, 0, len(BODY)) + properties
    return _method(60, 40, b"\0\0" + _short(b"") + _short(QUEUE) + b"\0") + _frame(2, 1, header) + _frame(3, 1, BODY)


async def exchange(session: Any, count: int, *, durable: bool) -> None:
    """Publish messages and consume them: persistent ones with confirms and acks, or transient ones with neither."""
    transport = Transport()
    session.connection_made(transport)

    async def ask(request: bytes, answer: bytes) -> None:
        session.data_received(request)
        await transport.wait(lambda: answer in transport.received)

    async def received(delivered: int, confirmed: int) -> None:
        await transport.wait(lambda: transport.delivered >= delivered and transport.confirmed >= confirmed)

    await ask(b"AMQP\0\0\x09\x01", b"\x00\x0a\x00\x0a")
    login = b"\0guest\0guest"
    start_ok = struct.pack(">I", 0) + _short(b"PLAIN") + struct.pack(">I", len(login)) + login + _short(b"en_US")
    await ask(_method(10, 11, start_ok, 0), b"\x00\x0a\x00\x1e")
    tune_ok = _method(10, 31, struct.pack(">HIH", 100, 131072, 0), 0)
    await ask(tune_ok + _method(10, 40, _short(b"/") + b"\0\0", 0), b"\x00\x0a\x00\x29")
    await ask(_method(20, 10, b"\0"), b"\x00\x14\x00\x0b")
    declare = b"\0\0" + _short(QUEUE) + (b"\x02" if durable else b"\0") + struct.pack(">I", 0)
    await ask(_method(50, 10, declare), b"\x00\x32\x00\x0b")
    if durable:
        await ask(_method(85, 10, b"\0"), b"\x00\x55\x00\x0b")
        await ask(_method(60, 10, struct.pack(">IHB", 0, 10 * BURST, 0)), b"\x00\x3c\x00\x0b")
    consume = b"\0\0" + _short(QUEUE) + _short(b"c") + (b"\0" if durable else b"\x02") + struct.pack(">I", 0)
    await ask(_method(60, 20, consume), b"\x00\x3c\x00\x15")
    published = _publish(struct.pack(">HB", 0x1000, 2 if durable else 1)) * BURST
    for sent in range(BURST, count + 1, BURST):
        session.data_received(published)
        # Confirmed before they are acked: each message is written to the store and removed again.
        await received(sent, sent if durable else 0)
        if durable:
            session.data_received(b"".join([_ack(tag) for tag in range(sent - BURST + 1, sent + 1)]))


def _ack(tag: int) -> bytes:
    return _method(60, 80, struct.pack(">QB", tag, 0))


def _first_of(modules: tuple[str, ...]) -> Any:
    for name in modules:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise SystemExit(f"none of {', '.join(modules)} is on the path: is the source a folder that holds flyball/?")


async def serve(scenario: str, count: int, factories: list[Callable[[], Any]]) -> None:
    """Run a scenario on a node of this process."""
    with tempfile.TemporaryDirectory() as folder:
        settings = _first_of(SETTINGS).ServeSettings(
            data=Path(folder), name="measured", store="memory", trace=False, amqp="127.0.0.1:0"
        )
        async with _first_of(NODES).running(settings) as node:
            await exchange(await _session(node, factories), count, durable=scenario == "durable")
            # Its clocks stand still, so that a graceful end would wait forever.
            print("done", flush=True)
            os._exit(0)


async def _session(node: Any, factories: list[Callable[[], Any]]) -> Any:
    for factory in factories:
        session = factory()
        if type(session).__name__ == "AmqpSession":
            return session
    raise SystemExit(f"the node has no listener for AMQP: {node.addresses}")


def run_child(scenario: str, count: int) -> None:
    """Exchange the messages in this process, which callgrind watches."""
    clock = Clock()
    clock.install()
    gc.disable()
    factories: list[Callable[[], Any]] = []
    loop = asyncio.SelectorEventLoop(Selector(clock))
    create_server = loop.create_server

    def remembering(factory: Callable[[], Any], *arguments: Any, **options: Any) -> Any:
        factories.append(factory)
        return create_server(factory, *arguments, **options)

    loop.create_server = remembering  # type: ignore[method-assign, assignment]
    asyncio.set_event_loop(loop)
    loop.run_until_complete(serve(scenario, count, factories))


def instructions(source: Path, scenario: str, count: int) -> int:
    """Return how many instructions a process executes that exchanges this number of messages."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    child = [sys.executable, "-P", str(Path(__file__).resolve()), "--child", scenario, "--messages", str(count)]
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *child]
    done = subprocess.run(command, env=environment, cwd=source, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        raise SystemExit(f"{scenario} of {source}: {done.stdout}{done.stderr[-4000:]}")
    return int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, action="append", help="folder with the package `flyball`; repeatable")
    parser.add_argument("--messages", type=int, default=4000, help="messages between the two runs of a scenario")
    parser.add_argument("--child", choices=SCENARIOS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        run_child(options.child, options.messages)
        return
    sources = options.source or [Path(__file__).resolve().parent.parent / "src"]
    for scenario in SCENARIOS:
        first = None
        for source in sources:
            few, more = (instructions(source.resolve(), scenario, count) for count in (1000, 1000 + options.messages))
            each = (more - few) / options.messages
            first = first or each
            print(f"{scenario:10} {each:10,.0f} instructions/message  {each / first:.3f}  {source}", flush=True)


if __name__ == "__main__":
    main()
