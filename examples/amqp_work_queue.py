"""A work queue with AMQP: jobs are published with confirms and acknowledged when they are done.

Needs `pip install aio-pika`. Start a node with `./run`, then: python examples/amqp_work_queue.py [URL]
"""

from __future__ import annotations

import asyncio
import sys

import aio_pika
from aio_pika.abc import AbstractChannel

QUEUE = "pages"
JOBS = ["cover", "contents", "broken", "index"]


async def submit(channel: AbstractChannel) -> None:
    """Publish the jobs. Each call returns when its message is on disk, so they are made together."""
    await channel.declare_queue(QUEUE, durable=True)
    async with asyncio.TaskGroup() as tasks:
        for job in JOBS:
            message = aio_pika.Message(job.encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            tasks.create_task(channel.default_exchange.publish(message, QUEUE))


def work(job: str) -> str:
    """Stand for the work of a real worker, which takes time and may fail."""
    if job == "broken":
        raise ValueError(f"cannot print {job!r}")
    return f"printed {job}"


async def serve(channel: AbstractChannel) -> None:
    """Do what is in the queue until nothing came for a second."""
    # More than one, so that the next job is here when this one is done.
    await channel.set_qos(prefetch_count=10)
    queue = await channel.declare_queue(QUEUE, durable=True)
    async with queue.iterator(timeout=1) as deliveries:
        try:
            async for delivery in deliveries:
                try:
                    print(work(delivery.body.decode()))
                except ValueError as error:
                    # It would fail again: a dead letter exchange would keep it, if the queue had one.
                    print(f"gave up: {error}")
                    await delivery.reject(requeue=False)
                else:
                    # If the worker dies before this, another one gets the job.
                    await delivery.ack()
        except TimeoutError:
            print("nothing left to do")


async def main(url: str) -> None:
    # With confirms by default; a connection that breaks is made again.
    async with await aio_pika.connect_robust(url) as connection:
        await submit(await connection.channel())
        await serve(await connection.channel())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "amqp://guest:guest@127.0.0.1:5672/"))
