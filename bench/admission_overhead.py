"""Measure the cost of admission control while no request waits: requests per second with the middleware and without.

    python -m bench.admission_overhead                     # about 2 minutes
    python -m bench.admission_overhead --driver asyncpg

One process serves the same small Starlette site three times, each with a pool of its own to one PostgreSQL: bare,
behind the middleware with a reference out of reach, and with one that slow start finds. A request makes one query.
The sites are loaded in turn, round by round: at full speed, which is all that one core can do, and at half of that.
Others on the machine disturb the clock more than the CPU time, so throughput is given by both; ratios are of rounds
side by side.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import asyncpg
import psutil
import psycopg_pool
import uvicorn
import uvloop
from rich.console import Console
from rich.table import Table
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from flyball.admission import AdmissionOptions
from flyball.admission.asgi import AdmissionMiddleware, App
from flyball.admission.sensors import AsyncpgSensor, PsycopgSensor, Sensor
from flyball.broker.store.postgres.embedded import EmbeddedPostgres

NAMES = ("bare", "middleware", "with slow start")
OUT_OF_REACH = 1e9
POOL_SIZE = 24
GOAL_RATIO = 0.95
HALF = 0.5

Query = Callable[[int], Awaitable[str]]


def make_site(query: Query) -> Starlette:
    """Make a site of which one page needs one query."""

    async def item(request: Request) -> Response:
        return PlainTextResponse(await query(request.path_params["item_id"]))

    async def other(request: Request) -> Response:
        return PlainTextResponse("")

    others = [Route(f"/{name}/{{number:int}}", other) for name in ("users", "bids", "categories", "regions")]
    return Starlette(routes=[*others, Route("/items/{item_id:int}", item)])


async def connect(driver: str, dsn: str, stack: AsyncExitStack) -> tuple[Any, Query, Sensor]:
    """Return a pool, what asks it, and a sensor that could watch it."""
    if driver == "asyncpg":
        asyncpg_pool = await stack.enter_async_context(
            asyncpg.create_pool(dsn, min_size=POOL_SIZE, max_size=POOL_SIZE)
        )

        async def fetch(item_id: int) -> str:
            return str(await asyncpg_pool.fetchval("SELECT 'item ' || $1::int", item_id))

        return asyncpg_pool, fetch, AsyncpgSensor()
    pool = psycopg_pool.AsyncConnectionPool(dsn, min_size=POOL_SIZE, max_size=POOL_SIZE, open=False)
    await stack.enter_async_context(pool)

    async def execute(item_id: int) -> str:
        async with pool.connection() as connection:
            cursor = await connection.execute("SELECT 'item ' || %s::int", (item_id,))
            row = await cursor.fetchone()
            assert row is not None
            return str(row[0])

    return pool, execute, PsycopgSensor()


async def serve(driver: str, dsn: str, pipe: Connection) -> None:
    """Serve all three sites until a line is read; print their ports."""
    async with AsyncExitStack() as stack:
        servers = []
        for name in NAMES:
            pool, query, sensor = await connect(driver, dsn, stack)
            app: App = make_site(query)
            if name != "bare":
                sensor.watch(pool)  # type: ignore[attr-defined]
                reference = OUT_OF_REACH if name == "middleware" else None
                app = AdmissionMiddleware(app, sensor=sensor, options=AdmissionOptions(reference=reference))
            config = uvicorn.Config(app, log_config=None, access_log=False, loop="none", http="httptools")
            servers.append((uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))))
        async with asyncio.TaskGroup() as tasks:
            for server, listening in servers:
                tasks.create_task(server.serve([listening]))
            pipe.send([listening.getsockname()[1] for _, listening in servers])
            await asyncio.to_thread(pipe.recv)
            for server, _ in servers:
                server.should_exit = True


def run_server(driver: str, dsn: str, pipe: Connection) -> None:
    uvloop.run(serve(driver, dsn, pipe))


async def start(postgres: EmbeddedPostgres) -> None:
    """Start PostgreSQL with room for all pools: the broker's own needs few connections."""
    await postgres.start()
    connection = await asyncpg.connect(postgres.dsn)
    await connection.execute(f"ALTER SYSTEM SET max_connections = {POOL_SIZE * len(NAMES) + 10}")
    await connection.close()
    await postgres.stop()
    await postgres.start()


@contextmanager
def sites(driver: str, dsn: str) -> Iterator[tuple[psutil.Process, list[int]]]:
    """Run the server; yield its process and the ports of the sites."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=run_server, args=(driver, dsn, there))
    process.start()
    assert process.pid is not None
    try:
        yield psutil.Process(process.pid), here.recv()
    finally:
        here.send("stop")
        process.join()


class Client(asyncio.Protocol):
    """One connection on which one request follows the other, at once or when it is due."""

    def __init__(self, number: int, interval_s: float, until_s: float) -> None:
        self._request = f"GET /items/{number} HTTP/1.1\r\nhost: bench\r\n\r\n".encode()
        self._end = f"item {number}".encode()
        self._interval_s = interval_s
        self._until_s = until_s
        self._loop = asyncio.get_running_loop()
        self._due_s = time.monotonic()
        self._data = b""
        self.has_ended = self._loop.create_future()
        self.responses_s: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._data.startswith(b"HTTP/1.1 200"):
            self._stop(RuntimeError(f"unexpected answer: {self._data!r}"))
        elif self._data.endswith(self._end):
            self._data = b""
            self._go_on()

    def _go_on(self) -> None:
        now_s = time.monotonic()
        self.responses_s.append(now_s - self._due_s)
        self._due_s = self._due_s + self._interval_s if self._interval_s else now_s
        if now_s >= self._until_s:
            self._stop()
        elif self._due_s > now_s:
            self._loop.call_at(self._due_s, self._send)
        else:
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop(error or RuntimeError("the server has hung up"))

    def _send(self) -> None:
        self._transport.write(self._request)

    def _stop(self, error: Exception | None = None) -> None:
        if not self.has_ended.done():
            if error is None:
                self.has_ended.set_result(None)
            else:
                self.has_ended.set_exception(error)
            self._transport.close()


@dataclass(frozen=True)
class Figures:
    """Result of a round: requests per second by the clock and by the server's CPU time, and response times."""

    per_s: float
    per_cpu_s: float
    p50_ms: float
    p99_ms: float


async def load(server: psutil.Process, port: int, clients: int, per_s: float | None, seconds: float) -> Figures:
    """Load one site for some seconds, at full speed unless a rate is given."""
    loop = asyncio.get_running_loop()
    begun_s, begun_cpu_s = time.perf_counter(), sum(server.cpu_times()[:2])
    until_s = time.monotonic() + seconds
    interval_s = clients / per_s if per_s else 0.0
    everybody = []
    for number in range(clients):
        _, client = await loop.create_connection(
            lambda number=number: Client(number, interval_s, until_s),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        everybody.append(client)
    for client in everybody:
        await client.has_ended
    took_s, took_cpu_s = time.perf_counter() - begun_s, sum(server.cpu_times()[:2]) - begun_cpu_s
    responses_s = sorted(response_s for client in everybody for response_s in client.responses_s)
    count = len(responses_s)
    return Figures(
        count / took_s, count / took_cpu_s, 1000 * responses_s[count // 2], 1000 * responses_s[count * 99 // 100]
    )


async def compare(
    server: psutil.Process, ports: Sequence[int], clients: int, seconds: float, rounds: int
) -> dict[str, list[list[Figures]]]:
    """Return for each load, of each site, the figures of its rounds."""
    for port in ports:
        await load(server, port, clients, None, seconds)
    found: dict[str, list[list[Figures]]] = {"full speed": [], "half of it": []}
    for name, figures in found.items():
        per_s = None if name == "full speed" else HALF * _median([each[0].per_s for each in found["full speed"]])
        for number in range(rounds):
            # Each is the first in turn: whatever grows or shrinks in a round favours none.
            order = [(number + place) % len(ports) for place in range(len(ports))]
            by_site = {place: await load(server, ports[place], clients, per_s, seconds) for place in order}
            figures.append([by_site[place] for place in range(len(ports))])
    return found


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def show(console: Console, found: dict[str, list[list[Figures]]]) -> None:
    table = Table("load", "site", "requests/s", "ratio", "per CPU s", "ratio", "p50 ms", "p99 ms", box=None)
    for load_name, rounds in found.items():
        for place, name in enumerate(NAMES):
            own, bare = [each[place] for each in rounds], [each[0] for each in rounds]
            sides = list(zip(own, bare, strict=True))
            table.add_row(
                load_name if place == 0 else "",
                name,
                f"{_median([each.per_s for each in own]):,.0f}",
                f"{_median([mine.per_s / other.per_s for mine, other in sides]):.3f}",
                f"{_median([each.per_cpu_s for each in own]):,.0f}",
                f"{_median([mine.per_cpu_s / other.per_cpu_s for mine, other in sides]):.3f}",
                f"{_median([each.p50_ms for each in own]):.2f}",
                f"{_median([each.p99_ms for each in own]):.2f}",
            )
    console.print(table)
    console.print(f"goal: a ratio of {GOAL_RATIO} at least")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", choices=["psycopg", "asyncpg"], default="psycopg")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long a round of one site lasts")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flyball-bench-") as folder:
        postgres = EmbeddedPostgres(Path(folder))
        uvloop.run(start(postgres))
        try:
            with sites(options.driver, postgres.dsn) as (server, ports):
                found = uvloop.run(compare(server, ports, options.clients, options.seconds, options.rounds))
        finally:
            uvloop.run(postgres.stop())
    show(Console(), found)


if __name__ == "__main__":
    main()
