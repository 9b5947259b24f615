"""A child process of the lab that exchanges JSON lines with it over standard input and output.

Sends such a process commands, watches it and ends it; independent of its task.
"""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flyball.errors import LabError
from flyball.lab.hosts import Host

SHOWN_LINES = 5

Event = dict[str, Any]


class Peer:
    """One such process. It is ended when its context is left, also after an error."""

    def __init__(self, name: str, host: Host, module: str, folder: str, log: Path, end_limit_s: float) -> None:
        self.name = name
        self.host = host
        # Its working directory on its host.
        self.folder = folder
        self._module = module
        self._log = log
        self._end_limit_s = end_limit_s
        self._process: asyncio.subprocess.Process | None = None
        self._silence_s: float | None = None
        self._reading: asyncio.Timeout | None = None
        self._is_to_end = False

    async def __aenter__(self) -> Self:
        with self._log.open("wb") as errors:
            self._process = await self.host.start(self._module, self.folder, errors)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.end()

    def expect_news(self, within_s: float | None) -> None:
        """Fail from now on after this time without output; None allows any silence."""
        self._silence_s = within_s
        if self._reading is not None:
            self._reading.reschedule(self._deadline())

    def _deadline(self) -> float | None:
        return None if self._silence_s is None else asyncio.get_running_loop().time() + self._silence_s

    async def send(self, command: dict[str, object]) -> None:
        """Send a line. `listen` detects a process that has ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            return

    async def listen(self, handle: Callable[[Event], None]) -> None:
        """Pass its events to `handle` until it ends gracefully. Raises LabError if it fails, falls silent or dies."""
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._next_line(self._process.stdout):
            try:
                event = json.loads(line)
            except ValueError:
                raise LabError(f"{self.name} printed a line that is not JSON: {line[:200]!r}") from None
            if event["event"] == "failed":
                raise LabError(f"{self.name}: {event['reason']}")
            handle(event)
        code = await self._process.wait()
        if code != 0 or not self._is_to_end:
            raise LabError(f"{self.name} ended too early with exit code {code}{self._last_words()}")

    async def _next_line(self, output: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout_at(self._deadline()) as self._reading:
                return await output.readline()
        except TimeoutError:
            raise LabError(f"{self.name} sent no output for {self._silence_s:.1f} s") from None
        finally:
            self._reading = None

    def may_end(self) -> None:
        """Allow it to end without a request from now on."""
        self._is_to_end = True

    async def end(self) -> None:
        """Close its input, which ends it; kill it if it exceeds its time limit. May be called twice."""
        process = self._process
        if process is None:
            return
        self._is_to_end = True
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(self._end_limit_s):
                await process.wait()
        except TimeoutError:
            pass
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return ": " + " | ".join(lines[-SHOWN_LINES:]) if lines else ""
