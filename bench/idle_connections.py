"""Measure the memory of idle connections in a node.

python -m bench.idle_connections                  # 5,000
"""

from __future__ import annotations

import argparse
import resource
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psutil

from bench.nodes import node


def connect(address: tuple[str, int], count: int, opened: ExitStack) -> None:
    """Open connections, each of which asks something once and then keeps silent."""
    for _ in range(count):
        peer = opened.enter_context(socket.create_connection(address))
        peer.sendall(b"HELLO\0")
        assert peer.recv(16) == b"OK\0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=5000)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="flyball-bench-") as folder, ExitStack() as opened:
        process, addresses = opened.enter_context(node("memory", Path(folder) / "data", []))
        server = psutil.Process(process.pid)
        connect(addresses["thorbang"], 50, opened)
        before = server.memory_info().rss
        connect(addresses["thorbang"], options.connections, opened)
        each = (server.memory_info().rss - before) / options.connections
    print(f"{options.connections:,} idle connections cost {each / 1024:.1f} KiB each")


if __name__ == "__main__":
    main()
