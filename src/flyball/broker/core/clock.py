"""The node's clocks: the time of messages, in microseconds since 1970, UTC, and that of leases."""

from __future__ import annotations

import time

_OF_LEASES = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_us() -> int:
    return time.time_ns() // 1000


def lease_time_s() -> float:
    """Return seconds that go on while the machine is suspended: so does the registry, which counts leases too."""
    return time.clock_gettime(_OF_LEASES)
