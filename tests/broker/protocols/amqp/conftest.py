"""Clients of AMQP for nodes that a test starts itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest

from tests.nodes import RunningNode, ServeProcess


@pytest.fixture
def connect() -> Iterator[Callable[..., Any]]:
    """Open a blocking connection of pika to a node, as guest by default; it is closed after the test."""
    connections: list[Any] = []

    def open_connection(
        node: RunningNode | ServeProcess, user: str = "guest", password: str = "guest", vhost: str = "/"
    ) -> Any:
        host, port = node.address("amqp")
        credentials = pika.PlainCredentials(user, password)
        parameters = pika.ConnectionParameters(
            host, port, vhost, credentials, heartbeat=0, blocked_connection_timeout=60
        )
        connections.append(pika.BlockingConnection(parameters))
        return connections[-1]

    yield open_connection
    for connection in connections:
        # Its node may be gone.
        if connection.is_open:
            try:
                connection.close()
            except pika.exceptions.AMQPError:
                continue


@pytest.fixture
def open_channel(connect: Callable[..., Any]) -> Callable[..., Any]:
    """Open a channel of a connection of its own."""
    return lambda node, *arguments, **options: connect(node, *arguments, **options).channel()
