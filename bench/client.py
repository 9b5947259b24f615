"""Measure the Python client: messages per second that it puts with confirms, consumes and takes.

    python -m bench.client                       # a node without a store, a minute
    python -m bench.client --store embedded --messages 100000 --repeat 5

One client, one connection, and one queue. Machines are noisy: compare runs that follow each other.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.nodes import node
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


async def run(address: str, messages: int, body: bytes) -> dict[str, list[float]]:
    """Return the rates of each phase."""
    rates: dict[str, list[float]] = {}
    async with Client.connect(address) as client:
        queue = await client.create_queue("bench")
        for name, phase in PHASES:
            began = time.perf_counter()
            await phase(client, queue.name, messages, body)
            rates.setdefault(name, []).append(messages / (time.perf_counter() - began))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="memory")
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    for _ in range(options.repeat):
        with (
            tempfile.TemporaryDirectory(prefix="flyball-bench-") as folder,
            node(options.store, Path(folder) / "data", ["--trace", "off"]) as (_, addresses),
        ):
            address = "{}:{}".format(*addresses["amqp"])
            for name, rates in asyncio.run(run(address, options.messages, b"x" * options.body_bytes)).items():
                found.setdefault(name, []).extend(rates)
    for name, rates in found.items():
        print(f"{name:10} {statistics.median(rates):10,.0f} messages/s, {min(rates):,.0f} to {max(rates):,.0f}")


if __name__ == "__main__":
    main()
