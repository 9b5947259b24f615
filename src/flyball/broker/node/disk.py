"""The free space limit on the volume of the data folder, and the reserve for starting on a full volume.

The embedded PostgreSQL has its tables and WAL on it. Publishers are blocked while less than the limit is free;
consumers are not, since acks free space. If another program fills the volume, a ballast file is deleted, so that
PostgreSQL can start, recover and delete.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

log = logging.getLogger(__name__)

MIB = 2**20

# The default limit. After publishers are blocked, the WAL may grow by half of the limit (see `wal_bytes`): 1 GiB,
# beyond which throughput does not improve. The other half is for dead rows that are not vacuumed yet, and for logs.
LIMIT_BYTES = 2048 * MIB

# On a volume below 40 GiB the default limit is this fraction of it, but at least the space that PostgreSQL needs to
# run.
LIMIT_RATIO = 0.05
MIN_LIMIT_BYTES = 64 * MIB

# Publishers are unblocked at this multiple of the limit: hysteresis against flapping.
CLEAR_RATIO = 1.05

# Two segments of WAL: one to write on while another is recovered from.
BALLAST_BYTES = 32 * MIB
BALLAST_NAME = "reserve"

# With less than a WAL segment free, PostgreSQL may stop at any time.
FULL_BYTES = 16 * MIB

MIN_WAL_BYTES = 64 * MIB
MAX_WAL_BYTES = 1024 * MIB

# The volume is checked every second, and near the limit more often, for a fast disk: each message is written to the
# table and to the WAL.
CHECK_S = 1.0
MIN_CHECK_S = 0.05
FILL_BYTES_PER_S = 250e6

RECLAIM_S = 5.0


class DiskReserve:
    """The free space of one volume, as of the last check."""

    def __init__(self, data: Path, limit_bytes: int | None = None) -> None:
        """`limit_bytes` is the minimum free space of the volume of `data`; None for the default for its size."""
        self._data = data
        self._ballast = data / BALLAST_NAME
        self.limit_bytes = _default_limit_bytes(data) if limit_bytes is None else limit_bytes
        # None if it cannot be determined.
        self.free_bytes: int | None = None
        self.is_low = False

    @property
    def wal_bytes(self) -> int:
        """The maximum size of PostgreSQL's WAL for which the limit is sufficient."""
        if not self.limit_bytes:
            return MAX_WAL_BYTES
        return max(MIN_WAL_BYTES, min(MAX_WAL_BYTES, self.limit_bytes // 2))

    async def watch(self, changed: Callable[[bool], None], reclaim: Callable[[], Awaitable[None]]) -> None:
        """Check every second, near the limit more often, and call `changed` when space becomes low or sufficient.

        While it is low, `reclaim` returns the space of removed messages to the volume, which PostgreSQL's autovacuum
        defers until many are removed.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_reclaiming(reclaim))
            await self._keep_looking(changed)

    @property
    def check_interval_s(self) -> float:
        """Time until the next check, which decreases with the space left above the limit."""
        if self.is_low or self.free_bytes is None:
            return CHECK_S
        left_bytes = self.free_bytes - self.limit_bytes
        return min(CHECK_S, max(MIN_CHECK_S, left_bytes / FILL_BYTES_PER_S))

    async def _keep_looking(self, changed: Callable[[bool], None]) -> None:
        while True:
            was_low = self.is_low
            # In a thread: a hanging disk must not block the event loop.
            await asyncio.to_thread(self.check)
            if self.is_low != was_low:
                self._log_change()
                changed(self.is_low)
            await asyncio.sleep(self.check_interval_s)

    async def _keep_reclaiming(self, reclaim: Callable[[], Awaitable[None]]) -> None:
        while True:
            if self.is_low:
                await reclaim()
            await asyncio.sleep(RECLAIM_S)

    def check(self) -> None:
        """Check the volume. If space is low, delete traces, then the ballast; otherwise reserve the ballast."""
        self._look()
        if self._is_below(self.limit_bytes * (CLEAR_RATIO if self.is_low else 1.0)):
            self._drop_files(self.limit_bytes)
            if self._is_below(FULL_BYTES):
                self._release()
        else:
            with contextlib.suppress(OSError):
                self.hold()
        self.is_low = self._is_below(self.limit_bytes * (CLEAR_RATIO if self.is_low else 1.0))

    def make_room(self, problem: str) -> bool:
        """Free space if the volume is full or `problem` reports it; return whether space was freed.

        Traces and old logs are deleted first, then the ballast. Called when PostgreSQL does not start.
        """
        self._look()
        if os.strerror(errno.ENOSPC) not in problem and not self._is_below(FULL_BYTES):
            return False
        if self._drop_files(self.limit_bytes):
            return True
        return self._release()

    def hold(self) -> None:
        """Reserve the ballast, unless it exists or space would become low. Raises OSError."""
        size_bytes = min(BALLAST_BYTES, self.limit_bytes)
        if self._ballast.exists() or not size_bytes:
            return
        self._look()
        if self._is_below(self.limit_bytes * CLEAR_RATIO + size_bytes):
            return
        unfinished = self._ballast.with_suffix(".new")
        try:
            with unfinished.open("wb") as file:
                unfinished.chmod(0o600)
                os.posix_fallocate(file.fileno(), 0, size_bytes)
            unfinished.rename(self._ballast)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    def _look(self) -> None:
        try:
            self.free_bytes = shutil.disk_usage(self._data).free
        except OSError:
            self.free_bytes = None

    def _is_below(self, wanted_bytes: float) -> bool:
        return self.free_bytes is not None and self.free_bytes < wanted_bytes

    def _drop_files(self, wanted_bytes: int) -> bool:
        """Delete old logs and complete traces, oldest first, until enough is free; return whether any was deleted."""
        count = 0
        for path in self._droppable():
            if not self._is_below(wanted_bytes * CLEAR_RATIO):
                break
            with contextlib.suppress(OSError):
                path.unlink()
                count += 1
            self._look()
        if count:
            log.warning("low on disk; deleted traces and old logs files=%d folder=%s", count, self._data)
        return count > 0

    def _droppable(self) -> Iterator[Path]:
        yield from self._data.glob("*.log.1")
        # Names of complete files start with a letter and contain the time.
        traces = [path for path in self._data.glob("traces/*.parquet") if not path.name.startswith(".")]
        yield from sorted(traces, key=lambda path: path.name.split("-")[-2:])

    def _release(self) -> bool:
        if not self._ballast.exists():
            return False
        self._ballast.unlink()
        log.error("disk full; deleted the reserve to let PostgreSQL run folder=%s", self._data)
        self._look()
        return True

    def _log_change(self) -> None:
        if self.is_low:
            log.error(
                "low on disk; publishers blocked until more is free free_bytes=%s limit_bytes=%d folder=%s",
                self.free_bytes,
                self.limit_bytes,
                self._data,
            )
        else:
            log.warning("disk space sufficient again; publishers unblocked free_bytes=%s", self.free_bytes)


def _default_limit_bytes(data: Path) -> int:
    # The folder itself may not exist yet.
    place = next(folder for folder in (data.absolute(), *data.absolute().parents) if folder.exists())
    try:
        total_bytes = shutil.disk_usage(place).total
    except OSError:
        return LIMIT_BYTES
    return min(LIMIT_BYTES, max(MIN_LIMIT_BYTES, int(total_bytes * LIMIT_RATIO)))
