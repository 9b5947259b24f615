"""The resources of the process are reported even if some of them cannot be determined."""

from __future__ import annotations

import builtins
import errno
from pathlib import Path

import pytest

from flyball.broker.node.resources import Resources


def test_memory_files_and_disk_of_the_process_are_found(tmp_path: Path) -> None:
    usage = Resources(tmp_path)
    assert usage.memory_bytes > 10_000_000
    assert usage.open_files > 3
    assert usage.disk_free_bytes is not None
    assert usage.disk_free_bytes > 0


def test_the_disk_of_a_folder_that_is_gone_is_not_known(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    usage = Resources(data)
    assert usage.disk_free_bytes is not None
    data.rmdir()
    usage.read_files_and_disk()
    assert usage.disk_free_bytes is None


def test_a_process_that_can_open_no_more_files_tells_what_it_knew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = Resources(tmp_path)
    before = usage.memory_bytes

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "open", fail)
        usage.read_memory()
    assert usage.memory_bytes == before
