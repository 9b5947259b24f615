"""The node agent: its configuration of RabbitMQ, and its end."""

from __future__ import annotations

import subprocess
import sys

from flyball.lab.node_agent import conf_of


def test_node_agent_without_input_ends_without_output() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flyball.lab.node_agent"], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_settings_of_rabbitmq_may_be_written_with_dots_or_as_tables() -> None:
    settings = {"channel_max": 5, "queue.master": "x", "vm": {"watermark": {"relative": 0.5}}, "log.console": True}
    assert conf_of(settings) == (
        "channel_max = 5\nqueue.master = x\nvm.watermark.relative = 0.5\nlog.console = true\n"
    )
