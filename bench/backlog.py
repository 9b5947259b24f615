"""A backlog larger than memory: fill a queue, restart the node, take from it in every order; memory and rates.

python -m bench.backlog                       # 5,000,000 messages of 256 bytes, about 5 minutes
python -m bench.backlog --messages 500000
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import Progress

from bench.nodes import node
from flyball.client import Client, Draft, Order

MIB = 2**20
TAKEN_AT_ONCE = 100


def drafts(count: int, body_bytes: int, progress: Progress) -> Iterator[Draft]:
    task = progress.add_task("filling", total=count)
    body = b"*" * body_bytes
    for number in range(count):
        if number % 1000 == 0:
            progress.update(task, completed=number)
        yield Draft(body, priority=number % 10)
    progress.update(task, completed=count)


async def fill(server: str, messages: int, body_bytes: int) -> float:
    """Fill the queue and return how many messages per second that took."""
    began = time.perf_counter()
    async with Client.connect(server) as client:
        queue = await client.create_queue("backlog")
        with Progress(console=Console(stderr=True)) as progress:
            await client.put_many(queue, drafts(messages, body_bytes, progress))
    return messages / (time.perf_counter() - began)


async def take(server: str, order: Order, count: int) -> tuple[float, float]:
    """Return how long the first took, which may have to build an index, and how many came per second after it."""
    async with Client.connect(server, time_limit_s=120) as client:
        began = time.perf_counter()
        assert await client.take("backlog", order=order) is not None
        first_s = time.perf_counter() - began
        taken, began = 0, time.perf_counter()
        while taken < count:
            taken += len(await client.take_many("backlog", TAKEN_AT_ONCE, order=order))
        return first_s, taken / (time.perf_counter() - began)


def report(when: str, process: psutil.Process) -> None:
    print(f"{when}: {process.memory_info().rss / MIB:.0f} MiB resident")


def take_in_every_order(process: psutil.Process, server: str, count: int) -> None:
    for order in Order:
        first_s, per_s = asyncio.run(take(server, order, count))
        report(f"{order.name.lower()} first: {first_s:.2f} s for the first, then {per_s:,.0f} messages/s", process)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--body-bytes", type=int, default=256)
    parser.add_argument("--take", type=int, default=20_000, help="messages taken in each order")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flyball-bench-") as folder:
        data = Path(folder) / "data"
        with node("embedded", data, ["--trace", "off"]) as (process, addresses):
            server = "{}:{}".format(*addresses["amqp"])
            report("empty", process)
            per_s = asyncio.run(fill(server, options.messages, options.body_bytes))
            report(f"filled at {per_s:,.0f} messages/s", process)
            take_in_every_order(process, server, options.take)
        began = time.perf_counter()
        with node("embedded", data, ["--trace", "off"]) as (process, addresses):
            server = "{}:{}".format(*addresses["amqp"])
            report(f"ready again after {time.perf_counter() - began:.2f} s", process)
            take_in_every_order(process, server, options.take)


if __name__ == "__main__":
    main()
