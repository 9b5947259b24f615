"""Put a message into a queue and take it out again.

Start a node with `./run`, then: python examples/hello.py [HOST:PORT]
"""

from __future__ import annotations

import sys

from flyball.client.sync import Client


def main(address: str) -> None:
    with Client.connect(address) as client:
        queue = client.create_queue("greetings")
        client.put(queue, "hello, world")
        message = client.take(queue)
        print("no greeting" if message is None else message.text)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:5672")
