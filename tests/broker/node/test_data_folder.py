"""A folder that is not a node's is refused before anything in it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball.broker.node.data_folder import check_data_folder
from flyball.broker.settings import load_settings
from flyball.errors import SettingsError
from tests.nodes import ServeProcess, StartFailed


def check(data: Path, **flags: str) -> None:
    check_data_folder(load_settings({"data": str(data), **flags}, {}))


def test_foreign_folder_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    tmp_path.chmod(0o755)
    with pytest.raises(StartFailed) as failed:
        ServeProcess(tmp_path).start()
    assert failed.value.code == 2
    assert failed.value.complaints.count("\n") == 1
    assert f"{tmp_path} is not a data folder of Flyball: it contains 'thesis.txt'; use an" in failed.value.complaints
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_few_of_many_names_are_quoted(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"file {number}").touch()
    with pytest.raises(SettingsError, match="contains 'file 0', 'file 1', 'file 2' and 2 more"):
        check(tmp_path)


def test_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(SettingsError, match=r"cannot read .*data: Not a directory"):
        check(tmp_path / "data")


@pytest.mark.parametrize("name", ["lost+found", "reports", ".snapshot"])
def test_empty_volume_is_accepted(name: str, tmp_path: Path) -> None:
    check(tmp_path / "new")
    check(tmp_path)
    (tmp_path / name).mkdir()
    check(tmp_path)


def test_files_that_settings_name_do_not_count(tmp_path: Path) -> None:
    for name in ("flyball.toml", "node.log", "node.log.1", "tls"):
        (tmp_path / name).touch()
    (tmp_path / "flyball.toml").write_text('[log]\nfile = "' + str(tmp_path / "node.log") + '"\n')
    check(tmp_path, config=str(tmp_path / "flyball.toml"), tls_cert=str(tmp_path / "tls" / "cert.pem"))


@pytest.mark.parametrize("store", ["memory", "embedded"])
def test_folder_of_a_node_is_accepted_again(store: str, tmp_path: Path) -> None:
    with ServeProcess(tmp_path, store=store, token_file=tmp_path / "admin.token") as node:
        assert node.stop() == (0, "")
        (tmp_path / "notes of the operator").touch()
        node.start()
