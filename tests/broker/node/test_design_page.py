"""The page on the design shows the imports that the code has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_graph_of_rooms_is_that_of_the_code() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "code-map"), "--mermaid"]
    graph = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs" / "how-it-works" / "design.md").read_text(encoding="utf-8")
    assert graph in page, "run scripts/code-map --mermaid"
