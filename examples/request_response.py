"""A service that answers requests, and a client that asks it. Responses come directly, without a queue of their own.

Start a node with `./run`, then: python examples/request_response.py [HOST:PORT]
"""

from __future__ import annotations

import asyncio
import sys

from flyball.client import Client

QUEUE = "squares"


async def serve(address: str, ready: asyncio.Event) -> None:
    """Answer each request with the square of its number, until cancelled."""
    async with Client.connect(address) as client:
        await client.create_queue(QUEUE)
        ready.set()
        while True:
            request = await client.take(QUEUE, wait_s=60)
            if request is not None:
                await client.reply(request, str(int(request.text) ** 2))


async def ask(address: str) -> None:
    async with Client.connect(address) as client:
        for number in range(1, 4):
            response = await client.send_request_response(QUEUE, str(number), time_limit_s=10)
            print(f"{number} squared is {response.text}")


async def main(address: str) -> None:
    ready = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        service = tasks.create_task(serve(address, ready))
        await ready.wait()
        await ask(address)
        service.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:5672"))
