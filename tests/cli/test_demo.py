"""`flyball demo`, in its short form, from the first line to the report."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flyball.control.documents import read_design

# It takes about a minute on a machine that has nothing else to do.
LIMIT_S = 840.0


def told(arguments: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    """Run a command and return how it ended; if it takes too long it is interrupted, so that it leaves nothing."""
    with subprocess.Popen(
        [sys.executable, "-m", "flyball", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            said, complaints = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            said, complaints = process.communicate()
    return process.returncode, said, complaints


@pytest.mark.timeout(900)
def test_the_demo_tells_the_whole_story_and_leaves_nothing_but_its_report(tmp_path: Path) -> None:
    passing = tmp_path / "passing"
    passing.mkdir()
    out = tmp_path / "out"
    environment = {**os.environ, "TMPDIR": str(passing), "COLUMNS": "200", "NO_COLOR": "1"}
    code, said, complaints = told(["demo", "--short", "--out", str(out)], environment)
    assert code == 0, complaints
    # Every part is reported, with its number.
    assert re.findall(r"^(\d)/7 ", said, re.MULTILINE) == list("1234567")
    # The model comes from Spark, and the design holds for it.
    design = read_design((out / "design.json").read_text(encoding="utf-8"))
    (plant,) = json.loads((out / "model.json").read_text(encoding="utf-8"))["plants"]
    assert design.plant is not None
    assert (design.plant.a, design.plant.b) == (plant["a"], plant["b"])
    assert plant["b"] > 0
    assert design.certificate is not None
    assert design.certificate.is_sound
    # Before and after stand side by side.
    table = said.partition("Before and after")[2]
    assert "window of 20, set by hand" in table
    assert "designed from the model" in table
    page = (out / "report" / "report.html").read_text(encoding="utf-8")
    assert "The closed loop" in page
    assert (out / "report" / "before-after.svg").stat().st_size > 1000
    # What the node recorded is part of it.
    assert "store" in (out / "report" / "tables" / "phases.csv").read_text(encoding="utf-8")
    # The node and its folder are gone.
    host, port = re.findall(r"console: http://([\d.]+):(\d+)", said)[0]
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port)), timeout=60):
        pass
    assert not [path.name for path in passing.iterdir() if path.name.startswith("flyball")]


@pytest.mark.parametrize("package", ["pyspark", "aio_pika"])
def test_without_its_packages_the_demo_says_what_to_install(package: str, tmp_path: Path) -> None:
    lacking = f"import sys; sys.modules[{package!r}] = None; from flyball.cli.main import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", lacking, "demo", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = f"flyball: the demo needs additional packages ({package}): pip install 'flyball[control,pipeline]'\n"
    assert (done.stderr, done.returncode, done.stdout) == (told, 1, "")


def test_a_folder_that_cannot_be_written_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "flyball", "demo", "--out", str(tmp_path / "file" / "out")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stderr.count("\n"), done.returncode) == (1, 1)
    assert "Not a directory" in done.stderr
