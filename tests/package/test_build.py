"""Packages are built from the repository: whole, compiled where that is possible, pure Python elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.package.conftest import ROOT


def build(sources: Path, hook: str, **environment: str) -> tuple[str, str]:
    """Call a hook of the build backend; return its result and what was complained of."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLYBALL_")}
    program = f"import build_backend; print(build_backend.{hook})"
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=sources,
        env={**kept, "PYTHONPATH": str(sources / "scripts"), **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return found.stdout.splitlines()[-1], found.stderr


def test_source_distribution_has_all_that_wheels_are_built_from(sources: Path, tmp_path: Path) -> None:
    name, _ = build(sources, f"build_sdist({str(tmp_path)!r})")
    with tarfile.open(tmp_path / name) as archive:
        packed = {member.partition("/")[2] for member in archive.getnames()}
    wanted = {
        str(path.relative_to(ROOT))
        for folder in (ROOT / "src" / "flyball", ROOT / "src" / "flyball" / "lab" / "auction")
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".so", ".pyc", ".md")
    }
    assert not wanted - packed
    assert {"setup.py", "pyproject.toml", "scripts/build_backend.py", "LICENSE", "README.md"} <= packed


@pytest.mark.parametrize("reason", [{"FLYBALL_COMPILE": "0"}, {"CC": "/no/such/compiler"}])
def test_wheel_is_pure_where_it_is_not_compiled(reason: dict[str, str], sources: Path, tmp_path: Path) -> None:
    name, complaints = build(sources, f"build_wheel({str(tmp_path)!r})", **reason)
    assert name.endswith("-py3-none-any.whl")
    assert not [entry for entry in ZipFile(tmp_path / name).namelist() if entry.endswith(".so")]
    assert ("not compiled" in complaints) == ("CC" in reason)


def test_wheel_that_has_to_be_compiled_is_not_built_without_a_compiler(sources: Path, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        build(sources, f"build_wheel({str(tmp_path)!r})", FLYBALL_COMPILE="1", CC="/bin/false")
    assert not list(tmp_path.glob("*.whl"))


def test_only_compiled_wheels_need_the_compiler(sources: Path) -> None:
    assert "mypy" in build(sources, "get_requires_for_build_wheel()")[0]
    assert "mypy" in build(sources, "get_requires_for_build_wheel()", FLYBALL_COMPILE="1")[0]
    assert "mypy" not in build(sources, "get_requires_for_build_wheel()", FLYBALL_COMPILE="0")[0]
    assert "mypy" not in build(sources, "get_requires_for_build_editable()", FLYBALL_COMPILE="1")[0]
