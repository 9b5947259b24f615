"""The resources that the process uses: memory, open files and disk."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Resources:
    """The last measurements, for reports that must not wait."""

    def __init__(self, data: Path) -> None:
        """`data` is the folder whose disk is measured."""
        self._data = data
        self.memory_bytes = 0
        self.open_files = 0
        # None if it cannot be determined, for instance because the folder was deleted.
        self.disk_free_bytes: int | None = None
        self.read_memory()
        self.read_files_and_disk()

    def read_memory(self) -> None:
        """Measure the memory of the process."""
        # Keeps the last value if no more files can be opened.
        self.memory_bytes = memory_bytes() or self.memory_bytes

    def read_files_and_disk(self) -> None:
        """Measure open files and free disk space. May block on the disk: call it in a thread."""
        with contextlib.suppress(OSError):
            # st_size is the number of open files since Linux 6.2; listing 10,000 needs milliseconds.
            self.open_files = os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
        try:
            self.disk_free_bytes = shutil.disk_usage(self._data).free
        except OSError:
            self.disk_free_bytes = None


def memory_bytes() -> int | None:
    """Return the resident memory of the process; None if no more files can be opened."""
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
    return None
