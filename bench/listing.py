"""Do listings of a long queue hold up those who take from it? How long takes last alone, and while others list.

python -m bench.listing
python -m bench.listing --listers 16 --messages 400000

The queue lies in the store for the most part, so that takes have messages read back as listings do. Given another
interpreter, of an older version say, both are measured in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.nodes import node
from flyball.client import Client, Draft

TAKEN_AT_ONCE = 50
TAKES_PER_S = 50
LISTED_AT_ONCE = 50_000
RESIDENT = "1MB"


async def fill(server: str, messages: int) -> None:
    async with Client.connect(server) as client:
        queue = await client.create_queue("long")
        await client.put_many(queue, (Draft(b"*" * 256) for _ in range(messages)))


async def take_for(server: str, seconds: float) -> tuple[float, float, float]:
    """Take by a schedule; return the takes per second, and the median and 99th percentile of one in milliseconds.

    A take lasts from when it was due: one that is late because of the one before has waited.
    """
    took_ms = []
    async with Client.connect(server, time_limit_s=60) as client:
        began = time.perf_counter()
        for number in range(round(seconds * TAKES_PER_S)):
            due = began + number / TAKES_PER_S
            await asyncio.sleep(due - time.perf_counter())
            messages = await client.take_many("long", TAKEN_AT_ONCE)
            assert messages, "the queue is empty: fill in more --messages"
            took_ms.append((time.perf_counter() - due) * 1e3)
        per_s = len(took_ms) / (time.perf_counter() - began)
    return per_s, float(np.percentile(took_ms, 50)), float(np.percentile(took_ms, 99))


async def list_until(server: str, number: int, is_over: asyncio.Event) -> int:
    """List the queue again and again; return how many listings were answered."""
    listed = 0
    async with Client.connect(server, time_limit_s=60) as client:
        while not is_over.is_set():
            await client.list_ids("long", most=LISTED_AT_ONCE)
            listed += 1
    return listed


async def measure(server: str, listers: int, seconds: float) -> tuple[tuple[float, float, float], float]:
    """Return latencies of takes while this number of clients list, and the listings per second."""
    is_over = asyncio.Event()
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        listing = [tasks.create_task(list_until(server, number, is_over)) for number in range(listers)]
        takes = await take_for(server, seconds)
        is_over.set()
    return takes, sum(task.result() for task in listing) / (time.perf_counter() - began)


def run(python: str, messages: int, listers: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--resident-bytes", RESIDENT, "--trace", "off"]
        with node("embedded", Path(folder), flags, python) as (_, addresses):
            server = "{}:{}".format(*addresses["amqp"])
            asyncio.run(fill(server, messages))
            for count in (0, listers):
                (per_s, p50_ms, p99_ms), listed_per_s = asyncio.run(measure(server, count, seconds))
                print(
                    f"{count:3} listers: {per_s:5.1f} takes/s of {TAKEN_AT_ONCE}, p50 {p50_ms:7.1f} ms,"
                    f" p99 {p99_ms:7.1f} ms; {listed_per_s:5.1f} listings/s"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--listers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--other", help="another interpreter that has Flyball installed")
    arguments = parser.parse_args()
    for python in filter(None, [sys.executable, arguments.other]):
        print(python)
        run(python, arguments.messages, arguments.listers, arguments.seconds)


if __name__ == "__main__":
    main()
