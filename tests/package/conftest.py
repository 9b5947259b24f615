"""The compiled wheel in an environment of its own, and a copy of the sources that it is built from."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What the source distribution is made of, besides `src`.
BUILD_FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "constraints.txt")


@pytest.fixture(scope="session")
def environment() -> Path:
    """Return the environment in which the wheel is installed; it is built where it is out of date."""
    script = ROOT / "scripts" / "wheel-environment"
    return Path(subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


@pytest.fixture(scope="session")
def clean() -> dict[str, str]:
    """Return environment variables that do not lead to the sources, or to settings of the tests."""
    hidden = ("PYTHONPATH", "FLYBALL_", "PYTEST_")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Return a copy of all that packages are built from, as it is in the repository."""
    copy = tmp_path / "sources"
    unwanted = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", symlinks=True, ignore=unwanted)
    shutil.copytree(ROOT / "examples", copy / "examples", ignore=unwanted)
    (copy / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "build_backend.py", copy / "scripts")
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, copy)
    return copy
