"""A private RabbitMQ node on free ports of the loopback address, for comparison with Flyball.

It keeps its files in a folder of the caller and leaves no process behind, not even its port mapper.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import random
import re
import secrets
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from flyball.broker.settings import Address

# Debian's rabbitmq-server on the PATH insists on a system user; this one runs as the calling user.
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
HOST = "127.0.0.1"
ADMINISTRATOR = "guest"
API_LIMIT_S = 60.0


class RabbitMqFailed(Exception):
    """RabbitMQ did not start, or refused a request to its management API."""


class RabbitMq:
    """A running RabbitMQ node, with its user guest."""

    host = HOST

    def __init__(self, process: psutil.Process, port: int, api_port: int) -> None:
        self.process = process
        self.port = port
        # Address of its management API.
        self.api_address = Address(HOST, api_port)
        self.version: str = self.api("GET", "/overview")["rabbitmq_version"]

    def api(self, method: str, path: str, body: object = None) -> Any:
        """Call the management API; `path` is relative to /api. Raises RabbitMqFailed with its error message."""
        credentials = base64.b64encode(f"{ADMINISTRATOR}:{ADMINISTRATOR}".encode()).decode()
        headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(*self.api_address, timeout=API_LIMIT_S)
        try:
            connection.request(method, "/api" + path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status >= 400:
            raise RabbitMqFailed(f"{method} {path}: {answer.status} {text.decode()}")
        return json.loads(text) if text else None


@contextmanager
def rabbitmq(folder: Path, settings: str = "", plugins: Sequence[str] = ()) -> Iterator[RabbitMq]:
    """Run a node that keeps its files in the folder; `settings` are further lines of its rabbitmq.conf.

    The management plugin is enabled, and the given plugins.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as running:
        port, api_port, dist_port, mapper_port = running.enter_context(free_ports(4))
        _write_settings(folder, port, api_port, settings, plugins)
        environment = _environment(folder, dist_port, mapper_port)
        running.enter_context(_port_mapper(mapper_port, environment))
        node = running.enter_context(_node(folder, environment))
        yield RabbitMq(psutil.Process(node.pid), port, api_port)


def _write_settings(folder: Path, port: int, api_port: int, settings: str, plugins: Sequence[str]) -> None:
    (folder / "empty").touch()
    (folder / "plugins").write_text(f"[{','.join(['rabbitmq_management', *plugins])}].\n")
    # Collecting statistics would affect the measurement; with the collector disabled a node performs as without the
    # API.
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = {HOST}:{port}\n"
        f"management.tcp.ip = {HOST}\n"
        f"management.tcp.port = {api_port}\n"
        "management_agent.disable_metrics_collector = true\n"
        f"{settings}\n"
    )


def _environment(folder: Path, dist_port: int, mapper_port: int) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))},
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(mapper_port),
        "ERL_EPMD_ADDRESS": HOST,
        "RABBITMQ_NODENAME": f"flyball-{secrets.token_hex(4)}@localhost",
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "empty"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        # The script then execs the node instead of staying its parent.
        "RUNNING_UNDER_SYSTEMD": "true",
    }


@contextmanager
def _port_mapper(port: int, environment: dict[str, str]) -> Iterator[None]:
    """Run Erlang's port mapper (epmd). A node would otherwise start one and leave it running."""
    mapper = subprocess.Popen(
        ["epmd"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not _is_served(port):
            if mapper.poll() is not None:
                raise RabbitMqFailed(f"epmd ended with exit code {mapper.returncode}")
        yield
    finally:
        mapper.terminate()
        mapper.wait()


@contextmanager
def _node(folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run the node; it serves when this yields."""
    if not PROGRAM.exists():
        raise RabbitMqFailed(f"{PROGRAM} is missing; on Debian it comes with: apt-get install rabbitmq-server")
    node = subprocess.Popen(
        [str(PROGRAM)],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert node.stdout is not None
    try:
        said = ""
        for line in node.stdout:
            said += line
            if re.search(r"completed with \d+ plugins", line):
                break
        else:
            raise RabbitMqFailed(f"RabbitMQ did not start: {said}")
        yield node
    finally:
        # Killed, since its files are no longer needed: a graceful stop takes longer than the start.
        helpers = psutil.Process(node.pid).children(recursive=True) if node.poll() is None else []
        node.kill()
        for helper in helpers:
            with suppress(psutil.NoSuchProcess):
                helper.kill()
        node.communicate()


def _is_served(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def free_ports(count: int) -> Iterator[list[int]]:
    """Find unused ports, below the system's range for outgoing connections.

    They are reserved against other callers, in any process, until the context is left.
    """
    ports: list[int] = []
    with ExitStack() as marks:
        while len(ports) < count:
            port = random.randrange(20_000, 32_000)
            mark = marks.enter_context(socket.socket(socket.AF_UNIX))
            with socket.socket() as probe:
                try:
                    # An abstract socket name as a lock: it is released with this process at the latest.
                    mark.bind(f"\0flyball-port-{port}")
                    probe.bind((HOST, port))
                except OSError:
                    continue
            ports.append(port)
        yield ports
