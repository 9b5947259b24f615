"""Send and Pop Same Client (seed 002): requests per second and latency, by protocol, store and number of clients.

    python -m bench.send_and_pop                        # everything, about 6 minutes
    python -m bench.send_and_pop --clients 50 --stores embedded,null --seconds 10

Each run starts a node of its own and preloads its queue with messages that nobody reads. As a peer, the same pair of
statements in the same kind of PostgreSQL, with a transaction for each request (pgbench): what a broker without group
commit can reach at best. Machines are noisy: compare ratios of one run, not figures of two.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.load import Dialect, Plan, Telesto, ThorBang, generate_elsewhere
from bench.nodes import cpu_seconds, node
from flyball.client import Client, Draft
from flyball.store.postgres.embedded import EmbeddedPostgres, find_binaries

PEER_CONNECTIONS = 15
"""The original systems worked with pools of 10 to 25."""


@dataclass(slots=True)
class Line:
    """One measurement."""

    protocol: str
    store: str
    clients: int
    preloaded: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    node_cpu: float
    postgres_cpu: float
    generator_cpu: float


async def preload(address: tuple[str, int], count: int) -> int:
    """Put messages that nobody reads into a new queue, and return its id: the load shares it with them."""
    async with Client.connect(f"{address[0]}:{address[1]}", name="preload") as client:
        queue = await client.create_queue("preloaded")
        await client.put_many(queue, (Draft(b"some message", receiver=client.id) for _ in range(count)))
        return queue.id


def measure(protocol: str, store: str, clients: int, options: argparse.Namespace) -> Line:
    keeps = store != "null"
    dialect: Dialect = (
        ThorBang(options.body_bytes, keeps_messages=keeps)
        if protocol == "thorbang"
        else Telesto(options.body_bytes, keeps_messages=keeps)
    )
    with tempfile.TemporaryDirectory(prefix="flyball-bench-") as folder:
        extra = ["--trace", options.trace]
        with node(store, Path(folder) / "data", extra) as (process, addresses):
            queue_id = asyncio.run(preload(addresses["telesto"], options.preload)) if keeps else None
            plan = Plan(dialect, addresses[protocol], clients, queue_id, options.warm_up, options.seconds)
            before = cpu_seconds(process)
            outcome = generate_elsewhere(plan)
            after = cpu_seconds(process)
    ran_s = options.warm_up + outcome.seconds
    ordered = sorted(outcome.latencies_us)
    return Line(
        protocol,
        store,
        clients,
        options.preload if keeps else 0,
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
    parser.add_argument("--protocols", default="thorbang,telesto")
    parser.add_argument("--stores", default="embedded,memory,null")
    parser.add_argument("--clients", default="1,10,30,50")
    parser.add_argument("--preload", type=int, default=20_000, help="messages stored before the run")
    parser.add_argument("--body-bytes", type=int, default=5)
    parser.add_argument("--warm-up", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--trace", default="on", choices=["on", "off"])
    parser.add_argument("--no-peer", action="store_true", help="leave out pgbench")
    parser.add_argument("--json", action="store_true", help="print lines of JSON instead of a table")
    options = parser.parse_args()
    plan = [
        (protocol, store, int(clients))
        for store in options.stores.split(",")
        for protocol in options.protocols.split(",")
        for clients in options.clients.split(",")
    ]
    lines: list[Line] = []
    console = Console(stderr=True)
    with Progress(console=console) as progress:
        task = progress.add_task("send and pop", total=len(plan) + (0 if options.no_peer else 1))
        for protocol, store, clients in plan:
            progress.update(task, description=f"{protocol} on {store}, {clients} clients")
            lines.append(measure(protocol, store, clients, options))
            progress.advance(task)
        peer = None
        if not options.no_peer:
            progress.update(task, description="pgbench")
            peer = one_transaction_per_request(options.seconds)
            progress.advance(task)
    if options.json:
        for line in lines:
            print(json.dumps(asdict(line)))
        return
    show(lines, peer)


def show(lines: list[Line], peer: float | None) -> None:
    table = Table(title=f"Send and Pop Same Client, {os.cpu_count()} cores")
    for heading in (
        "store",
        "protocol",
        "clients",
        "requests/s",
        "p50 ms",
        "p99 ms",
        "CPU node",
        "PostgreSQL",
        "load",
    ):
        table.add_column(heading, justify="left" if heading in ("store", "protocol") else "right")
    for line in lines:
        table.add_row(
            line.store,
            line.protocol,
            str(line.clients),
            f"{line.requests_per_s:,.0f}",
            f"{line.p50_ms:.2f}",
            f"{line.p99_ms:.2f}",
            f"{line.node_cpu:.0%}",
            f"{line.postgres_cpu:.0%}",
            f"{line.generator_cpu:.0%}",
        )
    console = Console(width=110)
    console.print(table)
    if peer is not None:
        most = max(line.clients for line in lines)
        console.print(
            f"pgbench, a transaction for each request, {PEER_CONNECTIONS} connections: {peer:,.0f} requests/s"
        )
        for line in lines:
            if line.store == "embedded" and line.clients == most:
                console.print(f"{line.protocol}: {line.requests_per_s / peer:.2f} times that")


if __name__ == "__main__":
    main()
