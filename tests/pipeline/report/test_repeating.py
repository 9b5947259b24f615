"""The commands that a report prints repeat what it shows."""

from __future__ import annotations

import html
import re
import shlex
import subprocess
import sys
from pathlib import Path

from flyball.pipeline.analysis import Analysis
from flyball.pipeline.manifest import read_experiments, read_runs
from flyball.pipeline.report import write_report

EXPERIMENT = """
title = "Tiny"

[target]
store = "memory"

[workload]
kind = "send_and_pop"
clients = 2

[run]
repetitions = 1
warm_up_s = 0.1
length_s = 1
cool_down_s = 0.1
"""


def run_in(folder: Path, command: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "flyball"
    subprocess.run([sys.executable, "-m", "flyball", *arguments], cwd=folder, check=True, timeout=300)


def commands_in(page: Path, name: str) -> list[str]:
    found = re.search(rf'<pre class="{name}"><code>(.*?)</code></pre>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return html.unescape(found[1]).splitlines()


def test_printed_commands_repeat_the_experiment_and_the_report(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "tiny.toml").write_text(EXPERIMENT, encoding="utf-8")
    run_in(first, "flyball lab run tiny.toml --quick --set workload.clients=3")
    # What the pipeline would find in the traces is not needed to know how they came about.
    analysis = Analysis(read_experiments(first / "results"), read_runs(first / "results"), {})
    write_report(analysis, tmp_path / "report.html")
    commands = commands_in(tmp_path / "report.html", "repeat")
    assert commands == [
        "flyball lab run tiny.toml --quick --set workload.clients=3 --out results",
        "flyball pipeline report results --out report",
    ]
    for command in commands:
        run_in(second, command)
    (again,) = read_runs(second / "results")
    assert again.workload["clients"] == 3
    page = second / "report" / "report.html"
    assert commands_in(page, "repeat") == commands
    run_in(second, *commands_in(page, "again"))
