"""The warden: what it makes of an assignment, and its end."""

from __future__ import annotations

import subprocess
import sys

from flyball.lab.warden import conf_of


def test_a_warden_that_is_told_nothing_ends_without_a_word() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flyball.lab.warden"], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_settings_of_rabbitmq_may_be_written_with_dots_or_as_tables() -> None:
    settings = {"channel_max": 5, "queue.master": "x", "vm": {"watermark": {"relative": 0.5}}, "log.console": True}
    assert conf_of(settings) == (
        "channel_max = 5\nqueue.master = x\nvm.watermark.relative = 0.5\nlog.console = true\n"
    )
