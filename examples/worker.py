"""A worker that acknowledges each message when it is dealt with, so that none is lost if the worker is.

Start a node with `./run` and put some work into a queue:

    flyball put jobs 'a job' --create --count 10

Then: python examples/worker.py [HOST:PORT]. It ends when nothing came for two seconds.
"""

from __future__ import annotations

import asyncio
import sys

from flyball.client import Client, LeaseLost

MOST_ATTEMPTS = 3


async def work(text: str) -> None:
    """Stand for the work of a real worker, which takes time and may fail."""
    if "broken" in text:
        raise ValueError(f"cannot do {text!r}")


async def main(address: str) -> None:
    done = 0
    async with Client.connect(address) as client, client.consume("jobs", prefetch=10) as consumer:
        while (delivery := await consumer.next(wait_s=2)) is not None:
            message = delivery.message
            try:
                await work(message.text)
            except ValueError as error:
                if message.delivery_count + 1 < MOST_ATTEMPTS:
                    await delivery.requeue()
                else:
                    print(f"gave up after {MOST_ATTEMPTS} attempts: {error}")
                    await delivery.drop()
                continue
            try:
                await delivery.ack()
            except LeaseLost:
                # The connection broke meanwhile: the job is delivered again.
                continue
            done += 1
    print(f"{done} jobs done")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:5672"))
