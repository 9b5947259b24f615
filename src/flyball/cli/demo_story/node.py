"""The node of the demo: a separate process on free ports, which is stopped at the end of the block."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flyball.errors import LabError

USER = "guest"
PASSWORD = "guest"
STOP_S = 20.0
LISTENERS = ("amqp", "http")
LOG = "node.log"


@dataclass(frozen=True, slots=True)
class DemoNode:
    """The node's addresses and folder of traces."""

    # host:port.
    amqp: str
    http: str
    traces: Path

    @property
    def console(self) -> str:
        """The URL for a browser."""
        return f"http://{self.http}"

    @property
    def url(self) -> str:
        """The URL for `flyball top`."""
        return f"http://{USER}:{PASSWORD}@{self.http}"


@contextmanager
def running_node(folder: Path, store: str, reports: Path) -> Iterator[DemoNode]:
    """Run `flyball serve` in the folder; its console shows the reports. Raises LabError if it cannot start."""
    data = folder / "data"
    command = [sys.executable, "-m", "flyball", "serve", "--name", "demo", "--data", str(data), "--store", store]
    command += ["--config", os.devnull, "--reports", str(reports.resolve())]
    for listener in LISTENERS:
        command += [f"--{listener}", "127.0.0.1:0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLYBALL_")}
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            # Ctrl-C is for the demo, which then stops the node gracefully.
            start_new_session=True,
        )
    try:
        found = _addresses(process, folder / LOG)
        yield DemoNode(found["amqp"], found["http"], data / "traces")
    finally:
        _stop(process)


def _addresses(process: subprocess.Popen[str], log: Path) -> dict[str, str]:
    """Return the node's addresses, once it listens."""
    assert process.stdout is not None
    found: dict[str, str] = {}
    for line in process.stdout:
        name, _, address = line.strip().partition(" on ")
        found[name] = address
        if line.startswith("ready"):
            return found
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise LabError(f"the node does not start: {said[-1] if said else 'it says nothing'}")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
