"""The brokers that the same tests run against: RabbitMQ, which is right by definition, and Flyball."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from flyball.lab.rabbitmq import rabbitmq
from tests.nodes import ANSWER_LIMIT_S, TOKEN_FILE


class Broker:
    """A running broker with an AMQP listener and the user guest, administered through RabbitMQ's HTTP API."""

    def __init__(self, name: str, host: str, port: int, api_address: str) -> None:
        self.name = name
        self.host = host
        self.port = port
        self._api = f"http://{api_address}/api"

    def url(self, user: str = "guest", password: str = "guest", vhost: str = "/") -> str:
        """Return the address of a virtual host, as clients want it."""
        return f"amqp://{_part(user)}:{_part(password)}@{self.host}:{self.port}/{_part(vhost)}"

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
        self._ask("PUT", f"/policies/{_part(vhost)}/{_part(name)}", body)

    def clear_policy(self, name: str, vhost: str = "/") -> None:
        self._ask("DELETE", f"/policies/{_part(vhost)}/{_part(name)}")

    def add_user(self, name: str, password: str, tags: tuple[str, ...] = ()) -> None:
        self._ask("PUT", f"/users/{_part(name)}", {"password": password, "tags": ",".join(tags)})

    def add_vhost(self, name: str) -> None:
        self._ask("PUT", f"/vhosts/{_part(name)}")

    def delete_vhost(self, name: str) -> None:
        self._ask("DELETE", f"/vhosts/{_part(name)}")

    def delete_user(self, name: str) -> None:
        self._ask("DELETE", f"/users/{_part(name)}")

    def set_vhost_limit(self, vhost: str, name: str, value: int) -> None:
        self._ask("PUT", f"/vhost-limits/{_part(vhost)}/{name}", {"value": value})

    def set_user_limit(self, user: str, name: str, value: int) -> None:
        self._ask("PUT", f"/user-limits/{_part(user)}/{name}", {"value": value})

    def set_permission(
        self, user: str, vhost: str = "/", configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None:
        body = {"configure": configure, "write": write, "read": read}
        self._ask("PUT", f"/permissions/{_part(vhost)}/{_part(user)}", body)

    def _ask(self, method: str, path: str, body: object = None) -> None:
        answer = httpx.request(method, self._api + path, json=body, auth=("guest", "guest"), timeout=ANSWER_LIMIT_S)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"


@contextmanager
def rabbitmq_broker(folder: Path) -> Iterator[Broker]:
    """Run RabbitMQ."""
    with rabbitmq(folder) as node:
        yield Broker("rabbitmq", node.host, node.port, str(node.api_address))


@contextmanager
def flyball_broker(folder: Path, *options: str) -> Iterator[Broker]:
    """Run a Flyball node on its embedded PostgreSQL, with further options of `flyball serve`."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "flyball", "serve", "--store", "embedded", "--data", str(folder / "data")]
    command += ["--amqp", "127.0.0.1:0", "--telesto", "off", "--thorbang", "off", "--http", "127.0.0.1:0"]
    command += ["--trace", "off", "--token-file", str(TOKEN_FILE), *options]
    # A file, since no test reads a pipe and a full one would stop the node.
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
        host, _, port = addresses["amqp"].rpartition(":")
        yield Broker("flyball", host, int(port), addresses["http"])
    finally:
        node.terminate()
        node.communicate()


def _part(text: str) -> str:
    return quote(text, safe="")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("FLYBALL_")}
