"""Measure the cost of the adaptive consumer: handled messages per second, against bare aio-pika in the same process.

    python -m bench.adaptive_consumer --broker rabbitmq

Both consume the same number of messages with the same prefetch and a handler that does nothing, in turn. The ratio is
of messages per second of the client's CPU time too, which others on the machine disturb less.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aio_pika
import uvloop

from bench.nodes import node
from flyball.client.adaptive import AdaptiveConsumer, AdaptiveOptions, Fast, Pacer, Rate, Window
from flyball.control.limits import Limits
from flyball.lab.rabbitmq import rabbitmq

QUEUE = "adaptive-consumer"
BODY = b"x" * 256
BATCH = 100

# Messages/s by the clock, and by the CPU time of this process.
Figures = tuple[float, float]


async def publish(url: str, count: int) -> None:
    """Fill the queue."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(QUEUE)
        await queue.purge()
        for _ in range(0, count, BATCH):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(BATCH):
                    tasks.create_task(channel.default_exchange.publish(aio_pika.Message(BODY), QUEUE))


class Countdown:
    """A handler that does nothing, a number of times."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.is_done = asyncio.Event()

    async def handle(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        self.count_down()

    async def handle_and_acknowledge(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        await message.ack()
        self.count_down()

    def count_down(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.is_done.set()


async def consume_bare(url: str, count: int, prefetch: int) -> Figures:
    """Return messages/s, and messages/s of this process's CPU time with aio-pika alone."""
    countdown = Countdown(count)
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel(publisher_confirms=False)
        await channel.set_qos(prefetch_count=prefetch)
        queue = await channel.declare_queue(QUEUE, passive=True)
        begun = time.perf_counter(), time.process_time()
        await queue.consume(countdown.handle_and_acknowledge)
        await countdown.is_done.wait()
        return count / (time.perf_counter() - begun[0]), count / (time.process_time() - begun[1])


async def consume_adaptively(url: str, count: int, prefetch: int, *, is_paced: bool) -> Figures:
    """Return the same for the adaptive consumer, whose loop runs but finds nothing to change."""
    countdown = Countdown(count)
    if is_paced:
        consumer = AdaptiveConsumer(
            url,
            QUEUE,
            countdown.handle,
            Rate(1e6),
            options=AdaptiveOptions(actuator=Pacer(window=prefetch), sample_time_s=0.5),
        )
    else:
        window = Limits(prefetch, prefetch)
        consumer = AdaptiveConsumer(
            url,
            QUEUE,
            countdown.handle,
            Fast(),
            options=AdaptiveOptions(actuator=Window(), limits=window, sample_time_s=0.5),
        )
    async with consumer:
        begun = time.perf_counter(), time.process_time()
        await countdown.is_done.wait()
        return count / (time.perf_counter() - begun[0]), count / (time.process_time() - begun[1])


async def compare(url: str, count: int, prefetch: int, rounds: int) -> None:
    rates: dict[str, list[Figures]] = {"bare aio-pika": [], "adaptive, window": [], "adaptive, pacer": []}
    for _ in range(rounds):
        await publish(url, count)
        rates["bare aio-pika"].append(await consume_bare(url, count, prefetch))
        await publish(url, count)
        rates["adaptive, window"].append(await consume_adaptively(url, count, prefetch, is_paced=False))
        await publish(url, count)
        rates["adaptive, pacer"].append(await consume_adaptively(url, count, prefetch, is_paced=True))
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in rates.items()
    }
    bare = medians["bare aio-pika"]
    print(f"{'':17} {'messages/s':>12} {'ratio':>6} {'per CPU s':>12} {'ratio':>6}")
    for name, (rate, cpu_rate) in medians.items():
        print(f"{name:17} {rate:12,.0f} {rate / bare[0]:6.2f} {cpu_rate:12,.0f} {cpu_rate / bare[1]:6.2f}")


@contextmanager
def broker_url(kind: str, folder: Path) -> Iterator[str]:
    if kind == "flyball":
        with node("embedded", folder, []) as (_, addresses):
            host, port = addresses["amqp"]
            yield f"amqp://guest:guest@{host}:{port}/"
    else:
        with rabbitmq(folder) as broker:
            yield f"amqp://guest:guest@{broker.host}:{broker.port}/"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", choices=["rabbitmq", "flyball"], default="rabbitmq")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--prefetch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, broker_url(arguments.broker, Path(folder)) as url:
        uvloop.run(compare(url, arguments.messages, arguments.prefetch, arguments.rounds))


if __name__ == "__main__":
    main()
