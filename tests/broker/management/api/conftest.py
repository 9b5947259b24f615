"""A node with its API, a RabbitMQ with its own, and something that happens on either."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from flyball.broker.core.authority import Authority
from flyball.broker.management.part import console_part
from flyball.broker.settings import Address
from flyball.lab.rabbitmq import RabbitMq, rabbitmq
from flyball.model import Permission
from tests.broker.management import rabbitmqadmin
from tests.nodes import ANSWER_LIMIT_S, RunningNode

GUEST = ("guest", "guest")


class Api:
    """The API of a broker, asked as a user."""

    def __init__(self, address: Address, user: tuple[str, str] = GUEST) -> None:
        self.address = address
        self._user = user
        self._client = httpx.Client(base_url=f"http://{address}", auth=user, timeout=ANSWER_LIMIT_S)

    def ask(self, path: str, method: str = "GET", **options: Any) -> httpx.Response:
        """Ask for a path below /api."""
        return self._client.request(method, "/api" + path, **options)

    def get(self, path: str) -> Any:
        """Return the document of a path below /api."""
        answer = self.ask(path)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def names(self, path: str) -> list[str]:
        return [item["name"] for item in self.get(path)]

    def until(self, path: str, is_so: Callable[[Any], bool]) -> Any:
        """Ask again until the document is as it should become."""
        end_s = time.monotonic() + ANSWER_LIMIT_S
        while not is_so(found := self.get(path)):
            assert time.monotonic() < end_s, f"{path} stays {found}"
        return found

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="session")
def console_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of the API: use unique names."""
    data = tmp_path_factory.mktemp("console")
    with RunningNode(data, parts=[console_part()], store="memory", name="north", http="127.0.0.1:0") as node:
        yield node


@pytest.fixture(scope="session")
def counting_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    """A RabbitMQ that counts what happens; others do not, which is faster."""
    settings = "management_agent.disable_metrics_collector = false\ncollect_statistics_interval = 200"
    with rabbitmq(tmp_path_factory.mktemp("counting-rabbitmq"), settings) as node:
        yield node


@pytest.fixture(scope="session")
def admin_tool(counting_rabbitmq: RabbitMq, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RabbitMQ's rabbitmqadmin."""
    return rabbitmqadmin.fetch(counting_rabbitmq.api_address, tmp_path_factory.mktemp("rabbitmqadmin"))


@pytest.fixture
def api(console_node: RunningNode) -> Iterator[Api]:
    """The API of the node, for guest."""
    found = Api(console_node.address("http"))
    yield found
    found.close()


@pytest.fixture
def api_of(console_node: RunningNode) -> Iterator[Callable[..., Api]]:
    """Add a user with tags and permissions (by virtual host: configure, write, read), and return the API for it."""
    opened: list[Api] = []

    def add(name: str, tags: list[str], permissions: dict[str, tuple[str, str, str]] | None = None) -> Api:
        console_node.administer(lambda authority: authority.add_user(name, name, tags))
        for vhost, patterns in (permissions or {}).items():
            permission = Permission(name, vhost, *patterns)
            console_node.administer(partial(Authority.set_permission, permission=permission))
        opened.append(Api(console_node.address("http"), (name, name)))
        return opened[-1]

    yield add
    for found in opened:
        found.close()


@contextmanager
def connected(address: Address, vhost: str = "/", user: str = "guest", **options: Any) -> Iterator[Any]:
    """Open a connection of pika, and close it unless it is closed already."""
    credentials = pika.PlainCredentials(user, user)
    parameters = pika.ConnectionParameters(address.host, address.port, vhost, credentials, heartbeat=0, **options)
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection
    finally:
        if connection.is_open:
            connection.close()


def wait_for_the_end(connection: Any) -> None:
    """Return never: the broker closes the connection, and pika raises what it says."""
    while True:
        connection.process_data_events(time_limit=None)


@pytest.fixture
def new_certificate(tmp_path: Path) -> Callable[[int], tuple[Path, Path]]:
    """Make a certificate that is valid for this number of days, and its key."""

    def make(days: int) -> tuple[Path, Path]:
        certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
        command += ["-keyout", str(key), "-out", str(certificate), "-days", str(days)]
        subprocess.run(command, check=True, capture_output=True)
        return certificate, key

    return make


@pytest.fixture
def channel(console_node: RunningNode) -> Iterator[Any]:
    """A channel of pika to the node."""
    with connected(console_node.address("amqp")) as connection:
        yield connection.channel()
