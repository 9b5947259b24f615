"""Runs one node for the lab, on any host: `python -m flyball.lab.node_agent`.

The first line of its standard input describes the node; on its standard output it reports where the node listens, its
resource usage on request, and its death. When its input ends, the node is stopped gracefully: no node outlives the
lab. Independent of experiments.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

import flyball
from flyball.errors import LabError
from flyball.lab.rabbitmq import RabbitMqFailed, rabbitmq

SHOWN_LINES = 8
STOP_LIMIT_S = 60.0


# Returns when the node has ended.
Wait = Callable[[], object]


class Server:
    """A running node: its process and addresses."""

    def __init__(
        self,
        process: psutil.Process,
        wait: Wait,
        version: str,
        addresses: dict[str, tuple[str, int]],
        store: str = "",
    ) -> None:
        self.process = process
        # Its address, if it is a store.
        self.store = store
        self.wait = wait
        self.version = version
        self.addresses = addresses

    def usage(self) -> dict[str, object]:
        """Return the CPU time of the node and of its store, and the peak memory of both."""
        own = self.process.cpu_times()
        store_cpu_s = own.children_user + own.children_system
        # The kernel's peak for the node; for the store PSS, since a plain sum would count shared memory several
        # times.
        memory_bytes = _peak_bytes(self.process.pid)
        for child in self.process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                # Including ended children, as PostgreSQL's workers.
                store_cpu_s += sum(child.cpu_times()[:4])
                memory_bytes += child.memory_full_info().pss
        return {"cpu_s": own.user + own.system, "store_cpu_s": store_cpu_s, "peak_bytes": memory_bytes}


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


@contextmanager
def _flyball_node(assignment: dict[str, Any], folder: Path) -> Iterator[Server]:
    """Run `flyball serve` on free ports with its data below the folder."""
    listener = f"{assignment['listens_on']}:0"
    command = [sys.executable, "-m", "flyball", "serve", "--name", assignment["name"], "--data", str(folder / "data")]
    # Ignore the settings of a service on this machine.
    command += ["--config", os.devnull]
    for protocol in ("amqp", "telesto", "thorbang"):
        command += [f"--{protocol}", listener]
    # No console is open during the measurement.
    for name, value in {"http": "off", **assignment["settings"]}.items():
        command += _flag(name, value)
    # In the environment: the store's address may contain a password, and any user can list processes.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLYBALL_")}
    environment["FLYBALL_STORE"] = assignment["store"]
    with _started(command, folder, assignment["name"], environment) as server:
        yield server


@contextmanager
def _domain_node(assignment: dict[str, Any], folder: Path) -> Iterator[Server]:
    """Run a node of a domain, which may start others; those are ended with it."""
    flags = [part for name, value in assignment["settings"].items() for part in _flag(name, value)]
    provisioners = folder / "provisioners.toml"
    arguments = json.dumps([*_flag("thorbang", "127.0.0.1:0"), *flags])
    provisioners.write_text(f'[lab]\nkind = "local"\narguments = {arguments}\n', encoding="utf-8")
    own = {"http": f"{assignment['listens_on']}:0", "provisioners": str(provisioners)}
    started: list[psutil.Process] = []
    try:
        with _flyball_node({**assignment, "settings": {**assignment["settings"], **own}}, folder) as server:
            try:
                yield server
            finally:
                started = server.process.children(recursive=True)
    finally:
        # Not before: it would replace them.
        _end_all(started)


def _end_all(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    for process in psutil.wait_procs(processes, STOP_LIMIT_S)[1]:
        with contextlib.suppress(psutil.Error):
            process.kill()


@contextmanager
def _domain_store(assignment: dict[str, Any], folder: Path) -> Iterator[Server]:
    """Run the store that the nodes of a domain share."""
    command = [sys.executable, "-m", "flyball", "store", "--data", str(folder / "data")]
    with _started(command, folder, assignment["name"], dict(os.environ)) as server:
        yield server


@contextmanager
def _auction_site(assignment: dict[str, Any], folder: Path) -> Iterator[Server]:
    """Run an auction site on a free port with its data below the folder."""
    command = [sys.executable, "-m", "flyball.lab.auction"]
    settings = {**assignment, "folder": str(folder / "data")}
    with _started(command, folder, assignment["name"], dict(os.environ), json.dumps(settings)) as server:
        yield server


@contextmanager
def _started(
    command: list[str], folder: Path, name: str, environment: dict[str, str], text: str = ""
) -> Iterator[Server]:
    """Run a command of Flyball that prints its addresses, with `text` as its input, until the context ends."""
    log_path = folder / "logs" / f"{name}.log"
    log_path.parent.mkdir(exist_ok=True)
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin as words:
                words.write(text)
            said = _read_until_ready(process)
            if said is None:
                process.wait()
                raise LabError(f"the node does not start: {last_words(folder)}")
            addresses, store = _addresses_in(said), _store_in(said)
            yield Server(psutil.Process(process.pid), process.wait, flyball.__version__, addresses, store)
        finally:
            _stop(process)
            process.stdout.close()


def _flag(name: str, value: object) -> list[str]:
    return ["--" + name.replace("_", "-"), _flag_text(value)]


def _flag_text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _read_until_ready(process: subprocess.Popen[str]) -> list[str] | None:
    """Return the process's output until it is ready, None if it ends before."""
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        if line.startswith("ready"):
            return said
        said.append(line.strip())
    return None


def _addresses_in(said: list[str]) -> dict[str, tuple[str, int]]:
    """Return a node's addresses from its output, by protocol."""
    addresses: dict[str, tuple[str, int]] = {}
    for line in said:
        found = re.fullmatch(r"(\w+) on (.+):([0-9]+)", line)
        if found is not None:
            addresses[found[1]] = (found[2].strip("[]"), int(found[3]))
    return addresses


def _store_in(said: list[str]) -> str:
    """Return the address of a store for nodes, empty if the output has none."""
    found = (re.search(r"--store '([^']+)'", line) for line in said)
    return next((match[1] for match in found if match is not None), "")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _rabbitmq_node(assignment: dict[str, Any], folder: Path) -> Iterator[Server]:
    try:
        with rabbitmq(folder / "data", conf_of(assignment["settings"])) as server:
            yield Server(server.process, server.process.wait, server.version, {"amqp": (server.host, server.port)})
    except RabbitMqFailed as error:
        raise LabError(str(error)) from error


def conf_of(settings: Mapping[str, Any], prefix: str = "") -> str:
    """Return settings, by dotted names or in tables, as lines of a rabbitmq.conf."""
    text = ""
    for name, value in settings.items():
        if isinstance(value, dict):
            text += conf_of(value, f"{prefix}{name}.")
        else:
            text += f"{prefix}{name} = {str(value).lower() if isinstance(value, bool) else value}\n"
    return text


_KINDS = {
    "flyball": _flyball_node,
    "domain": _domain_node,
    "store": _domain_store,
    "rabbitmq": _rabbitmq_node,
    "auction": _auction_site,
}


def last_words(folder: Path) -> str:
    """Return the last lines of the node's log, in one line."""
    lines: list[str] = []
    for path in sorted(folder.glob("logs/*.log")) or sorted(folder.glob("data/log/*.log")):
        lines += path.read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-SHOWN_LINES:]) or "it has logged nothing"


def _say(event: str, **facts: object) -> None:
    # One write: the thread that watches the node writes too.
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def _watch(server: Server, folder: Path, is_over: threading.Event) -> None:
    """Report when the node ends without being stopped."""
    with contextlib.suppress(psutil.Error):
        server.wait()
    if not is_over.is_set():
        _say("failed", reason=f"the node has died: {last_words(folder)}")


def main() -> int:
    """Run the node that the first line of the input describes until the input ends; return the exit code."""
    folder = Path.cwd()
    line = sys.stdin.readline()
    if not line:
        return 1
    assignment = json.loads(line)
    is_over = threading.Event()
    try:
        with _KINDS[assignment["kind"]](assignment, folder) as server:
            watch = threading.Thread(target=_watch, args=(server, folder, is_over), daemon=True)
            watch.start()
            _say("ready", version=server.version, addresses=server.addresses, store=server.store)
            for _ in sys.stdin:
                # The watching thread reports a node that has just died.
                with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                    _say("usage", **server.usage())
            is_over.set()
    except LabError as error:
        _say("failed", reason=str(error))
        return 1
    return 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
