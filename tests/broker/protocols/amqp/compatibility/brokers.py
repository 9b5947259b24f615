"""The brokers that the same tests run against: RabbitMQ, which is right by definition, and Flyball."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from flyball.client.sync import Client
from flyball.lab.rabbitmq import RabbitMq, rabbitmq
from tests.nodes import TOKEN_FILE


class Broker(Protocol):
    """A running broker with an AMQP listener and the user guest, and how it is administered."""

    name: str
    host: str
    port: int

    def url(self, user: str = "guest", password: str = "guest", vhost: str = "/") -> str: ...

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        vhost: str = "/",
        apply_to: str = "all",
        priority: int = 0,
    ) -> None: ...

    def clear_policy(self, name: str, vhost: str = "/") -> None: ...

    def add_user(self, name: str, password: str, tags: tuple[str, ...] = ()) -> None: ...

    def delete_user(self, name: str) -> None: ...

    def set_vhost_limit(self, vhost: str, name: str, value: int) -> None: ...

    def set_user_limit(self, user: str, name: str, value: int) -> None: ...

    def add_vhost(self, name: str) -> None: ...

    def delete_vhost(self, name: str) -> None: ...

    def set_permission(
        self, user: str, vhost: str = "/", configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None: ...


class RabbitMqBroker:
    """RabbitMQ, administered through its HTTP API."""

    name = "rabbitmq"

    def __init__(self, node: RabbitMq) -> None:
        self._node = node
        self.host = node.host
        self.port = node.port

    def url(self, user: str = "guest", password: str = "guest", vhost: str = "/") -> str:
        return amqp_url(self, user, password, vhost)

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        vhost: str = "/",
        apply_to: str = "all",
        priority: int = 0,
    ) -> None:
        body = {"pattern": pattern, "definition": definition, "apply-to": apply_to, "priority": priority}
        self._node.api("PUT", f"/policies/{_part(vhost)}/{_part(name)}", body)

    def clear_policy(self, name: str, vhost: str = "/") -> None:
        self._node.api("DELETE", f"/policies/{_part(vhost)}/{_part(name)}")

    def add_user(self, name: str, password: str, tags: tuple[str, ...] = ()) -> None:
        self._node.api("PUT", f"/users/{_part(name)}", {"password": password, "tags": ",".join(tags)})

    def add_vhost(self, name: str) -> None:
        self._node.api("PUT", f"/vhosts/{_part(name)}")

    def delete_vhost(self, name: str) -> None:
        self._node.api("DELETE", f"/vhosts/{_part(name)}")

    def delete_user(self, name: str) -> None:
        self._node.api("DELETE", f"/users/{_part(name)}")

    def set_vhost_limit(self, vhost: str, name: str, value: int) -> None:
        self._node.api("PUT", f"/vhost-limits/{_part(vhost)}/{name}", {"value": value})

    def set_user_limit(self, user: str, name: str, value: int) -> None:
        self._node.api("PUT", f"/user-limits/{_part(user)}/{name}", {"value": value})

    def set_permission(
        self, user: str, vhost: str = "/", configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None:
        body = {"configure": configure, "write": write, "read": read}
        self._node.api("PUT", f"/permissions/{_part(vhost)}/{_part(user)}", body)


class FlyballBroker:
    """A Flyball node in a process of its own, administered with its command line."""

    name = "flyball"

    def __init__(self, amqp: str, server: str) -> None:
        self.host, _, port = amqp.rpartition(":")
        self.port = int(port)
        self._server = server

    def url(self, user: str = "guest", password: str = "guest", vhost: str = "/") -> str:
        return amqp_url(self, user, password, vhost)

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        vhost: str = "/",
        apply_to: str = "all",
        priority: int = 0,
    ) -> None:
        self._manage(
            "policy.set",
            name=name,
            pattern=pattern,
            definition=dict(definition),
            vhost=vhost,
            apply_to=apply_to,
            priority=priority,
        )

    def clear_policy(self, name: str, vhost: str = "/") -> None:
        self._manage("policy.clear", name=name, vhost=vhost)

    def add_user(self, name: str, password: str, tags: tuple[str, ...] = ()) -> None:
        if any(user["name"] == name for user in self._manage("user.list")):
            self._manage("user.delete", name=name)
        self._manage("user.add", name=name, password=password, tags=list(tags))

    def add_vhost(self, name: str) -> None:
        if all(vhost["name"] != name for vhost in self._manage("vhost.list")):
            self._manage("vhost.add", name=name)

    def delete_vhost(self, name: str) -> None:
        self._manage("vhost.delete", name=name)

    def delete_user(self, name: str) -> None:
        self._manage("user.delete", name=name)

    def set_vhost_limit(self, vhost: str, name: str, value: int) -> None:
        self._manage("vhost.limits", vhost=vhost, limits={name: value})

    def set_user_limit(self, user: str, name: str, value: int) -> None:
        self._manage("user.limits", user=user, limits={name: value})

    def set_permission(
        self, user: str, vhost: str = "/", configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None:
        self._manage("permission.set", user=user, vhost=vhost, configure=configure, write=write, read=read)

    def _manage(self, command: str, **arguments: Any) -> Any:
        with Client.connect(self._server) as client:
            return client.manage(command, **arguments)


@contextmanager
def rabbitmq_broker(folder: Path) -> Iterator[Broker]:
    """Run RabbitMQ."""
    with rabbitmq(folder) as node:
        yield RabbitMqBroker(node)


@contextmanager
def flyball_broker(folder: Path, *options: str) -> Iterator[Broker]:
    """Run a Flyball node on its embedded PostgreSQL, with further options of `flyball serve`."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "flyball", "serve", "--store", "embedded", "--data", str(folder / "data")]
    command += ["--amqp", "127.0.0.1:0", "--telesto", "127.0.0.1:0", "--thorbang", "off", "--http", "off"]
    command += ["--trace", "off", "--token-file", str(TOKEN_FILE), *options]
    # A file, since nobody reads a pipe during the tests and a full one would stop the node.
    log = folder / "log"
    with log.open("w") as complaints:
        node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True, env=_environment())
    assert node.stdout is not None
    try:
        addresses: dict[str, str] = {}
        for line in node.stdout:
            protocol, _, address = line.strip().partition(" on ")
            if address:
                addresses[protocol] = address
            if line.startswith("ready"):
                break
        assert "amqp" in addresses, f"no AMQP listener: {log.read_text()}"
        yield FlyballBroker(addresses["amqp"], addresses["telesto"])
    finally:
        node.terminate()
        node.communicate()


def amqp_url(broker: Broker, user: str, password: str, vhost: str) -> str:
    """Return the address of a virtual host, as clients want it."""
    return f"amqp://{_part(user)}:{_part(password)}@{broker.host}:{broker.port}/{_part(vhost)}"


def _part(text: str) -> str:
    return quote(text, safe="")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("FLYBALL_")}
