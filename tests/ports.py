"""Ports for servers that come and go during a test."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_port() -> Iterator[int]:
    """Keep a free port of the loopback address, which no other caller gets meanwhile.

    It is bound but not listened to: connections are refused until a server listens there, which can if it may
    reuse addresses, as those of asyncio and uvloop do.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
