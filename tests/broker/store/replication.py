"""A PostgreSQL with a streaming replica, which a test cuts off and promotes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg

from flyball.broker.store.postgres.launcher import Launcher, environment, find_launcher

LIMIT_S = 60.0

CONFIGURATION = """
listen_addresses = ''
unix_socket_directories = '{socket_dir}'
dynamic_shared_memory_type = posix
max_connections = 40
shared_buffers = 16MB
wal_level = replica
max_wal_senders = 4
hot_standby = on
wal_receiver_status_interval = 1s
"""


class Server:
    """One PostgreSQL server in a folder."""

    def __init__(self, folder: Path, launcher: Launcher) -> None:
        self.cluster_dir = folder / "cluster"
        self.socket_dir = folder / "run"
        self._launcher = launcher
        self._log_path = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        self.socket_dir.mkdir()
        launcher.own(self.socket_dir)

    async def run(self, program: str, *arguments: str) -> None:
        command = [*self._launcher.command(program), *arguments]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, env=environment())
        assert await process.wait() == 0, command

    def _launch(self) -> subprocess.Popen[bytes]:
        (self.cluster_dir / "postgresql.conf").write_text(CONFIGURATION.format(socket_dir=self.socket_dir))
        command = [*self._launcher.command("postgres", follows_parent=True), "-D", str(self.cluster_dir)]
        with self._log_path.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment())

    async def start(self) -> None:
        self._process = self._launch()
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    await self.fetch("SELECT 1")
                    return
                except (OSError, asyncpg.PostgresError):
                    assert self._process.poll() is None, self._log_path.read_text()

    def kill(self) -> None:
        """End it as a crash of its machine would, as far as clients can see."""
        if self._process is not None:
            # Backends that were killed with it would leave shared memory behind.
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    async def fetch(self, statement: str, *arguments: object) -> Any:
        connection = await asyncpg.connect(host=str(self.socket_dir), user="postgres", database="postgres")
        try:
            return await connection.fetchval(statement, *arguments)
        finally:
            await connection.close()


class Pair:
    """A primary and its replica. Clients are given both, and use the one that takes writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.primary: Server
        self.replica: Server

    async def start(self) -> None:
        launcher = await find_launcher(self._folder)
        self.primary, self.replica = Server(self._folder / "a", launcher), Server(self._folder / "b", launcher)
        for server in (self.primary, self.replica):
            server.cluster_dir.mkdir(mode=0o700)
            launcher.own(server.cluster_dir)
        await self.primary.run(
            "initdb",
            "-D",
            str(self.primary.cluster_dir),
            "-U",
            "postgres",
            "--auth=trust",
            "--no-locale",
            "-E",
            "UTF8",
        )
        await self.primary.start()
        source = ["-h", str(self.primary.socket_dir), "-U", "postgres", "-D", str(self.replica.cluster_dir)]
        await self.replica.run("pg_basebackup", *source, "-R", "-c", "fast", "-X", "stream")
        await self.replica.start()

    def stop(self) -> None:
        self.primary.kill()
        self.replica.kill()

    @property
    def url(self) -> str:
        hosts = ",".join(quote(str(server.socket_dir), safe="") for server in (self.primary, self.replica))
        return f"postgresql://postgres@/postgres?host={hosts}&port=5432,5432&target_session_attrs=read-write"

    async def catch_up(self) -> None:
        """Return when the replica has everything that the primary has."""
        position = await self.primary.fetch("SELECT pg_current_wal_flush_lsn()::text")
        async with asyncio.timeout(LIMIT_S):
            while not await self.replica.fetch("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", position):
                continue

    async def cut(self) -> None:
        """Keep the replica from receiving more: it lags behind from now on."""
        await self.replica.fetch("ALTER SYSTEM SET primary_conninfo = ''")
        await self.replica.fetch("SELECT pg_reload_conf()")
        async with asyncio.timeout(LIMIT_S):
            while await self.replica.fetch("SELECT count(*) FROM pg_stat_wal_receiver"):
                continue

    async def fail_over(self) -> None:
        self.primary.kill()
        await self.replica.fetch("SELECT pg_promote()")
