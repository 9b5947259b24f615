"""Log lines go to standard error, or to a file that does not grow for ever."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyball.server import logs


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
