"""Starts nodes as processes of this machine, each with ports that the system chooses and its own data folder.

They outlive the node that started them: another one may lead the domain by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from flyball.broker.cluster.provisioners.interface import Surroundings, check_node_name, checked_options
from flyball.broker.node.logs import MAX_FILE_BYTES
from flyball.errors import ClusterError
from flyball.files import make_private_folder

# Poll interval for the log of a starting node: the node outlives this process, so there is no pipe.
POLL_S = 0.05

# Start of the line that a node prints when it serves.
READY = "ready"

EPHEMERAL = "127.0.0.1:0"


class LocalProcesses:
    """Runs `flyball serve` for each node, in `nodes/NAME` below the data folder of the node that starts it."""

    @checked_options
    def __init__(
        self,
        surroundings: Surroundings,
        *,
        arguments: Sequence[str] = (),
        start_limit_s: float = 60.0,
        stop_limit_s: float = 30.0,
        program: Sequence[str] = (sys.executable, "-m", "flyball", "serve"),
    ) -> None:
        """`arguments` are additional flags of `flyball serve`; they override the shared ones."""
        self._surroundings = surroundings
        self._arguments = tuple(arguments)
        self._start_limit_s = start_limit_s
        self._stop_limit_s = stop_limit_s
        self._program = tuple(program)

    async def start(self, name: str) -> str:
        """Start a node and return when it is ready."""
        check_node_name(name)
        folder = self._surroundings.data.absolute() / "nodes" / name
        log_path = folder / "node.log"
        try:
            make_private_folder(folder)
            log_start = _end_of_log(log_path)
            pid = self._spawn(name, folder, log_path)
        except OSError as error:
            raise ClusterError(f"cannot start node {name}: {error}") from error
        process = _Process.of(pid)
        try:
            await self._wait_until_ready(name, process, log_path, log_start)
        except BaseException:
            await self._end(process)
            raise
        return str(process)

    async def stop(self, handle: str) -> None:
        await self._end(_Process.parse(handle))

    async def alive(self, handle: str) -> bool:
        return _Process.parse(handle).is_alive()

    def _spawn(self, name: str, folder: Path, log_path: Path) -> int:
        flags = ["--config", os.devnull, "--name", name, "--data", str(folder), "--log-file", str(log_path)]
        for listener in ("amqp", "http"):
            flags += [f"--{listener}", EPHEMERAL]
        command = [*self._program, *flags, *self._surroundings.flags, *self._arguments]
        # The node gets its own settings only, not this node's environment. The store URL goes through the
        # environment, since command lines are visible to all users and it may contain a password.
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FLYBALL_")}
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log_path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        # A new session: Ctrl-C in this terminal must not reach it.
        environment = {**kept, "FLYBALL_STORE": self._surroundings.store_url}
        return os.posix_spawnp(command[0], command, environment, file_actions=files, setsid=True)

    async def _wait_until_ready(self, name: str, process: _Process, log_path: Path, log_start: int) -> None:
        try:
            async with asyncio.timeout(self._start_limit_s):
                while not any(line.startswith(READY) for line in _said(log_path, log_start)):
                    if not process.is_alive():
                        said = _said(log_path, log_start) or ["no output"]
                        problem = said[-1].removeprefix("flyball: ")
                        raise ClusterError(f"starting node {name} failed: {problem} (see {log_path})")
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise ClusterError(
                f"node {name} is not ready after {self._start_limit_s:.0f} s: see {log_path}"
            ) from None

    async def _end(self, process: _Process) -> None:
        for number, limit_s in ((signal.SIGTERM, self._stop_limit_s), (signal.SIGKILL, 5.0)):
            with process.opened() as pid_fd:
                if pid_fd is None:
                    return
                signal.pidfd_send_signal(pid_fd, number)
                # A stopped process handles SIGTERM only after SIGCONT.
                signal.pidfd_send_signal(pid_fd, signal.SIGCONT)
                if await _exited(pid_fd, limit_s):
                    process.reap()
                    return
        raise ClusterError(f"process {process.pid} does not end: see `ps {process.pid}`")


@dataclass(slots=True, frozen=True)
class _Process:
    """A process on some machine. Pids are reused, so the start time distinguishes it from later ones."""

    machine: str
    boot: str
    pid: int
    started_ticks: int

    @classmethod
    def of(cls, pid: int) -> Self:
        """Describe a child process; its pid cannot be reused before it is reaped."""
        found = _started_ticks(pid)
        assert found is not None
        return cls(socket.gethostname(), _boot(), pid, found)

    @classmethod
    def parse(cls, handle: str) -> Self:
        try:
            machine, boot, pid, started_ticks = handle.split("/")
            return cls(machine, boot, int(pid), int(started_ticks))
        except ValueError:
            raise ClusterError(f"{handle!r} is not a handle of a local process") from None

    def __str__(self) -> str:
        return f"{self.machine}/{self.boot}/{self.pid}/{self.started_ticks}"

    def is_alive(self) -> bool:
        with self.opened() as pid_fd:
            return pid_fd is not None

    @contextlib.contextmanager
    def opened(self) -> Iterator[int | None]:
        """Hold a pidfd of the process, so that its pid cannot be reused meanwhile; None if it has ended."""
        if self.machine != socket.gethostname():
            raise ClusterError(
                f"process {self.pid} runs on machine {self.machine} and can be checked and stopped only there"
            )
        self.reap()
        try:
            pid_fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            is_same = self.boot == _boot() and self.started_ticks == _started_ticks(self.pid)
            yield pid_fd if is_same and not _has_exited(self.pid) else None
        finally:
            os.close(pid_fd)

    def reap(self) -> None:
        """Reap the process if it is a child of ours and has ended, so that it does not stay a zombie."""
        if self.boot == _boot() and self.started_ticks == _started_ticks(self.pid):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)


def _boot() -> str:
    """Return the boot id: after a reboot the same pid means another process."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    # The second field is the program's name, which may contain anything, even parentheses.
    return text.rpartition(")")[2].split()


def _started_ticks(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _has_exited(pid: int) -> bool:
    fields = _stat(pid)
    return not fields or fields[0] in ("Z", "X")


async def _exited(pid_fd: int, limit_s: float) -> bool:
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    loop.add_reader(pid_fd, exited.set)
    try:
        async with asyncio.timeout(limit_s):
            await exited.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pid_fd)
    return True


def _end_of_log(log_path: Path) -> int:
    """Return the offset at which the log of the next node starts: after earlier output, unless the file is long.

    The file must not be rotated while the node starts, since its output is searched from this offset.
    """
    if not log_path.exists():
        return 0
    if log_path.stat().st_size > MAX_FILE_BYTES // 2:
        log_path.replace(log_path.with_suffix(".log.1"))
        return 0
    return log_path.stat().st_size


def _said(log_path: Path, start: int) -> list[str]:
    """Return the lines of a log from an offset."""
    with log_path.open("rb") as log_file:
        log_file.seek(start)
        return log_file.read().decode("utf-8", "replace").strip().splitlines()
