"""The build backend of pyproject.toml: that of setuptools, which gets mypyc where a wheel is built.

Editable installations are interpreted (see setup.py) and need no compiler.
"""

from __future__ import annotations

import os

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the hooks that stay as they are.

COMPILER = "mypy>=1.14"


def get_requires_for_build_wheel(config_settings: dict[str, str | list[str] | None] | None = None) -> list[str]:
    """Return the requirements for a wheel: with mypyc unless FLYBALL_COMPILE=0."""
    found: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    return found if os.environ.get("FLYBALL_COMPILE") == "0" else [*found, COMPILER]
