"""Node's amqplib; the scenarios are in amqplib.js."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.broker.protocols.amqp.compatibility.brokers import Broker

LIMIT_S = 60.0
SCRIPT = Path(__file__).with_name("amqplib.js")
SCENARIOS = re.findall(r"^  async (\w+)\(", SCRIPT.read_text(), re.MULTILINE)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_node_is_content_with(broker: Broker, name: str, scenario: str) -> None:
    command = ["node", str(SCRIPT), broker.url(), scenario, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
