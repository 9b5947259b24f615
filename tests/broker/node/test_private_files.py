"""Files of a node are private to its owner, even in folders and files that were accessible to others before."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flyball.files import make_private_file, make_private_folder
from tests.nodes import RunningNode, ServeProcess


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """Let other users read new files unless a program forbids it, whatever the tests are run with."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_to_others(folder: Path) -> list[Path]:
    return [path for path in (folder, *folder.rglob("*")) if not path.is_symlink() and mode(path) & 0o077]


def test_new_folder_and_file_are_private(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a" / "b")
    make_private_file(tmp_path / "a" / "b" / "file")
    assert mode(tmp_path / "a" / "b") == 0o700
    assert mode(tmp_path / "a" / "b" / "file") == 0o600


def test_existing_folder_and_file_are_closed_and_keep_their_content(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o755)
    file = folder / "file"
    file.write_text("kept")
    file.chmod(0o664)
    make_private_folder(folder)
    make_private_file(file)
    assert (mode(folder), mode(file)) == (0o700, 0o600)
    assert file.read_text() == "kept"


def test_folder_that_is_meant_for_all_stays_open_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    make_private_folder(shared)
    assert mode(shared) == 0o1777
    assert "is accessible to other users" in caplog.text


def test_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(FileExistsError):
        make_private_folder(tmp_path / "data")


def test_node_closes_its_data_folder(start_memory_node: Callable[..., RunningNode], tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    start_memory_node()
    assert mode(data) == 0o700


def test_everything_a_node_writes_is_private() -> None:
    # A folder that others can reach: those of pytest are private.
    with tempfile.TemporaryDirectory(prefix="flyball-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        data, log_file = folder / "data", folder / "node.log"
        data.mkdir(mode=0o755)
        (data / "traces").mkdir(mode=0o755)
        log_file.write_text("")
        log_file.chmod(0o644)
        with ServeProcess(data, trace="on", log_file=log_file, log_level="info") as node:
            node.stop()
        assert {path.name for path in data.iterdir()} >= {"postgresql", "postgresql.log", "traces", "node.name"}
        assert open_to_others(data) == []
        assert mode(log_file) == 0o600
