"""Small experiments for tests, as files."""

from __future__ import annotations

from pathlib import Path

from flyball.lab.experiment import Experiment, load

TINY = """
title = "Tiny"
[target]
store = "memory"
[workload]
kind = "send_and_pop"
clients = 2
[run]
repetitions = 1
warm_up_s = 0.1
length_s = 0.4
cool_down_s = 0.1
"""


def described(folder: Path, text: str, name: str = "tiny") -> Experiment:
    """Write the description and load it."""
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return load(path)
