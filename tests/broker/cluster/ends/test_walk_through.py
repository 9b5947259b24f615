"""docs/guides/domain.md, "Start three nodes": its commands do what it says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flyball.client.sync import ConnectionFactory
from tests.broker.cluster.ends.site import LIMIT_S

PAGE = (Path(__file__).parents[4] / "docs" / "guides" / "domain.md").read_text(encoding="utf-8")
SECTION = re.findall(r"^## Start three nodes$(.*?)^## ", PAGE, flags=re.MULTILINE | re.DOTALL)[0]
STORE, SERVE, CREATE, CHANGE = re.findall(r"^```sh\n(.*?)^```", SECTION, flags=re.MULTILINE | re.DOTALL)

# Ports of the page may be in use.
HERE = ["--amqp", "127.0.0.1:0", "--telesto", "127.0.0.1:0", "--thorbang", "off", "--http", "127.0.0.1:0"]


class Terminals:
    """Long-running programs of the page, each in a terminal of its own, and commands run next to them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("FLYBALL_")}
        self.environment |= {"NO_COLOR": "1", "COLUMNS": "200"}
        self._exits = ExitStack()

    def open(self, command: str, *more: str) -> tuple[subprocess.Popen[str], list[str]]:
        """Start a program; return it and what it says when it is ready."""
        words = [sys.executable, "-m", *shlex.split(command, comments=True), *more]
        process = subprocess.Popen(
            words,
            cwd=self._folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._exits.callback(self.end, process)
        assert process.stdout is not None
        said: list[str] = []
        for line in process.stdout:
            said.append(line.strip())
            if line.startswith("ready"):
                return process, said
        raise AssertionError(f"{command}: {said}")

    def run(self, command: str) -> str:
        words = [sys.executable, "-m", *shlex.split(command, comments=True)]
        done = subprocess.run(
            words,
            cwd=self._folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @staticmethod
    def end(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def close(self) -> None:
        self._exits.close()


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    found = Terminals(tmp_path)
    yield found
    found.close()


def commands(block: str) -> list[str]:
    return [line for line in block.splitlines() if line.startswith("flyball ")]


def test_the_walk_through_works_as_it_is_written(terminals: Terminals) -> None:
    [store] = commands(STORE)
    _, said = terminals.open(store)
    [url] = re.findall(r"--store '(.*)'", "\n".join(said))
    terminals.environment["FLYBALL_STORE"] = url
    [token_file] = re.findall(r"^export FLYBALL_TOKEN_FILE=(\S+)", SERVE, re.MULTILINE)
    terminals.environment["FLYBALL_TOKEN_FILE"] = token_file
    serving = {}
    addresses = {}
    for command in commands(SERVE):
        [name] = re.findall(r"--name (\w+)", command)
        serving[name], said = terminals.open(command, *HERE)
        listeners = dict(line.split(" on ") for line in said if " on " in line)
        addresses[name] = listeners["amqp"]
        terminals.environment.setdefault("FLYBALL_URL", f"http://{listeners['http']}")
    create, show = commands(CREATE)
    terminals.run(create)
    tree = terminals.run(show)
    assert tree.startswith("domain of 3 nodes, led by n")
    assert "└── n2: 0 producers (x 0.00), 0 consumers (y 0.00), load 0.00 of capacity 100, 0 ready" in tree

    factory = ConnectionFactory(addresses["n1"], addresses["n2"])
    with factory.connect(role="producer", queue="orders") as producer:
        for number in range(20):
            producer.send(b"%d" % number)
    Terminals.end(serving["n2"])
    with factory.connect(role="consumer", queue="orders") as consumer:
        bodies = []
        for _ in range(20):
            delivery = consumer.receive(wait_s=LIMIT_S)
            assert delivery is not None
            bodies.append(delivery.message.body)
            delivery.ack()
        assert sorted(bodies) == sorted(b"%d" % number for number in range(20))
    deadline_s = time.monotonic() + LIMIT_S
    while "n2: dead" not in terminals.run(show):
        assert time.monotonic() < deadline_s
    [again] = [command for command in commands(SERVE) if "--name n2" in command]
    terminals.open(again, *HERE)

    look, add, remove = commands(CHANGE)
    assert "orders: " in terminals.run(look)
    terminals.run(add)
    assert terminals.run(remove) == "node n2 is gone\n"
    assert "n2" not in terminals.run(show)
