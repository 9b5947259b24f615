"""The step response of the flow control: a flood meets a slow store, which then hangs and comes back.

python -m bench.flow                              # 4 publishers, a store of 8 MiB/s that takes 5 ms for a commit
python -m bench.flow --store-mib-per-s 2 --publishers 16
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import uvloop

from flyball.broker.core.flow_controller import SAMPLE_S
from flyball.broker.node import node as node_module
from flyball.broker.node import stores
from flyball.broker.settings import load_settings
from flyball.broker.store.interface import Batch
from flyball.broker.store.memory import MemoryStore
from flyball.broker.store.pending_batch import OPERATION_BYTES

MIB = 2**20
BAR_WIDTH = 40
ROW_S = 0.1


@dataclass(frozen=True, slots=True)
class Reading:
    """State of the flow at one moment."""

    at_s: float
    fill_ratio: float
    rate_per_s: float | None
    waiting: int
    blocked: int


class SlowStore(MemoryStore):
    """Takes its time for a commit, and stands still for a while."""

    commit_s = 0.0
    bytes_per_s = 0.0
    # Cleared while it stands still.
    runs: asyncio.Event

    async def commit(self, batch: Batch, *, again: bool = False) -> None:
        rows = len(batch.appended) + len(batch.removed)
        size = OPERATION_BYTES * rows + sum(len(message.body) for message in batch.appended)
        await asyncio.sleep(self.commit_s + size / self.bytes_per_s)
        await self.runs.wait()
        await super().commit(batch, again=again)


def publish_for_ever(port: int, queue_name: str, body_bytes: int) -> None:
    """Publish persistent messages as fast as the node takes them, until it goes."""
    with suppress(pika.exceptions.AMQPError):
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
        channel = connection.channel()
        channel.queue_declare(queue_name, durable=True)
        properties = pika.BasicProperties(delivery_mode=2)
        while True:
            channel.basic_publish("", queue_name, b"x" * body_bytes, properties)


async def record(hub: Any, readings: list[Reading]) -> None:
    """Note the flow's state once in every sample."""
    began = time.perf_counter()
    while True:
        report = hub.reports["flow"]()
        queue = report["commit_queue"]
        readings.append(
            Reading(
                time.perf_counter() - began,
                queue["fill_ratio"],
                queue["rate_bytes_per_s"],
                report["waiting_connections"],
                report["blocked_connections"],
            )
        )
        await asyncio.sleep(SAMPLE_S)


async def run(options: argparse.Namespace, folder: Path) -> list[Reading]:
    """Flood a node, let its store hang and come back, and return what was seen."""
    SlowStore.commit_s = options.commit_ms / 1000
    SlowStore.bytes_per_s = options.store_mib_per_s * MIB
    SlowStore.runs = asyncio.Event()
    SlowStore.runs.set()
    stores.MemoryStore = SlowStore  # type: ignore[attr-defined]
    settings = load_settings(
        {"data": str(folder), "store": "memory", "amqp": "127.0.0.1:0", "telesto": "off", "thorbang": "off"}, {}
    )
    readings: list[Reading] = []
    spawn = multiprocessing.get_context("spawn")
    async with node_module.running(settings) as node:
        port = node.addresses["amqp"].port
        publishers = [
            spawn.Process(target=publish_for_ever, args=(port, f"flood-{number}", options.body_bytes))
            for number in range(options.publishers)
        ]
        for publisher in publishers:
            publisher.start()
        while len(node.hub.connections) < options.publishers:  # noqa: ASYNC110
            await asyncio.sleep(SAMPLE_S)
        async with asyncio.TaskGroup() as tasks:
            recording = tasks.create_task(record(node.hub, readings))
            await asyncio.sleep(options.flood_s)
            SlowStore.runs.clear()
            await asyncio.sleep(options.hang_s)
            SlowStore.runs.set()
            await asyncio.sleep(options.flood_s)
            recording.cancel()
        for publisher in publishers:
            publisher.kill()
            publisher.join()
    return readings


def print_course(readings: Sequence[Reading]) -> None:
    print("   time    fill  rate/MiB/s waiting blocked   commit queue, | is the setpoint")
    row = 0.0
    for reading in readings:
        if reading.at_s < row:
            continue
        row = reading.at_s + ROW_S
        rate = "  free" if reading.rate_per_s is None else f"{reading.rate_per_s / MIB:6.1f}"
        filled = min(BAR_WIDTH - 1, round(reading.fill_ratio * BAR_WIDTH / 2))
        bar = list("#" * filled + " " * (BAR_WIDTH - filled))
        bar[BAR_WIDTH // 2] = "|"
        print(
            f"{reading.at_s:6.2f} s {reading.fill_ratio:6.2f}  {rate} {reading.waiting:10d} {reading.blocked:7d}"
            f"   {''.join(bar)}"
        )


def print_summary(readings: Sequence[Reading], options: argparse.Namespace) -> None:
    hung_at, back_at = options.flood_s, options.flood_s + options.hang_s
    pressed = [reading for reading in readings if reading.at_s < hung_at and reading.rate_per_s is not None]
    if not pressed:
        print("the store was never the bottleneck: choose a slower one")
        return
    steady = [reading for reading in pressed if reading.at_s > hung_at / 2]
    hanging = [reading for reading in readings if hung_at <= reading.at_s < back_at]
    after = [reading for reading in readings if reading.at_s >= back_at]
    fills = [reading.fill_ratio for reading in steady]
    rates = [reading.rate_per_s or 0.0 for reading in steady]
    print()
    print(
        f"under pressure after {pressed[0].at_s:.2f} s, highest fill ratio {max(r.fill_ratio for r in readings):.2f}"
    )
    print(
        f"steady: fill ratio {min(fills):.2f} to {max(fills):.2f}, mean {sum(fills) / len(fills):.2f};"
        f" rate {min(rates) / MIB:.1f} to {max(rates) / MIB:.1f} MiB/s, mean {sum(rates) / len(rates) / MIB:.1f}"
    )
    stopped = next((reading.at_s - hung_at for reading in hanging if reading.rate_per_s == 0), None)
    blocked = next((reading.at_s - hung_at for reading in hanging if reading.blocked), None)
    moving = next((reading.at_s - back_at for reading in after if reading.rate_per_s != 0), None)
    print(f"the store hangs: rate 0 after {_seconds(stopped)}, publishers are blocked after {_seconds(blocked)}")
    print(f"the store is back: publishers go on after {_seconds(moving)}")


def _seconds(duration_s: float | None) -> str:
    return "never" if duration_s is None else f"{duration_s:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--publishers", type=int, default=4)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--store-mib-per-s", type=float, default=8.0)
    parser.add_argument("--commit-ms", type=float, default=5.0)
    parser.add_argument("--flood-s", type=float, default=5.0)
    parser.add_argument("--hang-s", type=float, default=3.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flyball-bench-") as folder:
        readings = uvloop.run(run(options, Path(folder)))
    print_course(readings)
    print_summary(readings, options)


if __name__ == "__main__":
    main()
