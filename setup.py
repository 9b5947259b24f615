"""Compiles the hot modules with mypyc; all else about the package is in pyproject.toml.

A wheel is compiled where there are a C compiler and mypyc, which `scripts/build_backend.py` asks for; elsewhere it is
pure Python. FLYBALL_COMPILE=0 asks for a pure one. FLYBALL_COMPILE=1 fails where it cannot be compiled, and also
compiles editable installations: install the extra `fast` first and then this with --no-build-isolation, as
scripts/setup.sh does. FLYBALL_COMPILE_LEVEL is gcc's optimization level, 3 unless given: scripts/wheel-environment,
whose modules are only tested, saves a third of the time with 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from setuptools import Extension

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
    "src/flyball/broker/protocols/amqp/consumers.py",
    "src/flyball/broker/core/intake.py",
    "src/flyball/broker/protocols/amqp/publisher.py",
)


def hot_paths() -> list[str]:
    """Return the modules to compile."""
    paths = [str(path) for pattern in HOT_MODULES for path in sorted(Path().glob(pattern))]
    return [path for path in paths if not path.endswith("__init__.py")]


# A wheel is built without Flyball's libraries: their types, and modules that are not compiled, are not checked.
MYPY_OPTIONS = ("--ignore-missing-imports", "--follow-imports=silent")


def compiled_modules() -> list[Extension]:
    wish = os.environ.get("FLYBALL_COMPILE", "")
    # Other commands only ask for names and requirements, before mypyc is there.
    compiling = {"bdist_wheel", "editable_wheel"} if wish == "1" else {"bdist_wheel"}
    if wish == "0" or compiling.isdisjoint(sys.argv):
        return []
    try:
        _check_compiler()
        # Here, not above: plain builds have no mypyc.
        from mypyc.build import mypycify

        level = os.environ.get("FLYBALL_COMPILE_LEVEL", "3")
        # Without debug information, which would make the build slower and the wheel larger.
        return mypycify([*MYPY_OPTIONS, *hot_paths()], opt_level=level, debug_level="0")
    # mypyc exits where it refuses a module.
    except (ImportError, OSError, subprocess.CalledProcessError, SystemExit) as error:
        if wish == "1":
            raise
        print(f"flyball: not compiled, the wheel is pure Python: {error}", file=sys.stderr)
        return []


def _check_compiler() -> None:
    """Raise OSError or CalledProcessError unless there are a C compiler and Python's header files."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\n")
        include = sysconfig.get_path("include")
        command = [*compiler.split(), "-I", include, "-fsyntax-only", str(source)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


# Not when scripts/wheel-environment only asks for the names, with a Python that has no setuptools.
if __name__ == "__main__":
    from setuptools import setup

    setup(ext_modules=compiled_modules())
