"""CPU time of the node and of its embedded PostgreSQL, since the last reading."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")

# Position of utime in /proc/PID/stat after the name, which ends with the last parenthesis. Followed by stime, cutime
# and cstime.
_UTIME = 11


class CpuClock:
    """Counts CPU time. Reading costs a few microseconds per process of the server."""

    def __init__(self, data: Path, *, has_server: bool) -> None:
        """`has_server`: the embedded server runs in the folder `data`."""
        self._pid_file = data / "postgresql" / "postmaster.pid" if has_server else None
        self._own_ns = time.process_time_ns()
        self._server = self._read_server()

    def read(self) -> tuple[int, int]:
        """Return the CPU time of this process and of the server's processes since the last call, in nanoseconds."""
        own_ns, server = time.process_time_ns(), self._read_server()
        own, used = own_ns - self._own_ns, 0
        # With another process id it is another server, whose time starts from 0. The time of a process that ends is
        # missing until its parent has reaped it.
        if server is not None and self._server is not None and server[0] == self._server[0]:
            used = max(0, server[1] - self._server[1])
        self._own_ns, self._server = own_ns, server
        return own, used * _TICK_NS

    def _read_server(self) -> tuple[int, int] | None:
        """Return the process id of the server, and the ticks used by it, its children and its former children."""
        if self._pid_file is None:
            return None
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int(self._pid_file.read_text().split("\n", 1)[0])
            ticks = sum(_ticks(pid, 4))
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            for child in children:
                # The child may have ended in the meantime.
                with contextlib.suppress(OSError, ValueError, IndexError):
                    ticks += sum(_ticks(int(child), 2))
            return pid, ticks
        return None


def _ticks(pid: int, count: int) -> list[int]:
    """Return the first `count` of: user and system time of a process, and of its reaped children."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        numbers = file.read().rpartition(")")[2].split()
    return [int(number) for number in numbers[_UTIME : _UTIME + count]]
