"""A service manager such as systemd is notified that a node is ready, stops and lives, and passes it sockets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
import pytest

from flyball.broker.node.service_manager import ServiceManager
from flyball.errors import SettingsError
from tests.nodes import ANSWER_LIMIT_S, TOKEN_FILE, ServeProcess


class NotifySocket:
    """The socket at which systemd is notified by its services."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(ANSWER_LIMIT_S)

    def receive(self) -> str:
        return self._socket.recv(4096).decode()

    def until(self, state: str) -> list[str]:
        """Return what was received before a state."""
        before: list[str] = []
        while state not in (received := self.receive()).splitlines():
            before.append(received)
        return before

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NotifySocket]:
    found = NotifySocket(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(found.path))
    yield found
    found.close()


def test_manager_receives_ready_watchdog_and_stopping(
    notified: NotifySocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    with ServeProcess(tmp_path / "data", store="memory") as node:
        assert set(notified.until("READY=1")) <= {"WATCHDOG=1"}
        for _ in range(3):
            assert notified.receive() == "WATCHDOG=1"
        node.signal(signal.SIGTERM)
        assert set(notified.until("STOPPING=1")) <= {"WATCHDOG=1"}
        assert node.wait() == (0, "")


def test_node_without_watchdog_sends_no_beats(notified: NotifySocket, tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data", store="memory") as node:
        assert notified.until("READY=1") == []
        node.signal(signal.SIGTERM)
        assert notified.until("STOPPING=1") == []
        assert node.wait() == (0, "")


def test_manager_that_is_gone_does_not_stop_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "missing"))
    with ServeProcess(tmp_path / "data", store="memory") as node:
        code, complaints = node.stop()
    assert code == 0
    assert "cannot notify the service manager: No such file or directory" in complaints


def test_abstract_notify_address_is_used() -> None:
    name = f"flyball-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(ANSWER_LIMIT_S)
        ServiceManager(f"@{name}").notify("READY=1")
        assert listening.recv(100) == b"READY=1"


def test_variables_for_another_process_are_ignored() -> None:
    environment = {"LISTEN_FDS": "1", "LISTEN_PID": "1", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    manager = ServiceManager.from_environment(environment, os.getpid())
    assert (manager.watchdog_s, dict(manager.sockets)) == (0.0, {})


@pytest.mark.parametrize("environment", [{"WATCHDOG_USEC": "soon"}, {"LISTEN_FDS": "x", "LISTEN_PID": "7"}])
def test_variables_that_are_not_numbers_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=r"is not (valid|a valid interval)"):
        ServiceManager.from_environment(environment, 7)


def start_activated(data: Path, names: str, sockets: list[socket.socket], **flags: str) -> subprocess.Popen[str]:
    """Start a node as systemd does: sockets from descriptor 3 on, and variables that name its process."""
    settings = {
        "data": str(data),
        "store": "memory",
        "trace": "off",
        "amqp": "127.0.0.1:1",
        "http": "127.0.0.1:1",
        "token_file": str(TOKEN_FILE),
        **flags,
    }
    command = [sys.executable, "-m", "flyball", "serve"]
    for name, value in settings.items():
        command += [f"--{name.replace('_', '-')}", value]
    # The shell becomes the node, so that the process has the announced id.
    places = " ".join(f"{3 + at}<&{listening.fileno()}" for at, listening in enumerate(sockets))
    script = f'exec {places}; LISTEN_PID=$$ LISTEN_FDS={len(sockets)} LISTEN_FDNAMES={names} exec "$@"'
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLYBALL_")}
    return subprocess.Popen(
        ["bash", "-c", script, "bash", *command],
        pass_fds=[listening.fileno() for listening in sockets],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=kept,
    )


@pytest.fixture
def listening() -> Iterator[list[socket.socket]]:
    """Two sockets, with numbers that the node's do not have."""
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(10)]
    for spare in found[:8]:
        spare.close()
    yield found[8:]
    for kept in found[8:]:
        kept.close()


def test_node_serves_on_inherited_sockets(listening: list[socket.socket], tmp_path: Path) -> None:
    # The client is there before the node: it waits in the queue of the socket.
    early = socket.create_connection(listening[0].getsockname(), timeout=ANSWER_LIMIT_S)
    early.sendall(b"AMQP\x00\x00\x09\x01")
    node = start_activated(tmp_path, "amqp:http", listening)
    try:
        assert early.recv(1) == b"\x01", "a method frame: connection.start"
        early.close()
        amqp_port, http_port = (each.getsockname()[1] for each in listening)
        assert node.stdout is not None
        said = [node.stdout.readline().strip() for _ in range(4)]
        assert f"amqp on 127.0.0.1:{amqp_port}" in said
        assert f"http on 127.0.0.1:{http_port}" in said
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_port)) as connection:
            connection.channel().queue_declare("inherited")
        answer = httpx.get(f"http://127.0.0.1:{http_port}/health/ready", timeout=ANSWER_LIMIT_S)
        assert answer.json() == {"status": "ok"}
        node.send_signal(signal.SIGTERM)
        assert node.wait(ANSWER_LIMIT_S) == 0
    finally:
        node.kill()
        node.communicate()


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ("amqp:amqps", "socket named 'amqps'"),
        ("flyball.socket:http", "socket named 'flyball.socket'"),
        ("amqp:amqp", "two sockets are named 'amqp'"),
    ],
)
def test_sockets_that_no_listener_takes_stop_the_start(
    names: str, problem: str, listening: list[socket.socket], tmp_path: Path
) -> None:
    node = start_activated(tmp_path, names, listening)
    _, complaints = node.communicate(timeout=ANSWER_LIMIT_S)
    assert node.returncode == 2
    assert problem in complaints
    assert complaints.count("\n") == 1
