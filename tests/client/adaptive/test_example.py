"""The example as a user runs it, up to Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.client.adaptive.work import drain, fill

EXAMPLE = Path(__file__).parents[3] / "examples" / "adaptive_consumer.py"


def test_the_example_holds_its_rate_and_ctrl_c_loses_nothing(broker: Broker, name: str) -> None:
    asyncio.run(fill(broker.url(), name, 2000))
    with subprocess.Popen(
        [sys.executable, str(EXAMPLE), broker.url(), name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as example:
        assert example.stdout is not None
        assert "messages/s, pace" in example.stdout.readline()
        example.send_signal(signal.SIGINT)
        _, complaints = example.communicate(timeout=100)
    assert (example.returncode, complaints) == (0, "")
    left = [int(text.rstrip("*")) for text in asyncio.run(drain(broker.url(), name))]
    assert left == list(range(2000 - len(left), 2000)), "what was not handled is there, in its old order"
    assert 0 < len(left) < 2000
