"""The installed wheel does all that a clone does: it serves, shows its console, and has every file it needs."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import httpx
import pika
import pytest

from flyball.broker.settings import Address
from tests.nodes import ANSWER_LIMIT_S
from tests.package.conftest import ROOT
from tests.package.test_deploy import final_stage

GUEST = ("guest", "guest")


@dataclass(frozen=True)
class Served:
    """A node of the wheel."""

    amqp: Address
    http: Address
    data: Path


@pytest.fixture(scope="module")
def served(environment: Path, clean: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`flyball serve` with its default store, in an empty folder."""
    folder = tmp_path_factory.mktemp("installed")
    command = [str(environment / "bin" / "flyball"), "serve", "--config", "/dev/null"]
    command += ["--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=folder, env=clean, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            addresses: dict[str, Address] = {}
            for line in process.stdout:
                name, _, address = line.strip().partition(" on ")
                if address:
                    addresses[name] = Address.parse(address)
                if line.startswith("ready"):
                    break
            yield Served(addresses["amqp"], addresses["http"], folder / "data")
            process.send_signal(signal.SIGTERM)
            assert process.wait(ANSWER_LIMIT_S) == 0
        finally:
            process.kill()


def run(environment: Path, clean: dict[str, str], *command: str, cwd: Path) -> str:
    """Run a program of the environment and return its output."""
    return subprocess.run(
        [environment / "bin" / command[0], *command[1:]],
        cwd=cwd,
        env=clean,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=ANSWER_LIMIT_S,
    ).stdout


def test_first_message_goes_through_the_installed_node(served: Served) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(served.amqp.host, served.amqp.port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("greetings", durable=True)
        channel.basic_publish("", "greetings", b"hello, world", pika.BasicProperties(delivery_mode=2))
        assert channel.basic_get("greetings", auto_ack=True)[2] == b"hello, world"
    assert (served.data / "postgresql").is_dir()


@pytest.mark.parametrize("path", ["/", "/web/app.js", "/web/style.css", "/web/pages/overview.js", "/health/ready"])
def test_console_and_probes_of_the_installed_node_answer(served: Served, path: str) -> None:
    answer = httpx.get(f"http://{served.http}{path}", timeout=ANSWER_LIMIT_S)
    assert answer.status_code == 200, answer.text
    assert answer.content


def test_experiments_of_the_laboratory_are_installed(served: Served) -> None:
    answer = httpx.get(f"http://{served.http}/api/flyball/experiments", auth=GUEST, timeout=ANSWER_LIMIT_S)
    assert answer.status_code == 200, answer.text
    shipped = {path.name for path in (ROOT / "src" / "flyball" / "lab" / "experiments").iterdir() if path.is_dir()}
    assert shipped - {"__pycache__"} <= {name for name in shipped if name in answer.text} | {"__pycache__"}


def test_commands_of_the_installed_wheel_work(environment: Path, clean: dict[str, str], served: Served) -> None:
    folder = served.data.parent
    url = f"http://{served.http}"
    assert "serve" in run(environment, clean, "flyball", "--help", cwd=folder)
    assert "put a message" in run(
        environment, clean, "flyball", "put", "letters", "hello", "--create", "--url", url, cwd=folder
    )
    assert "hello" in run(environment, clean, "flyball", "get", "letters", "--url", url, cwd=folder)
    assert "reproduce" in run(environment, clean, "flyball", "lab", "--help", cwd=folder)


def test_hot_modules_of_the_wheel_are_compiled(environment: Path, clean: dict[str, str], tmp_path: Path) -> None:
    program = "import flyball.broker.engine.engine as module; print(module.__file__)"
    place = run(environment, clean, "python", "-c", program, cwd=tmp_path).strip()
    assert place.startswith(str(environment))
    assert place.endswith(".so")


def test_wheel_has_every_file_of_the_package(environment: Path) -> None:
    wheel = next(environment.parent.glob("flyball-*.whl"))
    packed = set(ZipFile(wheel).namelist())
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        # The auction site is a link to a folder of `examples`.
        for folder in (source / "flyball", source / "flyball" / "lab" / "auction", source / "pyspark_flyball")
        for path in folder.rglob("*")
        if path.is_file() and not {"__pycache__"} & set(path.parts) and path.suffix not in (".so", ".pyc")
    }
    assert len(wanted) > 400
    assert wanted - packed == {"flyball/lab/auction/README.md"}


def test_wheel_names_its_platform_and_licence(environment: Path) -> None:
    wheel = next(environment.parent.glob("flyball-*.whl"))
    assert "-linux_" in wheel.name, "what is installed here is not tagged for other machines"
    assert any(name.endswith("/licenses/LICENSE") for name in ZipFile(wheel).namelist())


def test_health_check_of_the_container_asks_the_node(
    environment: Path, clean: dict[str, str], served: Served, tmp_path: Path
) -> None:
    check = json.loads(final_stage()["HEALTHCHECK"].partition("CMD ")[2])
    assert check[0] == "python"

    def exit_code(port: int) -> int:
        command = [str(environment / "bin" / check[0]), *[part.replace("15672", str(port)) for part in check[1:]]]
        return subprocess.run(command, cwd=tmp_path, env=clean, stderr=subprocess.DEVNULL).returncode

    assert exit_code(served.http.port) == 0
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    assert exit_code(port) != 0
