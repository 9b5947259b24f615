"""A node in a process of its own, as a user would start it, and what it costs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


@contextmanager
def node(
    store: str, data: Path, extra: list[str], python: str = sys.executable
) -> Iterator[tuple[psutil.Process, dict[str, tuple[str, int]]]]:
    """Run `flyball serve` and yield its process and addresses. Another interpreter runs what is installed there."""
    command = [python, "-m", "flyball", "serve", "--store", store, "--data", str(data)]
    command += ["--amqp", "127.0.0.1:0", "--telesto", "127.0.0.1:0", "--thorbang", "127.0.0.1:0"]
    command += ["--http", "127.0.0.1:0", *extra]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment_of(python))
    assert process.stdout is not None
    addresses: dict[str, tuple[str, int]] = {}
    try:
        for text in process.stdout:
            name, _, address = text.strip().partition(" on ")
            if address:
                host, _, port = address.rpartition(":")
                addresses[name] = (host, int(port))
            if text.startswith("ready"):
                break
        yield psutil.Process(process.pid), addresses
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def environment_of(python: str) -> dict[str, str]:
    """Return the environment for an interpreter: PYTHONPATH is about the one that runs this, not about others."""
    return {name: value for name, value in os.environ.items() if python == sys.executable or name != "PYTHONPATH"}


def cpu_seconds(process: psutil.Process) -> tuple[float, float]:
    """Return the CPU time of the node and that of the processes below it."""
    own = sum(process.cpu_times()[:2])
    below = 0.0
    for child in process.children(recursive=True):
        try:
            # With those that have ended below it, as PostgreSQL's workers do.
            below += sum(child.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return own, below + sum(process.cpu_times()[2:4])
