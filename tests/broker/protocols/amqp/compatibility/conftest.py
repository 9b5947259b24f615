"""Both brokers, started once each, and clients of the one that a test is about."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pika
import pytest

from tests.broker.protocols.amqp.compatibility.brokers import Broker, flyball_broker
from tests.broker.protocols.amqp.compatibility.peer import Peer


@pytest.fixture(scope="session")
def flyball_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with flyball_broker(tmp_path_factory.mktemp("flyball")) as broker:
        yield broker


@pytest.fixture(params=["rabbitmq", "flyball"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """The broker under test, shared by all tests: use unique names."""
    node: Broker = request.getfixturevalue(f"{request.param}_node")
    return node


@pytest.fixture
def new_name() -> Callable[[], str]:
    """Make a unique name."""
    return lambda: f"test-{secrets.token_hex(6)}"


@pytest.fixture
def name(new_name: Callable[[], str]) -> str:
    """A unique name."""
    return new_name()


@pytest.fixture
def new_peer(broker: Broker) -> Iterator[Callable[[], Peer]]:
    """Connect a peer that has not said a word yet."""
    with ExitStack() as peers:
        yield lambda: peers.enter_context(Peer(broker.host, broker.port))


@pytest.fixture
def peer(new_peer: Callable[[], Peer]) -> Peer:
    """A peer with an open connection of guest and the open channel 1."""
    return new_peer().open()


@pytest.fixture
def connect(broker: Broker) -> Iterator[Callable[..., Any]]:
    """Open a blocking connection of pika, as guest by default; it is closed after the test."""
    connections: list[Any] = []

    def open_connection(user: str = "guest", password: str = "guest", vhost: str = "/", **options: Any) -> Any:
        parameters = pika.ConnectionParameters(
            broker.host,
            broker.port,
            vhost,
            pika.PlainCredentials(user, password),
            **{"heartbeat": 0, "blocked_connection_timeout": 60, **options},
        )
        connections.append(pika.BlockingConnection(parameters))
        return connections[-1]

    yield open_connection
    for connection in connections:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(connect: Callable[..., Any]) -> Any:
    """A channel of pika's blocking connection."""
    return connect().channel()
