"""The page on the design shows the imports that the code has, and names modules and functions that exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "flyball"

PAGE = (ROOT / "docs" / "how-it-works" / "design.md").read_text(encoding="utf-8")

# A longer file is split where there is a seam, or the page says why it stays whole.
LONG_LINES = 500

WALKS = PAGE.partition("\n## Four walks through the code\n")[2].partition("\n## ")[0].split("\n### ")[1:]

# `store/registry.py`, `core/topology` or `management/`, but no address and no pattern of names.
PATHS = re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", PAGE)


def find(path: str) -> Path:
    """Return the module or folder that the page calls so."""
    candidates = [root / name for root in (PACKAGE / "broker", PACKAGE, ROOT) for name in (path, f"{path}.py")]
    found = next((each for each in candidates if each.exists()), None)
    assert found is not None, f"there is no {path}"
    return found


@cache
def functions_in(module: Path) -> frozenset[str]:
    """Return the functions of a module, and the methods of its classes as `Class.method`."""
    functions = set()
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.add(node.name)
        elif isinstance(node, ast.ClassDef):
            defined = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            functions |= {f"{node.name}.{each.name}" for each in defined}
    return frozenset(functions)


def test_graph_of_rooms_is_that_of_the_code() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "code-map"), "--mermaid"]
    graph = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert graph in PAGE, "run scripts/code-map --mermaid"


def test_design_page_lists_all_long_files() -> None:
    table = PAGE.partition("\n### Long files\n")[2].partition("\n### ")[0]
    defended = {find(path) for path in re.findall(r"^\| `([\w/]+\.py)` \|", table, flags=re.MULTILINE)}
    by_hand = [path for path in PACKAGE.glob("**/*.py") if "_generated" not in path.parts]
    long = {path for path in by_hand if len(path.read_text(encoding="utf-8").splitlines()) > LONG_LINES}
    assert {str(path) for path in defended} == {str(path) for path in long}


def test_there_are_four_walks() -> None:
    assert len(WALKS) == 4


@pytest.mark.parametrize("walk", WALKS, ids=[walk.partition("\n")[0] for walk in WALKS])
def test_each_step_of_a_walk_names_functions_that_exist(walk: str) -> None:
    steps = re.split(r"^\d+\. ", walk, flags=re.MULTILINE)[1:]
    assert len(steps) >= 10
    for number, step in enumerate(steps, 1):
        hops = re.findall(r"`([\w/]+\.py):([\w.]+)`", step)
        assert hops, f"step {number} names no function"
        for module, function in hops:
            assert function in functions_in(find(module)), f"step {number}: {module} has no {function}"


@pytest.mark.parametrize("path", sorted(set(PATHS)))
def test_module_that_the_page_names_exists(path: str) -> None:
    assert find(path)
