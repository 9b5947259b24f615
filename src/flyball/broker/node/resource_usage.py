"""What the process uses of its machine: memory, files and disk. Knows nothing of what it does with them."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ResourceUsage:
    """What was found when somebody last looked. To tell it costs nothing, and waits for nothing."""

    def __init__(self, data: Path) -> None:
        """`data` is the folder whose disk counts."""
        self._data = data
        self.memory_bytes = 0
        self.open_files = 0
        # None if the disk cannot be asked: the folder may be gone.
        self.disk_free_bytes: int | None = None
        self.read_memory()
        self.read_files_and_disk()

    def read_memory(self) -> None:
        """See how much memory the process has."""
        # It stays what it was where no more files can be opened.
        with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
            self.memory_bytes = int(file.read().split()[1]) * _PAGE_BYTES

    def read_files_and_disk(self) -> None:
        """See how many files are open and how full the disk is. It takes as long as the disk does: use a thread."""
        with contextlib.suppress(OSError):
            # Linux counts them since 6.2; with 10,000 connections listing them takes milliseconds.
            self.open_files = os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
        try:
            self.disk_free_bytes = shutil.disk_usage(self._data).free
        except OSError:
            self.disk_free_bytes = None
