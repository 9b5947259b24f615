"""Starts, stops and checks nodes with commands: ssh, systemd, kubectl, nomad and the like."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import string
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO
from urllib.parse import quote, unquote, urlsplit

from flyball.broker.cluster.provisioners.interface import Surroundings, check_node_name, checked_options
from flyball.broker.settings import HIDDEN
from flyball.errors import ClusterError

Template = str | Sequence[str]

# Exit codes of a command that could not run, or of ssh without a connection: the state of the node is unknown.
CANNOT_STATE = frozenset({126, 127, 255})

# Bytes read of a command's last output.
MAX_READ_BYTES = 1_000_000

# Characters of a failed command's output in error messages.
MAX_OUTPUT = 2000


class CommandTemplate:
    """Three commands with placeholders {name}, {handle} and {store}.

    A command is a string that is split into words as a shell does, or a list of words; a shell runs it only with
    `shell=True`. The last line that `start` prints is the handle; without output it is the node's name. `stop` exits
    with 0 on success, `alive` with 0 if the node runs; of `alive`, 126, 127 and 255 mean unknown and other codes not
    running. All get the name and the store in FLYBALL_NAME and FLYBALL_STORE as well: command lines are visible to
    all users of a machine.
    """

    @checked_options
    def __init__(
        self,
        surroundings: Surroundings,
        *,
        start: Template,
        stop: Template,
        alive: Template,
        shell: bool = False,
        time_limit_s: float = 60.0,
    ) -> None:
        if not time_limit_s > 0:
            raise ClusterError("time_limit_s must be above 0")
        self._surroundings = surroundings
        self._shell = shell
        self._time_limit_s = time_limit_s
        self._start = self._checked("start", start, {"name", "store"})
        self._stop = self._checked("stop", stop, {"name", "handle", "store"})
        self._alive = self._checked("alive", alive, {"name", "handle", "store"})

    async def start(self, name: str) -> str:
        check_node_name(name)
        outcome = await self._run(self._start, {"name": name})
        if outcome.code != 0:
            raise ClusterError(f"starting node {name} failed: {outcome.summary}")
        printed = outcome.output.splitlines()
        return _handle(name, printed[-1].strip() if printed else "")

    async def stop(self, handle: str) -> None:
        values = _values(handle)
        outcome = await self._run(self._stop, values)
        if outcome.code != 0:
            raise ClusterError(f"stopping node {values['name']} failed: {outcome.summary}")

    async def alive(self, handle: str) -> bool:
        values = _values(handle)
        outcome = await self._run(self._alive, values)
        if outcome.code in CANNOT_STATE or outcome.code < 0:
            raise ClusterError(f"checking node {values['name']} failed: {outcome.summary}")
        return outcome.code == 0

    def _checked(self, what: str, template: Template, known: set[str]) -> list[str]:
        """Return the words of a command with unfilled placeholders; for a shell it is one word."""
        if isinstance(template, str):
            try:
                words = [template] if self._shell else shlex.split(template)
            except ValueError as error:
                raise ClusterError(f"{what}: {error}: check the quotes") from None
        elif self._shell:
            raise ClusterError(f"{what}: with shell = true give one string, not a list")
        else:
            words = list(template)
        if not any(word.strip() for word in words):
            raise ClusterError(f"{what}: the command is empty")
        for word in words:
            _check_places(what, word, known)
        return words

    async def _run(self, words: Sequence[str], values: Mapping[str, str]) -> _Outcome:
        values = {**values, "store": self._surroundings.store_url}
        quoted = {key: shlex.quote(value) for key, value in values.items()} if self._shell else values
        command = [word.format_map(quoted) for word in words]
        if self._shell:
            command = ["/bin/sh", "-c", *command]
        shown = " ".join(words)
        environment = {**os.environ, "FLYBALL_NAME": values["name"], "FLYBALL_STORE": values["store"]}
        # Files, not pipes: a background process left by the command may hold its output open forever.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            code = await self._wait_for(shown, command, environment, output, errors)
            printed, complained = _text_of(output), _text_of(errors)
        # Remove the password before truncating: half of it would not be found.
        said = _without_password(complained or printed, values["store"])
        return _Outcome(code, printed, f"`{shown}` ended with", said[-MAX_OUTPUT:])

    async def _wait_for(
        self,
        shown: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: IO[bytes],
        errors: IO[bytes],
    ) -> int:
        """Run a command and return its exit code."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise ClusterError(f"cannot run `{shown}`: {error}") from error
        try:
            async with asyncio.timeout(self._time_limit_s):
                return await process.wait()
        except TimeoutError:
            raise ClusterError(f"`{shown}` timed out after {self._time_limit_s:g} s") from None
        finally:
            if process.returncode is None:
                await _kill(process)


@dataclass(slots=True, frozen=True)
class _Outcome:
    code: int
    output: str
    what: str
    said: str

    @property
    def summary(self) -> str:
        """Exit code and output, in one line."""
        return f"{self.what} {self.code}: {' '.join(self.said.split()) or 'no output'}"


def _text_of(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_READ_BYTES))
    return file.read(MAX_READ_BYTES).decode(errors="replace").strip()


def _without_password(said: str, store_url: str) -> str:
    """Remove the store's password: programs often print their arguments and environment."""
    password = unquote(urlsplit(store_url).password or "")
    for form in (urlsplit(store_url).password, password, quote(password, safe="")):
        said = said.replace(form, HIDDEN) if form else said
    return said


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill a command and all its child processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _check_places(what: str, word: str, known: set[str]) -> None:
    try:
        places = list(string.Formatter().parse(word))
    except ValueError as error:
        raise ClusterError(f"{what}: {error}: write {{{{ and }}}} for literal braces") from None
    for _, place, form, conversion in places:
        if place is not None and (place not in known or form or conversion):
            written = place + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
            names = ", ".join(f"{{{name}}}" for name in sorted(known))
            raise ClusterError(
                f"{what}: unknown placeholder {{{written}}}: use {names}, and {{{{ and }}}} for literal braces"
            )


def _handle(name: str, printed: str) -> str:
    return f"{name} {printed or name}"


def _values(handle: str) -> dict[str, str]:
    name, space, rest = handle.partition(" ")
    if not space or not rest:
        raise ClusterError(f"{handle!r} is not a handle of a node started by a command")
    return {"name": name, "handle": rest}
