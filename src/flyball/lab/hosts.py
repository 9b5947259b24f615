"""Hosts for the lab's processes: this machine, or another one over ssh.

Starts processes with pipes and copies their files; independent of experiments.
"""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import os
import shlex
import shutil
import socket
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import parse_qsl, urlsplit

import flyball
from flyball.broker.transport.connection import is_loopback
from flyball.errors import LabError

CONNECT_LIMIT_S = 10
COMMAND_LIMIT_S = 60.0
VERSION_THERE = "import flyball; print(flyball.__version__)"
CLOCK_THERE = "import sys, time\nfor _ in sys.stdin: print(time.time(), flush=True)"
CLOCK_READINGS = 8
CLOCK_WARNING_S = 0.01
# With a larger difference, records of that machine are outside the measured time.
CLOCK_LIMIT_S = 1.0
SSH_FAILED = 255
PART_BYTES = 2**20


class Host(Protocol):
    """A machine that runs commands for the lab."""

    name: str
    # Address at which others connect to its servers.
    address: str
    # Address on which its servers listen for others.
    listens_on: str

    async def check(self) -> list[str]:
        """Raise LabError if the host cannot be used; return warnings otherwise."""
        ...

    async def make_folder(self) -> str:
        """Create an empty folder there and return its path."""
        ...

    async def start(self, module: str, folder: str, errors: IO[bytes]) -> asyncio.subprocess.Process:
        """Run a module of Flyball in the folder, with pipes for its input and output.

        The module must end when its input does, so that no process outlives the lab.
        """
        ...

    async def fetch(self, folder: str, into: Path) -> None:
        """Copy a folder's content from there to a local one. A missing folder counts as empty."""
        ...

    async def remove(self, folder: str) -> None:
        """Remove a folder there with its content."""
        ...


class ThisMachine:
    """Runs commands as processes of this machine."""

    name = "this machine"
    address = "127.0.0.1"
    listens_on = "127.0.0.1"

    async def check(self) -> list[str]:
        return []

    async def make_folder(self) -> str:
        return tempfile.mkdtemp(prefix="flyball-lab-")

    async def start(self, module: str, folder: str, errors: IO[bytes]) -> asyncio.subprocess.Process:
        return await _start([sys.executable, "-m", module], errors, folder)

    async def fetch(self, folder: str, into: Path) -> None:
        await asyncio.to_thread(_copy, Path(folder), into)

    async def remove(self, folder: str) -> None:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


class SshHost:
    """Runs commands on another machine with the system's ssh, which must work without prompts.

    `ssh://user@host:port?python=...&folder=...&address=...&config=...`: the interpreter that has Flyball there, the
    folder for temporary files, the address under which clients reach its nodes, and a configuration file for ssh.
    """

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        try:
            options = dict(parse_qsl(place.query, strict_parsing=bool(place.query)))
            port = place.port
        except ValueError as error:
            raise LabError(f"{url}: {error}") from None
        known = ("python", "folder", "address", "config")
        for key in options:
            if key not in known:
                raise LabError(f"{url}: no option {key!r}; there are {', '.join(known)}")
        if place.scheme != "ssh" or not place.hostname:
            raise LabError(f"{url}: give ssh://user@host:port")
        self.name = place.hostname if port is None else f"{place.hostname}:{port}"
        self.address = options.get("address", place.hostname)
        self.listens_on = self.address if is_loopback(self.address) else "0.0.0.0"
        self._python = options.get("python", "python3")
        self._folder = options.get("folder", "/tmp")
        self._ssh = ["ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_LIMIT_S}"]
        self._ssh += ["-o", "ServerAliveInterval=15"]
        self._ssh += ["-F", options["config"]] if "config" in options else []
        self._ssh += ["-p", str(port)] if port is not None else []
        self._ssh += [place.hostname if place.username is None else f"{place.username}@{place.hostname}", "--"]

    async def check(self) -> list[str]:
        version = (await self._run(self._python_there(VERSION_THERE))).decode().strip()
        if version != flyball.__version__:
            raise LabError(f"{self.name} has flyball {version}, this machine {flyball.__version__}: install the same")
        difference_s = await self._clock_difference_s()
        text = f"the clock of {self.name} differs by {difference_s:.2f} s"
        if difference_s > CLOCK_LIMIT_S:
            raise LabError(f"{text}: set it, with NTP for example")
        return [f"{text}: times of its traces do too"] if difference_s > CLOCK_WARNING_S else []

    async def _clock_difference_s(self) -> float:
        """Return the minimum difference between its clock and ours: an answer's age is unknown, but bounded."""
        process = await self._start_there(self._python_there(CLOCK_THERE))
        assert process.stdin is not None
        assert process.stdout is not None
        differences_s = []
        try:
            async with asyncio.timeout(COMMAND_LIMIT_S):
                for _ in range(CLOCK_READINGS):
                    asked_at = time.time()
                    process.stdin.write(b"\n")
                    its_time = float(await process.stdout.readline())
                    differences_s.append(max(asked_at - its_time, its_time - time.time(), 0.0))
        except (TimeoutError, ValueError, ConnectionError) as error:
            raise LabError(f"{self.name} did not report its time: {error}") from error
        finally:
            await _end(process)
        # The quickest answer has the smallest uncertainty, so the largest minimum is the best bound.
        return max(differences_s)

    async def make_folder(self) -> str:
        place = shlex.quote(f"{self._folder}/flyball-lab-XXXXXXXX")
        return (await self._run(f"mktemp -d {place}")).decode().strip()

    async def start(self, module: str, folder: str, errors: IO[bytes]) -> asyncio.subprocess.Process:
        command = f"cd {shlex.quote(folder)} && exec {shlex.quote(self._python)} -m {module}"
        return await self._start_there(command, errors)

    async def fetch(self, folder: str, into: Path) -> None:
        there = shlex.quote(folder)
        with tempfile.TemporaryFile() as packed:
            await self._receive(f"if [ -d {there} ]; then tar -C {there} -cf - .; fi", packed)
            if packed.tell():
                await asyncio.to_thread(_unpack, packed, into)

    async def remove(self, folder: str) -> None:
        await self._run(f"rm -rf {shlex.quote(folder)}")

    def _python_there(self, program: str) -> str:
        return f"{shlex.quote(self._python)} -c {shlex.quote(program)}"

    async def _start_there(
        self, command: str, errors: IO[bytes] | int = asyncio.subprocess.DEVNULL
    ) -> asyncio.subprocess.Process:
        try:
            return await _start([*self._ssh, command], errors)
        except FileNotFoundError:
            raise LabError(f"cannot reach {self.name}: there is no ssh on this machine; install it") from None

    async def _run(self, command: str) -> bytes:
        """Run a shell command there and return its output. Raises LabError."""
        process = await self._start_there(command, asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(COMMAND_LIMIT_S):
                output, errors = await process.communicate()
        except TimeoutError:
            raise LabError(f"{self.name}: no answer to {command!r} in {COMMAND_LIMIT_S:.0f} s") from None
        finally:
            await _end(process)
        self._check(process.returncode, errors)
        return output

    async def _receive(self, command: str, into: IO[bytes]) -> None:
        """Stream the output of a shell command there into a file. Raises LabError."""
        with tempfile.TemporaryFile() as errors:
            process = await self._start_there(command, errors)
            assert process.stdout is not None
            try:
                while True:
                    async with asyncio.timeout(COMMAND_LIMIT_S):
                        part = await process.stdout.read(PART_BYTES)
                    if not part:
                        break
                    await asyncio.to_thread(into.write, part)
                await process.wait()
            except TimeoutError:
                raise LabError(f"{self.name}: nothing more of {command!r} in {COMMAND_LIMIT_S:.0f} s") from None
            finally:
                await _end(process)
            errors.seek(0)
            self._check(process.returncode, errors.read())

    def _check(self, exit_code: int | None, errors: bytes) -> None:
        if exit_code == 0:
            return
        said = errors.decode(errors="replace").strip().splitlines() or [f"exit code {exit_code}"]
        if exit_code == SSH_FAILED:
            raise LabError(f"cannot reach {self.name}: {said[-1]}; make `ssh` log in without a prompt")
        raise LabError(f"{self.name}: {said[-1]}")


def host_at(url: str) -> Host:
    """Return the host for that address."""
    return SshHost(url)


def own_address_towards(host: Host) -> str:
    """Return this machine's address as seen from that host."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Connecting a UDP socket sends nothing; it only selects a route.
            probe.connect((host.address, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise LabError(f"no way to {host.name}: {error}") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


async def _start(
    command: Sequence[str], errors: IO[bytes] | int, folder: str | None = None
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=errors,
        cwd=folder,
        env=_environment(),
        limit=2**26,
        # Ctrl-C in the terminal is for the lab only, which then stops the others gracefully.
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    """Return this process's environment with absolute paths, for a process in another folder."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if folders := environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(folder) for folder in folders.split(os.pathsep))
    return environment


def _copy(folder: Path, into: Path) -> None:
    if folder.is_dir():
        shutil.copytree(folder, into, dirs_exist_ok=True)


def _unpack(packed: IO[bytes], into: Path) -> None:
    """Unpack files; skip anything else, and paths outside of the target folder."""
    packed.seek(0)
    root = into.resolve()
    root.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=packed) as archive:
        for member in archive:
            path = (root / member.name).resolve()
            content = archive.extractfile(member) if member.isfile() else None
            if content is None or not path.is_relative_to(root):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)
