"""The node that is fuzzed: `flyball serve` as a process, its log and its memory."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import psutil

from bench.fuzz.amqp import PASSWORD, USER, VHOST
from flyball.broker.store.postgres.embedded import EmbeddedPostgres

ADMINISTRATOR = "guest", "guest"
# The names of the queues with the first ids, and how many there are: no flipped bit makes a small id one beyond them.
FENCE = "fence"
FENCE_QUEUES = 310
LISTENERS = ("amqp", "telesto", "thorbang", "http")
MEMORY_BYTES = 64 << 20
RESIDENT_BYTES = 32 << 20
REQUEST_S = 30.0
STOP_S = 60.0

_FRAME_LINE = re.compile(r'File "([^"]+)", line \d+, in (\S+)')
_ERROR_LINE = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)")


_CHAINED = "During handling of the above exception", "The above exception was the direct cause"


class NodeEnded(Exception):
    """The process has ended by itself, or never served."""


class FuzzedNode:
    """A node on free ports of the loopback address."""

    def __init__(self, data: Path, store: str) -> None:
        self.data = data
        self.log_path = data.with_suffix(".log")
        self._store = store
        self._process: subprocess.Popen[str] | None = None
        self._log_at = 0
        self._unfinished = ""
        self.addresses: dict[str, tuple[str, int]] = {}

    def start(self) -> None:
        """Start it and return when it serves. Raises NodeEnded with its last words."""
        command = [sys.executable, "-m", "flyball", "serve", "--data", str(self.data), "--store", self._store]
        for name in LISTENERS:
            command += [f"--{name}", "127.0.0.1:0"]
        command += ["--memory-bytes", str(MEMORY_BYTES), "--resident-bytes", str(RESIDENT_BYTES), "--trace", "off"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FLYBALL_")}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            name, _, address = line.strip().partition(" on ")
            host, _, port = address.rpartition(":")
            if port.isdigit():
                self.addresses[name] = host, int(port)
            if line.startswith("ready"):
                return
        self._process.wait()
        raise NodeEnded(f"the node did not start: {self.log_path.read_text()[-2000:]}")

    def stop(self) -> int:
        """Stop it with SIGTERM, or with SIGKILL if that takes too long; return its exit code."""
        process = self._process
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self._forget()
        return code

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def _forget(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def rss_bytes(self) -> int:
        """The resident memory of the node, without PostgreSQL's; 0 if it is gone."""
        try:
            return 0 if self._process is None else int(psutil.Process(self._process.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def new_tracebacks(self, *, is_over: bool = False) -> list[str]:
        """Return the tracebacks that were logged since the last call; the last one is only sure when all is over."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_at)
            data = log.read()
        self._log_at += len(data)
        end = "\nthe end\n" if is_over or not data else ""
        found, self._unfinished = tracebacks_in(self._unfinished + data.decode("utf-8", "replace") + end)
        return found

    async def secret(self) -> bytes:
        """Return the secret of its domain: a link is nothing without it."""
        if self._store != "embedded":
            return b""
        connection = await asyncpg.connect(EmbeddedPostgres(self.data).dsn)
        try:
            return bytes(await connection.fetchval("SELECT secret FROM flyball.domain"))
        finally:
            await connection.close()

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the HTTP API as administrator; return the JSON of the answer, None if there is none."""
        connection = http.client.HTTPConnection(*self.addresses["http"], timeout=REQUEST_S)
        headers = {"Authorization": "Basic " + b64encode(":".join(ADMINISTRATOR).encode()).decode()}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
            return json.loads(text) if text and response.status < 300 else None
        finally:
            connection.close()

    def fence(self) -> None:
        """Declare queues whose ids fuzzed clients use, so that the bystander's is none of those."""
        limit = {"x-max-length": 100}
        queues = [
            {"name": f"{FENCE}{number}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": limit}
            for number in range(FENCE_QUEUES)
        ]
        self.request("POST", "/api/definitions", {"queues": queues})

    def prepare(self) -> None:
        """Have the user and the virtual host that fuzzed clients work in."""
        self.request("PUT", f"/api/vhosts/{VHOST}", {})
        self.request("PUT", f"/api/users/{USER}", {"password": PASSWORD, "tags": "administrator"})
        every = {"configure": ".*", "write": ".*", "read": ".*"}
        for vhost in (VHOST, "%2F"):
            self.request("PUT", f"/api/permissions/{vhost}/{USER}", every)

    def tidy(self) -> None:
        """Remove what fuzzed clients have left, so that definitions do not pile up; the first queues stay."""
        for vhost in self.request("GET", "/api/vhosts?columns=name") or []:
            if vhost["name"] not in ("/", "bystander"):
                self.request("DELETE", f"/api/vhosts/{quote(vhost['name'], safe='')}")
        for queue in self.request("GET", "/api/queues/%2F?columns=name") or []:
            if not queue["name"].startswith(FENCE):
                self.request("DELETE", f"/api/queues/%2F/{quote(queue['name'], safe='')}")
        self.prepare()


def tracebacks_in(text: str) -> tuple[list[str], str]:
    """Return the whole tracebacks of a piece of a log, chained ones as one, and what may be the beginning of one."""
    found: list[str] = []
    current: list[str] = []
    # Whether the error itself has been read: what follows is another entry, unless it is an error of its handling.
    is_whole = False
    lines = text.split("\n")
    for line in lines[:-1]:
        if is_whole and line and not line.startswith(_CHAINED):
            found.append("\n".join(current))
            current = []
            is_whole = False
        if not current and not line.endswith("Traceback (most recent call last):"):
            continue
        current.append(line)
        is_inner = not line or line.startswith((" ", "\t", "Traceback (", *_CHAINED))
        is_whole = not is_inner or (is_whole and not line)
    return found, "\n".join([*current, lines[-1]])


def signature_of(traceback: str) -> str:
    """Return what distinguishes one kind of crash from another: the error's type and where it was raised."""
    frames = _FRAME_LINE.findall(traceback)[-3:]
    errors = [found[1] for line in traceback.splitlines() if (found := _ERROR_LINE.match(line.lstrip("|+-")))]
    places = [f"{Path(file).name}:{function}" for file, function in frames]
    return " < ".join([errors[-1] if errors else "error", *reversed(places)])


def short_of(signature: str) -> str:
    """Return a name for a file."""
    return hashlib.sha256(signature.encode()).hexdigest()[:10]
