"""Models that the pipeline computes, in a process of its own, from an experiment's results; exchanged as files."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flyball.errors import LabError

Document = Mapping[str, Any]
# Returns the model.json of a folder of results.
Identify = Callable[[Path], Document]
# Returns the profile.json of a folder of results, for a unit and a number of classes.
MakeProfile = Callable[[Path, str, int], Document]


@functools.cache
def identified(folder: Path) -> Document:
    """Return the result of `flyball pipeline identify` for a folder of results. Raises LabError if it fails."""
    return _model(folder, "identify", "model.json")


@functools.cache
def profiled(folder: Path, unit: str, class_count: int) -> Document:
    """Return the result of `flyball pipeline profile` for a folder of results. Raises LabError if it fails."""
    return _model(folder, "profile", "profile.json", "--unit", unit, "--classes", str(class_count))


def _model(folder: Path, command: str, name: str, *options: str) -> Document:
    with tempfile.TemporaryDirectory(prefix="flyball-models-") as out:
        arguments = ("pipeline", command, str(folder), "--out", out, "--quiet", *options)
        done = subprocess.run(
            [sys.executable, "-m", "flyball", *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix("flyball: ")
            raise LabError(f"flyball pipeline {command} {folder} failed: {said}")
        found: Document = json.loads(Path(out, name).read_text(encoding="utf-8"))
        return found
