"""Compiles the hot modules with mypyc if FLYBALL_COMPILE=1; all else about the package is in pyproject.toml.

The compiler has to be there already: install the extra `fast` first and then this with --no-build-isolation,
as scripts/setup.sh does. FLYBALL_COMPILE_LEVEL is gcc's optimization level, 3 unless given: scripts/compiled-build,
whose modules are only tested, saves a third of the time with 0.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup

HOT_MODULES = (
    "src/flyball/model.py",
    "src/flyball/errors.py",
    "src/flyball/broker/wire/framing.py",
    "src/flyball/broker/wire/amqp/*.py",
    "src/flyball/broker/wire/amqp/_generated/*.py",
    "src/flyball/broker/wire/link/*.py",
    "src/flyball/broker/wire/link/_generated/*.py",
    # Not the packets. mypyc takes a dataclass's ClassVar for a field, and they have one: METHOD. It also refuses,
    # when the module is imported, a dataclass with slots=True whose base class is not compiled.
    "src/flyball/broker/wire/telesto/codec.py",
    "src/flyball/broker/wire/telesto/fields.py",
    "src/flyball/broker/wire/telesto/values.py",
    "src/flyball/broker/wire/thorbang/*.py",
    "src/flyball/broker/engine/*.py",
    "src/flyball/broker/engine/routing/*.py",
    "src/flyball/broker/protocols/amqp/consuming.py",
    "src/flyball/broker/core/intake.py",
    "src/flyball/broker/protocols/amqp/publishing.py",
)


def hot_paths() -> list[str]:
    """Return the modules to compile."""
    paths = [str(path) for pattern in HOT_MODULES for path in sorted(Path().glob(pattern))]
    return [path for path in paths if not path.endswith("__init__.py")]


def compiled_modules() -> list[Extension]:
    if os.environ.get("FLYBALL_COMPILE") != "1":
        return []
    # Here, not above: plain builds have no mypyc.
    from mypyc.build import mypycify

    return mypycify(hot_paths(), opt_level=os.environ.get("FLYBALL_COMPILE_LEVEL", "3"))


# Not when scripts/compiled-build only asks for the names.
if __name__ == "__main__":
    setup(ext_modules=compiled_modules())
