"""Log lines go to standard error, or to a file that does not grow forever."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from flyball.broker.node import logs


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Leave the logging of the tests as it was."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    root.handlers.clear()
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_log_file_begins_anew_where_others_write_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_FILE_BYTES", 200)
    path = tmp_path / "node.log"
    with path.open("a") as printed:
        logs.configure_logging("warning", "json", path)
        for number in range(20):
            logging.warning("line %d", number)
        printed.write("a last word")
    assert path.stat().st_size < 400
    assert path.read_text().endswith("a last word")
    kept = path.with_suffix(".log.1").read_text()
    assert len(kept) <= 200
    assert "line" in kept
    assert len(list(tmp_path.iterdir())) == 2


NASTY = "a\r\nb\x1b[2J\x00\x7f\x85\x9b\u2028\u2029\u202e\u2066\u061c\ufeff\udce9\tend"


def logged(path: Path, form: Literal["text", "json"], text: str, error: Exception | None = None) -> str:
    logs.configure_logging("warning", form, path)
    try:
        if error is not None:
            raise error
        logging.warning("client %s", text)
    except RuntimeError:
        logging.exception("client %s", text)
    return path.read_text(encoding="utf-8")


def test_text_log_escapes_what_could_forge_a_line_or_steer_a_terminal(tmp_path: Path) -> None:
    written = logged(tmp_path / "log", "text", NASTY)
    assert written.endswith("\n")
    line = written[:-1]
    assert line.isprintable()
    assert r"client a\r\nb\x1b[2J\x00\x7f\x85\x9b\u2028\u2029\u202e\u2066\u061c\ufeff\udce9\tend" in line


def test_text_log_keeps_other_characters_as_they_are(tmp_path: Path) -> None:
    assert "client Grüße, 世界 😀 \\n" in logged(tmp_path / "log", "text", "Grüße, 世界 😀 \\n")


def test_json_log_is_one_line_of_ascii_that_says_the_same(tmp_path: Path) -> None:
    (line,) = logged(tmp_path / "log", "json", NASTY).splitlines()
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["message"] == f"client {NASTY}"


def test_lines_of_an_exception_cannot_be_taken_for_lines_of_the_log(tmp_path: Path) -> None:
    forged = "2026-01-01 00:00:00,000 WARNING flyball: all is well\x1b[2J"
    first, *others = logged(tmp_path / "log", "text", "x", RuntimeError(f"no\n{forged}")).splitlines()
    assert first.endswith("client x")
    assert any("all is well" in line for line in others)
    assert all(line.startswith("    ") and line.isprintable() for line in others)


@pytest.mark.parametrize("is_there", [False, True])
def test_log_file_and_its_copy_are_private(is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_FILE_BYTES", 200)
    path = tmp_path / "node.log"
    copy = tmp_path / "node.log.1"
    if is_there:
        for file in (path, copy):
            file.write_text("")
            file.chmod(0o644)
    before = os.umask(0o022)
    try:
        logs.configure_logging("warning", "text", path)
        for number in range(20):
            logging.warning("line %d", number)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(file.stat().st_mode) for file in (path, copy)] == [0o600, 0o600]


def test_log_that_was_rotated_earlier_is_closed_to_others(tmp_path: Path) -> None:
    previous = tmp_path / "node.log.1"
    previous.write_text("old")
    previous.chmod(0o644)
    logs.configure_logging("warning", "text", tmp_path / "node.log")
    assert stat.S_IMODE(previous.stat().st_mode) == 0o600
    assert previous.read_text() == "old"
