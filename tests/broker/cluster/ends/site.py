"""A domain of real node processes over one PostgreSQL, and what tests do with it: ask, wait, disturb, count."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pika
import pika.exceptions
import psutil
from typer.testing import CliRunner

from flyball.broker.cluster.facts import ClusterFacts, DomainFacts
from flyball.broker.settings import ServeSettings
from flyball.cli.domain.actions import facts_from
from flyball.cli.main import app
from flyball.client.api import Api, place_at
from flyball.client.http import Refused
from flyball.errors import FlyballError
from tests.nodes import ServeProcess

# Long: where no node is to die, none is taken for dead that the machine lets wait. Renewals come every second; but a
# leader watches for one lease before it judges, also of nodes that are to be removed.
LEASE_S = 10.0

# The lease where nodes are to die: failure detection takes this long.
MORTAL_LEASE_S: float = ServeSettings.model_fields["lease_s"].default

# Whatever a domain should do is done by then, on a busy machine too.
LIMIT_S = 120.0

# How often a domain is looked at: those who do the work need the machine, too.
LOOK_S = 0.05

Condition = Callable[[DomainFacts], object]


class Site:
    """Nodes by name, each a process of its own. What a node is asked goes to any that runs."""

    def __init__(self, folder: Path, store: str, **flags: object) -> None:
        self.folder = folder
        self._flags = {"store": store, "lease_s": LEASE_S, "thorbang": "off", "http": "127.0.0.1:0", **flags}
        self.nodes: dict[str, ServeProcess] = {}
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()
        # Nodes that the domain itself has started do not end with those that started them.
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.folder) in word for word in process.info["cmdline"] or ()):
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def start(self, *names: str, **flags: object) -> None:
        """Start nodes, and return when they serve and have joined."""
        new = {name: ServeProcess(self.folder / name, name=name, **{**self._flags, **flags}) for name in names}
        for node in new.values():
            self._exits.callback(node.kill)
        # At once: most of it is the start of the interpreter.
        with ThreadPoolExecutor() as threads:
            list(threads.map(ServeProcess.start, new.values()))
        self.nodes |= new
        self.wait_until(lambda facts: facts["leader"] and set(names) <= up(facts))

    def kill(self, name: str) -> None:
        """End a node without a warning."""
        self.nodes.pop(name).kill()

    def stop(self, name: str) -> None:
        """End a node as an administrator would."""
        self.nodes.pop(name).stop()

    def address(self, name: str, protocol: str) -> str:
        return str(self.nodes[name].address(protocol))

    @property
    def addresses(self) -> list[str]:
        return [self.address(name, "amqp") for name in self.nodes]

    def amqp(self, name: str, **parameters: Any) -> pika.BlockingConnection:
        """Connect to a node; the connection is closed with the site at the latest."""
        return self.amqp_at(str(self.nodes[name].address("amqp")), **parameters)

    def amqp_at(self, address: str, **parameters: Any) -> pika.BlockingConnection:
        host, _, port = address.rpartition(":")
        connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), heartbeat=0, **parameters))
        self._exits.callback(_close, connection)
        return connection

    # Asking

    def url(self, at: str | None = None) -> str:
        """Return where the HTTP API is of a node, or of any."""
        return f"http://{self.address(at or next(iter(self.nodes)), 'http')}"

    def run(self, *arguments: str, at: str | None = None, code: int = 0) -> str:
        """Run `flyball` with these arguments against a node; return what it prints."""
        environment = {"FLYBALL_URL": self.url(at), "NO_COLOR": "1", "COLUMNS": "200"}
        result = CliRunner().invoke(app, list(arguments), env=environment)
        assert result.exit_code == code, result.output
        return result.output

    def facts(self, at: str | None = None) -> DomainFacts:
        facts: DomainFacts = json.loads(self.run("domain", "show", "--json", at=at))
        return facts

    def cluster(self, name: str) -> ClusterFacts:
        return cluster_of(self.facts(), name)

    def wait_until(self, condition: Condition, at: str | None = None, limit_s: float = LIMIT_S) -> float:
        """Return when the condition holds for what a node shows; return how many seconds that took."""
        began_s = time.monotonic()
        with Api(place_at(self.url(at))) as api:
            while True:
                facts: DomainFacts | None = None
                try:
                    facts = facts_from(api)
                except (FlyballError, Refused):
                    if time.monotonic() - began_s > limit_s:
                        raise
                if facts is not None and condition(facts):
                    return time.monotonic() - began_s
                assert time.monotonic() - began_s < limit_s, f"it is not so after {limit_s} s: {facts}"
                time.sleep(LOOK_S)


def _close(connection: pika.BlockingConnection) -> None:
    # Its node may be gone, and so may it.
    with suppress(pika.exceptions.AMQPError):
        connection.close()


def up(facts: DomainFacts) -> set[str]:
    """Return the names of the nodes that serve."""
    return {node["name"] for node in facts["nodes"] if node["state"] == "up"}


def state_of(facts: DomainFacts, name: str) -> str | None:
    return next((node["state"] for node in facts["nodes"] if node["name"] == name), None)


def cluster_of(facts: DomainFacts, name: str) -> ClusterFacts:
    return next(cluster for cluster in facts["clusters"] if cluster["name"] == name)


def members_of(facts: DomainFacts, name: str, *, marked: bool | None = None) -> list[str]:
    """Return the nodes of a clustered queue's members."""
    members = cluster_of(facts, name)["members"]
    return [member["node"] for member in members if marked is None or member["marked"] is marked]


def owner_of(facts: DomainFacts, queue: str) -> str | None:
    """Return the node that serves an ordinary queue."""
    for node in facts["nodes"]:
        if any(found["name"] == queue for found in node["queues"]):
            return node["name"]
    return None


def publish(
    connection: pika.BlockingConnection, queue: str, bodies: Sequence[bytes], *, persistent: bool = True
) -> None:
    """Publish with confirms: on return the broker has promised to keep all."""
    channel = connection.channel()
    channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2 if persistent else 1)
    for body in bodies:
        channel.basic_publish("", queue, body, properties)
    channel.close()


def drain(connection: pika.BlockingConnection, queue: str, count: int, limit_s: float = LIMIT_S) -> list[bytes]:
    """Consume `count` messages, unless none comes within the limit, and acknowledge each; return their bodies."""
    channel = connection.channel()
    channel.basic_qos(prefetch_count=20)
    found: list[bytes] = []
    last_s = time.monotonic()
    for method, _, body in channel.consume(queue, inactivity_timeout=0.5):
        if method is not None:
            found.append(body)
            channel.basic_ack(method.delivery_tag)
            last_s = time.monotonic()
        if len(found) >= count or time.monotonic() - last_s > limit_s:
            break
    channel.cancel()
    channel.close()
    return found


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]
