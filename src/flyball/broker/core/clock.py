"""The node's clocks: wall-clock time of messages, in microseconds since 1970, UTC, and the clock of leases."""

from __future__ import annotations

import time

_OF_LEASES = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_us() -> int:
    return time.time_ns() // 1000


def lease_time_s() -> float:
    """Return seconds of a clock that keeps running while the machine is suspended, as the registry's clock does.

    With a clock that stops, a resumed node would still hold a lease that expired during the suspension.
    """
    return time.clock_gettime(_OF_LEASES)
