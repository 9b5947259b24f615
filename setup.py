"""Compiles the hot modules with mypyc if FLYBALL_COMPILE=1; all else about the package is in pyproject.toml.

The compiler has to be there already: install the extra `fast` first and then this with --no-build-isolation,
as scripts/setup.sh does.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup

HOT_MODULES = (
    "src/flyball/model.py",
    "src/flyball/errors.py",
    "src/flyball/wire/amqp/*.py",
    "src/flyball/wire/link/*.py",
    "src/flyball/wire/telesto/*.py",
    "src/flyball/wire/thorbang/*.py",
    "src/flyball/engine/*.py",
    "src/flyball/engine/routing/*.py",
    "src/flyball/server/amqp/consuming.py",
    "src/flyball/server/amqp/intake.py",
    "src/flyball/server/amqp/publishing.py",
)

UNCOMPILED = (
    "__init__.py",
    # mypyc takes a dataclass's ClassVar for a field, and the packets have one: METHOD.
    "wire/telesto/packets.py",
    "wire/telesto/extension.py",
)


def compiled_modules() -> list[Extension]:
    if os.environ.get("FLYBALL_COMPILE") != "1":
        return []
    # Here, not above: plain builds have no mypyc.
    from mypyc.build import mypycify

    paths = [str(path) for pattern in HOT_MODULES for path in sorted(Path().glob(pattern))]
    return mypycify([path for path in paths if not path.endswith(UNCOMPILED)], opt_level="3")


setup(ext_modules=compiled_modules())
