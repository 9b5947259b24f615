"""The file of provisioners."""

from __future__ import annotations

import errno
import importlib.metadata
import tempfile
from pathlib import Path

import pytest
import uvloop

from flyball.broker.cluster.provisioners import (
    CommandTemplate,
    LocalProcesses,
    Provisioner,
    Surroundings,
    load_provisioners,
)
from flyball.broker.cluster.provisioners.choice import Guarded
from flyball.errors import ClusterError
from tests.broker.cluster.provisioners.thirdparty import Notebook

COMMANDS = 'start = "a"\nstop = "b"\nalive = "c"\n'


def load(tmp_path: Path, text: str) -> dict[str, Provisioner]:
    file = tmp_path / "provisioners.toml"
    file.write_text(text)
    return load_provisioners(file, Surroundings("postgresql://db/x", tmp_path))


def guarded_by(provisioner: Provisioner) -> Provisioner:
    assert isinstance(provisioner, Guarded)
    return provisioner.provisioner


def notebook_of(provisioner: Provisioner) -> Notebook:
    found = guarded_by(provisioner)
    assert isinstance(found, Notebook)
    return found


def test_local_processes_are_always_there(tmp_path: Path) -> None:
    (provisioner,) = load_provisioners(None, Surroundings("postgresql://db/x", tmp_path)).values()
    assert isinstance(guarded_by(provisioner), LocalProcesses)
    assert set(load(tmp_path, f'[cloud]\nkind = "command"\n{COMMANDS}')) == {"local", "cloud"}


def test_a_file_declares_provisioners_of_all_kinds(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        f"""
        [local]
        arguments = ["--memory-bytes", "512MiB"]
        [cloud]
        kind = "command"
        time_limit_s = 5
        {COMMANDS}
        [ours]
        kind = "tests.broker.cluster.provisioners.thirdparty:Notebook"
        zone = "b"
        """,
    )
    assert isinstance(guarded_by(found["local"]), LocalProcesses)
    assert isinstance(guarded_by(found["cloud"]), CommandTemplate)
    assert notebook_of(found["ours"]).zone == "b"


def test_an_installed_package_can_offer_a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint(
        "notebook", "tests.broker.cluster.provisioners.thirdparty:Notebook", "flyball.provisioners"
    )

    def entry_points(*, group: str) -> list[importlib.metadata.EntryPoint]:
        return [entry] if group == entry.group else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    ours = load(tmp_path, '[ours]\nkind = "notebook"')["ours"]
    assert notebook_of(ours).zone == "a"


def test_a_provisioner_of_others_works_and_its_errors_end_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        ours = load(tmp_path, '[ours]\nkind = "tests.broker.cluster.provisioners.thirdparty:Notebook"')["ours"]
        handle = await ours.start("n2")
        assert await ours.alive(handle)
        await ours.stop(handle)
        assert not await ours.alive(handle)
        with pytest.raises(ClusterError, match=r"Notebook failed: KeyError\('n2'\): see the node's log"):
            await ours.stop(handle)
        with pytest.raises(ClusterError, match="returned None for node none, which is not a string"):
            await ours.start("none")

    uvloop.run(scenario())
    assert "KeyError" in caplog.text


def test_a_machine_without_room_for_the_output_of_a_command_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    cloud = load(tmp_path, f'[cloud]\nkind = "command"\n{COMMANDS}')["cloud"]
    with pytest.raises(ClusterError, match=r"provisioner command failed: .*No space left"):
        uvloop.run(cloud.start("n2"))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[a", "is not valid TOML"),
        ("a = 1", r"\[a\] not a table: write"),
        ("[a]", r"\[a\] missing kind: use one of local, command or package.module:Class"),
        ('[a]\nkind = "comand"', r"\[a\] unknown kind 'comand': did you mean command\?"),
        ('[a]\nkind = "zzz"', "unknown kind 'zzz': use local, command or package.module:Class"),
        (
            '[a]\nkind = "command"',
            "missing a required .*argument: 'start': a provisioner of kind command has start, ",
        ),
        (f'[a]\nkind = "command"\n{COMMANDS}strat = "x"', "unexpected keyword argument 'strat'"),
        (
            f'[a]\nkind = "command"\n{COMMANDS}time_limit_s = "x"',
            r"\[a\] time_limit_s: Input should be a valid number",
        ),
        ("[local]\narguments = 1", r"\[local\] arguments: Input should be .*not 1"),
        ('[a]\nkind = "no.such:Thing"', "cannot import no.such:Thing: No module named 'no'"),
        ('[a]\nkind = "tests.broker.cluster.provisioners.thirdparty:No"', "cannot import .*has no attribute 'No'"),
        ('[a]\nkind = "tests.broker.cluster.provisioners.thirdparty:NO_CLASS"', "is not callable: name a class"),
        (
            '[a]\nkind = "tests.broker.cluster.provisioners.thirdparty:Halfway"',
            "is not a provisioner: it needs `async def stop`",
        ),
    ],
)
def test_an_error_names_its_place_and_what_to_do(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ClusterError, match=error) as caught:
        load(tmp_path, text)
    assert "provisioners.toml" in str(caught.value)


def test_a_missing_file_is_a_plain_error(tmp_path: Path) -> None:
    with pytest.raises(
        ClusterError, match=r"cannot read .*no\.toml: No such file or directory: check --provisioners"
    ):
        load_provisioners(tmp_path / "no.toml", Surroundings("postgresql://db/x", tmp_path))
