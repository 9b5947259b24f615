"""Nodes as processes of this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest
import uvloop

from flyball.broker.cluster.provisioners import LocalProcesses, Surroundings
from flyball.broker.node.logs import MAX_FILE_BYTES
from flyball.client.api import Api
from flyball.client.http import Place
from flyball.errors import ClusterError
from tests.broker.cluster.provisioners.clock import leap, run_with_leaps

STORE = "postgresql://flyball:secret@db.example/flyball"

PROGRAM = """
import os, signal, sys
print(os.environ["FLYBALL_STORE"], "FLYBALL_NAME" in os.environ, *sys.argv[1:], flush=True)
{extra}
print("ready; press Ctrl-C to stop", flush=True)
signal.pause()
"""


def pretender(tmp_path: Path, extra: str = "", **limits: float) -> LocalProcesses:
    """A provisioner of programs that only pretend to be nodes, and are quick."""
    program = (sys.executable, "-c", PROGRAM.format(extra=extra))
    return LocalProcesses(Surroundings(STORE, tmp_path), arguments=["--trace", "off"], program=program, **limits)


def pid_of(handle: str) -> int:
    return int(handle.split("/")[2])


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
def running() -> Iterator[list[str]]:
    """Handles of what a test has started and may have left behind."""
    handles: list[str] = []
    yield handles
    for handle in handles:
        if is_there(pid_of(handle)):
            os.kill(pid_of(handle), signal.SIGKILL)
            os.waitpid(pid_of(handle), 0)


def test_a_node_is_alive_from_start_to_stop(tmp_path: Path, running: list[str]) -> None:
    async def scenario() -> None:
        provisioner = pretender(tmp_path)
        handle = await provisioner.start("n2")
        running.append(handle)
        assert await provisioner.alive(handle)
        await provisioner.stop(handle)
        assert not await provisioner.alive(handle)
        assert not is_there(pid_of(handle))
        await provisioner.stop(handle)

    uvloop.run(scenario())


def test_started_node_gets_its_own_settings_and_the_store_only(
    tmp_path: Path, running: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYBALL_NAME", "n1")
    running.append(uvloop.run(pretender(tmp_path).start("n2")))
    folder = tmp_path / "nodes" / "n2"
    said = (folder / "node.log").read_text().splitlines()[0]
    ephemeral = "127.0.0.1:0"
    assert said == (
        f"{STORE} False --config /dev/null --name n2 --data {folder} --log-file {folder}/node.log --amqp {ephemeral} "
        f"--http {ephemeral} --trace off"
    )
    assert STORE not in Path(f"/proc/{pid_of(running[0])}/cmdline").read_text()


def test_another_provisioner_can_see_and_stop_it(tmp_path: Path, running: list[str]) -> None:
    async def scenario() -> None:
        running.append(await pretender(tmp_path).start("n2"))
        successor = pretender(tmp_path)
        assert await successor.alive(running[0])
        await successor.stop(running[0])
        assert not await successor.alive(running[0])

    uvloop.run(scenario())


def test_a_node_that_has_died_is_not_alive_and_leaves_no_zombie(tmp_path: Path, running: list[str]) -> None:
    async def scenario() -> None:
        provisioner = pretender(tmp_path)
        running.append(await provisioner.start("n2"))
        pid = pid_of(running[0])
        pid_fd = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        exited = asyncio.Event()
        asyncio.get_running_loop().add_reader(pid_fd, exited.set)
        await exited.wait()
        asyncio.get_running_loop().remove_reader(pid_fd)
        os.close(pid_fd)
        assert not await provisioner.alive(running[0])
        assert not is_there(pid)

    uvloop.run(scenario())


def test_a_number_that_another_process_has_now_means_that_the_node_is_gone(tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    async def scenario() -> None:
        provisioner = pretender(tmp_path)
        earlier = f"{socket.gethostname()}/{boot}/{os.getpid()}/1"
        assert not await provisioner.alive(earlier)
        # Would end these tests.
        await provisioner.stop(earlier)
        before_the_boot = f"{socket.gethostname()}/another/{os.getpid()}/1"
        assert not await provisioner.alive(before_the_boot)

    uvloop.run(scenario())


def test_a_process_of_another_machine_is_not_called_dead(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="process 7 runs on machine elsewhere and can be checked and"):
        uvloop.run(pretender(tmp_path).alive("elsewhere/boot/7/1"))


def test_a_node_that_ignores_sigterm_is_killed(tmp_path: Path, running: list[str]) -> None:
    async def scenario() -> None:
        provisioner = pretender(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)", stop_limit_s=0.05)
        running.append(await provisioner.start("n2"))
        await provisioner.stop(running[0])
        assert not is_there(pid_of(running[0]))

    uvloop.run(scenario())


def test_a_stopped_node_is_ended_in_good_order(tmp_path: Path, running: list[str]) -> None:
    async def scenario() -> None:
        extra = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('stopping', flush=True)))"
        provisioner = pretender(tmp_path, extra)
        running.append(await provisioner.start("n2"))
        os.kill(pid_of(running[0]), signal.SIGSTOP)
        await provisioner.stop(running[0])
        assert "stopping" in (tmp_path / "nodes" / "n2" / "node.log").read_text()

    uvloop.run(scenario())


def test_what_an_earlier_node_of_the_name_has_logged_is_kept(tmp_path: Path, running: list[str]) -> None:
    log_path = tmp_path / "nodes" / "n2" / "node.log"
    running.append(uvloop.run(pretender(tmp_path).start("n2")))
    earlier = log_path.read_text()
    with pytest.raises(ClusterError, match=r"starting node n2 failed: the name is taken \(see "):
        uvloop.run(pretender(tmp_path, "sys.exit('flyball: the name is taken')").start("n2"))
    assert log_path.read_text().startswith(earlier)
    assert uvloop.run(pretender(tmp_path).alive(running[0]))


def test_a_long_log_begins_anew_and_the_last_one_is_kept(tmp_path: Path, running: list[str]) -> None:
    log_path = tmp_path / "nodes" / "n2" / "node.log"
    log_path.parent.mkdir(parents=True)
    log_path.write_bytes(b"x" * MAX_FILE_BYTES)
    running.append(uvloop.run(pretender(tmp_path).start("n2")))
    assert log_path.stat().st_size < 1000
    assert log_path.with_suffix(".log.1").stat().st_size == MAX_FILE_BYTES


def test_why_a_node_does_not_start_is_in_the_error(tmp_path: Path) -> None:
    provisioner = pretender(tmp_path, "sys.exit('flyball: the store failed: no route')")
    with pytest.raises(ClusterError, match=r"starting node n2 failed: the store failed: no route \(see .*log\)"):
        uvloop.run(provisioner.start("n2"))


def test_a_node_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    pipe = tmp_path / "pid"
    os.mkfifo(pipe)
    extra = f"print(os.getpid(), file=open({str(pipe)!r}, 'w'), flush=True); signal.pause()"
    provisioner = pretender(tmp_path, extra, start_limit_s=1000)

    async def scenario() -> int:
        starting = asyncio.ensure_future(provisioner.start("n2"))
        pid = int(await asyncio.to_thread(pipe.read_text))
        leap(1000)
        with pytest.raises(ClusterError, match="node n2 is not ready after 1000 s: see "):
            await starting
        return pid

    assert not is_there(run_with_leaps(scenario()))


@pytest.mark.parametrize("name", ["", "..", "../n", "-n", "a/b", "a b", "x" * 64])
def test_a_name_cannot_lead_out_of_the_folder_or_be_a_flag(tmp_path: Path, name: str) -> None:
    with pytest.raises(ClusterError, match="invalid node name"):
        uvloop.run(pretender(tmp_path).start(name))
    assert not (tmp_path / "nodes").exists()


def test_a_program_that_does_not_exist_is_a_plain_error(tmp_path: Path) -> None:
    provisioner = LocalProcesses(Surroundings(STORE, tmp_path), program=["no-such-program"])
    with pytest.raises(ClusterError, match=r"cannot start node n2: .*No such file"):
        uvloop.run(provisioner.start("n2"))


@pytest.mark.parametrize("handle", ["", "1", "a/b/c/d", "a/b/1/2/3"])
def test_a_handle_of_something_else_is_refused(tmp_path: Path, handle: str) -> None:
    with pytest.raises(ClusterError, match="is not a handle of a local process"):
        uvloop.run(pretender(tmp_path).alive(handle))


def api_of(tmp_path: Path, name: str) -> Api:
    """Return what asks a node where it has said that it listens."""
    log = (tmp_path / "nodes" / name / "node.log").read_text()
    (address,) = [line.removeprefix("http on ") for line in log.splitlines() if line.startswith("http on ")]
    return Api(Place(f"http://{address}"))


def test_real_nodes_of_one_store_are_one_domain(
    tmp_path: Path, running: list[str], new_database: Callable[[], str]
) -> None:
    url = new_database()

    async def scenario() -> None:
        provisioner = LocalProcesses(Surroundings(url, tmp_path), arguments=["--trace", "off"])
        for name in ("n2", "n3"):
            running.append(await provisioner.start(name))
        connection = await asyncpg.connect(url)
        found = await connection.fetch("SELECT name FROM flyball.nodes WHERE state = 'up' ORDER BY name")
        await connection.close()
        assert [row["name"] for row in found] == ["n2", "n3"]
        for handle in running:
            assert await provisioner.alive(handle)
            await provisioner.stop(handle)

    uvloop.run(scenario())


def test_a_real_node_starts_serves_and_stops(tmp_path: Path, running: list[str]) -> None:
    async def start() -> str:
        return await LocalProcesses(Surroundings("memory", tmp_path)).start("n2")

    running.append(uvloop.run(start()))
    with api_of(tmp_path, "n2") as api:
        assert api.get("queues") == []
        assert api.get("whoami")["listeners"].keys() == {"amqp", "http"}
    uvloop.run(LocalProcesses(Surroundings("memory", tmp_path)).stop(running[0]))
    assert "stopping" in (tmp_path / "nodes" / "n2" / "node.log").read_text()
