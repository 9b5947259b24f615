"""PostgreSQL in a folder of ours: how it starts, comes back and ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from flyball.broker.store.postgres.embedded import EmbeddedPostgres, _gone
from flyball.broker.store.postgres.launcher import find_binaries
from flyball.errors import StoreError, StoreMismatch

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

NOBODY = 65534

# Message in PostgreSQL's log when it has to recover.
NOT_SHUT_DOWN = "was not properly shut down"

BROKER = """
import asyncio, sys
from pathlib import Path
from flyball.broker.store.postgres.embedded import EmbeddedPostgres

async def main():
    server = EmbeddedPostgres(Path(sys.argv[1]))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def started(data_dir: Path, stop_limit_s: float = 30.0) -> AsyncIterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(data_dir, stop_limit_s=stop_limit_s)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A folder that every user may enter: those of pytest are private."""
    path = Path(tempfile.mkdtemp(prefix="flyball-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def open_binaries() -> Iterator[Path]:
    """PostgreSQL where every user can reach it: the project may be in a folder that only root can enter."""
    bin_dir = find_binaries()
    package = bin_dir.parents[1]
    path = Path(tempfile.mkdtemp(prefix="flyball-test-"))
    path.chmod(0o755)
    shutil.copytree(bin_dir.parent, path / package.name / bin_dir.parent.name)
    shutil.copytree(package.with_name(f"{package.name}.libs"), path / f"{package.name}.libs")
    yield path / bin_dir.relative_to(package.parent)
    shutil.rmtree(path)


@pytest.fixture
def reachable_binaries(open_binaries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyball.broker.store.postgres.launcher.find_binaries", lambda: open_binaries)


async def answer(server: EmbeddedPostgres, question: str = "SELECT 42") -> object:
    connection = await asyncpg.connect(server.dsn)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


def wait_for_line(path: Path, text: str) -> None:
    """Return when the log of PostgreSQL has such a line."""
    deadline_s = time.monotonic() + 60
    with path.open() as lines:
        while text not in lines.readline():
            assert time.monotonic() < deadline_s


class Logged(logging.Handler):
    """Waits for a line in the log of the module under test."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.put_nowait(record.getMessage())

    async def wait_for(self, text: str) -> None:
        async with asyncio.timeout(60):
            while text not in await self._lines.get():
                pass


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Logged]:
    logger = logging.getLogger("flyball.broker.store.postgres.embedded")
    caplog.set_level(logging.INFO, logger=logger.name)
    handler = Logged()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_restart_keeps_data_without_initdb_or_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(tmp_path) as server:
        assert await answer(server) == 42
        await answer(server, "CREATE TABLE kept ()")
        assert await answer(server, "SHOW fsync") == await answer(server, "SHOW synchronous_commit") == "on"
        assert await answer(server, "SHOW listen_addresses") == ""
    log = tmp_path / "postgresql.log"
    told = len(log.read_text())
    monkeypatch.setattr(EmbeddedPostgres, "_initialise", None)
    async with started(tmp_path) as server:
        assert await answer(server, "SELECT count(*) FROM kept") == 0
        assert server.pid is not None
        os.kill(server.pid, signal.SIGQUIT)
        await _gone(server.pid)
    assert NOT_SHUT_DOWN not in log.read_text()[told:]
    async with started(tmp_path):
        assert NOT_SHUT_DOWN in log.read_text()[told:], "it would be told"


async def test_start_and_stop_may_be_called_twice(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path)
    await server.stop()
    await server.start()
    pid = server.pid
    await server.start()
    assert server.pid == pid
    await server.stop()
    await server.stop()
    assert server.pid is None


async def test_only_we_can_reach_the_socket_and_the_data(tmp_path: Path) -> None:
    async with started(tmp_path / "deeper" / "data") as server:
        data_dir = tmp_path / "deeper" / "data"
        assert {(data_dir / name).stat().st_mode & 0o777 for name in ("", "run", "postgresql")} == {0o700}
        assert await answer(server) == 42


async def test_a_path_with_odd_characters_or_too_long_for_a_socket_works(tmp_path: Path) -> None:
    async with started(tmp_path / 'it\'s a, "b" \\c') as server:
        assert await answer(server) == 42
    async with started(tmp_path / ("x" * 120)) as server:
        socket_dir = str(await answer(server, "SHOW unix_socket_directories")).strip('"')
        assert os.path.dirname(socket_dir) == tempfile.gettempdir()
    with pytest.raises(FileNotFoundError):
        os.stat(socket_dir)


async def test_it_comes_back_when_it_is_killed(tmp_path: Path, logged: Logged) -> None:
    async with asyncio.TaskGroup() as group, started(tmp_path) as server:
        group.create_task(server.supervise())
        for restarts in (1, 2):
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            await logged.wait_for("PostgreSQL restarted")
            assert (server.restarts, await answer(server)) == (restarts, 42)


async def test_it_comes_back_when_a_shutdown_waits_for_our_own_sessions(tmp_path: Path, logged: Logged) -> None:
    async with asyncio.TaskGroup() as group, started(tmp_path, stop_limit_s=0.5) as server:
        group.create_task(server.supervise())
        connection = await asyncpg.connect(server.dsn)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGTERM)
        await logged.wait_for("does not finish its shutdown")
        await logged.wait_for("PostgreSQL restarted")
        connection.terminate()
        assert await answer(server) == 42


async def test_it_comes_back_when_it_is_shut_down_while_it_recovers(tmp_path: Path, logged: Logged) -> None:
    async with asyncio.TaskGroup() as group, started(tmp_path, stop_limit_s=0.5) as server:
        group.create_task(server.supervise())
        connection = await asyncpg.connect(server.dsn)
        assert server.pid is not None
        os.kill(connection.get_server_pid(), signal.SIGKILL)
        await asyncio.to_thread(wait_for_line, tmp_path / "postgresql.log", "reinitializing")
        os.kill(server.pid, signal.SIGINT)
        await logged.wait_for("PostgreSQL restarted")
        connection.terminate()
        assert await answer(server) == 42


async def test_it_comes_back_when_the_last_backend_of_the_killed_one_is_gone(tmp_path: Path, logged: Logged) -> None:
    async with asyncio.TaskGroup() as group, started(tmp_path) as server:
        group.create_task(server.supervise())
        connection = await asyncpg.connect(server.dsn)
        backend = connection.get_server_pid()
        os.kill(backend, signal.SIGSTOP)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await logged.wait_for("waiting for the backends of a killed")
        os.kill(backend, signal.SIGCONT)
        await logged.wait_for("PostgreSQL restarted")
        connection.terminate()
        assert await answer(server) == 42


async def test_a_server_that_a_killed_broker_left_behind_is_replaced(tmp_path: Path) -> None:
    left_behind = EmbeddedPostgres(tmp_path)
    await left_behind.start()
    assert left_behind._lock_fd is not None
    os.close(left_behind._lock_fd)
    left_behind._lock_fd = None
    async with started(tmp_path) as server:
        assert await answer(server) == 42
    await left_behind.stop()


async def test_a_killed_broker_takes_its_server_along(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BROKER, str(tmp_path)]
    broker = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert broker.stdout is not None
    pid = int(await broker.stdout.readline())
    broker.kill()
    async with asyncio.timeout(60):
        await broker.wait()
        await _gone(pid)
    async with started(tmp_path) as server:
        assert await answer(server) == 42


async def test_a_stale_pid_file_that_names_somebody_else_is_no_obstacle(tmp_path: Path) -> None:
    async with started(tmp_path):
        pass
    (tmp_path / "postgresql" / "postmaster.pid").write_text(f"{os.getpid()}\n{tmp_path}/postgresql\n")
    async with started(tmp_path) as server:
        assert await answer(server) == 42


async def test_an_interrupted_first_start_is_made_again(tmp_path: Path) -> None:
    unfinished = tmp_path / "postgresql.new"
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18\n")
    async with started(tmp_path) as server:
        assert await answer(server) == 42


async def test_a_second_broker_on_the_folder_is_refused(tmp_path: Path) -> None:
    async with started(tmp_path):
        with pytest.raises(StoreError, match="another broker uses the data folder"):
            await EmbeddedPostgres(tmp_path).start()


async def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    cluster_dir = tmp_path / "postgresql"
    cluster_dir.mkdir()
    (cluster_dir / "PG_VERSION").write_text("17\n")
    with pytest.raises(StoreMismatch, match="written by PostgreSQL 17"):
        await EmbeddedPostgres(tmp_path).start()


async def test_a_folder_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot use the data folder"):
        await EmbeddedPostgres(tmp_path / "file" / "data").start()


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    async with started(tmp_path):
        pass
    (tmp_path / "postgresql" / "postgresql.auto.conf").write_text("shared_buffers = nonsense\n")
    with pytest.raises(StoreError, match=r"does not start: .*postgresql\.auto\.conf"):
        await EmbeddedPostgres(tmp_path).start()


@as_root
@pytest.mark.usefixtures("reachable_binaries")
def test_an_ordinary_user_can_run_it(open_dir: Path) -> None:
    os.chown(open_dir, NOBODY, NOBODY)
    # A fork has the modules already, which this user may not be able to read.
    process = multiprocessing.get_context("fork").Process(target=start_as_nobody, args=(open_dir,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert (open_dir / "postgresql" / "PG_VERSION").stat().st_uid == NOBODY


def start_as_nobody(data_dir: Path) -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    os.chdir("/")

    async def start_and_ask() -> None:
        async with started(data_dir) as server:
            assert await answer(server) == 42

    asyncio.run(start_and_ask())


@as_root
@pytest.mark.usefixtures("reachable_binaries")
async def test_root_without_user_namespaces_becomes_nobody(
    open_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(open_dir) as server:
        await answer(server, "CREATE TABLE kept ()")
    unshare = tmp_path / "unshare"
    unshare.write_text("#!/bin/sh\nexit 1\n")
    unshare.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        async with started(open_dir) as server:
            assert await answer(server, "SELECT count(*) FROM kept") == 0
            assert os.stat(f"/proc/{server.pid}").st_uid == NOBODY
            # The group of the unprivileged user may pass through the folder; all others may not even do that.
            assert stat.S_IMODE(os.stat(open_dir).st_mode) == 0o710
    async with started(open_dir) as server:
        assert await answer(server, "SELECT count(*) FROM kept") == 0
        assert stat.S_IMODE(os.stat(open_dir).st_mode) == 0o700


@as_root
async def test_root_in_a_folder_that_nobody_can_enter_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unshare = tmp_path / "unshare"
    unshare.write_text("#!/bin/sh\nexit 1\n")
    unshare.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    with pytest.raises(StoreError, match="run flyball as an ordinary user") as refused:
        await EmbeddedPostgres(private).start()
    assert "\n" not in str(refused.value)
