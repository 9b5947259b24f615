"""A consumer that takes 400 messages a second from a queue, whatever the broker and the handler are like.

Needs `pip install flyball[control]`. Start a node with `./run`, then:

    python examples/adaptive_consumer.py [URL] [QUEUE]

Ctrl-C lets the handlers finish and loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from aio_pika import IncomingMessage

from flyball.client.adaptive import AdaptiveConsumer, AdaptiveOptions, Rate
from flyball.control.loop import Sample


async def handle(message: IncomingMessage) -> None:
    """Stand for the work of a real consumer. The message is acked when this returns."""
    await asyncio.sleep(0.001)


def show(sample: Sample) -> None:
    print(f"{sample.measurement:7.1f} messages/s, pace {sample.action:7.1f}", flush=True)


async def main(url: str, queue_name: str) -> None:
    await AdaptiveConsumer(url, queue_name, handle, goal=Rate(400), options=AdaptiveOptions(record=show)).run()


if __name__ == "__main__":
    url = sys.argv[1] if len(sys.argv) > 1 else "amqp://guest:guest@127.0.0.1:5672/"
    queue_name = sys.argv[2] if len(sys.argv) > 2 else "orders"
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(url, queue_name))
