"""Measure the Python client: messages per second that it puts with confirms, consumes and takes.

    python -m bench.client                       # a node without a store, a minute
    python -m bench.client --store embedded --messages 100000 --repeat 5

One client, one connection, and one queue. Machines are noisy: compare runs that follow each other, and the CPU time
that a message costs client and node, which other load hardly changes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.nodes import cpu_seconds, node
from flyball.client import Client, Outcome

PREFETCH = 1000
SETTLED_TOGETHER = 100
TAKEN_TOGETHER = 1000


async def put_many(client: Client, queue: str, messages: int, body: bytes) -> None:
    await client.put_many(queue, (body for _ in range(messages)))


async def consume(client: Client, queue: str, messages: int, body: bytes) -> None:
    async with client.consume(queue, prefetch=PREFETCH) as consumer:
        held = []
        for _ in range(messages):
            delivery = await consumer.next()
            assert delivery is not None
            held.append(delivery)
            if len(held) == SETTLED_TOGETHER:
                await consumer.settle(held, Outcome.ACKNOWLEDGE)
                held = []
        await consumer.settle(held, Outcome.ACKNOWLEDGE)


async def take_many(client: Client, queue: str, messages: int, body: bytes) -> None:
    left = messages
    while left:
        left -= len(await client.take_many(queue, min(left, TAKEN_TOGETHER)))


Phase = Callable[[Client, str, int, bytes], Awaitable[None]]

# Each empties what the one before has filled.
PHASES: tuple[tuple[str, Phase], ...] = (
    ("put_many", put_many),
    ("consume", consume),
    ("put_many", put_many),
    ("take_many", take_many),
)


class Cost(NamedTuple):
    """Cost of a phase per message: time, and CPU time of the client and of the node with its PostgreSQL."""

    seconds: float
    client_s: float
    node_s: float


def used(process: psutil.Process) -> Cost:
    """Return the time now, and the CPU time so far."""
    times = psutil.Process(os.getpid()).cpu_times()
    return Cost(time.perf_counter(), times.user + times.system, sum(cpu_seconds(process)))


async def run(address: str, process: psutil.Process, messages: int, body: bytes) -> dict[str, list[Cost]]:
    """Return the costs of each phase."""
    costs: dict[str, list[Cost]] = {}
    async with Client.connect(address) as client:
        queue = await client.create_queue("bench")
        for name, phase in PHASES:
            before = used(process)
            await phase(client, queue.name, messages, body)
            spent = zip(used(process), before, strict=True)
            costs.setdefault(name, []).append(Cost(*((after - then) / messages for after, then in spent)))
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="memory")
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[Cost]] = {}
    for _ in range(options.repeat):
        with (
            tempfile.TemporaryDirectory(prefix="flyball-bench-") as folder,
            node(options.store, Path(folder) / "data", ["--trace", "off"]) as (process, addresses),
        ):
            address = "{}:{}".format(*addresses["amqp"])
            for name, costs in asyncio.run(
                run(address, process, options.messages, b"x" * options.body_bytes)
            ).items():
                found.setdefault(name, []).extend(costs)
    for name, costs in found.items():
        rates = sorted(1 / cost.seconds for cost in costs)
        client_us, node_us = (
            1e6 * statistics.median(each) for each in ([c.client_s for c in costs], [c.node_s for c in costs])
        )
        print(
            f"{name:10} {statistics.median(rates):10,.0f} messages/s, {rates[0]:,.0f} to {rates[-1]:,.0f};"
            f" CPU time of a message: client {client_us:.1f} µs, node {node_us:.1f} µs"
        )


if __name__ == "__main__":
    main()
