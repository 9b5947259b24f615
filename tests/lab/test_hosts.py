"""Hosts: the same promises on this machine and over ssh, there against a real sshd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import uvloop

import flyball
from flyball.errors import LabError
from flyball.lab import hosts
from flyball.lab.hosts import Host, SshHost, ThisMachine, own_address_towards
from flyball.lab.plan import plan
from flyball.lab.runner import make_run
from tests.lab.descriptions import TINY, described
from tests.lab.runs import tables_in
from tests.lab.sshd import sshd


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with sshd(tmp_path_factory.mktemp("sshd")) as url:
        yield url


@pytest.fixture(params=["here", "ssh"])
def host(request: pytest.FixtureRequest) -> Host:
    return ThisMachine() if request.param == "here" else SshHost(request.getfixturevalue("url"))


def test_a_usable_host_passes_its_check(host: Host) -> None:
    assert uvloop.run(host.check()) == []


def test_what_a_process_leaves_in_its_folder_is_fetched_and_removed(host: Host, tmp_path: Path) -> None:
    def leave(folder: Path) -> None:
        (folder / "traces").mkdir()
        (folder / "traces" / "a b").write_bytes(b"x" * 100_000)

    async def use() -> str:
        folder = await host.make_folder()
        leave(Path(folder))
        await host.fetch(f"{folder}/traces", tmp_path / "fetched")
        await host.fetch(f"{folder}/missing", tmp_path / "nothing")
        await host.remove(folder)
        return folder

    folder = uvloop.run(use())
    assert (tmp_path / "fetched" / "a b").stat().st_size == 100_000
    assert not (tmp_path / "nothing").exists()
    assert not Path(folder).exists()


def test_a_process_ends_when_its_input_does(host: Host, tmp_path: Path) -> None:
    async def use() -> int:
        folder = await host.make_folder()
        with (tmp_path / "errors").open("wb") as errors:
            process = await host.start("flyball.lab.noise", folder, errors)
        assert process.stdin is not None
        assert process.stdout is not None
        assert json.loads(await process.stdout.readline()) == {"event": "ready"}
        process.stdin.close()
        await host.remove(folder)
        return await process.wait()

    assert uvloop.run(use()) == 0


def test_a_process_ends_when_the_connection_breaks(url: str, tmp_path: Path) -> None:
    async def use() -> list[psutil.Process]:
        host = SshHost(url)
        folder = await host.make_folder()
        with (tmp_path / "errors").open("wb") as errors:
            process = await host.start("flyball.lab.noise", folder, errors)
        assert process.stdout is not None
        await process.stdout.readline()
        there = [one for one in psutil.process_iter() if _works_in(one, folder)]
        process.kill()
        await process.wait()
        await host.remove(folder)
        return there

    there = uvloop.run(use())
    assert len(there) == 1
    _, alive = psutil.wait_procs(there, timeout=60)
    assert alive == []


def _works_in(process: psutil.Process, folder: str) -> bool:
    try:
        return process.cwd() == folder
    except psutil.Error:
        return False


def test_another_version_over_there_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flyball, "__version__", "9.9")
    with pytest.raises(LabError, match=r"has flyball .*, this machine 9\.9: install the same"):
        uvloop.run(SshHost(url).check())


@pytest.mark.parametrize("ahead_s", [-0.9, 0.9])
def test_a_clock_that_differs_is_a_warning(url: str, ahead_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "CLOCK_THERE", hosts.CLOCK_THERE.replace("time.time()", f"time.time() + {ahead_s}"))
    (warning,) = uvloop.run(SshHost(url).check())
    found_s = float(warning.partition("differs by ")[2].partition(" s")[0])
    # It gives the minimum: a busy machine is slow to answer.
    assert 0.4 < found_s <= 0.9


def test_a_clock_that_is_quite_wrong_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "CLOCK_THERE", hosts.CLOCK_THERE.replace("time.time()", "time.time() - 3600"))
    with pytest.raises(LabError, match=r"differs by 3\d\d\d\.\d\d s: set it"):
        uvloop.run(SshHost(url).check())


def test_without_ssh_on_this_machine_it_is_said(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="there is no ssh on this machine; install it"):
        uvloop.run(SshHost(url).check())


def test_a_python_without_flyball_is_told(url: str) -> None:
    with pytest.raises(LabError, match="no-python"):
        uvloop.run(SshHost(url.replace("%2Fpython", "%2Fno-python")).check())


def test_a_host_that_cannot_be_reached_is_told_in_one_line(url: str) -> None:
    place, _, options = url.partition("?")
    closed = place.rpartition(":")[0] + f":1?{options}"
    with pytest.raises(LabError, match=r"cannot reach 127\.0\.0\.1:1: .*without a prompt"):
        uvloop.run(SshHost(closed).check())


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("ssh://host?pyton=x", "no option 'pyton'; there are python, folder, address, config"),
        ("ssh://host:port", "ssh://host:port: "),
        ("http://host", "give ssh://user@host:port"),
    ],
)
def test_a_wrong_address_of_a_host_is_reported(wrong: str, told: str) -> None:
    with pytest.raises(LabError) as error:
        SshHost(wrong)
    assert told in str(error.value)


def test_nodes_over_there_listen_for_others_unless_there_is_here() -> None:
    assert (SshHost("ssh://a.example").address, SshHost("ssh://a.example").listens_on) == ("a.example", "0.0.0.0")
    assert SshHost("ssh://127.0.0.1").listens_on == "127.0.0.1"
    assert SshHost("ssh://a.example?address=10.0.0.5").address == "10.0.0.5"
    assert own_address_towards(SshHost("ssh://127.0.0.1")) == "127.0.0.1"


def test_nodes_and_clients_of_a_run_may_be_elsewhere(url: str, tmp_path: Path) -> None:
    text = TINY.replace('store = "memory"', f'store = "memory"\nhosts = ["{url}"]')
    experiment = described(tmp_path, text + f'[clients]\nhosts = ["{url}"]\n')
    for part in ("traces", "logs"):
        (tmp_path / "run" / part).mkdir(parents=True)
    manifest = uvloop.run(make_run(plan(experiment).runs[0], tmp_path / "run", lambda live: None))
    tables = tables_in(tmp_path / "run" / "traces")
    assert {"calls-worker-1", "trace-node-1", "nodes-node-1", "queues-node-1"} <= set(tables)
    assert tables["calls-worker-1"].num_rows == manifest["checks"]["calls"] > 0
    assert manifest["nodes"][0]["peak_bytes"] > 0
