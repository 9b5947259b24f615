"""The pages that state guarantees name the tests that prove them: these have to exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = ("durability.md", "hardening.md")

_PATH = re.compile(r"`(tests/[\w/]+(?:\.py)?)(?:::(test_\w+))?[`:]")
_NAME = re.compile(r"`(?:::)?(test_\w+)`")
_DEFINED = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


@cache
def defined(path: Path) -> frozenset[str]:
    return frozenset(_DEFINED.findall(path.read_text()))


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / "docs" / "operate" / page).read_text()
    paths = _PATH.findall(text)
    assert paths
    missing = [path for path, name in paths if not (ROOT / path).exists()]
    missing += [f"{path}::{name}" for path, name in paths if name and name not in defined(ROOT / path)]
    everywhere = frozenset().union(*map(defined, (ROOT / "tests").rglob("test_*.py")))
    missing += [name for name in _NAME.findall(text) if name not in everywhere]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_every_row_of_guarantees_names_a_test(page: str) -> None:
    text = (ROOT / "docs" / "operate" / page).read_text()
    table = text.split("## Guarantees\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    assert [row for row in rows if "test_" not in row] == []
