"""`flyball store`, as a process: nodes share it, and nothing is lost when it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import uvloop

BIN = Path(sys.executable).parent
LIMIT_S = 60


class RunningStore:
    """The process, and the address that it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        said = [self._line() for _ in range(3)]
        found = re.search(r"--store '([^']+)'", said[1])
        assert found is not None, said
        assert said[2] == "ready; press Ctrl-C to stop\n"
        self.url = found[1]

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def execute(self, *statements: str) -> object:
        """Return the first value of what the last statement finds."""

        async def run() -> object:
            connection = await asyncpg.connect(self.url)
            try:
                for statement in statements[:-1]:
                    await connection.execute(statement)
                return await connection.fetchval(statements[-1])
            finally:
                await connection.close()

        return uvloop.run(run())

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, errors


@contextmanager
def running_store(data: Path, *flags: str) -> Iterator[RunningStore]:
    with subprocess.Popen(
        [BIN / "flyball", "store", "--data", str(data), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield RunningStore(process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=LIMIT_S)


def test_what_was_written_is_there_after_ctrl_c_and_after_sigterm(tmp_path: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with running_store(tmp_path) as store:
            store.execute("CREATE TABLE IF NOT EXISTS kept (value int)", "INSERT INTO kept VALUES (1)")
            assert store.end(number) == (0, "stopping\n", "")
    with running_store(tmp_path) as store:
        assert store.execute("SELECT count(*) FROM kept") == 2


def test_a_database_that_dies_comes_back_at_the_same_address(tmp_path: Path) -> None:
    with running_store(tmp_path, "--connections", "30") as store:
        assert store.execute("SHOW max_connections") == "30"
        pid = int((tmp_path / "postgresql" / "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, signal.SIGKILL)
        assert store.process.stderr is not None
        while "PostgreSQL restarted" not in (line := store.process.stderr.readline()):
            assert line, "it has ended"
        assert store.execute("SELECT 1") == 1


def test_a_folder_in_use_is_one_line_that_says_so(tmp_path: Path) -> None:
    with running_store(tmp_path):
        second = subprocess.run(
            [BIN / "flyball", "store", "--data", str(tmp_path)], capture_output=True, text=True, timeout=LIMIT_S
        )
    assert second.returncode == 1
    assert second.stdout == ""
    assert second.stderr == (
        f"flyball: the store failed: another broker uses the data folder {tmp_path}. Check --data.\n"
    )


def test_a_node_works_with_the_store(tmp_path: Path) -> None:
    with running_store(tmp_path / "store") as store:
        listeners = [
            flag for name in ("amqp", "telesto", "thorbang", "http") for flag in (f"--{name}", "127.0.0.1:0")
        ]
        command = [BIN / "flyball", "serve", "--store", store.url, "--data", str(tmp_path / "node"), *listeners]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
            assert node.stdout is not None
            while "ready" not in (line := node.stdout.readline()):
                assert line, "it has ended"
            node.send_signal(signal.SIGTERM)
            node.communicate(timeout=LIMIT_S)
        assert node.returncode == 0
