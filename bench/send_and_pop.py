"""Send and Pop Same Client (ThorBangMQ report): requests/s and latency, by protocol, store and number of clients.

    python -m bench.send_and_pop                        # everything, about 6 minutes
    python -m bench.send_and_pop --clients 50 --stores embedded --preload 20000,1000000 --repeat 3
    python -m bench.send_and_pop --clients 50 --stores embedded,null --trace on,off --repeat 5

Each run starts a node of its own and preloads its queue with messages without a reader. As a peer, the same pair of
statements in the same kind of PostgreSQL, with a transaction for each request (pgbench): what a broker without group
commit can reach at best. Machines are noisy: compare ratios of one run, not figures of two.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.load import Dialect, Plan, Telesto, ThorBang, generate_elsewhere
from bench.nodes import cpu_seconds, node
from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from flyball.broker.store.postgres.launcher import find_binaries
from flyball.client import Client, Draft
from flyball.client.http import Line as HttpLine
from flyball.client.http import path_of

# No client has this number.
NOBODY = 2**31 - 1

# The original systems worked with pools of 10 to 25.
PEER_CONNECTIONS = 15


@dataclass(slots=True, frozen=True)
class Setup:
    """Parameters of one measurement."""

    store: str
    protocol: str
    clients: int
    preloaded: int
    trace: str


@dataclass(slots=True)
class Line:
    """One measurement."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    node_cpu: float
    postgres_cpu: float
    generator_cpu: float

    @property
    def node_cpu_us(self) -> float:
        """The node's CPU time for one request."""
        return self.node_cpu / self.requests_per_s * 1e6


async def preload(addresses: Mapping[str, tuple[str, int]], count: int) -> int:
    """Put messages without a reader into a new queue, and return its id: the load shares it with them."""
    async with Client.connect("{}:{}".format(*addresses["amqp"])) as client:
        await client.create_queue("preloaded")
        await client.put_many("preloaded", (Draft(b"some message", receiver=NOBODY) for _ in range(count)))
        line = HttpLine(await client.http_place())
        try:
            queue_id: int = (await line.get(path_of("queues", "/", "preloaded", columns="id")))["id"]
        finally:
            line.close()
    return queue_id


def measure(setup: Setup, options: argparse.Namespace) -> Line:
    keeps = setup.store != "null"
    dialect: Dialect = (
        ThorBang(options.body_bytes, keeps_messages=keeps)
        if setup.protocol == "thorbang"
        else Telesto(options.body_bytes, keeps_messages=keeps)
    )
    with (
        tempfile.TemporaryDirectory(prefix="flyball-bench-") as folder,
        node(setup.store, Path(folder) / "data", ["--trace", setup.trace]) as (process, addresses),
    ):
        queue_id = asyncio.run(preload(addresses, setup.preloaded)) if keeps else None
        plan = Plan(dialect, addresses[setup.protocol], setup.clients, queue_id, options.warm_up, options.seconds)
        before = cpu_seconds(process)
        outcome = generate_elsewhere(plan)
        after = cpu_seconds(process)
    ran_s = options.warm_up + outcome.seconds
    ordered = sorted(outcome.latencies_us)
    return Line(
        len(ordered) / outcome.seconds,
        statistics.median(ordered) / 1000,
        ordered[int(len(ordered) * 0.99)] / 1000,
        (after[0] - before[0]) / ran_s,
        (after[1] - before[1]) / ran_s,
        outcome.cpu_seconds / outcome.seconds,
    )


def one_transaction_per_request(seconds: float) -> float:
    """Return the requests per second of pgbench with an insert and a delete in turn, each its own transaction."""

    async def run() -> float:
        with tempfile.TemporaryDirectory(prefix="flyball-peer-") as folder:
            server = EmbeddedPostgres(Path(folder))
            await server.start()
            try:
                return await _pgbench(server, Path(folder), seconds)
            finally:
                await server.stop()

    return asyncio.run(run())


async def _pgbench(server: EmbeddedPostgres, folder: Path, seconds: float) -> float:
    (folder / "put.sql").write_text("INSERT INTO peer (receiver, body) VALUES (:client_id, '*****');\n")
    (folder / "pop.sql").write_text(
        "DELETE FROM peer WHERE id = (SELECT min(id) FROM peer WHERE receiver = :client_id) RETURNING body;\n"
    )
    psql, pgbench = (str(find_binaries() / name) for name in ("psql", "pgbench"))
    table = (
        "CREATE TABLE peer (id bigserial PRIMARY KEY, receiver int, body text); CREATE INDEX ON peer (receiver, id)"
    )
    await asyncio.to_thread(subprocess.run, [psql, "-q", "-d", server.dsn, "-c", table], check=True)
    command = [pgbench, "-n", "-M", "prepared", "-c", str(PEER_CONNECTIONS), "-j", "2", "-T", str(int(seconds))]
    command += ["-f", str(folder / "put.sql"), "-f", str(folder / "pop.sql"), server.dsn]
    done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True)
    tps = next(text for text in done.stdout.splitlines() if text.startswith("tps"))
    return float(tps.split()[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default="embedded,memory,null")
    parser.add_argument("--protocols", default="thorbang,telesto")
    parser.add_argument("--clients", default="1,10,30,50")
    parser.add_argument("--preload", default="20000", help="messages in the queue before the run")
    parser.add_argument("--trace", default="on", help="on, off or both, as in on,off")
    parser.add_argument("--repeat", type=int, default=1, help="interleaved repetitions; medians are shown")
    parser.add_argument("--body-bytes", type=int, default=5)
    parser.add_argument("--warm-up", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--no-peer", action="store_true", help="leave out pgbench")
    parser.add_argument("--json", action="store_true", help="print lines of JSON instead of a table")
    options = parser.parse_args()
    lists = (options.stores, options.protocols, options.clients, options.preload, options.trace)
    setups = [
        Setup(store, protocol, int(clients), int(preloaded), trace)
        for store, protocol, clients, preloaded, trace in itertools.product(*(text.split(",") for text in lists))
    ]
    measured: dict[Setup, list[Line]] = {setup: [] for setup in setups}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(setups) * options.repeat + (0 if options.no_peer else 1))
        for setup in setups * options.repeat:
            progress.update(task, description=f"{setup.protocol} on {setup.store}, {setup.clients} clients")
            measured[setup].append(measure(setup, options))
            progress.advance(task)
        peer = None
        if not options.no_peer:
            progress.update(task, description="pgbench")
            peer = one_transaction_per_request(options.seconds)
            progress.advance(task)
    lines = {setup: median(found) for setup, found in measured.items()}
    if options.json:
        for setup, line in lines.items():
            print(json.dumps(asdict(setup) | asdict(line)))
    else:
        show(lines, peer)


def median(lines: list[Line]) -> Line:
    return sorted(lines, key=lambda line: line.requests_per_s)[len(lines) // 2]


def show(lines: dict[Setup, Line], peer: float | None) -> None:
    headings = ("store", "protocol", "clients", "preloaded", "trace", "requests/s", "p50 ms", "p99 ms")
    table = Table(title=f"Send and Pop Same Client, {os.cpu_count()} cores", box=None)
    for heading in (*headings, "CPU node", "PostgreSQL", "load"):
        table.add_column(heading, justify="left" if heading in ("store", "protocol") else "right")
    for setup, line in lines.items():
        table.add_row(
            setup.store,
            setup.protocol,
            str(setup.clients),
            f"{setup.preloaded:,}",
            setup.trace,
            f"{line.requests_per_s:,.0f}",
            f"{line.p50_ms:.2f}",
            f"{line.p99_ms:.2f}",
            f"{line.node_cpu:.0%}",
            f"{line.postgres_cpu:.0%}",
            f"{line.generator_cpu:.0%}",
        )
    console = Console(width=110)
    console.print(table)
    for setup, line in lines.items():
        fewer = min(other.preloaded for other in lines)
        traced = replace(setup, trace="on")
        if setup.preloaded > fewer:
            base = lines[replace(setup, preloaded=fewer)]
            ratio = line.requests_per_s / base.requests_per_s
            console.print(f"{setup.protocol}: {ratio:.2f} with {setup.preloaded:,} messages instead of {fewer:,}")
        if setup.trace == "off" and traced in lines:
            ratio = lines[traced].requests_per_s / line.requests_per_s
            cost_ratio = lines[traced].node_cpu_us / line.node_cpu_us
            console.print(
                f"{setup.protocol} on {setup.store}: with the trace {ratio:.3f} of the requests/s without, "
                f"and {cost_ratio:.3f} of the node's CPU time for a request"
            )
    if peer is not None:
        console.print(
            f"pgbench, a transaction for each request, {PEER_CONNECTIONS} connections: {peer:,.0f} requests/s"
        )
        for setup, line in lines.items():
            if setup.store == "embedded":
                ratio = line.requests_per_s / peer
                console.print(f"{setup.protocol}, {setup.clients} clients: {ratio:.2f} times that")


if __name__ == "__main__":
    main()
