"""RabbitMQ's own command line tool, as a running RabbitMQ hands it out, used against any broker that a test names."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flyball.broker.settings import Address

ANSWER_LIMIT_S = 60.0


def fetch(address: Address, folder: Path) -> Path:
    """Return the tool that the RabbitMQ hands out whose management API is there."""
    connection = http.client.HTTPConnection(*address, timeout=ANSWER_LIMIT_S)
    try:
        connection.request("GET", "/cli/rabbitmqadmin")
        answer = connection.getresponse()
        assert answer.status == 200
        script = folder / "rabbitmqadmin"
        script.write_bytes(answer.read())
    finally:
        connection.close()
    return script


def run(script: Path, address: Address, *arguments: str, user: str = "guest", password: str = "guest") -> str:
    """Return the tool's output. Raises CalledProcessError with the reason in `stderr` and `stdout`."""
    command = [sys.executable, str(script), "-H", address.host, "-P", str(address.port), "-u", user, "-p", password]
    done = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True, timeout=ANSWER_LIMIT_S)
    return done.stdout


def listed(script: Path, address: Address, what: str, *columns: str) -> Sequence[dict[str, Any]]:
    """Return what the tool lists, as it got it."""
    found: list[dict[str, Any]] = json.loads(run(script, address, "-f", "raw_json", "list", what, *columns))
    return found
