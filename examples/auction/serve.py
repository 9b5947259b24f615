"""Runs the auction site until a signal to stop: its own PostgreSQL, filled with data, and the HTTP server.

The caller is notified of its address. `policies` defines the admission policy and its records.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn

from flyball.admission.keys import starlette_key
from flyball.admission.recording import Recording
from flyball.admission.sensors.psycopg import PsycopgSensor
from flyball.errors import LabError
from flyball.lab.auction.database import make_pool, running_database
from flyball.lab.auction.generate import generate
from flyball.lab.auction.policies import guarded
from flyball.lab.auction.settings import SiteSettings
from flyball.lab.auction.site import make_site

# Length of the listen queue: more than the number of visitors in any experiment.
BACKLOG = 4096
# Database connections in addition to the pool's.
SPARE_CONNECTIONS = 10
# Time for requests in flight to finish when the site stops.
FAREWELL_S = 1

# Called with the current step and its completed share.
OnProgress = Callable[[str, float], None]


class _Server(uvicorn.Server):
    """Reports when it listens, and leaves signals to `serve`: records must be written before the process ends."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    folder: Path,
    name: str,
    settings: SiteSettings,
    host: str,
    port: int,
    ready: Callable[[str, int], None],
    tell: OnProgress,
) -> None:
    """Serve the site until SIGINT or SIGTERM. Data, traces and logs are below the folder.

    `ready` is called with its address as soon as it listens. Raises LabError if the address is not available.
    """
    listener = _listener(host, port)
    with contextlib.closing(listener):
        async with running_database(folder, connections=settings.pool_size + SPARE_CONNECTIONS) as dsn:
            await generate(dsn, settings.sizes, settings.data_seed, tell)
            async with _recording(folder / "traces", name) as recording:
                await _serve_site(dsn, settings, recording, listener, ready)


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise LabError(f"cannot listen on {host}:{port}: {error.strerror}; give another --port") from error
    return listener


@asynccontextmanager
async def _recording(folder: Path, name: str) -> AsyncIterator[Recording]:
    recording = Recording(folder, name)
    recording.start()
    try:
        yield recording
    finally:
        recording.stop()


async def _serve_site(
    dsn: str, settings: SiteSettings, recording: Recording, listener: socket.socket, ready: Callable[[str, int], None]
) -> None:
    pool = make_pool(dsn, settings.pool_size, settings.pool_wait_s)
    sensor = PsycopgSensor()
    sensor.watch(pool)
    site = make_site(pool)
    made = guarded(site, starlette_key(site), sensor, settings, recording)
    config = uvicorn.Config(
        made.app,
        log_level="warning",
        access_log=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=FAREWELL_S,
        **made.server_options,
    )
    server = _Server(config, lambda: ready(*listener.getsockname()[:2]))
    with _ending(server):
        if made.sampler is not None:
            made.sampler.start()
        try:
            await server.serve([listener])
        finally:
            if made.sampler is not None:
                made.sampler.stop()


@contextmanager
def _ending(server: uvicorn.Server) -> Iterator[None]:
    """Let SIGINT and SIGTERM stop the server gracefully."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
